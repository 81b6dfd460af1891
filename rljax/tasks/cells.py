"""Values of a row's columns: by a dotted path, as a text, as chat messages."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rljax.tasks.task import BadRow, Message

ROLES = ("system", "user", "assistant")


def cell(row: Mapping[str, Any], path: str) -> Any:
    """Returns the value of the column of this very name; else, part by part, of a field of a nested column.

    Raises:
        KeyError: there is none.
    """
    if path in row:
        return row[path]
    for end in (place for place, character in enumerate(path) if character == "."):
        if isinstance(inner := row.get(path[:end]), Mapping):
            with contextlib.suppress(KeyError):
                return cell(inner, path[end + 1 :])
    raise KeyError(path)


def optional(row: Mapping[str, Any], path: str) -> Any:
    """Returns `cell`, or None where there is none."""
    try:
        return cell(row, path)
    except KeyError:
        return None


def paths(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of all columns, and of the fields of nested ones as dotted paths."""
    for name, value in row.items():
        yield str(name)
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in paths(value))


def required(row: Mapping[str, Any], path: str, where: str) -> Any:
    """Returns `cell`.

    Raises:
        BadRow: there is none; the nearest is named.
    """
    try:
        return cell(row, path)
    except KeyError:
        raise BadRow(f"{where}: no column {path!r}; {nearest(path, paths(row), 'there are')}") from None


def text(row: Mapping[str, Any], path: str, where: str) -> str:
    """Returns a text, a number as it is written, or what the assistant says in a list of this one message.

    Raises:
        BadRow: there is none.
    """
    value = required(row, path, where)
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    where = f"{where}: column {path!r}"
    if isinstance(value, bytes):
        raise BadRow(f"{where} holds bytes that are no UTF-8 text")
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        found = messages(value, where)
        if [one["role"] for one in found] != ["assistant"]:
            raise BadRow(f"{where} holds {', '.join(one['role'] for one in found)}; write one message, the assistant's")
        return found[0]["content"]
    write = "; write it as a text, of JSON" if isinstance(value, Mapping) else ""
    raise BadRow(f"{where} holds {type(value).__name__}, not text{write}")


def parsed_messages(value: Any, where: str) -> tuple[Message, ...]:
    """Returns `messages` of a list, or of its JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRow(f"{where} holds a text that is no JSON ({error})") from error
    return messages(value, where)


def messages(value: Any, where: str) -> tuple[Message, ...]:
    """Checks a list of chat messages, and returns role and content of each.

    Args:
        value: what should be one.
        where: file, row and column, for the message.

    Raises:
        BadRow: it is none, or has what no model here reads: images, calls of tools.
    """
    if not isinstance(value, list | tuple) or not value:
        raise BadRow(f"{where} holds no messages; write a list of role and content, both texts")
    return tuple(_message(one, f"{where}, message {number}") for number, one in enumerate(value, 1))


def _message(one: Any, where: str) -> Message:
    if not isinstance(one, Mapping):
        raise BadRow(f"{where}: a {type(one).__name__}; write role and content, both texts")
    role, content = one.get("role"), one.get("content")
    if role in ("tool", "function") or one.get("tool_calls") or one.get("function_call"):
        raise BadRow(f"{where}: a call of a tool, or its result; there are no tools here, leave such rows out")
    if role not in ROLES:
        said = "no role" if role is None else f"role {role!r}"
        raise BadRow(f"{where}: {said}; write system, user or assistant")
    if isinstance(content, list | tuple):
        kinds = sorted({str(part.get("type")) for part in content if isinstance(part, Mapping)} - {"text"})
        held = f"{', '.join(kinds)}: models read texts alone here" if kinds else "a list; write one text"
        raise BadRow(f"{where}: the content of {role} is {held}")
    if not isinstance(content, str):
        raise BadRow(f"{where}: the content of {role} is {type(content).__name__}, not a text")
    return {"role": role, "content": content}


def check_turns(found: Sequence[Message], where: str) -> None:
    """Checks a dialogue whose replies are imitated: after the first reply, user and assistant take turns.

    Raises:
        BadRow: they do not, or nobody asks.
    """
    roles = [one["role"] for one in found]
    first = roles.index("assistant")
    for number, role in enumerate(roles[first:], first):
        expected = "user" if (number - first) % 2 else "assistant"
        if not first or role != expected:
            raise BadRow(
                f"{where}, message {number + 1}: role {role!r}, where {expected if first else 'user'!r} is expected; "
                "a reply follows a question, and each other one of the user's"
            )


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns ``nearest: X`` for a mistyped name, or the list of known names where none is close."""
    names = sorted(map(str, known))
    close = near(name, names)
    return f"nearest: {close}" if close is not None else f"{otherwise}: {', '.join(names[:20]) or 'none'}"


def near(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that a mistyped one is likest to; None where none is close."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
