"""What is kept of a run."""

from __future__ import annotations

from pathlib import Path

from bench.curve import COLUMNS, write_csv


def test_parity_and_mixed_versions_are_kept_where_a_run_has_them(tmp_path: Path) -> None:
    """A gap is measured on publishing steps only."""
    rows = [
        {"step": 1, "reward/mean": 0.5, "response/mixed_versions": 0.25},
        {"step": 2, "reward/mean": 0.5, "response/mixed_versions": 0.0, "parity/max_abs_logprob_gap": 1.5e-5},
    ]
    write_csv(rows, ["step", *COLUMNS], tmp_path / "metrics.csv")
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "step,reward/mean,parity/max_abs_logprob_gap,response/mixed_versions",
        "1,0.5,,0.25",
        "2,0.5,1.5e-05,0",
    ]
