"""Converts the rows of a source to problems, and refuses bad rows."""

from __future__ import annotations

import bisect
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from rljax.config.refusals import RefusedIn, joined
from rljax.tasks import cells
from rljax.tasks.task import BadRow, Message

PROGRESS = 10.0
"""Seconds between lines that say how many rows have been read."""

PICTURES = ("image", "images")
"""Columns that hold what a prompt shows, as TRL and verl call them."""

_LOG = logging.getLogger(__name__)
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Problem:
    """A row before the template: its question, or a dialogue in the place of one, and its reference answer."""

    prompt: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()


class Row(Protocol):
    """A problem, or the task that is made of one, as far as rewards read it."""

    @property
    def answer(self) -> str:
        """The reference answer; empty where there is none."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The other columns, by name."""
        ...


def column(row: Row, path: str) -> Any:
    """Returns the value of a column of a row, or at a dotted path into a nested one.

    Raises:
        ValueError: it has none there.
    """
    try:
        return cells.cell(row.metadata, path)
    except KeyError:
        has = ", ".join(map(str, row.metadata)) or "no other"
        raise ValueError(f"the row has no column {path!r}; it has {has}") from None


class Rows(Protocol):
    """Usable rows of a source, in its own order.

    Attributes:
        bad_rows: rows that were left out.
    """

    bad_rows: int

    def __len__(self) -> int: ...

    def problem(self, index: int) -> Problem:
        """Returns the problem at an index among the usable rows."""
        ...


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a row that hold the prompt and the answer. Each is named by a dotted path; see `cells.cell`.

    Attributes:
        prompt: of a text, or of a list of chat messages.
        answer: of a text, or of a list of one message.
        checks: validators of the answer; each raises ValueError with the reason.
        needs_answer: whether a row without an answer is bad; else its answer is empty.
        tag: of what kind of problem a row is, a text or a list of texts.
        tags: the kinds that are taken; empty: all, and no such column is needed.
        row_checks: validators of the whole problem; each raises ValueError with the reason.
        read: the other columns that these read.
        messages: of a list of chat messages or its JSON, in the place of the prompt; None: there is none.
        imitated: whether messages may end with the reply, and so be whole dialogues without an answer.
        templated: whether a template, a system prompt or examples are put around prompts, which messages have no
            place for.
    """

    prompt: str
    answer: str
    checks: tuple[Callable[[str], None], ...] = ()
    needs_answer: bool = True
    tag: str = "tag"
    tags: frozenset[str] = frozenset()
    row_checks: tuple[Callable[[Row], None], ...] = ()
    read: frozenset[str] = frozenset()
    messages: str | None = None
    imitated: bool = False
    templated: bool = False

    def needed(self, *, texts: bool = False) -> dict[str, str]:
        """Returns the columns that there must be, by the config keys that name them. With ``texts`` prompts are known
        to be texts, which have an answer beside them where they are imitated.
        """
        prompt = {"messages_key": self.messages} if self.messages else {"prompt_key": self.prompt}
        asked = {**prompt, "answer_key": self.answer, "tag_key": self.tag}
        answered = self.needs_answer and (not self.imitated or (texts and not self.messages))
        unneeded = {"" if answered else "answer_key", "" if self.tags else "tag_key"}
        return {key: column for key, column in asked.items() if key not in unneeded}

    def check(self, known: Iterable[str], name: str, key: str, *, texts: bool = False) -> None:
        """Refuses the columns that there must be and are not.

        Args:
            known: the columns that there are.
            name: the source's, for messages.
            key: config path of the taskset, for messages.
            texts: see `needed`.

        Raises:
            ConfigError: of each, with the nearest that there is.
        """
        there = list(known)
        refused = [
            RefusedIn(f"{key}.{option}={path!r}: no such column", {cells.nearest(path, there, "there are"): [name]})
            for option, path in self.needed(texts=texts).items()
            if path not in there
        ]
        if refused:
            raise joined(refused)

    def other_tags(self, row: object, where: str) -> set[str]:
        """Returns the tags of a row that is passed over; nothing for one that is taken.

        Raises:
            BadRow: tags are asked for, and it has none.
        """
        if not self.tags or not isinstance(row, Mapping):
            return set()
        tag = cells.required(row, self.tag, where)
        mine = {str(one) for one in tag} if isinstance(tag, list | tuple | set) else {str(tag)}
        return set() if mine & self.tags else mine or {"none"}

    def problem(self, row: object, where: str) -> Problem:
        """Checks a row and returns its problem.

        Args:
            row: the row as the source has it; where a value could not be decoded the error stands in its place.
            where: file and line, for the message.

        Raises:
            BadRow: it is no object, lacks a column, its prompt or answer is no usable text, it has a picture, or a
                check raises.
        """
        if not isinstance(row, Mapping):
            raise BadRow(f"{where}: a {type(row).__name__}, not an object with columns")
        for name, value in row.items():
            if isinstance(value, UnicodeDecodeError):
                raise BadRow(f"{where}: column {name!r} holds bytes that are no UTF-8 text")
        if shown := [name for name in PICTURES if row.get(name) and not self._asks(name)]:
            raise BadRow(
                f"{where}: column {shown[0]!r}: models read texts alone here, and would get the prompt without its "
                "picture; leave such rows out, or give the column another name if it is for your own functions alone"
            )
        asked = self.messages or self.prompt
        messages = self._messages(row, asked, where)
        prompt = json.dumps(messages) if messages else cells.text(row, self.prompt, where)
        said = "".join(one["content"] for one in messages) if messages else prompt
        if not said.strip():
            raise BadRow(f"{where}: the prompt ({asked!r}) is empty")
        replied = bool(messages) and messages[-1]["role"] == "assistant"
        answer = "" if replied else self._answer(row, where)
        rest = {name: value for name, value in row.items() if name not in (asked, self.answer)}
        problem = Problem(prompt, answer, rest, messages)
        try:
            for check in self.checks:
                check(answer)
            for check_row in self.row_checks:
                check_row(problem)
        except ValueError as error:
            raise BadRow(f"{where}: {error}") from error
        return problem

    def reads(self, column: str) -> bool:
        """Returns whether `other_tags` or `problem` check anything in a column of this name."""
        return column in PICTURES or self._asks(column)

    def _asks(self, column: str) -> bool:
        asked = {*self.needed().values(), self.answer, *self.read}
        return any(path == column or path.startswith(f"{column}.") for path in asked)

    def _messages(self, row: Mapping[str, Any], path: str, where: str) -> tuple[Message, ...]:
        """Returns the messages of a row, up to the one that the model replies to; none where the prompt is a text."""
        found, where = cells.required(row, path, where), f"{where}: column {path!r}"
        if not self.messages and not isinstance(found, list | tuple):
            return ()
        if self.templated:
            raise BadRow(
                f"{where} holds messages, which are used as they are; leave template, system_prompt and examples out"
            )
        messages = cells.parsed_messages(found, where) if self.messages else cells.messages(found, where)
        if messages[-1]["role"] == "assistant":
            if not self.imitated:
                raise BadRow(f"{where} ends with the reply, which is what is sampled; leave it out")
            cells.check_turns(messages, where)
        return messages

    def _answer(self, row: Mapping[str, Any], where: str) -> str:
        if not self.needs_answer and cells.optional(row, self.answer) is None:
            return ""
        return cells.text(row, self.answer, where)


class JoinedRows:
    """Usable rows of several sources, one after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))
        self.bad_rows = sum(part.bad_rows for part in parts)
        self.other_tags: set[str] = set().union(*(getattr(part, "other_tags", set()) for part in parts))
        self.first_bad_row = next(filter(None, (getattr(part, "first_bad_row", None) for part in parts)), None)

    def __len__(self) -> int:
        return self._ends[-1]

    def problem(self, index: int) -> Problem:
        """Returns the problem at an index among the usable rows of all."""
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part].problem(index - (self._ends[part - 1] if part else 0))


def counted(rows: Iterable[_Row], name: str) -> Iterator[_Row]:
    """Yields rows as they are scanned, and says every `PROGRESS` seconds how many of ``name`` there have been.

    A check that parses formulas takes milliseconds a row: over a minute for the rows of MATH.
    """
    due = monotonic() + PROGRESS
    for count, row in enumerate(rows):
        if monotonic() >= due:
            _LOG.warning("%s: %d rows read and checked so far", name, count)
            due = monotonic() + PROGRESS
        yield row
