"""Real worker processes, and environments that fail in them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs import registration

import envs
from rljax.config.environments import EnvironmentConfig
from rljax.config.validate import ConfigError
from rljax.rollout.environments.hosts import EnvironmentHost, LoopHost, ProcessHost
from rljax.rollout.environments.session import (
    EnvironmentBroken,
    EnvironmentDied,
    EnvironmentFailure,
    EnvironmentHung,
    EnvironmentLost,
    EnvironmentRaised,
    EnvironmentSpec,
    LocalEnvironment,
)
from rljax.rollout.environments.smoke_check import smoke_check
from rljax.tasks.environments import environment_tasksets
from tests.orphans import survivors

BAD = EnvironmentSpec("tests.rollout.environments.bad:Bad-v0")
LAKE = EnvironmentSpec("rljax/FrozenLake-v0", {"size": 4})


@contextlib.asynccontextmanager
async def host(per_worker: int = 4, **options: object) -> AsyncIterator[ProcessHost]:
    made = ProcessHost(per_worker, 30.0, **options)
    try:
        yield made
    finally:
        await made.close()


async def one_step(any_host: EnvironmentHost, spec: EnvironmentSpec, action: str) -> None:
    async with any_host.session(spec) as session:
        await session.reset(0)
        await session.step(action)


async def walk(any_host: EnvironmentHost, seed: int = 5) -> list[str]:
    async with any_host.session(LAKE) as session:
        seen = [await session.reset(seed)]
        for action in ("Left", "nowhere", "Down"):
            if not seen[-1].over:
                seen.append(await session.step(action))
        return [f"{o.text} {o.reward} {o.over} {o.valid} {o.success} {o.state}" for o in seen]


def test_an_environment_is_the_same_in_a_worker_and_on_the_loop() -> None:
    async def main() -> None:
        async with host() as processes:
            loop = LoopHost()
            for seed in range(4):
                assert await walk(processes, seed) == await walk(loop, seed)
            assert processes.workers == 1, "it is used again"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("action", "kind", "says"),
    [
        ("raise", EnvironmentRaised, "step raised RuntimeError: the door is locked"),
        ("exit", EnvironmentRaised, "step raised SystemExit: 3"),
        ("actions", EnvironmentBroken, "the info of step cannot be read: TypeError: 'NoneType' object"),
        ("text", EnvironmentBroken, "step observed a NoneType, not a text"),
        ("reward", EnvironmentBroken, "the reward nan, which is no finite number"),
        ("short", EnvironmentBroken, "a tuple of 4, not (observation, reward, terminated, truncated, info)"),
        ("info", EnvironmentBroken, "the info of step is a NoneType, not a dict"),
        ("die", EnvironmentDied, "ended with code 7"),
    ],
)
def test_a_failure_says_what_it_is_and_the_next_environment_is_fresh(
    action: str, kind: type[EnvironmentFailure], says: str
) -> None:
    async def main() -> None:
        async with host() as processes:
            with pytest.raises(kind) as caught:
                await one_step(processes, BAD, action)
            assert says in str(caught.value)
            assert "\n" not in str(caught.value)
            async with processes.session(BAD) as session:
                assert (await session.reset(0)).text == "0"
                assert (await session.step("go")).reward == 1.0

    asyncio.run(main())


@pytest.mark.parametrize("action", ["raise", "exit", "actions"])
def test_on_the_loop_it_ends_nothing_but_itself(action: str) -> None:
    async def main() -> None:
        with pytest.raises(EnvironmentFailure):
            await one_step(LoopHost(), BAD, action)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["die", "seize"])
def test_who_ends_the_process_of_others_is_told_apart_from_them(how: str) -> None:
    async def main() -> None:
        async with host(per_worker=2) as processes, contextlib.AsyncExitStack() as stack:
            other = await stack.enter_async_context(processes.session(BAD))
            await other.reset(0)
            ending = await stack.enter_async_context(processes.session(BAD))
            await ending.reset(0)
            if how == "seize":
                processes._workers[0].timeout = 1.0
            with pytest.raises(EnvironmentDied if how == "die" else EnvironmentHung):
                await ending.step(how)
            with pytest.raises(EnvironmentLost, match="ended with code"):
                await other.step("go")
            async with processes.session(BAD) as fresh:
                assert (await fresh.reset(0)).text == "0"

    asyncio.run(main())


def test_where_several_compute_nobody_is_blamed() -> None:
    async def main() -> None:
        async with host(per_worker=2) as processes, contextlib.AsyncExitStack() as stack:
            both = [await stack.enter_async_context(processes.session(BAD)) for _ in range(2)]
            for session in both:
                await session.reset(0)
            steps = both[0].step("hang"), both[1].step("die")
            failures = await asyncio.gather(*steps, return_exceptions=True)
            assert [type(failure) for failure in failures] == [EnvironmentLost] * 2

    asyncio.run(main())


def test_one_that_spins_is_killed_though_its_neighbours_lie_idle() -> None:
    async def main() -> None:
        async with host(per_worker=2) as processes:
            async with processes.session(BAD) as other, processes.session(BAD) as spinning:
                await other.reset(0)
                await spinning.reset(0)
                worker = processes._workers[0]
                worker.timeout = 1.0
                with contextlib.suppress(EnvironmentHung):
                    await spinning.step("spin")
            await asyncio.wait_for(asyncio.to_thread(worker.handle.process.wait), 30)
            assert processes.workers == 0
        async with host(per_worker=2) as processes:
            async with processes.session(BAD) as other:
                await other.reset(0)
            async with processes.session(LAKE) as lake:
                await lake.reset(0)
            (worker,) = processes._workers
            async with processes.session(BAD) as spinning:
                await spinning.reset(0)
                worker.timeout = 1.0
                with pytest.raises(EnvironmentHung):
                    await spinning.step("spin")
            await asyncio.wait_for(asyncio.to_thread(worker.handle.process.wait), 30)
            assert not any(processes._idle.values())

    asyncio.run(main())


@pytest.mark.parametrize("how", ["hang", "spin"])
def test_one_that_hangs_costs_nobody_else_anything(how: str) -> None:
    async def main() -> None:
        async with host(per_worker=2) as processes, processes.session(BAD) as other:
            await other.reset(0)
            worker = processes._workers[0]
            async with processes.session(BAD) as hanging:
                await hanging.reset(0)
                worker.timeout = 1.0
                with pytest.raises(EnvironmentHung, match="no answer to step within 1 s"):
                    await hanging.step(how)
            worker.timeout = 30.0
            assert [(await other.step("go")).text for _ in range(3)] == ["1", "2", "3"]
            async with processes.session(BAD) as fresh:
                await fresh.reset(0)
                assert processes.workers == 2, "nobody is put beside one that hangs"
        assert worker.handle.process.poll() is not None

    asyncio.run(main())


PARENT = """
import asyncio
from rljax.rollout.environments import processes
from rljax.rollout.environments.hosts import ProcessHost
from rljax.rollout.environments.session import EnvironmentSpec
processes.PING_SECONDS = 1.0
async def main():
    async with ProcessHost(2, 3600.0).session(EnvironmentSpec("tests.rollout.environments.bad:Bad-v0")) as session:
        await session.reset(0)
        seizing = asyncio.ensure_future(session.step("seize"))
        while await session.worker.responds():
            pass
        print("ready", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


def test_a_worker_whose_environment_holds_the_interpreters_lock_dies_with_its_parent() -> None:
    assert survivors(PARENT) == []


def test_who_leaves_before_an_environment_is_opened_leaves_no_error_behind() -> None:
    """As the other members of a group do that was dropped."""

    async def main() -> None:
        async with host() as workers:
            step = asyncio.ensure_future(one_step(workers, LAKE, "Left"))
            await asyncio.sleep(0)  # it has a place, and has asked nothing yet
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
            assert workers._endings
            await asyncio.gather(*workers._endings)

    asyncio.run(main())


def test_workers_hold_as_many_as_they_may() -> None:
    async def main() -> None:
        async with host(per_worker=2) as processes, contextlib.AsyncExitStack() as stack:
            for _ in range(5):
                await (await stack.enter_async_context(processes.session(LAKE))).reset(0)
            assert sorted(worker.occupied for worker in processes._workers) == [1, 2, 2]

    asyncio.run(main())


def test_members_of_a_group_on_different_workers_play_the_same_map() -> None:
    lake = EnvironmentConfig(id=LAKE.id, kwargs=LAKE.kwargs)
    tasks = environment_tasksets({"FrozenLake": 4}, {"FrozenLake": lake}, 7, "train")["FrozenLake"]

    async def main() -> None:
        async with host(per_worker=1) as processes, contextlib.AsyncExitStack() as stack:
            members = [await stack.enter_async_context(processes.session(LAKE)) for _ in range(3)]
            assert processes.workers == 3
            maps = [{(await member.reset(tasks.task(0, index).seed)).text for member in members} for index in range(8)]
            assert [len(seen) for seen in maps] == [1] * 8
            assert len(set.union(*maps)) == 8, "each group has a map of its own"

    asyncio.run(main())


def test_an_environment_is_replaced_after_its_episodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(max_episodes=2, log=tmp_path / "log") as processes:
            seen = []
            for _ in range(5):
                async with processes.session(LAKE) as session:
                    await session.reset(0)
                    seen.append(id(session))
            assert seen[0] == seen[1]
            assert len(processes._idle[LAKE]) == 1
            assert processes._idle[LAKE][0].episodes == 1

    asyncio.run(main())


def test_one_that_cannot_be_made_says_why() -> None:
    async def main() -> None:
        async with host() as processes:
            with pytest.raises(EnvironmentRaised, match=r"rljax/FrozenLake-v0: cannot be made: .*size must be"):
                await one_step(processes, EnvironmentSpec("rljax/FrozenLake-v0", {"size": 0}), "Up")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"id": "rljax/FrozenLake-v0", "kwargs": {"size": 0}},
            r"custom_envs\.x: rljax/FrozenLake-v0: cannot be made: .*",
        ),
        ({"id": "rljax/FrozenLak-v0"}, r"custom_envs\.x: .* cannot be made: NameNotFound: .*"),
        ({"id": BAD.id, "kwargs": {"broken": ("reset-raise",), "share": 1.0}}, r"custom_envs\.x: .*the door is locked"),
    ],
)
@pytest.mark.parametrize("place", ["loop", "process"])
def test_one_that_can_never_be_played_is_refused_in_one_line(place: str, keys: dict[str, Any], says: str) -> None:
    async def main() -> None:
        async with host() as processes:
            with pytest.raises(ConfigError) as caught:
                await smoke_check(
                    ["x"], {"x": EnvironmentConfig(place=place, **keys)}, {"process": processes, "loop": LoopHost()}
                )
            assert re.fullmatch(says, str(caught.value))

    asyncio.run(main())


