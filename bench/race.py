"""rljax against TRL's GRPOTrainer, end to end: SmolLM2 learns two-digit sums on two cores.

    python -m bench.race [--steps 20] [--seeds 0 1 2] [--sides SIDE ...] [--trl-batches 8 16 32 64]
                         [--config.KEY=VALUE ...]

What: `configs/smollm2_arithmetic.py` with the given keys, and TRL with the same model, prompts in the same order,
rewards, batch of 64 in groups of 8, length of replies, optimizer and float32; both validate the same 128 held-out tasks
at the same steps and save at the same. rljax races at the config's α, which is 0, and at α = 1. Each side is a command
in processes of its own; they take turns, and who begins changes with the seed. TRL has a virtual environment of its
own, which this command makes (``--venv``), and is asked with each of ``--trl-batches`` rows at a time first, for
`TRIAL_STEPS` steps: the fastest races, without gradient checkpointing. ``--keep DIR`` keeps what the runs leave.

Every run that has ended is a line of ``--rows``. One of the same machine, side, seed and keys (rljax: and commit) is
not made again, unless changes are uncommitted: the command may be stopped and given again. Where TRL is told other
things, delete its lines.

Figures of a run:

- seconds a step: median of the times from the end of a step to that of the next, without those of the first two, which
  compile and fill, and those after a validation;
- start: from the command to the first token that it asks for; the first step's end is given beside it;
- seconds to 0.35: from the command to the end of the first validation that is at least as good;
- memory: the largest sum, over all processes of the command, of what they hold, each shared page counted once (PSS);
- written: bytes that the kernel was given to store, of all of its processes; left: of the files that lie there then.

rljax's compile cache is what the user of the machine has (``--cold``: an empty one).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.machine import CHANGED
from bench.paired import CORES, commit, print_machine, print_table, processor
from rljax.config.load import load_config
from rljax.config.schema import Config
from rljax.models.resolve import resolve_model
from rljax.models.smollm2 import cache_directory
from rljax.observe.metrics import read_json_lines, read_metrics
from rljax.observe.trace_read import read_spans
from rljax.tasks.tasksets import load_tasksets

CONFIG = "configs/smollm2_arithmetic.py"
TRL, TORCH = "trl==1.16.0", "torch==2.13.0"
GOOD = 0.35
TRIAL_STEPS, SETTLING = 3, 2
SIDES: Mapping[str, Sequence[str]] = {
    "rljax": ("async_generation_ratio=0",),
    "rljax_alpha1": ("async_generation_ratio=1",),
    "trl": (),
}
"""Keys of the config besides those that all sides have."""
SHARED = {"OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""What all sides find in their environment. Python compiles what it imports once, as on a user's machine."""
MIB = 2**20


@dataclass(frozen=True)
class Run:
    """A finished run: Unix seconds of what happened, and what it took.

    Attributes:
        launched, began, ended: when it was started, asked for its first token, and was over.
        steps: end of each step.
        held_out: end of each validation, with its step and its score.
        peak_mib, written_mib, left_mib, cpu_seconds: of all processes together.
    """

    launched: float
    began: float
    ended: float
    steps: tuple[float, ...]
    held_out: tuple[tuple[float, int, float], ...]
    peak_mib: float
    written_mib: float
    left_mib: float
    cpu_seconds: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Run:
        """Returns a run of what JSON makes of it."""
        lists = {"steps": tuple(row["steps"]), "held_out": tuple(map(tuple, row["held_out"]))}
        return cls(**{**row, **lists})

    @property
    def to_good(self) -> float | None:
        """Seconds to the first validation of `GOOD`; None: there was none."""
        return next((end - self.launched for end, _, score in self.held_out if score >= GOOD), None)

    def step_seconds(self, disturbed: int) -> float | None:
        """Returns the median seconds of a step; neither the first nor those after a multiple of ``disturbed`` count."""
        taken = [
            later - earlier
            for step, (earlier, later) in enumerate(pairwise(self.steps), start=2)
            if step > SETTLING and (step - 1) % disturbed
        ]
        return statistics.median(taken) if taken else None


