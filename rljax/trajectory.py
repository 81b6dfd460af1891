"""Trajectories and groups, which the explorer sends to the learner, and their codec.

A *trajectory* is one attempt at a task; a *group* is the attempts at one task that are compared with each other.
The codec is safetensors: plain arrays behind a JSON header, safe to read from anywhere.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors.numpy import load, save

CODEC_VERSION = 3
_READABLE = (1, 2, 3)  # 1 has single-turn trajectories only, 2 no demonstrations; their fields are read as they are
_ROUTES = "routes"
"""Array of a group that has recorded routes, of those members that have any."""
NOT_SAMPLED = -1
"""Entry of `Trajectory.versions` for a token that no engine sampled (prompt, environment text)."""

_CUT_OFF = ("length", "sequence_length", "max_tokens_per_turn")

_ARRAYS = {"token_ids": np.int32, "loss_mask": np.bool_, "logprobs": np.float32, "versions": np.int32}


@dataclass(frozen=True, slots=True)
class TaskId:
    """Identifies a task for ever: a position in one epoch of a taskset."""

    taskset: str
    epoch: int
    index: int

    def __str__(self) -> str:
        return f"{self.taskset}/{self.epoch}/{self.index}"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at a task.

    Attributes:
        token_ids: int32 ``[time]``, prompt and everything after it, concatenated by token id.
        loss_mask: bool ``[time]``, true for the tokens that the policy sampled and is trained on.
        logprobs: float32 ``[time]``, behaviour log-probabilities in nats; 0 where not sampled.
        versions: int32 ``[time]``, weight version of each sampled token; `NOT_SAMPLED` elsewhere.
        turns: int32 ``[turns, 2]``, start and end of each sampled turn.
        reward: the score of the whole.
        turn_rewards: float64 ``[turns]``, what each turn earned; empty where only the whole is scored.
        turn_states: what the environment's state was before each turn; equal strings are equal states. Empty where
            there is none.
        rows: int32 ``[rows, 2]``, start and end of each row that the learner reads on its own; empty: all is one row.
        reward_parts: named parts of the reward, for the log.
        temperature, top_p, top_k: the sampling parameters; the learner divides its logits by the same temperature.
        finish_reason: why it ended. One turn: ``stop``, ``length``. Many: see `rljax.rollout.workflows.multi_turn.End`.
        member: place in the group, counted from 0.
        seed: sampling seed of the trajectory (before turns are mixed in).
        retries: attempts that failed before this one.
        metrics: anything else worth logging, by name.
        expert: whether it is a demonstration: what is trained was recorded, not sampled, and has neither behaviour
            log-probabilities (0) nor versions (`NOT_SAMPLED`).
        routes: int16 ``[time, layers, picked]``, the experts that the pass which sampled from a token sent it to; -1
            where nobody recorded them. None where no engine did.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    turns: np.ndarray
    reward: float
    turn_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))
    turn_states: tuple[str, ...] = ()
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    finish_reason: str = "stop"
    member: int = 0
    seed: int = 0
    retries: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    expert: bool = False
    routes: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in _ARRAYS}
        if self.routes is not None:
            lengths["routes"] = len(self.routes)
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a trajectory's arrays differ in length: {lengths}")
        if not self.expert and (self.versions[self.loss_mask] < 0).any():
            raise ValueError("a trained token has no weight version")
        for name in ("turn_rewards", "turn_states"):
            if len(getattr(self, name)) not in (0, len(self.turns)):
                raise ValueError(f"{len(getattr(self, name))} {name} for {len(self.turns)} turns")
        if len(self.rows) and self.rows.reshape(-1).tolist() != self._row_boundaries():
            raise ValueError(f"rows {self.rows.tolist()} do not follow one another from 0 to {len(self.token_ids)}")

    def _row_boundaries(self) -> list[int]:
        inner = np.repeat(self.rows[1:, 0], 2).tolist()
        return [0, *inner, len(self.token_ids)]

    @property
    def row_spans(self) -> list[tuple[int, int]]:
        """Start and end of each row."""
        return [(int(a), int(b)) for a, b in self.rows] or [(0, len(self.token_ids))]

    @property
    def rewards_by_turn(self) -> np.ndarray:
        """float64 ``[turns]``; where only the whole is scored, the last turn has it all."""
        if len(self.turn_rewards) or not len(self.turns):
            return np.asarray(self.turn_rewards, np.float64)
        return np.array([0.0] * (len(self.turns) - 1) + [self.reward])

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one."""
        return int(self.turns[0, 0]) if len(self.turns) else len(self.token_ids)

    @property
    def cut_off(self) -> bool:
        """True if a token budget ended the trajectory."""
        return self.finish_reason in _CUT_OFF

    @property
    def min_version(self) -> int | None:
        """Oldest version of a trained token; None if no token is trained."""
        return int(self.versions[self.loss_mask].min()) if self.loss_mask.any() else None

    @property
    def max_version(self) -> int | None:
        """Newest version of a trained token; None if no token is trained."""
        return int(self.versions[self.loss_mask].max()) if self.loss_mask.any() else None


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task, in member order; ``answer`` is the task's reference answer, for people who read
    them: empty where there is none.
    """

    task: TaskId
    trajectories: tuple[Trajectory, ...]
    answer: str = ""

    @property
    def rewards(self) -> np.ndarray:
        """float32 ``[group]``."""
        return np.array([t.reward for t in self.trajectories], np.float32)

    def version_counts(self) -> dict[int, int]:
        """Counts the trained tokens by weight version."""
        trained = [t.versions[t.loss_mask] for t in self.trajectories]
        versions, counts = np.unique(np.concatenate([np.zeros(0, np.int32), *trained]), return_counts=True)
        return {int(v): int(c) for v, c in zip(versions, counts, strict=True)}


def _header(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "length": len(trajectory.token_ids),
        "turns": trajectory.turns.tolist(),
        "reward": float(trajectory.reward),
        "turn_rewards": np.asarray(trajectory.turn_rewards, np.float64).tolist(),
        "turn_states": list(trajectory.turn_states),
        "rows": trajectory.rows.tolist(),
        "reward_parts": dict(trajectory.reward_parts),
        "temperature": trajectory.temperature,
        "top_p": trajectory.top_p,
        "top_k": trajectory.top_k,
        "finish_reason": trajectory.finish_reason,
        "member": trajectory.member,
        "seed": trajectory.seed,
        "retries": trajectory.retries,
        "metrics": dict(trajectory.metrics),
        "expert": trajectory.expert,
        **({} if trajectory.routes is None else {_ROUTES: True}),
    }


def encode(group: Group) -> bytes:
    """Packs a group into bytes. Arrays of all members are concatenated; the header says where each ends."""
    task = {"taskset": group.task.taskset, "epoch": group.task.epoch, "index": group.task.index}
    arrays = {
        name: np.concatenate([np.asarray(getattr(t, name), dtype) for t in group.trajectories] or [np.zeros(0, dtype)])
        for name, dtype in _ARRAYS.items()
    }
    if routed := [np.asarray(t.routes, np.int16) for t in group.trajectories if t.routes is not None]:
        arrays[_ROUTES] = _narrow(np.concatenate(routed))
    members = [_header(t) for t in group.trajectories]
    header = {"codec": CODEC_VERSION, "task": task, "members": members, "crc32": _crc32(arrays, members)}
    header["answer"] = group.answer
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    return save(arrays)


def _narrow(routes: np.ndarray) -> np.ndarray:
    """Returns them as int8 where all fit, as those of up to 128 experts do: most of a group is its routes."""
    return routes.astype(np.int8) if routes.max(initial=0) <= np.iinfo(np.int8).max else routes


def decode(payload: bytes) -> Group:
    """Decodes what `encode` has packed.

    Raises:
        ValueError: the bytes are not a group, are damaged, or were written by another version of the codec.
    """
    try:
        arrays = load(payload)
        header = json.loads(arrays["header"].tobytes())
    except Exception as error:
        raise ValueError(f"not an encoded group: {error}") from error
    if header.get("codec") not in _READABLE:
        raise ValueError(f"group written by codec {header.get('codec')}, this program reads up to {CODEC_VERSION}")
    if header.get("crc32") not in (None, _crc32(arrays, header["members"])):  # earlier programs wrote none
        raise ValueError("an encoded group that does not match its checksum")
    ends = np.cumsum([member["length"] for member in header["members"]])
    members = tuple(_members(header["members"], arrays, ends))
    return Group(TaskId(**header["task"]), members, header.get("answer", ""))  # earlier programs wrote none


def _crc32(arrays: Mapping[str, np.ndarray], members: Sequence[dict[str, Any]]) -> int:
    crc = zlib.crc32(json.dumps(members).encode())
    for name in (*_ARRAYS, _ROUTES):
        if name in arrays:
            crc = zlib.crc32(arrays[name].tobytes(), crc)
    return crc


def _members(headers: Sequence[dict[str, Any]], arrays: Mapping[str, np.ndarray], ends: np.ndarray) -> list[Trajectory]:
    members, routed = [], 0
    for fields, end in zip(headers, ends, strict=True):
        span = slice(int(end) - fields.pop("length"), int(end))
        if fields.pop(_ROUTES, False):
            begin, routed = routed, routed + span.stop - span.start
            fields[_ROUTES] = arrays[_ROUTES][begin:routed].astype(np.int16)
        columns: dict[str, Any] = {name: arrays[name][span] for name in _ARRAYS}
        columns |= {name: np.asarray(fields.pop(name, []), np.int32).reshape(-1, 2) for name in ("turns", "rows")}
        columns["turn_rewards"] = np.asarray(fields.pop("turn_rewards", []), np.float64)
        columns["turn_states"] = tuple(fields.pop("turn_states", ()))
        members.append(Trajectory(**columns, **fields))
    return members
