"""Cost of a reference policy, or of a recomputed proximal policy, in a step of the learner.

    python -m bench.scored [--quick]

What: learners of SmolLM2-135M in float32 train the same 16 made-up trajectories (about 104 tokens each, packed) by
turns: with ppo, with a divergence from the reference in the loss, with decoupled_ppo, and with both. Each is one
forward pass over the trained batch more; ``forward`` is such a pass by itself, as a share of the step with ppo alone.

Target: each costs no more than one forward pass (within the noise of the machine).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from bench.paired import print_machine, print_table
from bench.workload import CASES, LEARNING_RATE, LONGEST, make_groups, with_behaviour
from rljax.config.algorithm import KlConfig
from rljax.config.schema import AlgorithmConfig, Config, LearnerConfig, ModelConfig, OptimizerConfig
from rljax.learner.learner import Learner
from rljax.models.files import load_directory
from rljax.models.smollm2 import smollm2_directory

CASE = replace(CASES["lognormal"], trajectories=16)
REFERENCE: dict[str, Any] = {"kl": KlConfig(where="loss")}
PROXIMAL: dict[str, Any] = {"pg_variant": "decoupled_ppo"}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "with a reference": REFERENCE,
    "decoupled_ppo": PROXIMAL,
    "decoupled_ppo with a reference": REFERENCE | PROXIMAL,
}


def make_learner(keys: dict[str, Any]) -> Learner:
    """Makes a learner of SmolLM2 with these keys of the algorithm."""
    config = Config(
        mode="evaluate",
        rollout_batch_size=CASE.trajectories,
        group_size=CASE.group_size,
        algorithm=AlgorithmConfig(**keys),
        model=ModelConfig(
            path="smollm2-135m", max_prompt_tokens=CASE.prompt, max_response_tokens=LONGEST - CASE.prompt
        ),
        learner=LearnerConfig(
            devices="cpu", optimizer=OptimizerConfig(learning_rate=LEARNING_RATE), rows_per_microbatch=CASE.rows
        ),
    )
    return Learner(config, *load_directory(smollm2_directory()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two turns")
    turns = 2 if parser.parse_args().quick else 5
    print_machine()
    learners = {name: make_learner(keys) for name, keys in LEARNERS.items()}
    plain = learners["ppo"]
    groups = make_groups(CASE, plain.architecture.vocab_size)
    groups = with_behaviour(groups, [plain.score(t.token_ids) for g in groups for t in g.trajectories])
    packed = plain.pack(groups)[0]
    batch, filled = plain.place(packed.batch), np.int32(packed.microbatches)
    seconds: dict[str, list[float]] = {name: [] for name in (*learners, "forward")}
    for turn in range(turns + 1):
        for name, learner in learners.items():
            begin = time.perf_counter()
            learner.train(groups)
            seconds[name].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        jax.block_until_ready(plain.logprobs(batch, filled))
        seconds["forward"].append(time.perf_counter() - begin)
        print(f"turn {turn} of {turns}:", {name: round(taken[-1], 1) for name, taken in seconds.items()}, flush=True)
        if not turn:  # compiles
            seconds = {name: [] for name in seconds}
    rows: list[list[object]] = []
    for name, taken in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(taken, seconds["ppo"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        rows.append([name, statistics.median(taken), spread])
    print_table(f"a step over {packed.trained_tokens} trained tokens", ("what", "seconds", "of a step with ppo"), rows)


if __name__ == "__main__":
    main()