class PeakMemory:
    """Watches what a process and all below it hold, twice a second, in a thread of its own."""

    def __init__(self, pid: int) -> None:
        self._root, self.peak_mib = psutil.Process(pid), 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watching."""
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(0.5):
            with contextlib.suppress(psutil.Error):
                everyone = [self._root, *self._root.children(recursive=True)]
                self.peak_mib = max(self.peak_mib, sum(map(_held, everyone)) / MIB)


def _held(process: psutil.Process) -> float:
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0.0
    return float(getattr(found, "pss", found.rss))


@dataclass(frozen=True)
class Taken:
    """What a command took; see `Run`."""

    launched: float
    ended: float
    peak_mib: float
    written_mib: float
    cpu_seconds: float


def take(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Taken:
    """Runs a command on `CORES` cores and measures all of its processes, which it waits for.

    Raises:
        RuntimeError: it failed.
    """
    mine = os.sched_getaffinity(0)
    before, cpu, launched = _written(), _children_seconds(), time.time()
    with log.open("w") as out:
        os.sched_setaffinity(0, sorted(mine)[:CORES])  # which what is started inherits
        try:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **SHARED, **environment},
            )
        finally:
            os.sched_setaffinity(0, mine)
        memory = PeakMemory(process.pid)
        try:
            process.wait()
        finally:
            memory.close()
            process.kill()
            process.wait()
    ended = time.time()
    if process.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"{' '.join(command[:4])}: exit code {process.returncode}: {last}; see {log}")
    written = (_written() - before) / MIB
    return Taken(launched, ended, memory.peak_mib, written, _children_seconds() - cpu)


def _written() -> int:
    """Returns the bytes that this process and those that it has waited for gave the kernel to store."""
    # Linux adds a child's to its parent's as that waits for it.
    return int(psutil.Process().io_counters().write_bytes)


def _children_seconds() -> float:
    return sum(os.times()[2:4])


def _size_mib(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / MIB


def run_rljax(directory: Path, overrides: Sequence[str], cold: bool) -> Run:
    """Runs rljax's side once."""
    keys = [*overrides, f"run_dir={directory}", *([f"compile_cache={directory}-compiled"] if cold else [])]
    arguments = [f"--config.{each}" for each in keys]
    command = [sys.executable, "-m", "rljax.main", f"--config={CONFIG}", *arguments]
    taken = take(command, directory.with_suffix(".log"), {"JAX_PLATFORMS": "cpu"})
    rows = {row["step"]: row for row in read_metrics(directory)}
    spans = list(read_spans(directory))
    validated = {
        int(span.name.rpartition(" ")[2]): span.end for span in spans if span.name.startswith("validate version ")
    }
    scores = {step: row["val/sums/score"] for step, row in rows.items() if "val/sums/score" in row}
    return Run(
        taken.launched,
        min(span.start for span in spans if span.track.endswith("· requests")),
        taken.ended,
        tuple(rows[step]["timestamp"] for step in sorted(rows) if step),
        tuple((validated[step], step, scores[step]) for step in sorted(scores)),
        taken.peak_mib,
        taken.written_mib,
        _size_mib(directory),
        taken.cpu_seconds,
    )


def run_trl(python: Path, directory: Path, job: Mapping[str, Any]) -> Run:
    """Runs TRL's side once."""
    directory.mkdir()
    events, spec = directory.with_suffix(".events"), directory.with_suffix(".json")
    spec.write_text(json.dumps({**job, "output": str(directory), "events": str(events)}))
    script = Path(__file__).with_name("race_trl.py")
    taken = take([str(python), str(script), str(spec)], directory.with_suffix(".log"), {"PYTHONPATH": ""})
    found = list(read_json_lines(events))
    return Run(
        taken.launched,
        next(event["time"] for event in found if event["event"] == "begin"),
        taken.ended,
        tuple(event["time"] for event in found if event["event"] == "step"),
        tuple((event["time"], event["step"], event["score"]) for event in found if event["event"] == "held_out"),
        taken.peak_mib,
        taken.written_mib,
        _size_mib(directory),
        taken.cpu_seconds,
    )


def job_of(config: Config, directory: Path) -> dict[str, Any]:
    """Returns what TRL is told of a config: the same tasks in the same order, the same batch and optimizer. A model
    that has to be made lies in ``directory`` then.
    """
    batches = config.max_steps * config.groups_per_batch
    (train,) = load_tasksets(config.tasks.train, config.seed, "fail", role="train").values()
    (held_out,) = load_tasksets(config.tasks.validation, config.seed, "fail", role="validation").values()

    def rows(tasks: Iterator[Any]) -> list[dict[str, Any]]:
        return [{"prompt": [dict(message) for message in task.messages], "answer": task.answer} for task in tasks]

    return {
        "model": str(resolve_model(config.model, config.seed, directory)),
        "cores": CORES,
        "seed": config.seed,
        "train": rows(train.task(*divmod(index, len(train))) for index in range(batches)),
        "held_out": rows(held_out.task(0, index) for index in range(len(held_out))),
        "batch": config.rollout_batch_size,
        "group_size": config.group_size,
        "response": config.model.max_response_tokens,
        "steps": config.max_steps,
        "save_steps": config.save_steps,
        "eval_steps": config.eval_steps,
        "optimizer": asdict(config.learner.optimizer),
        "gradient_checkpointing": False,
    }


def make_venv(directory: Path) -> Path:
    """Returns the Python of TRL's virtual environment, which is made where there is none.

    Raises:
        RuntimeError: pip failed.
    """
    python, whole = directory / "bin" / "python", directory / "complete"
    if whole.exists():
        return python
    print(f"making {directory} with {TRL}", flush=True)
    install = [str(python), "-m", "pip", "install", "-q", TRL, f"{TORCH}+cpu"]
    wheels = "https://download.pytorch.org/whl/cpu"
    for command in ([sys.executable, "-m", "venv", str(directory)], [*install, "--extra-index-url", wheels]):
        if subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"{' '.join(command)}: failed")
    whole.touch()
    return python


