"""Mode play: a person, a scripted player or a model plays an environment in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.observe.samples import describe
from rljax.pipeline.assemble.checkpoints import chosen_checkpoints
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.evaluate import Evaluator
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.environments.session import EnvironmentSpec, LocalEnvironment, Observation
from rljax.tasks.environments import EnvironmentTaskset
from rljax.tasks.task import Task
from rljax.tasks.templates import decoded
from sidecar.hosting.spec import EngineLauncher

Say = Callable[[str], None]


def tasks_to_play(config: Config) -> tuple[str, list[Task]]:
    """Returns the tasks of the tag that is played: as many of its validation seeds as there are episodes."""
    tag = config.played_tag
    assert tag is not None, "no config with mode=play is without one"
    seeds = EnvironmentTaskset(tag, config.custom_envs[tag], 1.0, config.seed, "validation")
    return tag, [seeds.task(0, index) for index in range(config.play.episodes)]


def play_without_model(config: Config, say: Say, ask: Callable[[], str]) -> None:
    """Plays by a person, whose actions ``ask`` brings until it raises EOFError, or by a scripted or random player.

    Raises:
        ConfigError: there is no scripted player.
        EnvironmentFailure: the environment failed.
    """
    tag, tasks = tasks_to_play(config)
    environment = LocalEnvironment(EnvironmentSpec(config.custom_envs[tag].id, config.custom_envs[tag].kwargs))
    choose = _chooser(config, tag, environment, ask)
    limit = config.custom_envs[tag].max_actions
    for number, task in enumerate(tasks):
        seen = environment.reset(task.seed)
        say(f"== {task.id}, environment seed {environment.seed_of(task.seed)}\n")
        if number == 0 and seen.instruction:
            say(seen.instruction + "\n")
        total, taken = 0.0, 0
        while not seen.over and taken < limit:
            say("\n".join(part for part in (seen.text, seen.suffix) if part))
            try:
                action = choose(seen, task.seed, taken)
            except EOFError:
                say(f"\n== left after {taken} actions, return {total:g}")
                return
            seen = environment.step(action)
            total, taken = total + seen.reward, taken + 1
            say(f"> {action}   (reward {seen.reward:g}{'' if seen.valid else ', no action'})\n")
        say(seen.text)
        say(f"== {'solved' if seen.success else 'not solved'}: {taken} actions, return {total:g}\n")


def _chooser(
    config: Config, tag: str, environment: LocalEnvironment, ask: Callable[[], str]
) -> Callable[[Observation, int, int], str]:
    if config.play.agent == "human":
        return lambda seen, seed, taken: ask()
    from envs.agents import RandomAgent, scripted_agent

    try:
        agent: Any = RandomAgent() if config.play.agent == "random" else scripted_agent(config.custom_envs[tag].id)
    except LookupError as error:
        raise ConfigError(f"play.agent={config.play.agent}: {error.args[0]}") from None

    def choose(seen: Observation, seed: int, taken: int) -> str:
        if config.play.agent == "random" and not seen.actions:
            raise ConfigError(
                f"play.agent=random: {config.custom_envs[tag].id} names no actions to choose from; "
                "play it with play.agent=human or model"
            )
        if taken == 0:
            agent.begin(environment.env, seed)
        return str(agent.act(seen.text, {"actions": seen.actions, "suffix": seen.suffix, "state": seen.state}))

    return choose


def play_with_model(config: Config, run: RunDir, model: Model, engine_launcher: EngineLauncher, say: Say) -> None:
    """Plays by a checkpoint, as in validation.

    Raises:
        ConfigError: no such tag or checkpoint.
    """
    _, tasks = tasks_to_play(config)
    (steps,) = chosen_checkpoints(config, run)[-1:]

    async def main() -> None:
        async with Evaluator(config, run, model, engine_launcher) as evaluator:
            await evaluator.serve(steps)
            for task in tasks:
                trajectory = await evaluator.play(task)
                sample = describe(steps, task.id, trajectory, lambda ids: decoded(model.tokenizer, ids), steps)
                say(f"== {task.id}, weights after {steps} batches\n")
                for line in _turns(sample):
                    say(line)
                say(f"== {sample['finish_reason']}: return {trajectory.reward:g}\n")

    asyncio.run(main())


def _turns(sample: dict[str, Any]) -> Sequence[str]:
    turns = sample.get("turns") or [{"shown": sample["prompt"], "spans": sample["spans"], "reward": sample["reward"]}]
    return [
        f"{turn['shown']}\n> {''.join(span['text'] for span in turn['spans'])}   (reward {turn['reward']:g})\n"
        for turn in turns
    ]
