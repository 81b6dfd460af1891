"""Scores of rewards, wherever they run."""

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.tasks.rewards import Reward, RewardError, RewardRunner, RewardTimeout, register_reward
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId
from tests.tasks.rewards.running import FAILING, LIMIT, children, on_a_loop, task


@on_a_loop
async def test_sum_inline() -> None:
    before = children()
    runner = RewardRunner(["exact", "digits"], timeout=LIMIT, workers=1)
    reward = await runner.score(task("exact", "digits", weights=(2.0, 0.5)), "19")
    assert reward == Reward(0.25, {"exact": 0.0, "digits": 0.5})
    assert children() == before, "cheap rewards need no worker"
    runner.close()


@on_a_loop
async def test_arguments_reach_a_reward_wherever_it_runs(runner: RewardRunner) -> None:
    @register_reward("apart")
    def apart(task: Task, response: str, *, by: float = 1.0) -> float:
        return by * len(response)

    for name in ("apart", "judges:apart"):
        terms = (RewardTerm(name, "apart", args={"by": 0.5}),)
        asked = replace(task("exact"), rewards=terms)
        assert (await runner.score(asked, "four")).score == 2.0


@on_a_loop
async def test_parts_of_a_reward_are_named_after_it(runner: RewardRunner) -> None:
    reward = await runner.score(task("judges:parts", "judges:length", weights=(1.0, 0.1)), "four")
    assert reward.score == pytest.approx(0.9)
    assert reward.parts == {"parts": 0.5, "parts/style": 0.25, "parts/truth": 1.0, "length": 4.0}


@pytest.mark.parametrize("name", FAILING)
@on_a_loop
async def test_a_reward_without_a_number_fails_its_trajectory_alone(runner: RewardRunner, name: str) -> None:
    neighbour = asyncio.ensure_future(runner.score(task("judges:length"), "four"))
    with pytest.raises(RewardError) as caught:
        await runner.score(task(f"judges:{name}"), "response", "member 3")
    assert str(caught.value).startswith(f"task mine/0/12, member 3: reward 'judges:{name}': ")
    assert FAILING[name] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, RewardTimeout)
    assert (await neighbour).score == 4
    assert (await runner.score(task("judges:length"), "four")).score == 4


@on_a_loop
async def test_a_task_without_rewards_is_refused(runner: RewardRunner) -> None:
    with pytest.raises(RewardError, match="task mine/0/12: has no reward"):
        await runner.score(task(), "")


@on_a_loop
async def test_reasoning_gym_scores_its_own(directory: Path) -> None:
    pytest.importorskip("reasoning_gym")
    from rljax.tasks.gym_rows import ReasoningGymRows

    problem = ReasoningGymRows("chain_sum", "train", {"size": 3}, "key").problem(0)
    terms = task("reasoning_gym").rewards
    gym_task = Task(TaskId("gym", 0, 0), (), problem.answer, metadata=problem.metadata, rewards=terms)
    with RewardRunner(["reasoning_gym"], timeout=20, workers=1) as runner:
        assert (await runner.score(gym_task, f"Well, <answer>{problem.answer}</answer>")).score == 1
        assert (await runner.score(gym_task, f" {problem.answer}\n")).score == 1
        assert (await runner.score(gym_task, "<answer>none</answer>")).score < 1


def test_several_loops_on_other_threads_share_a_runner(runner: RewardRunner) -> None:
    scores: list[float] = []

    async def many() -> None:
        rewards = await asyncio.gather(*(runner.score(task("judges:length"), "x" * i) for i in range(50)))
        scores.append(sum(reward.score for reward in rewards))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert scores == [1225.0] * 3


async def until_a_thread_is_free(runner: RewardRunner, response: str) -> float:
    """What it scores, once what was left behind has ended."""
    while True:
        with contextlib.suppress(RewardError):
            return (await runner.score(task("mine_quick"), response)).score
        await asyncio.sleep(0.01)


@on_a_loop
async def test_registered_functions_run_here_on_threads_with_a_deadline() -> None:
    release = threading.Event()
    seen: list[Any] = []

    @register_reward("mine_quick")
    def quick(task: Task, response: str) -> float:
        seen.append(threading.current_thread())
        return len(response)

    @register_reward("mine_stuck")
    def stuck(task: Task, response: str) -> float:
        release.wait(30)
        return 0.0

    @register_reward("mine_raises")
    def raises(task: Task, response: str) -> float:
        raise ValueError("no")

    before = children()
    with RewardRunner(["mine_quick"], timeout=2.0, workers=1) as runner:
        assert (await runner.score(task("mine_quick"), "four")).score == 4
        assert seen[0] is not threading.main_thread()
        with pytest.raises(RewardError, match=r"mine_raises': ValueError: no \(.*test_reward_runner.py:"):
            await runner.score(task("mine_raises"), "")
        stuck_ones = [asyncio.ensure_future(runner.score(task("mine_stuck"), "")) for _ in range(12)]
        await asyncio.sleep(0)
        quick_ones = await asyncio.gather(*(runner.score(task("mine_quick"), "x" * i) for i in range(20)))
        assert [reward.score for reward in quick_ones] == list(range(20))
        for failed in await asyncio.gather(*stuck_ones, return_exceptions=True):
            assert isinstance(failed, RewardTimeout)
            assert "left behind" in str(failed)

        # 12 hang; beyond 16 no more are tried
        more = await asyncio.gather(*(runner.score(task("mine_stuck"), "") for _ in range(4)), return_exceptions=True)
        assert all(isinstance(failed, RewardError) for failed in more)
        with pytest.raises(RewardError, match="threads already hang"):
            await runner.score(task("mine_quick"), "")
        release.set()
        assert await until_a_thread_is_free(runner, "four") == 4

        @register_reward("mine_quick")
        def better(task: Task, response: str) -> float:
            return 99

        assert (await runner.score(task("mine_quick"), "four")).score == 99
    assert children() == before
