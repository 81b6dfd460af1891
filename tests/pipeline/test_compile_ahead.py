"""The trainer compiles what its steps run before it leases anything, and a compiler that hangs ends the run."""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rljax.command_line
from rljax import interrupts
from rljax.config.load import load_config
from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.learner import programs
from rljax.learner.programs import Compilation, Program
from rljax.ledger import leases
from rljax.pipeline import train
from rljax.pipeline.assemble.learner import StepRunner
from rljax.pipeline.observers import LearnerObservers
from rljax.pipeline.train import Outputs, Trainer
from rljax.run import Run
from sidecar.workers import lifeline
from tests.waiting import HANGS

ROOT = Path(__file__).parents[2]
SMALLEST = ROOT / "tests" / "e2e" / "smallest.py"
ONE = jax.ShapeDtypeStruct((3,), jnp.float32)


@pytest.mark.slow
def test_programs_are_compiled_before_the_first_lease_and_none_in_mid_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen from outside: which programs have been lowered and compiled when the ledger is first asked for a batch. A
    key that is of GPUs alone is named, once.
    """
    compiled, at_lease, said, at_publish = list[str](), list[list[str]](), list[str | None](), list[str | None]()
    compile_one, lease, publish = Compilation._compile, leases.lease, Trainer._publish

    def noted(self: Compilation, program: Program) -> None:
        compile_one(self, program)
        compiled.append(program.name)

    def asked(*arguments: Any) -> Any:
        at_lease.append(list(compiled))
        return lease(*arguments)

    def published(self: Trainer, *given: Any) -> None:
        at_publish.append(said[-1])
        publish(self, *given)

    monkeypatch.setattr(Trainer, "_publish", published)
    monkeypatch.setattr(LearnerObservers, "waiting", lambda self, reason, *_: said.append(reason))
    monkeypatch.setattr(Compilation, "_compile", noted)
    monkeypatch.setattr(leases, "lease", asked)
    # Prompts are shorter than model.max_prompt_tokens: what is likely follows from theirs.
    steps = {"max_steps": 2, "eval_steps": None, "learner.autotune": True}
    config = load_config(str(SMALLEST), {"run_dir": str(tmp_path / "run"), **steps})
    with Run(config) as run:
        rows = list(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert any(name.startswith("update ") for name in at_lease[0])
    assert [row["compile/programs"] for row in rows] == [0, 0]
    assert at_publish == ["version 0 to be published · the learner compiles", None, None], "it says why it is silent"
    assert caplog.messages.count("learner.autotune=True: of no effect, for the learner computes on a CPU") == 1


class Compiling:
    """A trainer that waits for a program which hangs in the compiler; every look takes a second, and
    ``meanwhile(second)`` is what happens in it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Any, names: tuple[str, ...]) -> None:
        self.seconds, self.used, self.held = 0.0, 0.0, {name: threading.Event() for name in names}
        tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))})
        config = Config(wait_timeout=10.0, rollout_batch_size=16, group_size=8, tasks=tasks)
        none: Any = None
        observers: Any = SimpleNamespace(
            waiting=lambda *_: None, message=lambda *_: None, part=lambda _: contextlib.nullcontext()
        )
        learner: Any = SimpleNamespace(architecture=SimpleNamespace(vocab_size=10), steps=0)
        stop: Any = SimpleNamespace(is_set=lambda: False)
        outputs = Outputs(none, none, none, observers)
        self.trainer = Trainer(config, none, StepRunner(learner, None), outputs, dict, stop)
        monkeypatch.setattr(train, "LOOK_FOR_DEAD", 1e9)
        monkeypatch.setattr(train.time, "perf_counter", lambda: self.seconds)
        monkeypatch.setattr(train.os, "times", lambda: (self.used, 0.0, 0.0, 0.0, self.seconds))

        def look(futures: Any, _seconds: float) -> None:
            self.seconds += 1
            meanwhile(self, int(self.seconds))

        monkeypatch.setattr(programs, "wait_for", look)
        self.work = Compilation([Program(name, jax.jit(self._hangs(name)), (ONE,)) for name in names])

    def _hangs(self, name: str) -> Any:
        def hangs(x: jax.Array) -> jax.Array:
            assert self.held[name].wait(HANGS)
            return x

        return hangs

    def release(self, name: str) -> None:
        """Lets a program be compiled, and returns when it is."""
        (future,) = (future for future, program in self.work._begun.items() if program.name == name)
        self.held[name].set()
        future.result(HANGS)

    def until_it_gives_up(self) -> str:
        try:
            with pytest.raises(TimeoutError) as error:
                self.trainer._await_programs(self.work)
        finally:
            self.end()
        return str(error.value)

    def end(self) -> None:
        """Lets all programs be compiled."""
        for held in self.held.values():
            held.set()
        self.work.close()


