"""Samples of trajectories of every step as readable text, for the report and for people with ``less``.

Parts are named by role and pid, as those of the trace are: JSON lines, which `read_samples` joins, and next to them the
same as text.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.observe.metrics import read_json_lines
from rljax.observe.trace import part_path
from rljax.observe.warn_once import WarnOnce
from rljax.trajectory import Group, TaskId, Trajectory

log = logging.getLogger(__name__)

PARTS = "samples"
MAX_CHARACTERS = 20_000
"""Characters kept of a prompt and of a response."""

Decode = Callable[[Sequence[int]], str]
Sample = dict[str, Any]


class SampleLog:
    """Writes samples; any thread. A failure is logged once and costs samples only."""

    def __init__(self, run_dir: Path, role: str, decode: Decode, per_step: int) -> None:
        """Opens nothing yet. ``decode`` turns token ids into text, special tokens included;
        ``per_step`` as in `config.observe`.
        """
        self._path = Path(run_dir) / PARTS / part_path(run_dir, role).name
        self._decode = decode
        self._per_step = per_step
        self._lock = threading.Lock()
        self._lineage = 0
        self._warn = WarnOnce(log, "sampled trajectories are missing from the report")

    def write(self, step: int, groups: Sequence[Group], trained_from: int) -> list[Sample]:
        """Writes some trajectories of the batch that completed ``step``, trained from weights ``trained_from``, and
        returns them.

        The choice depends on the step alone. Staleness is ``trained_from`` minus the version of a token.
        """
        try:
            rows = [
                describe(step, group.task, t, self._decode, trained_from, group.answer)
                for group, t in self._choose(step, groups)
            ]
            self._append(rows)
        except Exception as error:
            self._warn(error)
            return []
        return rows

    def truncate(self, step: int, lineage: int = 0) -> None:
        """Hides the samples of ``step`` and later written before now, or by an earlier lineage whenever."""
        self._lineage = lineage
        try:
            self._append([{"truncate": step}])
        except OSError as error:
            self._warn(error)

    def _choose(self, step: int, groups: Sequence[Group]) -> list[tuple[Group, Trajectory]]:
        every = [(group, trajectory) for group in groups for trajectory in group.trajectories]
        return random.Random(step).sample(every, min(self._per_step, len(every)))

    def _append(self, rows: list[Sample]) -> None:
        if not rows:
            return
        stamp = {"at": time.time(), "lineage": self._lineage}
        lines = "".join(json.dumps(stamp | row, ensure_ascii=False) + "\n" for row in rows)
        with self._lock:
            self._path.parent.mkdir(exist_ok=True)
            for path, text in (self._path, lines), (self._path.with_suffix(".txt"), "".join(map(as_text, rows))):
                with open(path, "a", encoding="utf-8") as file:
                    file.write(text)


def describe(
    step: int, task: TaskId, trajectory: Trajectory, decode: Decode, trained_from: int, answer: str = ""
) -> Sample:
    """Returns a trajectory as plain JSON: prompt, reward and parts, the reference ``answer``, where there is one, and
    ``spans``, the response cut where the version changes.

    A span has ``text``, ``tokens`` and ``version``, which is None where no engine sampled it (environment text).
    Several turns are ``turns`` as well: what was ``shown`` before each, its own ``spans``, and the ``reward`` it
    earned.
    """
    start = trajectory.prompt_length
    trained = trajectory.versions[trajectory.loss_mask]
    many = {"turns": _turns(trajectory, decode)} if len(trajectory.turns) > 1 else {}
    return {
        "step": step,
        "task": str(task),
        "member": trajectory.member,
        "prompt": _shortened(decode(trajectory.token_ids[:start].tolist())),
        "spans": _spans(trajectory.token_ids[start:], trajectory.versions[start:], decode),
        "answer": _shortened(answer),
        "reward": float(trajectory.reward),
        "reward_parts": {name: float(value) for name, value in trajectory.reward_parts.items()},
        "finish_reason": trajectory.finish_reason,
        "temperature": trajectory.temperature,
        "trained_from": trained_from,
        "staleness": trained_from - int(trained.min()) if len(trained) else None,
        "tokens": len(trained),
        "retries": trajectory.retries,
        **many,
    }


def as_text(row: Sample) -> str:
    """Formats what `describe` returned, or a note that steps are trained again, as text."""
    if "truncate" in row:
        return f"===== from step {row['truncate']} on\n\n"
    head = f"===== step {row['step']} · {row['task']} · member {row['member']} · reward {row['reward']:g}"
    parts = [f"{head} · {row['finish_reason']} · staleness {row['staleness']}\n"]
    turns = row.get("turns") or [{"shown": row["prompt"], "spans": row["spans"], "reward": None}]
    for number, turn in enumerate(turns, 1):
        earned = "" if turn["reward"] is None else f", reward {turn['reward']:g}"
        said = "".join(f"{_mark(span['version'])}{span['text']}" for span in turn["spans"])
        parts.append(f"----- shown\n{turn['shown']}\n----- answer {number}{earned}\n{said}\n")
    if row["answer"]:
        parts.append(f"----- reference answer\n{row['answer']}\n")
    return "".join(parts) + "\n"


def _mark(version: int | None) -> str:
    return "" if version is None else f"⟨version {version}⟩ "


def read_samples(run_dir: Path) -> list[Sample]:
    """Returns the samples of a run, by step; those of steps that a resumed run trained again are left out.

    A sample has ``step``, ``task``, ``member``, ``prompt``, ``answer``, the reference, ``reward`` and ``reward_parts``.
    Its ``spans`` are the response, cut where the version changes: each has ``text``, ``tokens`` and ``version``, which
    is None for what no engine sampled. Several turns are ``turns`` as well: what was ``shown`` before each, its own
    ``spans``, and the ``reward`` that it earned.
    """
    lines = [row for path in sorted((Path(run_dir) / PARTS).glob("*.jsonl")) for row in read_json_lines(path)]
    rows = [row for row in lines if isinstance(row, dict) and "at" in row and ("step" in row or "truncate" in row)]
    standing: list[Sample] = []
    for row in sorted(rows, key=lambda row: (row.get("lineage", 0), row["at"])):
        if "truncate" in row:
            standing = [other for other in standing if other["step"] < row["truncate"]]
        else:
            standing.append(row)
    return sorted(standing, key=lambda row: row["step"])


def _turns(trajectory: Trajectory, decode: Decode) -> list[dict[str, Any]]:
    found, before = [], 0
    for (start, end), reward in zip(trajectory.turns.tolist(), trajectory.rewards_by_turn.tolist(), strict=True):
        shown = _shortened(decode(trajectory.token_ids[before:start].tolist()))
        spans = _spans(trajectory.token_ids[start:end], trajectory.versions[start:end], decode)
        found.append({"shown": shown, "spans": spans, "reward": reward})
        before = end
    return found


def _spans(token_ids: np.ndarray, versions: np.ndarray, decode: Decode) -> list[dict[str, Any]]:
    """Decodes from the start to each change of version, so that a character cut by one goes to the later span."""
    changes = (np.flatnonzero(np.diff(versions)) + 1).tolist()
    spans: list[dict[str, Any]] = []
    before, characters = "", 0
    for begin, end in zip([0, *changes], [*changes, len(token_ids)], strict=True):
        so_far = decode(token_ids[:end].tolist())
        whole = so_far if end == len(token_ids) else so_far.rstrip("\ufffd")
        text = whole[len(before) :][: max(MAX_CHARACTERS - characters, 0)]
        characters += len(text)
        version = int(versions[begin]) if end > begin and versions[begin] >= 0 else None
        spans.append({"text": text, "tokens": end - begin, "version": version})
        before = whole
    if len(before) > characters:
        spans[-1]["text"] += f" […, {len(before) - characters} more characters]"
    return [span for span in spans if span["tokens"]]


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[:MAX_CHARACTERS] + f" […, {len(text) - MAX_CHARACTERS} more characters]"
