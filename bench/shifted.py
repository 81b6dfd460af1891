"""Effect of behaviour log-probabilities shifted by one token, and its detection by the diagnostics.

    python -m bench.shifted [--control] [--config.KEY=VALUE ...]

What: ``configs/quickstart.py`` with ppo, where every response's recorded log-probabilities are those of the next token
(of the first, for the last one): the mistake that is easiest to make and hardest to see, since the reward rises all the
same. Prints the held-out scores, the training reward and the first step that ``policy/ratio_drift`` flags. With
``--control`` nothing is shifted.

Held-out answers are sampled as in training. Greedy ones hide the mistake: of a policy that is right three times in ten
the likeliest answer may always be right (``--config.sidecar.val_generating_args.temperature=0`` shows that).

Targets: the held-out score stays below 0.9, and gets there without the shift; flagged within ten steps.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.paired import print_machine
from rljax.command_line import main as rljax_main
from rljax.observe.metrics import read_metrics
from rljax.rollout.workflows import single_turn
from rljax.trajectory import Trajectory
from sidecar.protocol import Completion

CONFIG = "configs/quickstart.py"
SAMPLED = "sidecar.val_generating_args.temperature=1.0"
QUIET = ("observe.report=false", "observe.trace=false", "observe.tensorboard=false", "observe.progress=off")


def run(run_dir: Path, shift: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Runs the quickstart with log-probabilities shifted by so many tokens in this process; returns its metrics' rows.

    Raises:
        RuntimeError: the run did not end well.
    """
    assemble = single_turn.assemble

    def shifted(prompt: np.ndarray, completion: Completion, *rest: Any) -> Trajectory:
        return assemble(prompt, replace(completion, logprobs=np.roll(completion.logprobs, -shift)), *rest)

    flags = [f"--config.{key}" for key in (f"run_dir={run_dir}", SAMPLED, *QUIET, *overrides)]
    with mock.patch.object(single_turn, "assemble", shifted):
        code = rljax_main([f"--config={CONFIG}", *flags])
    if code:
        raise RuntimeError(f"the run ended with {code}")
    return read_metrics(run_dir)


def main() -> None:
    print_machine()
    overrides = [argument.removeprefix("--config.") for argument in sys.argv[1:] if argument != "--control"]
    with tempfile.TemporaryDirectory(prefix="bench-shifted-") as directory:
        rows = run(Path(directory) / "run", int("--control" not in sys.argv), overrides)
    scores = [(row["step"], round(row[name], 3)) for row in rows for name in row if name.endswith("/score")]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    flagged = [row["step"] for row in rows if row.get("policy/ratio_drift")]
    print(f"held-out score by step: {scores}")
    print(f"training reward: {rewards[0]:.3f} to {max(rewards):.3f}")
    print(f"flagged: {len(flagged)} of {len(rewards)} steps, the first after step {flagged[0] if flagged else None}")


if __name__ == "__main__":
    main()
