"""The data types and their codec."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from rljax.trajectory import Group, TaskId, Trajectory, decode, encode

ARRAYS = ("token_ids", "loss_mask", "logprobs", "versions", "turns", "turn_rewards", "rows", "routes")


def make(loss_mask: list[int], versions: list[int], **changes: Any) -> Trajectory:
    n = len(loss_mask)
    fields: dict[str, Any] = {
        "token_ids": np.arange(n, dtype=np.int32),
        "loss_mask": np.array(loss_mask, np.bool_),
        "logprobs": np.linspace(-3, 0, n, dtype=np.float32),
        "versions": np.array(versions, np.int32),
        "turns": np.array([[0, n]], np.int32),
        "reward": 0.5,
    }
    return Trajectory(**{**fields, **changes})


def assert_same(one: Group, other: Group) -> None:
    assert one.task == other.task
    assert len(one.trajectories) == len(other.trajectories)
    for mine, yours in zip(one.trajectories, other.trajectories, strict=True):
        for spec in dataclasses.fields(Trajectory):
            left, right = getattr(mine, spec.name), getattr(yours, spec.name)
            if spec.name in ARRAYS and left is not None:
                assert left.dtype == right.dtype
                assert left.shape == right.shape
                assert (left == right).all()
            else:
                assert left == right, spec.name


@st.composite
def groups(draw: st.DrawFn) -> Group:
    members = []
    for member in range(draw(st.integers(0, 4))):
        mask = draw(st.lists(st.booleans(), max_size=12))
        versions = [draw(st.integers(0, 99)) if trained else -1 for trained in mask]
        turns = np.array(draw(st.lists(st.tuples(st.integers(0, 5), st.integers(5, 12)), max_size=3)), np.int32)
        cut = draw(st.integers(0, len(mask)))
        trajectory = make(
            [int(trained) for trained in mask],
            versions,
            turns=turns.reshape(-1, 2),
            turn_rewards=np.array(draw(st.sampled_from([[], [0.5] * len(turns)])), np.float64),
            turn_states=draw(st.sampled_from([(), tuple(str(i) for i in range(len(turns)))])),
            rows=np.array(draw(st.sampled_from([[], [[0, cut], [cut, len(mask)]]])), np.int32).reshape(-1, 2),
            reward=draw(st.floats(-1e6, 1e6)),
            reward_parts=draw(st.dictionaries(st.text(max_size=5), st.floats(-1, 1), max_size=2)),
            metrics=draw(st.dictionaries(st.text(max_size=5), st.floats(-1, 1), max_size=2)),
            temperature=draw(st.sampled_from([1.0, 0.7])),
            top_p=0.9,
            top_k=5,
            finish_reason=draw(st.sampled_from(["stop", "length"])),
            member=member,
            seed=draw(st.integers(0, 2**63 - 1)),
            retries=draw(st.integers(0, 3)),
            expert=draw(st.booleans()),
            routes=draw(st.sampled_from([None, np.arange(6 * len(mask), dtype=np.int16).reshape(-1, 3, 2) - 1])),
        )
        members.append(trajectory)
    task = TaskId(draw(st.text(min_size=1, max_size=8)), draw(st.integers(0, 9)), draw(st.integers(0, 2**40)))
    return Group(task, tuple(members))


@settings(max_examples=60, deadline=None)
@given(groups())
def test_a_group_survives_its_codec(group: Group) -> None:
    assert_same(decode(encode(group)), group)


@pytest.mark.parametrize(("experts", "size"), [(128, 1), (129, 2), (256, 2)])
def test_a_choice_takes_a_byte_where_it_fits(experts: int, size: int) -> None:
    """Of 48 layers with 8 experts a token, as Qwen3-30B-A3B has them."""
    tokens = 100
    routes = np.resize(np.arange(-1, experts, dtype=np.int16), (tokens, 48, 8))
    one, other = (make([1] * tokens, [0] * tokens, routes=given) for given in (None, routes))
    task = TaskId("a", 0, 0)
    payload = encode(Group(task, (one, other)))
    bare = encode(Group(task, (one, one)))
    assert (len(payload) - len(bare)) // tokens == 384 * size
    assert_same(decode(payload), Group(task, (one, other)))


def test_counts_and_bounds_are_those_of_the_trained_tokens() -> None:
    one = make([0, 1, 1, 0, 1], [-1, 4, 5, 9, 4])
    none = make([0, 0], [-1, 3])
    group = Group(TaskId("a", 1, 2), (one, none, make([1], [5], reward=2.0)))
    assert group.version_counts() == {4: 2, 5: 2}
    assert (one.min_version, one.max_version) == (4, 5)
    assert (none.min_version, none.max_version) == (None, None)
    assert group.rewards.tolist() == [0.5, 0.5, 2.0]
    assert group.rewards.dtype == np.float32
    assert Group(group.task, (none,)).version_counts() == {}
    assert str(group.task) == "a/1/2"


def test_the_prompt_ends_where_the_first_turn_begins() -> None:
    turns = np.array([[2, 3], [4, 5]], np.int32)
    assert make([0, 0, 1, 0, 1], [-1, -1, 0, -1, 0], turns=turns).prompt_length == 2
    assert make([0, 0], [-1, -1], turns=np.zeros((0, 2), np.int32)).prompt_length == 2


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="arrays differ in length"):
        make([0, 1], [-1, 0], logprobs=np.zeros(3, np.float32))


def test_a_trained_token_needs_a_version() -> None:
    with pytest.raises(ValueError, match="a trained token has no weight version"):
        make([0, 1], [-1, -1])
    assert make([0, 1], [-1, -1], expert=True).expert, "nobody sampled a demonstration"


def test_what_is_no_group_is_refused() -> None:
    whole = encode(Group(TaskId("a", 0, 0), (make([1], [0]),)))
    for data in (b"", b"\x00" * 100, pickle.dumps({"a": 1}), whole[: len(whole) // 2]):
        with pytest.raises(ValueError, match="not an encoded group"):
            decode(data)


def test_bytes_that_a_disk_has_changed_are_refused() -> None:
    one = Trajectory(
        token_ids=np.arange(4, dtype=np.int32),
        loss_mask=np.array([False, True, True, True]),
        logprobs=np.array([0, -1.5, -0.25, -3], np.float32),
        versions=np.array([-1, 2, 2, 3], np.int32),
        turns=np.array([[1, 4]], np.int32),
        reward=0.75,
    )
    data = encode(Group(TaskId("a", 0, 1), (one,)))
    for written, read in (
        (np.float32(-1.5).tobytes(), np.float32(-1.25).tobytes()),
        (b'"reward": 0.75', b'"reward": 0.25'),
    ):
        assert data.count(written) == 1
        with pytest.raises(ValueError, match="does not match its checksum"):
            decode(data.replace(written, read))


def test_groups_of_the_codec_before_are_read() -> None:
    arrays = load(encode(Group(TaskId("a", 0, 0), (make([1], [0]),))))
    header = json.loads(arrays["header"].tobytes())
    header["codec"] = 1
    del header["crc32"]
    for name in ("turn_rewards", "turn_states", "rows"):
        del header["members"][0][name]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    (trajectory,) = decode(save(arrays)).trajectories
    assert trajectory.row_spans == [(0, 1)]
    assert trajectory.rewards_by_turn.tolist() == [0.5]


def test_rows_that_leave_something_out_are_refused() -> None:
    with pytest.raises(ValueError, match="do not follow one another"):
        make([0, 1, 1], [-1, 0, 0], rows=np.array([[0, 1], [2, 3]], np.int32))


def test_another_codec_is_refused() -> None:
    arrays = load(encode(Group(TaskId("a", 0, 0), (make([1], [0]),))))
    header = json.loads(arrays["header"].tobytes())
    header["codec"] = 99
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with pytest.raises(ValueError, match="group written by codec 99, this program reads up to 3"):
        decode(save(arrays))
