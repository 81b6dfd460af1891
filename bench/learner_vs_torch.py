"""The learner's step against a PyTorch and transformers GRPO step as TRL makes it: SmolLM2-135M, float32, two cores.

    python -m bench.learner_vs_torch [--quick] [--pairs N] [--no-entropy]

What: one whole optimizer update (packing or padding on the host, forward, PPO loss, backward, clipping, AdamW) on the
two batches of `bench.workload`: the dense one, where both compute the same tokens, and the lognormal one, which torch
pads to its longest trajectory and rljax packs. Each side runs in its own process, by turns. Before that, loss and
gradient of both are compared on both batches: they must be the same function.

Targets: 1.0 times torch's steps per second on the dense batch (an untuned JAX step: 0.77), 2.0 times its trajectories
per second on the lognormal one; largest gradient error over largest magnitude of a tensor below 1e-3 on float32.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from bench.paired import CORES, PAIR_COLUMNS, Answer, Side, alternate, pair_row, print_machine, print_table
from bench.workload import CASES, LEARNING_RATE, LONGEST, Case, make_groups, with_behaviour
from rljax.algorithms.credit_assignment import batch_advantages
from rljax.config.schema import AlgorithmConfig, Config, LearnerConfig, ModelConfig, OptimizerConfig
from rljax.models.smollm2 import smollm2_directory
from rljax.trajectory import Group, decode, encode

ALGORITHM = AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo", aggregation="token-mean")
AGREEMENT = 1e-3


def learner_config(case: Case) -> Config:
    """Returns the config that trains this batch in one update."""
    return Config(
        mode="evaluate",
        rollout_batch_size=case.trajectories,
        group_size=case.group_size,
        algorithm=ALGORITHM,
        model=ModelConfig(
            path="smollm2-135m", max_prompt_tokens=case.prompt, max_response_tokens=LONGEST - case.prompt
        ),
        learner=LearnerConfig(
            devices="cpu", optimizer=OptimizerConfig(learning_rate=LEARNING_RATE), rows_per_microbatch=case.rows
        ),
    )


def start_rljax() -> Answer:
    """Starts rljax's side in its process."""
    import jax

    from rljax.learner.learner import Learner
    from rljax.learner.train_step import loss_and_gradient
    from rljax.models.files import load_directory
    from rljax.models.hf_names import to_hf

    architecture, params = load_directory(smollm2_directory())
    opened: dict[str, Any] = {}

    def prepare(case: Case, path: Path) -> int:
        opened.clear()  # two learners would not have to fit
        learner = Learner(learner_config(case), architecture, params)
        groups = make_groups(case, architecture.vocab_size)
        scores = [learner.score(t.token_ids) for group in groups for t in group.trajectories]
        groups = with_behaviour(groups, scores)
        _write(path, groups)
        opened.update(learner=learner, groups=groups)
        return learner.pack(groups)[0].microbatches

    def gradient(path: Path) -> float:
        learner = opened["learner"]
        packed = learner.pack(opened["groups"])[0]
        differentiate = jax.jit(lambda p, batch, n: loss_and_gradient(learner.objective, p, batch, n)[:2])
        loss, found = differentiate(learner.state.params, learner.place(packed.batch), np.int32(packed.microbatches))
        save_file({name: np.array(tensor) for name, tensor in to_hf(found, architecture).items()}, path)
        return float(loss)

    def step() -> float:
        begin = time.perf_counter()
        opened["learner"].train(opened["groups"])
        jax.block_until_ready(opened["learner"].state.params)
        return time.perf_counter() - begin

    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "prepare":
            return prepare(CASES[request["case"]], request["path"])
        return gradient(request["path"]) if request["do"] == "gradient" else step()

    return answer