def test_a_compiler_that_hangs_ends_the_run_and_its_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Compiling(monkeypatch, lambda *_: None, ("update 8×64",))
    assert str(waits.work) == "programs: 0 of 1 compiled", "in no seconds"
    assert "waited 10 s for the compiler, which computes nothing: update 8×64 is not" in waits.until_it_gives_up()
    assert waits.seconds == 10 + 2


def test_a_compiler_that_hangs_in_mid_run_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of that shape asks for its program, which nobody waited for before."""
    waits = Compiling(monkeypatch, lambda *_: None, ("update",))
    waits.trainer._ahead = waits.work
    batch: Any = SimpleNamespace(mask=jnp.zeros((1, 8, 64)), places=jnp.zeros((1, 8, 32)))
    monkeypatch.setattr(train, "shape_of", lambda _: "")  # of the one program that there is
    with pytest.raises(TimeoutError, match="computes nothing: update is not compiled"):
        waits.trainer._await_shapes([batch])
    waits.end()


def test_a_slow_program_is_waited_for_as_long_as_something_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a core for 100 seconds is a slow compilation on a busy machine; a twentieth is not one."""

    def meanwhile(waits: Compiling, second: int) -> None:
        waits.used += 0.2 if second <= 100 else 0.05

    waits = Compiling(monkeypatch, meanwhile, ("update 8×64",))
    waits.until_it_gives_up()
    assert 100 + 10 < waits.seconds <= 100 + 25


def test_a_program_that_is_compiled_starts_the_wait_for_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(waits: Compiling, second: int) -> None:
        if second == 8:
            waits.release("reference")

    waits = Compiling(monkeypatch, meanwhile, ("reference", "update 8×64"))
    assert "update 8×64 is not compiled" in waits.until_it_gives_up()
    assert waits.seconds == 8 + 10 + 1


ENDS = """
import sys, threading
import jax, jax.numpy as jnp
from rljax.interrupts import end_process
from rljax.learner.programs import Compilation, Program
begun = threading.Event()
def endless(x):
    begun.set()
    threading.Event().wait()
if sys.argv[1] == "compiling":
    work = Compilation([Program("endless", jax.jit(endless), (jax.ShapeDtypeStruct((3,), jnp.float32),))])
    begun.wait()
    work.close()
print("the last line", end="")
end_process(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["compiling", "idle"])
def test_a_process_ends_though_the_compiler_does_not(what: str) -> None:
    """Its exit code and what it has printed into a pipe arrive."""
    end = subprocess.run(
        [sys.executable, "-c", ENDS, what], cwd=ROOT, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert (end.returncode, end.stdout) == (7, "the last line"), end.stderr


@pytest.mark.parametrize(("program", "argument", "code"), [("main.py", "--help", 0), ("child_main.py", "1", 5)])
def test_both_programs_end_that_way(program: str, argument: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m rljax.main`, and the program of child processes."""
    codes: list[int] = []
    monkeypatch.setattr(interrupts, "end_process", codes.append)
    for name in ("end_on_interrupt", "end_on_second_interrupt"):
        monkeypatch.setattr(interrupts, name, lambda: None)
    for name in ("path", "unraisablehook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(lifeline, "hold", lambda parent: None)
    monkeypatch.setattr(lifeline, "search_path", lambda: sys.path)
    monkeypatch.setattr(rljax.command_line, "run", lambda *_: 5)
    monkeypatch.setattr(sys, "argv", [program, argument])
    runpy.run_path(str(ROOT / "rljax" / program), run_name="__main__")
    assert codes == [code]
