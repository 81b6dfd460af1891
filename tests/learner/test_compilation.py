"""Programs compiled in the background: their order, what is waited for, and what is said of those that fail."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rljax.learner import programs as module
from rljax.learner.programs import Compilation, Program, ProgramError, told_of_memory
from tests.waiting import HANGS


def compiled(programs: list[Program]) -> str:
    work = Compilation(programs)
    assert work.wait(120)
    work.close()
    return str(work)


def test_what_each_compilation_leaves_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of one which fails."""
    one, given_back = jax.ShapeDtypeStruct((3,), jnp.float32), []
    monkeypatch.setattr(module, "return_freed", lambda: given_back.append(threading.current_thread()))

    def fails(x: jax.Array) -> jax.Array:
        raise ValueError("no")

    work = Compilation([Program(f.__name__, jax.jit(f), (one,), likely=f is not fails) for f in (jnp.cos, fails)])
    work.wait(HANGS)
    work._pool.shutdown()
    assert len(given_back) == 2
    assert threading.current_thread() not in given_back  # not on the thread of the loop


def test_only_what_is_likely_is_waited_for() -> None:
    held, one = threading.Event(), jax.ShapeDtypeStruct((3,), jnp.float32)

    def slow(x: jax.Array) -> jax.Array:
        assert held.wait(HANGS)
        return x

    programs = [Program("likely", jax.jit(jnp.cos), (one,)), Program("rare", jax.jit(slow), (one,), likely=False)]
    work = Compilation(programs)
    assert work.wait(HANGS)
    assert str(work).startswith("programs: 1 of 2 ")
    held.set()
    work.close()


def test_the_programs_of_a_batch_go_before_all_that_are_yet_to_be_begun() -> None:
    """Two at most are under way and held; of the others those of 1×8 are begun next, and are all that is waited for."""
    held, one = threading.Event(), jax.ShapeDtypeStruct((3,), jnp.float32)
    under_way = threading.Semaphore(0)
    traced: list[str] = []

    def noted(name: str, *, holds: bool) -> Any:
        def function(x: jax.Array) -> jax.Array:
            traced.append(name)
            under_way.release()
            assert not holds or held.wait(HANGS)
            return x

        return jax.jit(function)

    threads = len(os.sched_getaffinity(0))
    first = [Program("update", noted("first", holds=True), (one,), f"{n}×4", likely=False) for n in range(threads)]
    others = [Program("update", noted("other", holds=False), (one,), f"{n}×16", likely=False) for n in range(8)]
    wanted = [Program(kind, noted(kind, holds=False), (one,), "1×8", likely=False) for kind in ("reference", "update")]
    work = Compilation([*first, *others, *wanted])
    for _ in range(threads):
        assert under_way.acquire(timeout=HANGS)
    assert work.prefer({"9×9"}) == 0, "nobody listed it"
    assert work.prefer({"1×8", "9×9"}) == 2
    assert not work.wait(0)
    assert work.left == ("reference 1×8", "update 1×8")
    held.set()
    assert work.wait(HANGS)
    assert work.left == ()
    assert work.prefer({"1×8"}) == 0
    assert set(traced[threads : threads + 2]) == {"reference", "update"}
    work.close()


def test_a_program_that_was_waited_for_is_not_compiled_again() -> None:
    traced = list[int]()

    def noted(x: jax.Array) -> jax.Array:
        traced.append(1)
        return x + 1

    one = jax.ShapeDtypeStruct((3,), jnp.float32)
    program = Program("update", jax.jit(noted), (one,), "1×8", likely=False)
    work = Compilation([program])
    work.prefer({"1×8"})
    assert work.wait(HANGS)
    program.function(jnp.ones(3, jnp.float32))
    assert traced == [1]
    work.close()


def test_what_is_likely_is_begun_first() -> None:
    one = jax.ShapeDtypeStruct((3,), jnp.float32)
    programs = [Program("rare", jax.jit(jnp.sin), (one,), likely=False), Program("likely", jax.jit(jnp.cos), (one,))]
    work = Compilation(programs)
    assert [program.kind for program in work.programs] == ["likely", "rare"]
    work.close()


def test_a_program_that_cannot_be_compiled_is_named_and_stops_a_run_that_is_to_need_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise ValueError("no such\nkernel")

    one = jax.ShapeDtypeStruct((3,), jnp.float32)
    good = Program("good", jax.jit(jnp.sin), (one,))
    with caplog.at_level(logging.WARNING):
        work = Compilation([Program("bad", jax.jit(fails), (one,), likely=False), good])
        work._pool.shutdown()  # once both are done with: closed before, it may begin neither
        assert str(work) == "programs: 0 of 2 compiled", "nobody has looked yet"
        assert work.wait(HANGS)
        work.close()
    assert str(work).startswith("programs: 1 of 2 ")
    (said,) = caplog.messages
    assert said == "bad could not be compiled: no such kernel; the run goes on until a batch has that shape"
    with pytest.raises(ProgramError, match=r"^bad could not be compiled: no such kernel$"):
        compiled([Program("bad", jax.jit(fails), (one,)), good])


def test_a_likely_shape_that_cannot_be_compiled_ends_no_run_that_may_never_meet_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 of 8 bytes")

    def update(shape: str, function: Any) -> Program:
        return Program("update", jax.jit(function), (jax.ShapeDtypeStruct((3,), jnp.float32),), shape)

    full, short = update("1×64", fails), update("4×16", jnp.sin)
    other = Program("values", jax.jit(jnp.cos), short.arguments, "1×64")
    with caplog.at_level(logging.WARNING):
        assert compiled([full, short, other]).startswith("programs: 2 of 3 ")
    (said,) = caplog.messages
    assert said.startswith("update 1×64: the learner's device has no room for it: lower ")
    with pytest.raises(ProgramError, match=r"^update 1×64: the learner's device has no room"):
        compiled([full, update("4×16", fails), other])


def test_a_device_without_room_is_told_in_a_line_of_what_to_lower() -> None:
    def full(x: jax.Array) -> jax.Array:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nand more")

    one = jax.ShapeDtypeStruct((3,), jnp.float32)
    said = r"^update: the learner's device has no room for it: lower learner\.rows_per_microbatch, or set model\.remat="
    with pytest.raises(
        ProgramError, match=said + r"full; mode=plan says .* \(RESOURCE_EXHAUSTED: Out of .* bytes\.\)$"
    ):
        compiled([Program("update", jax.jit(full), (one,))])
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), told_of_memory("step 3"):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
