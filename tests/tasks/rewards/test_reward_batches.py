"""Rewards that take a batch: what is in one, what a failure costs, and the call that tries them."""

import asyncio
import contextlib
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.tasksets import TasksetConfig
from rljax.run import Run
from rljax.tasks.rewards import Reward, RewardError, RewardRunner, RewardTimeout, register_reward
from rljax.tasks.rewards.registry import resolve_reward, reward_terms
from rljax.tasks.rewards.scorer import Place
from rljax.tasks.task import Task, Taskset
from rljax.tasks.tasksets import load_tasksets
from rljax.trajectory import TaskId
from tests.tasks.rewards.running import LIMIT, on_a_loop

SOURCE = """
import asyncio, socket, sys, time

def told(tasks, responses):
    return [
        {"in_call": len(responses), "index": task.id.index, "length": len(response)}
        for task, response in zip(tasks, responses, strict=True)
    ]
async def told_async(tasks, responses): return told(tasks, responses)
def held(tasks, responses, *, batch_size: int = 4):
    if port := tasks[0].metadata.get("gate"):
        with socket.create_connection(("127.0.0.1", port)) as gate: gate.recv(1)
    if "raises" in responses: raise KeyError("no such column")
    if "leaves" in responses: sys.exit(3)
    if "short" in responses: return [0.0]
    while "hangs" in responses: time.sleep(1)
    return told(tasks, responses)
async def held_async(tasks, responses, *, batch_size: int = 4):
    if port := tasks[0].metadata.get("gate"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()
    if "raises" in responses: raise KeyError("no such column")
    if "leaves" in responses: sys.exit(3)
    if "short" in responses: return [0.0]
    while "hangs" in responses: await asyncio.sleep(1)
    return told(tasks, responses)
def plain(tasks, responses, *, factor: float = 1.0): return [factor * len(response) for response in responses]
def sized(tasks, responses, *, batch_size=4): return plain(tasks, responses)
def of_a_group(task, responses): return [0.0 for _ in responses]
def of_two(tasks, responses):
    assert len({task.id.index for task in tasks}) == 2
    return [0.0, 0.0]
"""
SMALLEST = Path(__file__).parents[2] / "e2e" / "smallest.py"
FORMS = ("batches:held", "batches:held_async")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("batches")
    (path / "batches.py").write_text(SOURCE)
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[RewardRunner]:
    with RewardRunner([*FORMS, "batches:plain"], timeout=LIMIT, workers=1) as runner:
        yield runner


def task(*names: str, index: int = 0, gate: int = 0, **args: Any) -> Task:
    terms = reward_terms(names, None, "tasks.train.mine.rewards", args)
    return Task(TaskId("mine", 0, index), (), "18", metadata={"gate": gate}, rewards=terms)


