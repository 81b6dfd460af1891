"""Logs to Weights & Biases, or with WANDB_MODE=offline to files that `wandb sync` uploads later."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.observe.tracking import BINS, Entry

FOLDER = "wandb"
"""Its folder in the run directory."""


class WeightsAndBiases:
    """Implements `rljax.observe.tracking.Sink` by the library ``wandb``, which reads its own environment variables."""

    def __init__(self, root: Path, project: str, config: Mapping[str, Any]) -> None:
        """Opens a run of ``project``, or goes on in that of the run directory; ``config`` is shown beside it.

        Raises:
            RuntimeError: there is no key; wandb itself would ask for one in the terminal.
        """
        import wandb

        if wandb.setup().settings.mode in (None, "online") and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no API key: run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline")
        self._wandb = wandb
        self._run = wandb.init(
            project=project,
            name=root.resolve().name,
            id=_run_id(root / FOLDER),
            resume="allow",
            dir=str(root),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # An axis of our own: a validation is logged after later steps, and steps are trained again after a crash.
        self._run.define_metric("*", step_metric="step")

    def write(self, entry: Entry) -> None:
        """Logs scalars, histograms and texts."""
        values: dict[str, Any] = {"step": entry.step, **entry.scalars}
        for name, of_step in entry.histograms.items():
            values[name] = self._wandb.Histogram(np_histogram=np.histogram(of_step, BINS))
        for name, text in entry.texts.items():
            rows = [[entry.step, text]]
            values[name] = self._wandb.Table(columns=["step", "text"], data=rows)
        self._run.log(values)

    def purge(self, step: int) -> None:
        """Does nothing: what was logged stays, and the steps that are trained again are drawn over it."""

    def close(self) -> None:
        """Ends the run's process of wandb."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    """Returns the id of a run directory's run, made when it is first asked for."""
    file = folder / "id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text().strip()
