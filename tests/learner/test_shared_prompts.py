"""Sequences of a row that compute one prompt together: what they predict from, what is trained, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.algorithms.registry import aggregations
from rljax.config.fields import ConfigError
from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import PackedBatch, pack
from rljax.learner.rows import RowShape, Sequences, packed_shape, placed, row_shapes
from rljax.learner.sharing import shares_prompts
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.architecture import Experts
from rljax.models.common.hardware import CPU
from rljax.trajectory import Trajectory
from tests.learner.made_up import (
    ARCHITECTURE,
    MAX_RESPONSE,
    make_config,
    make_groups,
    make_params,
    make_trajectory,
    relative_error,
)


def with_one_prompt(members: Sequence[Trajectory], prompt: int) -> list[Trajectory]:
    """Trajectories that have the prompt of the first, of so many tokens."""
    shared = members[0].token_ids[:prompt]
    return [dataclasses.replace(t, token_ids=np.concatenate([shared, t.token_ids[prompt:]])) for t in members]


def packed(trajectories: list[Trajectory], shapes: tuple[RowShape, ...], share: bool = True) -> PackedBatch:
    advantages = [np.full(len(t.token_ids), number, np.float32) for number, t in enumerate(trajectories, 1)]
    return pack(trajectories, advantages, np.arange(1, len(trajectories) + 1) / 100, shapes, share)


def trained(found: PackedBatch) -> list[tuple]:
    """Each trained target with all tokens that it is predicted from, as its row's spans say, and what it carries."""
    batch, told = found.batch, []
    for at in zip(*np.nonzero(batch.mask), strict=True):
        own = np.flatnonzero(batch.segment_ids[at[:2]] == batch.segment_ids[at])
        own = own[own <= at[2]]
        first, last = (0, -1) if batch.shared is None else batch.shared[at]
        seen = [*range(first, last + 1), *own]
        tokens, places = (array[at[:2]][seen].tolist() for array in (batch.token_ids, batch.positions))
        assert places == list(range(len(seen))), "a sequence's positions are those that it would have alone"
        told.append((*(float(x[at]) for x in (batch.advantages, batch.weights, batch.behaviour_logprobs)), *tokens))
        told[-1] += (int(batch.targets[at]), int(batch.owners[at]))
    return sorted(told)


PROMPTS = st.tuples(st.integers(1, 12), st.lists(st.integers(0, 6), min_size=1, max_size=6))


