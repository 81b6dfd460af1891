"""Samples: text, version spans and staleness as a reader needs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rljax.observe.samples import SampleLog, describe, read_samples
from rljax.trajectory import NOT_SAMPLED, Group, TaskId, Trajectory

TASK = TaskId("digits", 0, 7)


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def trajectory(prompt: str, pieces: list[tuple[bytes, int]], member: int = 0) -> Trajectory:
    start = len(prompt.encode())
    body = b"".join(text for text, _ in pieces)
    ids = np.frombuffer(prompt.encode() + body, np.uint8).astype(np.int32)
    versions = np.array([NOT_SAMPLED] * start + [v for text, v in pieces for _ in text], np.int32)
    return Trajectory(
        ids,
        versions >= 0,
        np.zeros(len(ids), np.float32),
        versions,
        np.array([[start, len(ids)]]),
        0.5,
        {"digits": 0.5},
        member=member,
    )


def test_spans_follow_the_versions() -> None:
    made = trajectory("2+2=", [(b"fo", 3), (b"ur", 4), (b" env ", NOT_SAMPLED), (b"ok", 4)])
    found = describe(6, TASK, made, decode, trained_from=5)
    assert found["prompt"] == "2+2="
    assert [(s["text"], s["tokens"], s["version"]) for s in found["spans"]] == [
        ("fo", 2, 3),
        ("ur", 2, 4),
        (" env ", 5, None),
        ("ok", 2, 4),
    ]
    assert found["staleness"] == 2
    assert found["tokens"] == 6
    assert found["task"] == "digits/0/7"


def test_a_sample_is_a_text_for_people_too(tmp_path: Path) -> None:
    made = trajectory("map:", [(b"Up", 3), (b" wall:", NOT_SAMPLED), (b"Do", 3), (b"wn", 4)])
    several = dataclasses.replace(made, turns=np.array([[4, 6], [12, 16]]), turn_rewards=np.array([-0.5, 1.0]))
    written = SampleLog(tmp_path, "trainer", decode, per_step=1)
    written.truncate(1)
    written.write(6, [Group(TASK, (several,))], 5)
    written.write(7, [Group(TASK, (trajectory("2+2=", [(b"four", 6)]),))], 6)
    (text,) = (tmp_path / "samples").glob("*.txt")
    assert (
        text.read_text()
        == """===== from step 1 on

===== step 6 · digits/0/7 · member 0 · reward 0.5 · stop · staleness 2
----- shown
map:
----- answer 1, reward -0.5
⟨version 3⟩ Up
----- shown
 wall:
----- answer 2, reward 1
⟨version 3⟩ Do⟨version 4⟩ wn

===== step 7 · digits/0/7 · member 0 · reward 0.5 · stop · staleness 0
----- shown
2+2=
----- answer 1
⟨version 6⟩ four

"""
    )


def test_several_turns_are_told_one_by_one() -> None:
    made = trajectory("map ", [(b"Up", 3), (b" wall ", NOT_SAMPLED), (b"Do", 3), (b"wn", 4)])
    several = dataclasses.replace(made, turns=np.array([[4, 6], [12, 16]]), turn_rewards=np.array([-0.5, 1.0]))
    found = describe(6, TASK, several, decode, trained_from=5)["turns"]
    assert [(turn["shown"], turn["reward"]) for turn in found] == [("map ", -0.5), (" wall ", 1.0)]
    assert [[(s["text"], s["version"]) for s in turn["spans"]] for turn in found] == [
        [("Up", 3)],
        [("Do", 3), ("wn", 4)],
    ]
    assert "turns" not in describe(6, TASK, made, decode, trained_from=5)


def test_a_character_cut_by_a_new_version_stays_whole() -> None:
    euro = "€".encode()
    found = describe(1, TASK, trajectory("p", [(b"a" + euro[:1], 0), (euro[1:] + b"b", 1)]), decode, 1)
    assert [s["text"] for s in found["spans"]] == ["a", "€b"]


def test_nothing_sampled() -> None:
    empty = Trajectory(
        np.array([65], np.int32),
        np.zeros(1, bool),
        np.zeros(1, np.float32),
        np.array([-1], np.int32),
        np.zeros((0, 2), np.int32),
        0.0,
    )
    found = describe(1, TASK, empty, decode, 1)
    assert (found["prompt"], found["spans"], found["staleness"]) == ("A", [], None)


def test_parts_join_and_a_resumed_run_replaces(tmp_path: Path) -> None:
    group = Group(TASK, tuple(trajectory("p", [(b"x", 0)], member) for member in range(4)))
    first = SampleLog(tmp_path, "trainer", decode, per_step=2)
    for step in (1, 2, 3):
        first.write(step, [group], step - 1)
    resumed = SampleLog(tmp_path, "trainer", decode, per_step=1)
    resumed.truncate(3)
    resumed.write(3, [group], 2)
    assert [row["step"] for row in read_samples(tmp_path)] == [1, 1, 2, 2, 3]
    assert len(list((tmp_path / "samples").glob("*.jsonl"))) == 2


def test_a_stopped_learner_that_continues_adds_nothing_to_the_samples_of_its_successor(tmp_path: Path) -> None:
    group = Group(TASK, (trajectory("p", [(b"x", 0)]),))
    stopped, living = (SampleLog(tmp_path, "trainer", decode, per_step=1) for _ in range(2))
    stopped.truncate(1, lineage=1)
    stopped.write(1, [group], 0)
    living.truncate(2, lineage=2)
    living.write(2, [group], 1)
    stopped.write(2, [group], 0)
    assert [(row["step"], row["lineage"]) for row in read_samples(tmp_path)] == [(1, 1), (2, 2)]


def test_the_same_step_chooses_the_same(tmp_path: Path) -> None:
    group = Group(TASK, tuple(trajectory("p", [(b"x", 0)], member) for member in range(8)))
    chosen = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        SampleLog(tmp_path / place, "trainer", decode, per_step=3).write(5, [group], 4)
        chosen.append([row["member"] for row in read_samples(tmp_path / place)])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 3


def test_a_decoder_that_fails_stops_nothing(tmp_path: Path) -> None:
    def broken(ids: Sequence[int]) -> str:
        raise RuntimeError("no tokenizer")

    SampleLog(tmp_path, "t", broken, 2).write(1, [Group(TASK, (trajectory("p", [(b"x", 0)]),))], 0)
    assert read_samples(tmp_path) == []
