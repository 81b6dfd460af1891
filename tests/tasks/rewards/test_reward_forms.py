"""What a reward may be: async, of a whole group, of named parts; how many run at once, and the call that tries it."""

import asyncio
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.config.tasksets import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.tasks.rewards import Reward, RewardError, RewardRunner, RewardTimeout, register_reward, registry
from rljax.tasks.rewards.registry import resolve_reward, reward_terms
from rljax.tasks.rewards.scorer import Place
from rljax.tasks.task import RewardTerm, Task
from rljax.tasks.tasksets import load_tasksets
from rljax.trajectory import TaskId
from tests.tasks.rewards.test_reward_runner import on_a_loop

SOURCE = """
import asyncio, os, time
from rljax.tasks.rewards import Reward

async def served(task, response, *, seconds: float = 0.2, factor: float = 1.0):
    await asyncio.sleep(seconds)
    return factor * len(response)
async def cancels(task, response): raise asyncio.CancelledError
async def raises(task, response): raise KeyError("left\\nright")
async def blocks(task, response): time.sleep(1.0); return 1.0
class Judge:
    async def __call__(self, task, response): return 1.0
judge = Judge()
def shares(task, response): return {"style": 0.25, "truth": 1}
def bad_share(task, response): return {"style": float("inf")}
def ranks(task, responses, *, best: float = 1.0):
    longest = max(map(len, responses))
    return [best * (len(r) == longest) for r in responses]
def shared(task, responses): return [{"a": len(r), "b": 1} for r in responses]
async def later(task, responses): return tuple(Reward(float(i), {"place": i}) for i in range(len(responses)))
def too_few(task, responses): return [1.0]
def one_number(task, responses): return 1.0
def mapping(task, responses): return {"a": 1.0}
def slow(task, response): time.sleep(0.4); return float(os.getpid())
def rare(task, response):
    if task.id.index == 0: raise ValueError("not this one")
    return 1.0
def never(task, response): raise ValueError("no such column: 'tests'")
def endless(task, response):
    while True: time.sleep(1)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("forms")
    (path / "forms.py").write_text(SOURCE)
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[RewardRunner]:
    with RewardRunner(["forms:shares"], timeout=30.0, workers=2) as runner:
        yield runner


def task(*names: str, weights: tuple[float, ...] | None = None, **args: Any) -> Task:
    terms = reward_terms(names, weights, "tasks.train.mine.rewards", args)
    return Task(TaskId("mine", 0, 12), (), "18", rewards=terms)


def test_where_each_form_runs(directory: Path) -> None:
    places = {
        "forms:served": (Place.AWAITED, False),
        "forms:judge": (Place.AWAITED, False),
        "forms:later": (Place.AWAITED, True),
        "forms:ranks": (Place.PROCESS, True),
        "forms:shares": (Place.PROCESS, False),
        "exact": (Place.INLINE, False),
    }
    found = {name: resolve_reward(name, "rewards") for name in places}
    assert {name: (one.place, one.of_groups) for name, one in found.items()} == places


@on_a_loop
async def test_512_responses_of_an_awaited_judge_take_what_two_rounds_of_256_take(runner: RewardRunner) -> None:
    """One after the other they would take 102 seconds."""
    asked = task("forms:served", served={"factor": 0.5})
    begin = time.monotonic()
    rewards = await asyncio.gather(*(runner.score(asked, "four") for _ in range(512)))
    assert time.monotonic() - begin < 10
    assert [reward.score for reward in rewards] == [2.0] * 512
    assert runner.pending == 0


@on_a_loop
async def test_rewards_of_one_response_run_side_by_side(runner: RewardRunner) -> None:
    """Two that wait for each other: one after the other neither would end."""
    meeting = threading.Barrier(2)

    def meets(task: Task, response: str) -> float:
        meeting.wait(10)
        return 1.0

    for name in ("meets_one", "meets_other"):
        register_reward(name)(meets)
    assert (await runner.score(task("meets_one", "meets_other"), "")).score == 2


@on_a_loop
async def test_worker_processes_run_side_by_side(runner: RewardRunner) -> None:
    asked = task("forms:slow")
    found = await asyncio.gather(*(runner.score(asked, "") for _ in range(4)))
    assert len({reward.score for reward in found}) == 2, "two workers"


@on_a_loop
async def test_an_awaited_reward_that_fails_or_hangs_fails_its_trajectory_alone(directory: Path) -> None:
    with RewardRunner([], timeout=0.3, workers=1) as runner:
        neighbour = asyncio.ensure_future(runner.score(task("forms:served", served={"seconds": 0.1}), "four"))
        with pytest.raises(RewardTimeout, match=r"task mine/0/12: reward 'forms:served': not done after 0\.3 s"):
            await runner.score(task("forms:served", served={"seconds": 60.0}), "")
        with pytest.raises(RewardError, match=r"reward 'forms:raises': KeyError: 'left.nright' \(.*forms\.py:"):
            await runner.score(task("forms:raises"), "")
        assert (await neighbour).score == 4


@on_a_loop
async def test_an_async_reward_that_blocks_stops_no_loop_but_its_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.tasks.rewards.awaited._MARGIN", 0.1)
    with (
        RewardRunner([], timeout=0.2, workers=1) as runner,
        pytest.raises(RewardTimeout, match="an async reward blocks the others"),
    ):
        await runner.score(task("forms:blocks"), "")


@on_a_loop
async def test_close_fails_what_is_awaited(directory: Path) -> None:
    before = set(threading.enumerate())
    runner = RewardRunner([], timeout=30, workers=1)
    asked = task("forms:served", served={"seconds": 60.0})
    waiting = [asyncio.ensure_future(runner.score(asked, "")) for _ in range(3)]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(runner.close)
    for failed in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(failed, RewardError)
        assert "the rewards were closed" in str(failed)
    assert "rewards" not in {thread.name for thread in set(threading.enumerate()) - before}


@on_a_loop
async def test_parts_without_a_score_are_added_up(runner: RewardRunner) -> None:
    reward = await runner.score(task("forms:shares", "exact", weights=(2.0, 1.0)), "18")
    assert reward == Reward(3.5, {"shares": 1.25, "shares/style": 0.25, "shares/truth": 1.0, "exact": 1.0})
    with pytest.raises(RewardError, match="returned inf"):
        await runner.score(task("forms:bad_share"), "")


@on_a_loop
async def test_a_group_is_judged_together_and_its_members_apart_from_it(runner: RewardRunner) -> None:
    asked = task("exact", "forms:ranks", "forms:shared", weights=(1.0, 0.5, 0.1), ranks={"best": 3.0})
    responses = ["18", "180", "eighteen"]
    alone = [await runner.score(asked, response) for response in responses]
    assert alone == [Reward(1.0, {"exact": 1.0}), Reward(0.0, {"exact": 0.0}), Reward(0.0, {"exact": 0.0})]
    together = await runner.score_group(asked, responses)
    assert [reward.score for reward in together] == pytest.approx([0.3, 0.4, 1.5 + 0.9])
    assert together[2].parts == {"ranks": 3.0, "shared": 9.0, "shared/a": 8.0, "shared/b": 1.0}
    later = await runner.score_group(task("forms:later"), responses)
    assert [reward.score for reward in later] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few", "ValueError: returned 1 rewards for 2 responses"),
        ("one_number", "TypeError: returned float, not a reward for each of 2 responses"),
        ("mapping", "TypeError: returned dict, not a reward for each of 2 responses"),
    ],
)
@on_a_loop
async def test_a_group_without_a_reward_for_each_response(runner: RewardRunner, name: str, message: str) -> None:
    with pytest.raises(RewardError, match=re.escape(message)):
        await runner.score_group(task(f"forms:{name}"), ["a", "b"])


def tasksets(*names: str) -> list[tuple[str, Any]]:
    config = TasksetConfig(source="reverse_digits", args={"digits": 2}, rewards=names, shuffle=False)
    return [("tasks.train.mine", load_tasksets({"mine": config}, 0, "fail", role="train")["mine"])]


@on_a_loop
async def test_every_reward_is_called_before_anything_starts(runner: RewardRunner) -> None:
    await runner.try_out(tasksets("exact", "forms:served", "forms:ranks", "forms:rare"))
    with pytest.raises(ConfigError, match="no such column: 'tests'") as caught:
        await runner.try_out(tasksets("exact", "forms:never"))
    assert str(caught.value).startswith("tasks.train.mine.rewards='forms:never': fails when it is tried on the first ")
    assert "\n" not in str(caught.value)


@on_a_loop
async def test_one_that_hangs_is_found_before_anything_starts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.tasks.rewards.runner.TASKS_TRIED", 1)
    with (
        RewardRunner(["forms:endless"], timeout=0.5, workers=1) as runner,
        pytest.raises(ConfigError, match=r"fails when it is tried on the first tasks: not done after 0\.5 s"),
    ):
        await runner.try_out(tasksets("forms:endless"))


@on_a_loop
async def test_what_cannot_be_judged_in_time_is_said_at_powers_of_ten(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with RewardRunner(["format:x"], timeout=3.0, workers=1) as runner:

        async def late(*_: Any) -> Any:
            raise RewardTimeout("not done")

        monkeypatch.setattr(runner._processes, "judge", late)
        asked = replace(task("exact"), rewards=(RewardTerm("format:x", "format"),))
        with caplog.at_level(logging.WARNING):
            scores = [(await runner.score(asked, "")).score for _ in range(11)]
    assert scores == [0.0] * 11
    said = [line for line in caplog.messages if "it counts as wrong" in line]
    assert [line.rpartition("wrong")[2] for line in said] == [" (1 so far)", " (10 so far)"]


@on_a_loop
async def test_one_that_is_cancelled_is_not_said_to_be_closed(runner: RewardRunner) -> None:
    with pytest.raises(RewardError, match=r"'forms:cancels': CancelledError: it, or what it awaits, was cancelled$"):
        await runner.score(task("forms:cancels"), "four")


@on_a_loop
async def test_close_fails_a_call_that_is_under_way_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    begun, go = threading.Event(), threading.Event()

    @register_reward("held_on_a_thread")
    def held(task: Task, response: str) -> float:
        begun.set()
        go.wait(60)
        return 1.0

    runner = RewardRunner([], timeout=60.0, workers=1)
    calls = [asyncio.create_task(runner.score(task("held_on_a_thread"), "four")) for _ in range(12)]
    await asyncio.to_thread(begun.wait)
    runner.close()
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert "the rewards were closed" in str(failed)
    with pytest.raises(RewardError, match="the rewards were closed"):
        await runner.score(task("held_on_a_thread"), "late")
    go.set()


@on_a_loop
async def test_a_wrong_number_of_values_names_the_function_that_returned_it(
    runner: RewardRunner, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = SOURCE.splitlines().index("def too_few(task, responses): return [1.0]") + 1
    said = rf"ValueError: returned 1 rewards for 2 responses \(too_few, {re.escape(str(directory))}/forms.py:{line}\)$"
    with pytest.raises(RewardError, match=said):
        await runner.score_group(task("forms:too_few"), ["a", "b"])
    monkeypatch.setattr(registry, "_registered", {})

    @register_reward("says_text")
    def says_text(task: Task, response: str, *, text: str = "x") -> str:
        return text

    with pytest.raises(RewardError, match=rf": returned str, not a number \(says_text, {re.escape(__file__)}:"):
        await runner.score(task("says_text"), "four")
