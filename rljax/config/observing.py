"""Keys of what a run leaves behind for people, and of ``mode=report``."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """Metrics, traces and reports."""

    progress: str = key(
        "auto", "live view; auto: when there is a terminal, else lines", choices=("auto", "live", "lines", "off")
    )
    tensorboard: bool = key(True, "write TensorBoard events")
    wandb: str | None = key(None, "project of Weights & Biases to log to, by the extra wandb; None: not")
    report: bool = key(True, "write report.html, anew after each validation and at the end")
    trace: bool = key(True, "write trace.json (Perfetto)")
    trace_events: int = key(200_000, "events kept in trace.json", low=1)
    samples_per_step: int = key(2, "trajectories kept as text for each step", low=0)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Keys of ``mode=report``."""

    runs: tuple[str, ...] = key(
        (),
        "run directories, or directories of runs, as they are or as NAME=DIRECTORY; several: one page; (): run_dir",
    )
    path: str | None = key(
        None, "file to write; None: report.html in the run directory, of several comparison.html in the folder of all"
    )