@given(st.lists(PROMPTS, max_size=5), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_what_is_trained_is_predicted_from_the_same_tokens_and_no_more_is_computed(
    prompts: list[tuple[int, list[int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    trajectories: list[Trajectory] = []
    for length, responses in [*prompts, (1, [0])]:
        trajectories += with_one_prompt([make_trajectory(rng, length, response) for response in responses], length)
    shapes = (RowShape(40, 2, 15), RowShape(20, 4, 8))
    together, apart = packed(trajectories, shapes), packed(trajectories, shapes, share=False)
    assert trained(together) == trained(apart)
    assert apart.batch.shared is None
    assert len(together.read) <= len(apart.read)
    assert together.batch.mask[: together.microbatches].size <= apart.batch.mask[: apart.microbatches].size
    assert together.trained_tokens == apart.trained_tokens
    values = [rng.random(len(t.token_ids)).astype(np.float32) for t in trajectories]
    counts = [len(t.token_ids) for t in trajectories]
    back = together.by_token(together.at_places(values), counts)
    for one, value, t in zip(back, values, trajectories, strict=True):
        np.testing.assert_array_equal(one, np.where(t.loss_mask, value, 0))


def test_a_group_takes_its_prompt_once_and_each_response_its_length() -> None:
    """By hand: the first of three has 10 prompt tokens and 4 more but the last, 13; the others 5 and 2, for the last
    token of the prompt is theirs again, and the last of the response is read by none.
    """
    sequences = Sequences.of(10, np.array([4, 5, 2]), np.zeros(3, int))
    found = placed(sequences, 20)
    assert (found.rows, found.row.tolist(), found.offset.tolist()) == (1, [0, 0, 0], [0, 13, 18])
    assert (found.rank.tolist(), found.lead.tolist(), found.left_out.tolist()) == ([1, 2, 3], [0, 0, 0], [0, 9, 9])
    shapes = row_shapes(row_tokens=21, rows=1, trajectories=3)
    assert packed_shape(10, np.array([4, 5, 2]), shapes, np.zeros(3, int)) == (shapes[0], 12, 1)
    assert packed_shape(10, np.array([4, 5, 2]), shapes)[0].length == 24


def test_a_row_that_is_full_begins_the_prompt_again() -> None:
    sequences = Sequences.of(10, np.array([4, 5, 2, 3, 1]), np.array([0, 0, 0, 0, 7]))
    found = placed(sequences, 18)
    # 13 + 5 fill a row; 11 + 3 a second, which has no room for the other prompt's 10
    assert found.rows == 3
    assert found.lead.tolist() == [0, 0, 2, 2, 4]
    assert found.left_out.tolist() == [0, 9, 0, 9, 0]


def test_prompts_stay_apart_where_that_fills_rows_better() -> None:
    """Rows of 100: two attempts with a prompt of 2 and 25 tokens behind it share one of 51 places, which leaves a row
    half empty; apart they take 26, three a row.
    """
    responses, numbers = np.full(12, 25), np.repeat(np.arange(6), 2)
    shapes = (RowShape(100, 1, 12),)
    assert placed(Sequences.of(2, responses, numbers), 100).rows == 6
    assert packed_shape(2, responses, shapes, numbers)[2] == 4


def test_sequences_that_train_nothing_lead_nobody() -> None:
    sequences = Sequences(np.array([0, 6, 4]), np.array([0, 3, 3]), np.array([0, 0, 0]))
    found = placed(sequences, 20)
    assert (found.row.tolist(), found.lead[1:].tolist(), found.offset[1:].tolist()) == ([-1, 0, 0], [1, 1], [0, 6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "ratio_level"), [(24, "token"), (64, "token"), (200, "sequence")], ids=["a few", "a group", "all"]
)
def test_loss_and_gradient_are_those_of_separate_prompts(row: int, ratio_level: str) -> None:
    config, trajectories = make_config(algorithm={"loss": {"ratio_level": ratio_level}}), list[Trajectory]()
    for group in make_groups(3):
        trajectories += with_one_prompt(group.trajectories, int(np.argmax(group.trajectories[0].loss_mask)))
    weights = aggregations.bound("token-mean")(np.array([t.loss_mask.sum() for t in trajectories]), MAX_RESPONSE)
    advantages = [np.full(len(t.token_ids), t.reward - 1, np.float32) for t in trajectories]
    evaluate, found = jax.jit(partial(loss_and_gradient, PolicyObjective(config, ARCHITECTURE, CPU))), []
    for share in (False, True):
        batch = pack(trajectories, advantages, weights, row_shapes(row, 1, 16)[:1], share)
        found.append((*evaluate(make_params(), batch.batch, batch.microbatches), len(batch.read)))
    (loss, gradient, metrics, read), (other_loss, other_gradient, other_metrics, other_read) = found
    assert other_read < read
    assert float(other_loss) == pytest.approx(float(loss), rel=1e-5)
    assert relative_error(other_gradient, gradient) < 1e-5
    for name, value in metrics.items():
        assert float(other_metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6, nan_ok=True), name


def test_models_with_experts_share_nothing() -> None:
    experts = dataclasses.replace(ARCHITECTURE, family="qwen3_moe", experts=Experts(4, 2, 16))
    assert not shares_prompts(make_config(), experts, "cpu")
    assert shares_prompts(make_config(), ARCHITECTURE, "cpu")
    assert not shares_prompts(make_config(), ARCHITECTURE, "gpu")
    assert shares_prompts(make_config(learner={"share_prompts": True}), ARCHITECTURE, "gpu")
    with pytest.raises(ConfigError, match=r"learner\.share_prompts=True: the model has experts"):
        shares_prompts(make_config(learner={"share_prompts": True}), experts, "cpu")