class Held:
    """Asks a reward for one response, whose call is held until ``go``; what is asked meanwhile waits."""

    def __init__(self, runner: RewardRunner, name: str) -> None:
        self._runner = runner
        self._name = name
        self._begun = asyncio.Event()
        self.go = asyncio.Event()

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[asyncio.Future[Reward]]:
        async with await asyncio.start_server(self._hold, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            first = asyncio.ensure_future(self._runner.score(task(self._name, gate=port), "first"))
            begun = asyncio.ensure_future(self._begun.wait())
            await asyncio.wait([first, begun], return_when=asyncio.FIRST_COMPLETED)
            assert self._begun.is_set(), first.result()
            yield first

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begun.set()
        await self.go.wait()
        writer.close()

    async def ask(self, responses: Sequence[str]) -> list[asyncio.Future[Reward]]:
        """Asks for so many more, of the tasks from 1 on, while the first call is under way."""
        asked = [
            asyncio.ensure_future(self._runner.score(task(self._name, index=index), response))
            for index, response in enumerate(responses, start=1)
        ]
        await asyncio.sleep(0)  # all have asked
        return asked


def test_a_reward_of_batches_is_known_by_the_names_of_what_it_takes(directory: Path) -> None:
    forms = {
        "batches:held": (Place.PROCESS, True, False),
        "batches:held_async": (Place.AWAITED, True, False),
        "batches:of_a_group": (Place.PROCESS, False, True),
        "exact": (Place.INLINE, False, False),
    }
    found = {name: resolve_reward(name, "rewards") for name in forms}
    assert {name: (one.place, one.of_batches, one.of_groups) for name, one in found.items()} == forms
    terms = task("exact", "batches:held", "batches:of_a_group").rewards
    assert [(term.of_batches, term.of_groups) for term in terms] == [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize("name", FORMS)
@on_a_loop
async def test_what_comes_while_a_call_is_under_way_is_the_next_batch(runner: RewardRunner, name: str) -> None:
    held = Held(runner, name)
    async with held.call() as first:
        others = await held.ask(["a" * length for length in range(1, 7)])
        held.go.set()
        part = name.partition(":")[2]

        def told(in_call: int, index: int, length: int) -> dict[str, float]:
            parts = {"in_call": in_call, "index": index, "length": length}
            return {part: sum(parts.values()), **{f"{part}/{key}": value for key, value in parts.items()}}

        assert (await first).parts == told(1, 0, 5), "it waits for no other"
        found = await asyncio.gather(*others)
        assert [one.parts for one in found] == [told(4 if i <= 4 else 2, i, i) for i in range(1, 7)]
    assert runner.pending == 0


@pytest.mark.parametrize(
    ("bad", "error", "reason"),
    [
        ("raises", RewardError, r"KeyError: 'no such column'"),
        ("short", RewardError, r"ValueError: returned 1 rewards for 4 responses"),
        ("hangs", RewardTimeout, r"not done after 3 s"),
        ("leaves", RewardError, r".*(SystemExit: 3|ended)"),
    ],
)
@pytest.mark.parametrize("name", FORMS)
@on_a_loop
async def test_a_batch_that_fails_fails_the_trajectories_of_that_call_alone(
    runner: RewardRunner, name: str, bad: str, error: type[RewardError], reason: str
) -> None:
    held = Held(runner, name)
    async with held.call() as first:
        others = await held.ask(["a", bad, "aaa", "aaaa", "of the next", "call"])
        held.go.set()
        assert (await first).parts
        found = await asyncio.gather(*others, return_exceptions=True)
        for index, failed in enumerate(found[:4], start=1):
            assert isinstance(failed, error), failed
            assert re.match(rf"task mine/0/{index}: reward '{name}': {reason}", str(failed))
            assert "\n" not in str(failed)
        assert [isinstance(one, Reward) for one in found[4:]] == [True, True]
    assert runner.pending == 0


@on_a_loop
async def test_who_no_longer_waits_is_in_no_batch(runner: RewardRunner) -> None:
    held = Held(runner, "batches:held")
    async with held.call() as first:
        gone, stays = await held.ask(["raises", "stays"])
        gone.cancel()
        await asyncio.wait([gone])
        held.go.set()
        await first
        assert (await stays).parts["held/in_call"] == 1


@on_a_loop
async def test_close_fails_what_waits_for_its_batch(directory: Path) -> None:
    runner = RewardRunner([], timeout=30.0, workers=1)
    held = Held(runner, "batches:held_async")
    async with held.call() as first:
        others = await held.ask(["a", "b"])
        await asyncio.to_thread(runner.close)
        for failed in await asyncio.gather(first, *others, return_exceptions=True):
            assert isinstance(failed, RewardError)
            assert "the rewards were closed" in str(failed)
        with pytest.raises(RewardError, match="the rewards were closed"):
            await runner.score(task("batches:held_async"), "late")
        held.go.set()


@on_a_loop
async def test_its_score_is_one_summand_of_each_response(runner: RewardRunner) -> None:
    both = reward_terms(("exact", "batches:plain"), (1.0, 0.5), "tasks.train.mine.rewards", {"plain": {"factor": 2.0}})
    asked = [Task(TaskId("mine", 0, index), (), "18", rewards=both) for index in range(3)]
    found = await asyncio.gather(*(runner.score(one, "18"[: 1 + one.id.index]) for one in asked))
    expected = [Reward(0.0 + 1.0, {"exact": 0.0, "plain": 2.0}), *[Reward(1.0 + 2.0, {"exact": 1.0, "plain": 4.0})] * 2]
    assert found == expected
    assert await runner.score_group(asked[0], ["18", "1"]) == (Reward(0.0), Reward(0.0)), "it takes no group"


@on_a_loop
async def test_a_batch_has_one_set_of_arguments_and_may_be_of_several_tasksets(directory: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    loop, calls = asyncio.get_running_loop(), []

    @register_reward("several")
    async def several(tasks: Sequence[Task], responses: Sequence[str], *, by: float = 1.0) -> list[float]:
        calls.append((by, [task.id.taskset for task in tasks]))
        if not begun.is_set():
            waits = asyncio.run_coroutine_threadsafe(go.wait(), loop)
            loop.call_soon_threadsafe(begun.set)
            await asyncio.wrap_future(waits)
        return [by for _ in tasks]

    def asked(taskset: str, by: float) -> Task:
        terms = reward_terms(("several",), None, f"tasks.train.{taskset}.rewards", {"several": {"by": by}})
        return Task(TaskId(taskset, 0, 0), (), "", rewards=terms)

    with RewardRunner(["several"], timeout=LIMIT, workers=1, batch_size=2) as runner:
        first = asyncio.ensure_future(runner.score(asked("one", 1.0), ""))
        await begun.wait()
        others = [
            asyncio.ensure_future(runner.score(asked(name, by), ""))
            for name, by in [("one", 1.0), ("two", 1.0), ("other", 2.0), ("two", 1.0)]
        ]
        assert (await others[2]).score == 2.0, "it waits for no call of another's"
        go.set()
        assert [(await one).score for one in (first, *others)] == [1.0, 1.0, 1.0, 2.0, 1.0]
    assert calls == [(1.0, ["one"]), (2.0, ["other"]), (1.0, ["one", "two"]), (1.0, ["two"])]


@on_a_loop
async def test_one_of_a_notebook_runs_on_a_thread() -> None:
    @register_reward("noted_batch")
    def noted(tasks: Sequence[Task], responses: Sequence[str]) -> list[float]:
        return [float(len(task.answer) + len(response)) for task, response in zip(tasks, responses, strict=True)]

    with RewardRunner(["noted_batch"], timeout=LIMIT, workers=1) as runner:
        assert (await runner.score(task("noted_batch"), "four")).score == 6.0


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_response_is_refused(directory: Path, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"^tasks.train.mine.reward_args.held.batch_size={size}: must be at least 1"):
        task("batches:held", held={"batch_size": size})


def taskset(*names: str, rows: int | None = None) -> list[tuple[str, Taskset]]:
    config = TasksetConfig(source="reverse_digits", args={"digits": 2}, rewards=names, shuffle=False)
    one = load_tasksets({"mine": config}, 0, "fail", role="train")["mine"]
    return [("tasks.train.mine", one if rows is None else First(one, rows))]


class First:
    """The first rows of a taskset."""

    def __init__(self, taskset: Taskset, rows: int) -> None:
        self.name, self.weight, self.bad_rows, self.fingerprint = "mine", 1.0, 0, ""
        self._taskset, self._rows = taskset, rows

    def __len__(self) -> int:
        return self._rows

    def task(self, epoch: int, index: int) -> Task:
        return self._taskset.task(epoch, index)


@on_a_loop
async def test_it_is_tried_with_a_batch_of_two_tasks(runner: RewardRunner) -> None:
    seen: list[list[tuple[int, str]]] = []

    @register_reward("seen_batch")
    def seen_batch(tasks: Sequence[Task], responses: Sequence[str]) -> list[float]:
        assert [task.answer for task in tasks] == list(responses)
        seen.append([(task.id.index, response) for task, response in zip(tasks, responses, strict=True)])
        if tasks[0].id.index == 0 and len(tasks) == 2 and tasks[1].id.index:
            raise ValueError("not this one")
        return [0.0 for _ in tasks]

    ((_, tasks),) = taskset("seen_batch")
    answers = [(index, tasks.task(0, index).answer) for index in range(3)]
    await runner.try_out(taskset("seen_batch"))
    assert seen == [[answers[0], answers[1]], [answers[1], answers[2]]]
    seen.clear()
    await runner.try_out(taskset("seen_batch", rows=1))
    assert seen == [[answers[0], answers[0]]], "of one row there is no other"
    await runner.try_out(taskset("batches:of_two"))
    with pytest.raises(ConfigError, match=r"'batches:of_two': fails when it is tried on the first tasks: AssertionErr"):
        await runner.try_out(taskset("batches:of_two", rows=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batches:told", "batches:told_async"])
def test_a_run_is_trained_by_one(directory: Path, tmp_path: Path, name: str) -> None:
    keys = {f"tasks.{role}.digits.rewards": name for role in ("train", "validation")}
    with Run(load_config(str(SMALLEST), {**keys, "max_steps": 2, "run_dir": str(tmp_path / "run")})) as run:
        rows = list(run)
        audit = run.audit()
    assert (audit["balanced"], audit["dropped"]) == (True, {})
    part = f"reward/{name.partition(':')[2]}"
    assert [row["step"] for row in rows] == [1, 2]
    assert [row[f"{part}/index"] for row in rows] == [1.5, 5.5], "of tasks 0 to 3, and 4 to 7"
    assert max(row[f"{part}/in_call"] for row in rows) > 1, "responses came together"


@on_a_loop
async def test_one_that_is_first_asked_for_after_the_end_makes_no_thread(directory: Path) -> None:
    runner = RewardRunner([], timeout=30.0, workers=1)
    runner.close()
    with pytest.raises(RewardError, match="the rewards were closed"):
        await runner.score(task("batches:sized"), "late")
    assert {thread for thread in threading.enumerate() if thread.name == "reward batches:sized"} == set()


def test_a_size_of_a_batch_is_no_truth(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"sized\.batch_size=True: must be at least 1"):
        reward_terms(("batches:sized",), None, "tasks.train.mine.rewards", {"sized": {"batch_size": True}})
