"""Learner and embedded engine share one device; versions never leave it, and no engine makes a copy of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.config.load import load_config
from rljax.pipeline.assemble.devices import engine_devices
from rljax.run import Run
from rljax.sampler import programs
from rljax.weights import memory
from sidecar.channels import memory as received
from sidecar.channels.chains import Source
from sidecar.channels.versions import PublishedVersion

pytestmark = pytest.mark.slow

SMALLEST = Path(__file__).parents[1] / "e2e" / "smallest.py"


@pytest.mark.parametrize(
    ("alpha", "staleness", "sync_method"), [(0.0, 0, "memory"), (2.5, 3, "memory"), (2.5, 3, "checkpoint")]
)
def test_a_run_on_one_device_needs_no_other(
    alpha: float, staleness: int, sync_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only,) = jax.devices()
    of_files: list[str] = []
    read_following = received.read_following

    def read(source: Source, path: str) -> PublishedVersion:
        of_files.append(Path(path).name)
        return read_following(source, path)

    monkeypatch.setattr(received, "read_following", read)
    if sync_method == "memory":
        monkeypatch.setattr(programs, "place", lambda *_, **__: pytest.fail("an engine made a copy of a version"))
    monkeypatch.setattr(memory, "describe", lambda *_, **__: pytest.fail("a version went by way of the host"))
    keys: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "max_steps": 4, "sync_method": sync_method}
    config = load_config(str(SMALLEST), {"async_generation_ratio": alpha, **keys})
    assert engine_devices(config) == [only]
    with Run(config) as run:
        rows = list(run)
        assert run.audit()["balanced"]
    # The device has one version beside the engine's: where the next is taken before an engine came to it, its files are
    # there. Step 1 waits for version 0.
    assert not of_files or (sync_method == "checkpoint" and "v0-1" not in of_files)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert max(row["staleness/max"] for row in rows) <= staleness
    gaps = [row["parity/max_abs_logprob_gap"] for row in rows if "parity/max_abs_logprob_gap" in row]
    assert gaps
    assert max(gaps) < 1e-3
    said = (tmp_path / "run" / "logs" / "learner.log").read_text()
    assert "1 × embedded on cpu:0, shared with the learner" in said
    assert bool(list((tmp_path / "run" / "weights").iterdir())) == (sync_method == "checkpoint"), "for other explorers"
    assert ("weights by memory, and as files for other explorers" in said) == (sync_method == "checkpoint")