def start_torch() -> Answer:
    """Starts torch's side in its process."""
    from bench.torch_grpo import TorchLearner

    learner: TorchLearner | None = None
    groups: list[Group] = []
    rows = 1

    def answer(request: dict[str, Any]) -> Any:
        nonlocal learner, groups, rows
        if request["do"] == "prepare":
            learner = TorchLearner(smollm2_directory(), LEARNING_RATE, request["entropy"], CORES)
            groups, rows = _read(request["path"]), CASES[request["case"]].padded_rows
            return -(-CASES[request["case"]].trajectories // rows)
        assert learner is not None
        begin = time.perf_counter()
        # Advantages and padding are the step's own work, as packing is ours.
        trajectories = [t for group in groups for t in group.trajectories]
        advantages = np.array([values[-1] for values in batch_advantages(groups, ALGORITHM)])
        if request["do"] == "gradient":
            loss = learner.accumulate(trajectories, advantages, rows)
            save_file(learner.gradient(), request["path"])
            return loss
        learner.step(trajectories, advantages, rows)
        return time.perf_counter() - begin

    return answer


def compare_gradients(ours: Path, theirs: Path) -> tuple[float, str]:
    """Returns, over all tensors, the largest error over the tensor's largest magnitude, and the tensor's name."""
    a, b = load_file(ours), load_file(theirs)
    if set(a) != set(b):
        raise RuntimeError(f"the two models differ in their tensors: {sorted(set(a) ^ set(b))[:4]}")
    return max((float(np.abs(a[name] - b[name]).max() / np.abs(b[name]).max()), name) for name in b)


def _write(path: Path, groups: list[Group]) -> None:
    path.mkdir()
    for index, group in enumerate(groups):
        (path / f"{index:03}").write_bytes(encode(group))


def _read(path: Path) -> list[Group]:
    return [decode(file.read_bytes()) for file in sorted(path.iterdir())]


def run_case(case: Case, ours: Side, theirs: Side, pairs: int, entropy: bool, scratch: Path) -> tuple[Any, Any]:
    """Compares and times one batch; returns a row of each table."""
    batch = scratch / case.name
    microbatches = ours.ask(do="prepare", case=case.name, path=batch)
    padded = theirs.ask(do="prepare", case=case.name, path=batch, entropy=entropy)
    files = [scratch / f"{case.name}-{side.name}.safetensors" for side in (ours, theirs)]
    losses = [side.ask(do="gradient", path=file) for side, file in zip((ours, theirs), files, strict=True)]
    error, where = compare_gradients(*files)
    for file in files:
        file.unlink()
    unit, amount = ("steps/s", 1) if case.name == "dense" else ("trajectories/s", case.trajectories)
    timed = alternate(ours, theirs, pairs, case.uncounted, do="step")
    label = f"{case.name}, {case.rows} rows x {microbatches} packed, {case.padded_rows} x {padded} padded"
    verdict = "agree" if error < AGREEMENT else "DIFFER"
    agreement = [case.name, *(f"{loss:.7f}" for loss in losses), f"{error:.2e} ({where})", verdict]
    return pair_row(label, unit, amount, timed, f"{case.target:.1f}"), agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pairs only")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--no-entropy", action="store_true", help="torch leaves out the entropy that TRL logs")
    options = parser.parse_args()
    print_machine()
    smollm2_directory(lambda text, fraction: print(f"{text}: {fraction:.0%}", flush=True))
    pairs = 2 if options.quick else options.pairs
    ours, theirs = Side("rljax", start_rljax), Side("torch", start_torch)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-learner-") as name:
            cases = [CASES[c] for c in options.cases]
            rows = [run_case(c, ours, theirs, pairs, not options.no_entropy, Path(name)) for c in cases]
    finally:
        ours.close()
        theirs.close()
    print_table("learner step, SmolLM2-135M, float32", PAIR_COLUMNS, [row for row, _ in rows])
    columns = ("batch", "loss rljax", "loss torch", "largest gradient error over largest magnitude", "")
    print_table("the same function", columns, [agreement for _, agreement in rows])


if __name__ == "__main__":
    main()
