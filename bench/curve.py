"""Runs a config and keeps its learning curve.

    python -m bench.curve configs/quickstart.py [--name NAME] [--config.KEY=VALUE ...]

What: runs ``python -m rljax.main`` on the config in a process of its own, to its end, and leaves in ``bench/runs/NAME``
(the name of the config, unless given) what is needed to look at the run and to make it again: ``run.json`` (commit,
command, machine, seconds of the last start and of all steps), the resolved ``config.json``, ``audit.json``, the metrics
worth plotting as ``metrics.csv``, and ``curve.png``. Where this machine keeps its runs is left out. A run that was
interrupted is resumed by the same command.

``--keep`` takes the run as it lies in its run directory, without running anything.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

from bench.paired import commit, processor
from rljax.config.arguments import parse_arguments
from rljax.config.load import load_config
from rljax.config.validate import ConfigError
from rljax.observe.metrics import read_metrics

RUNS = Path("bench/runs")
COLUMNS = (
    "reward/mean",
    "staleness/mean",
    "staleness/max",
    "entropy",
    "loss",
    "grad_norm",
    "critic/loss",
    "critic/explained_variance",
    "policy/approx_kl",
    "response/mean_tokens",
    "time/step",
    "time/train",
    "time/wait",
    "bound/fraction",
    "parity/max_abs_logprob_gap",
    "response/mixed_versions",
)
"""Metrics kept beside the validation scores."""

Row = dict[str, Any]


def keep(source: Path, target: Path, facts: dict[str, Any]) -> None:
    """Copies what is worth keeping of the run in `source`.

    Raises:
        FileNotFoundError: the run left no audit or no metrics: it has not ended.
    """
    rows = read_metrics(source)
    if not rows or not (source / "audit.json").exists():
        raise FileNotFoundError(f"{source}: no finished run here; run it to its end first")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "audit.json", target / "audit.json")
    config = json.loads((source / "config.json").read_text()) | {"run_dir": f"runs/{source.name}"}
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    scores = sorted({name for row in rows for name in row if _is_score(name)})
    write_csv(rows, ["step", "timestamp", *scores, *COLUMNS], target / "metrics.csv")
    summary = {name: [values[0], values[-1], max(values)] for name in scores if (values := _column(rows, name)[1])}
    facts["validation: first, last, best"] = summary
    facts["seconds of the steps"] = round(sum(row.get("time/step") or 0.0 for row in rows))
    facts["audit balanced"] = json.loads((source / "audit.json").read_text())["balanced"]
    (target / "run.json").write_text(json.dumps(facts, indent=1) + "\n")
    draw(rows, scores, f"{target.name} · {facts['commit'][:10]}", target / "curve.png")


def write_csv(rows: list[Row], columns: list[str], path: Path) -> None:
    """Writes the columns that some row has, six digits each."""
    present = [name for name in columns if any(row.get(name) is not None for row in rows)]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(present)
        for row in rows:
            writer.writerow([_short(name, row.get(name)) for name in present])


def draw(rows: list[Row], scores: list[str], title: str, path: Path) -> None:
    """Plots held-out score and training reward over the steps; the time above, since the start of training."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*_column(rows, "reward/mean"), color="0.7", linewidth=1, label="training reward")
    for name in scores:
        axes.plot(
            *_column(rows, name), marker="o", markersize=3, linewidth=1.8, label=f"held out: {name.split('/')[1]}"
        )
    axes.set(xlabel="step", ylabel="score", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _is_score(name: str) -> bool:
    return name.startswith("val/") and name.endswith("/score")


def _column(rows: list[Row], name: str) -> tuple[list[int], list[float]]:
    found = [(row["step"], row[name]) for row in rows if row.get(name) is not None and (row["step"] or _is_score(name))]
    return [step for step, _ in found], [value for _, value in found]


def _short(name: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if name == "timestamp" else f"{value:.6g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="FILE.py or FILE.py:ARG")
    parser.add_argument("--name", help="directory in bench/runs")
    parser.add_argument("--keep", action="store_true", help="run nothing: keep what lies in the run directory")
    parser.add_argument("--quick", action="store_true", help="two steps only, kept in bench/runs/quick")
    options, overrides = parser.parse_known_args()
    if options.quick:
        overrides += ["--config.max_steps=2", "--config.val_batch_size=8", "--config.run_dir=runs/bench-quick"]
    arguments = [f"--config={options.config}", *overrides]
    try:
        run_dir = Path(str(load_config(*parse_arguments(arguments)).run_dir))
    except ConfigError as error:
        print(f"bench.curve: {error}", file=sys.stderr)
        return 2
    name = options.name or ("quick" if options.quick else Path(options.config.partition(":")[0]).stem)
    flags = [a for a in arguments if not a.startswith("--config.run_dir=")]
    facts: dict[str, Any] = {"commit": commit(), "command": "python -m rljax.main " + " ".join(flags)}
    facts["machine"] = f"{processor()}, {os.cpu_count()} cores"
    begin = time.time()
    if not options.keep:
        code = subprocess.run([sys.executable, "-m", "rljax.main", *arguments], check=False).returncode
        if code:
            return code
        facts["seconds"] = round(time.time() - begin, 1)
    keep(run_dir, RUNS / name, facts)
    print(f"kept in {RUNS / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