def test_one_that_fails_now_and_then_is_let_through_and_kept_for_its_first_episode() -> None:
    async def main() -> None:
        async with host() as processes:
            lake = EnvironmentConfig(id=LAKE.id, kwargs=LAKE.kwargs)
            await smoke_check(["x"], {"x": lake}, {"process": processes})
            assert len(processes._idle[LAKE]) == 1

        class Moody(LoopHost):
            tried = 0

            def session(self, spec: EnvironmentSpec) -> Any:
                self.tried += 1
                if self.tried < 3:
                    raise EnvironmentRaised("not now")
                return super().session(spec)

        await smoke_check(["x"], {"x": lake}, {"process": Moody()})

    asyncio.run(main())


def test_text_outside_the_action_space_is_not_handed_on_and_changes_nothing() -> None:
    made = LocalEnvironment(LAKE)
    made.env.unwrapped.action_space = type(made.env.unwrapped.action_space)(max_length=5)
    before = made.reset(0)
    assert made.step("much too long") == replace(before, valid=False)
    before = made.step("Left")
    assert made.step("much too long") == replace(before, reward=0.0, valid=False)


def test_an_environment_that_exits_while_it_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LocalEnvironment(LAKE)
    monkeypatch.setattr(made.env, "close", lambda: sys.exit(3))
    made.close()


@pytest.mark.parametrize(
    ("spec", "lookups"),
    [
        (EnvironmentSpec("rljax/FrozenLake"), 1),
        (
            EnvironmentSpec(
                "rljax/Described",
                {
                    "env_id": "CartPole",
                    "instruction": "balance",
                    "actions": ["left", "right"],
                    "observation": "{observation}",
                },
            ),
            2,
        ),
    ],
)
def test_environments_are_looked_up_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, spec: EnvironmentSpec, lookups: int
) -> None:
    """gymnasium goes through its registry, which `envs.register` adds to: in two threads at once one of them fails."""
    looked_up = registration.find_highest_version
    held: list[bool] = []

    def watched(*args: Any) -> Any:
        held.append(envs._registry._is_owned())
        return looked_up(*args)

    monkeypatch.setattr(registration, "find_highest_version", watched)
    LocalEnvironment(spec).close()
    assert held == [True] * lookups
