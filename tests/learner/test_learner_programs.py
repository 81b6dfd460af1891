"""What a learner says that it will compile is what it runs: once that is compiled, nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljax.config.algorithm import KlConfig
from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig
from rljax.config.schema import LoraConfig, RolloutConfig, TasksConfig, TasksetConfig
from rljax.config.sizes import rows_per_trajectory, sampled_parts
from rljax.learner.learner import Learner
from rljax.learner.programs import CompileMeter
from rljax.learner.rows import packed_shape, row_shapes
from rljax.trajectory import Group, TaskId, Trajectory
from tests.learner.made_up import ARCHITECTURE, MAX_PROMPT, MAX_RESPONSE, make_config, make_params, make_trajectory
from tests.learner.test_aux_state import critic
from tests.learner.test_compilation import compiled

PROBE = 20
REWARDS = (0.0, 1.0, 2.0, 0.5)
KEYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "proximal": {"pg_variant": "decoupled_ppo", "minibatch_size": 8},
    "reference in the reward": {"kl": KlConfig(where="reward", estimator="k1", refresh_steps=1)},
    "reference in the loss": {"kl": KlConfig(where="loss")},
    "whole trajectories": {
        "pg_variant": "opmd_pairwise",
        "adv_estimator": "opmd_mean",
        "aggregation": "seq-mean-token-sum",
        "loss": {"tau": 0.5},
    },
    "critic": {"adv_estimator": "gae", "critic": critic(value_clip=0.1)},
}


@pytest.fixture
def meter() -> Iterator[CompileMeter]:
    with CompileMeter() as made:
        yield made


def groups_of(response: int) -> list[Group]:
    """Four groups, in which every prompt is as long as it may be and every response has that length."""
    rng = np.random.default_rng(response)
    return [
        Group(TaskId("made-up", 0, n), tuple(make_trajectory(rng, MAX_PROMPT, response, r) for r in REWARDS))
        for n in range(4)
    ]


def played(rng: np.random.Generator, turns: int, response: int) -> Trajectory:
    """Returns an episode of so many turns, each a row of its own, with a prompt and a response of the same lengths."""
    parts = [make_trajectory(rng, MAX_PROMPT, response) for _ in range(turns)]
    columns = {
        name: np.concatenate([getattr(t, name) for t in parts])
        for name in ("token_ids", "loss_mask", "logprobs", "versions")
    }
    begins = np.arange(turns) * (MAX_PROMPT + response)
    ends = begins + MAX_PROMPT + response
    spans = np.stack([begins + MAX_PROMPT, ends], 1).astype(np.int32)
    return Trajectory(**columns, turns=spans, rows=np.stack([begins, ends], 1).astype(np.int32), reward=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rank"), [*((name, None) for name in KEYS), ("critic", 4), ("reference in the loss", 4)]
)
def test_a_run_compiles_nothing_that_was_not_listed_and_compiled_before(
    meter: CompileMeter, name: str, rank: int | None
) -> None:
    """Of a run that goes on from a state that is there."""
    config = make_config(algorithm=KEYS[name], model={"lora": LoraConfig(rank=rank)})
    learner, before = Learner(config, ARCHITECTURE), Learner(config, ARCHITECTURE, make_params())
    learner.state, learner.base = before.state, before.base
    programs = [program for program in learner.programs(PROBE) if program.likely]
    said = compiled(programs)
    assert said.startswith(f"programs: {len(programs)} of {len(programs)} compiled in ")
    meter.take()
    for _ in range(2):  # the second step gets what the first one returned
        dict(learner.export("fp32"))
        learner.score(np.arange(PROBE))
        learner.train(groups_of(MAX_RESPONSE))
    assert meter.take()[0] == 0


@pytest.mark.slow
def test_what_is_unlikely_is_listed_and_what_is_compiled_in_a_step_is_counted(meter: CompileMeter) -> None:
    learner = Learner(make_config(), ARCHITECTURE, make_params())
    listed = learner.programs(PROBE)
    batches = [p.arguments[2] for p in listed if not p.publishes]
    groups = groups_of(1)
    (packed,) = learner.pack(groups)
    needed = packed.batch.mask.shape + packed.batch.places.shape[-1:]
    assert needed in [b.mask.shape + b.places.shape[-1:] for b in batches]
    compiled([p for p in listed if p.likely])
    meter.take()
    learner.train(groups)
    programs, seconds = meter.take()
    assert programs == 1
    assert seconds > 0
    learner.train(groups)
    assert meter.take()[0] == 0


def test_every_shape_that_a_batch_may_be_packed_into_is_listed_once() -> None:
    """Rows of 24, 16 and 8 places, each with room for all of them, a half, a quarter and an eighth; 2, 4 and 8 rows."""
    learner = Learner(make_config(), ARCHITECTURE, make_params())
    updates = [p for p in learner.programs(PROBE) if not p.publishes]
    assert len({p.name for p in updates}) == len(updates) == 12
    found = {(p.arguments[2].mask.shape[1:], p.arguments[2].places.shape[-1]) for p in updates}
    lengths = {24: (2, (24, 12, 6, 3)), 16: (4, (16, 8, 4, 2)), 8: (8, (8, 4, 2, 1))}
    assert found == {((rows, n), room) for n, (rows, rooms) in lengths.items() for room in rooms}
    likely = [p.likely for p in updates]
    assert likely == sorted(likely, reverse=True), "what is likely comes first"


def test_environments_whose_turns_are_rows_list_what_every_number_of_turns_needs() -> None:
    """Four groups of four play 1 to 5 turns with short and long replies: the shape of every batch is listed."""
    environment = EnvironmentConfig(id="rljax/FrozenLake-v0", max_actions=3, max_turns=5, history_length=0)
    config = make_config(
        custom_envs={"Lake": environment},
        rollout=RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
    )
    learner = Learner(config, ARCHITECTURE, make_params())
    batches = [p.arguments[2] for p in learner.programs(PROBE) if not p.publishes]
    listed = [b.mask.shape + b.places.shape[-1:] for b in batches]
    assert len(listed) == len(set(listed)) > 12
    found = set()
    for turns in range(1, 6):
        for response in (1, MAX_RESPONSE):
            members = [played(np.random.default_rng(turns), turns, response) for _ in REWARDS]
            groups = [Group(TaskId("made-up", 0, n), tuple(members)) for n in range(4)]
            (packed,) = learner.pack(groups)
            found.add(packed.batch.mask.shape + packed.batch.places.shape[-1:])
    assert found <= set(listed)
    assert len({slots for slots, *_ in found}) > 2


def test_where_turns_are_rows_what_is_likely_follows_from_the_turns() -> None:
    """Sixteen episodes of 5 turns are 80 rows of 24, the longest: 40 microbatches of 2, where 8 of one turn each have
    slots; doubled three times, 64. Of 1 to 5 turns they are 48 in all, too many for 8 microbatches of any rows.
    """
    environment = EnvironmentConfig(id="rljax/FrozenLake-v0", max_actions=3, max_turns=5, history_length=0)
    config = make_config(
        custom_envs={"Lake": environment},
        rollout=RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
    )
    listed = Learner(config, ARCHITECTURE, make_params()).programs(PROBE)
    slots = {p.arguments[2].mask.shape for p in listed if p.likely and not p.publishes}
    assert (64, 2, 24) in slots
    assert all(shape[0] * shape[1] > 16 for shape in slots)


def test_demonstrations_alone_have_no_turns() -> None:
    environment = EnvironmentConfig(id="rljax/FrozenLake-v0", max_actions=3, max_turns=5, history_length=0)
    keys = {
        "custom_envs": {"Lake": environment},
        "rollout": RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
    }
    assert rows_per_trajectory(make_config(**keys)) == 5
    expert = TasksConfig(expert=TasksetConfig(source="demonstrations.jsonl"))
    alone = {"expert_data_ratio": 1.0, "pg_variant": "sft"}
    assert rows_per_trajectory(make_config(algorithm=alone, tasks=expert, **keys)) == 1


def test_demonstrations_beside_episodes_are_a_row_each() -> None:
    """Sixteen episodes of 5 turns and 16 demonstrations are 96 sequences: 48 microbatches of 2 rows. There are 16 for
    32 trajectories; doubled twice, 64. As episodes the demonstrations would ask for 80, and so 128.
    """
    environment = EnvironmentConfig(id="rljax/FrozenLake-v0", max_actions=3, max_turns=5, history_length=0)
    config = make_config(
        custom_envs={"Lake": environment},
        rollout=RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
        algorithm={"expert_data_ratio": 0.5, "pg_variant": "mix", "loss": {"variant": "ppo"}},
        tasks=TasksConfig(expert=TasksetConfig(source="demonstrations.jsonl")),
    )
    listed = [p for p in Learner(config, ARCHITECTURE, make_params()).programs(PROBE) if not p.publishes]
    shapes = {p.arguments[2].mask.shape: p.likely for p in listed}
    assert (64, 2, 24) in {p.arguments[2].mask.shape for p in listed if p.likely}
    assert max(slots for slots, rows, _ in shapes if rows == 2) == 64


def test_of_a_dialogue_all_or_half_is_replies_that_share_its_row() -> None:
    """Four replies of 8 at most in a row of 24: 23 places at most are trained, or 12; a reply alone would be 8, and 6
    where a turn has no more tokens.
    """
    lake = EnvironmentConfig(id="rljax/FrozenLake-v0", max_actions=4, max_tokens_per_turn=8)
    played = RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",)))
    config = make_config(custom_envs={"Lake": lake}, rollout=played)
    assert sampled_parts(config) == (1, 23)
    listed = Learner(config, ARCHITECTURE, make_params()).programs(PROBE)
    rooms = {p.arguments[2].places.shape[-1] for p in listed if p.likely and not p.publishes}
    assert {24, 12} <= rooms
    of_rows = make_config(custom_envs={"Lake": replace(lake, max_tokens_per_turn=6, history_length=0)}, rollout=played)
    assert sampled_parts(of_rows) == (18, 6)
    assert sampled_parts(make_config()) == (MAX_PROMPT, MAX_RESPONSE)


@pytest.mark.parametrize("history_length", [None, 0])
def test_questions_beside_environments_are_counted_as_they_are(history_length: int | None) -> None:
    """Prompts of questions are known, those of an environment are not: a dialogue may be all replies. Where turns are
    rows of 4 tokens at most, a question's answer of 16 is the longest response.
    """
    lake = EnvironmentConfig(
        id="rljax/FrozenLake-v0", max_actions=5, history_length=history_length, max_tokens_per_turn=4
    )
    config = make_config(
        mode="train",
        custom_envs={"Lake": lake},
        rollout=RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
        tasks=TasksConfig(train={"t": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
    )
    assert sampled_parts(config) == ((8, 16) if history_length == 0 else (4, 20))
    listed = Learner(config, ARCHITECTURE, make_params()).programs(PROBE, np.array([3, 5, 8]))
    assert any(p.likely and p.arguments[2].places.shape[-1] == 24 for p in listed if not p.publishes)


def test_prompts_that_are_known_to_be_short_make_short_rows_likely() -> None:
    """16 trajectories with a prompt of 1 token and 16 sampled ones take 16 places: rows of 16 leave none. Of 1 to 16
    sampled ones they take 136 in all: 6 rows of 24, 144 places, where rows of 16 would be 9, in microbatches of 4. With
    prompts of 8 the longest take 23.
    """
    learner = Learner(make_config(), ARCHITECTURE, make_params())

    def likely(prompts: np.ndarray | None) -> set[int]:
        listed = [p for p in learner.programs(PROBE, prompts) if p.likely and not p.publishes]
        return {program.arguments[2].mask.shape[-1] for program in listed}

    assert likely(None) == likely(np.array([8])) == {24}
    assert likely(np.array([1])) == {16, 24}


def test_a_response_may_be_as_long_as_the_whole_trajectory() -> None:
    """As in environments, whose turns share ``sequence_length``: a token of prompt is always there."""
    model = {"max_prompt_tokens": 8, "max_response_tokens": 16, "sequence_length": 16}
    learner = Learner(make_config(model=model), ARCHITECTURE, make_params())
    assert any(p.likely for p in learner.programs(PROBE) if not p.publishes)


def test_a_run_that_goes_on_for_longer_needs_no_other_program() -> None:
    """Though its learning rate falls over more steps: what was compiled for the fewer is in the compile cache."""

    def update(max_steps: int) -> str:
        config = make_config(max_steps=max_steps, optimizer={"schedule": "cosine", "warmup_steps": 2})
        programs = Learner(config, ARCHITECTURE).programs(PROBE)
        return next(p for p in programs if p.name.startswith("update")).lower().as_text()

    assert update(10) == update(20)


def test_the_packed_shape_of_lengths() -> None:
    """Rows of 64, 32 and 16. Prompts of 6 tokens with 3 sampled ones take 8 places: two fit into a row of 16, which
    trains 6 of them: room for 8. Of those of 20 + 30 tokens, 49 places, one fits into a row of 64, with 30 trained.
    """
    shapes = row_shapes(65, 16, 128)
    assert [(s.rows, s.length) for s in shapes] == [(16, 64), (32, 32), (64, 16)]
    assert packed_shape(6, np.full(128, 3), shapes) == (shapes[2], 8, 64)
    assert packed_shape(20, np.full(8, 30), shapes) == (shapes[0], 32, 8)