def fastest(python: Path, scratch: Path, job: Mapping[str, Any], batches: Sequence[int]) -> int:
    """Returns the rows at a time with which TRL takes the least for a step."""
    if len(batches) == 1:
        return batches[0]
    found = {}
    trial = {**job, "steps": TRIAL_STEPS, "held_out": [], "save_steps": 10**6}
    for batch in batches:
        run = run_trl(python, scratch / f"trial-{batch}", {**trial, "trl_batch": batch})
        found[batch] = run.steps[-1] - run.steps[-2]
        print(f"TRL with {batch} rows at a time: {found[batch]:.1f} s a step, {run.peak_mib:.0f} MiB", flush=True)
    return min(found, key=found.__getitem__)


def show(found: Mapping[str, Sequence[Run]], disturbed: int) -> None:
    """Prints the medians over the seeds."""
    columns = {
        "s a step": lambda run: run.step_seconds(disturbed),
        "start, s": lambda run: run.began - run.launched,
        "first step, s": lambda run: run.steps[0] - run.launched,
        f"to {GOOD}, s": lambda run: run.to_good,
        "end, s": lambda run: run.ended - run.launched,
        "CPU, s": lambda run: run.cpu_seconds,
        "peak MiB": lambda run: run.peak_mib,
        "written MiB": lambda run: run.written_mib,
        "left MiB": lambda run: run.left_mib,
        "held out": lambda run: run.held_out[-1][2] if run.held_out else None,
    }
    rows: list[list[object]] = []
    for name, runs in found.items():
        cells: list[object] = []
        for figure in columns.values():
            values = [figure(run) for run in runs]
            known = [value for value in values if value is not None]
            missing = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
            cells.append(f"{statistics.median(known):.4g}{missing}" if known else "none")
        rows.append([name, *cells])
    print_table(f"medians of {len(next(iter(found.values())))} runs", ("side", *columns), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eval-steps", type=int, default=5)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--trl-batches", nargs="+", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--venv", type=Path, default=cache_directory() / "trl-1.16.0")
    parser.add_argument("--cold", action="store_true", help="rljax compiles all anew")
    parser.add_argument("--rows", type=Path, default=Path("bench/runs/race.jsonl"), help="of the runs that have ended")
    parser.add_argument("--keep", type=Path, help="directory for what the runs leave; else it is deleted")
    options, given = parser.parse_known_args()
    print_machine()
    shared = [f"max_steps={options.steps}", f"eval_steps={options.eval_steps}"]
    overrides = [*shared, *(each.removeprefix("--config.") for each in given)]
    with contextlib.ExitStack() as stack:
        root = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-race-")))
        root.mkdir(parents=True, exist_ok=True)
        race(options, overrides, root)


def race(options: argparse.Namespace, overrides: Sequence[str], root: Path) -> None:
    """Runs all sides by turns and prints what they took."""
    found: dict[str, list[Run]] = {side: [] for side in options.sides}
    for number, seed in enumerate(options.seeds):
        for side in options.sides if number % 2 == 0 else options.sides[::-1]:
            case = {"side": side, "keys": [*overrides, *SIDES[side]], "cold": options.cold, "seed": seed}
            case |= {"machine": processor()} | ({} if side == "trl" else {"commit": commit()})
            known = () if CHANGED in case.get("commit", "") else _rows(options.rows, case)
            if (row := next(iter(known), None)) is None:
                row = made(options, case, root) | case
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            found[side].append(run := Run.of(row["run"]))
            print(f"seed {seed}, {side}: {run}", flush=True)
    show(found, options.eval_steps)


def made(options: argparse.Namespace, case: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Makes a run; returns it, its commit, and TRL's rows at a time: those of its other seeds, or the fastest."""
    keys, place = [*case["keys"], f"seed={case['seed']}"], root / f"{case['side']}-{case['seed']}"
    if place.exists():  # rljax would go on with it
        raise SystemExit(f"{place}: a run that is no line of --rows left this; delete it, or give another --keep")
    batch: int | None = None
    if case["side"] == "trl":
        python = make_venv(options.venv.absolute())
        job = job_of(load_config(CONFIG, dict(key.split("=", 1) for key in keys)), root)
        of_others = {name: value for name, value in case.items() if name != "seed"}
        known = [row["trl_batch"] for row in _rows(options.rows, of_others)]
        batch = known[0] if known else fastest(python, root, job, options.trl_batches)
        run = run_trl(python, place, {**job, "trl_batch": batch})
    else:
        run = run_rljax(place, keys, options.cold)
    return {"run": asdict(run), "trl_batch": batch, "commit": commit()}


def _rows(file: Path, case: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the rows of the runs that have ended that are of this case."""
    for row in read_json_lines(file) if file.exists() else ():
        if case.items() <= row.items():
            yield row


if __name__ == "__main__":
    main()
