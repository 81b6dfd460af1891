"""Reads the fields of a request's JSON object, and refuses what nobody has read."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from typing import Any

from rljax.pipeline.serve.errors import BadRequest


class Fields:
    """The fields of a JSON object, each taken once; null stands for one that is not given."""

    def __init__(self, given: Mapping[str, Any], path: str = "") -> None:
        self._left = {name: value for name, value in given.items() if value is not None}
        self._known: list[str] = []
        self._path = path

    def take(self, name: str) -> Any:
        """Returns the value of a field, None if it is not given."""
        self._known.append(name)
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """Returns a text."""
        value = self.take(name)
        if value is None:
            return None
        return proper_text(value, self._path + name)

    def flag(self, name: str) -> bool:
        """Returns true or false; false if it is not given."""
        value = self.take(name)
        if value not in (None, True, False) or (isinstance(value, int | float) and not isinstance(value, bool)):
            raise BadRequest("write true or false", self._path + name)
        return bool(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Returns an integer within bounds."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(f"write an integer from {low} to {high}", self._path + name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Returns a number within bounds."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadRequest("write a number", self._path + name)
        if not low <= value <= high:
            raise BadRequest(f"write a number from {low:g} to {high:g}", self._path + name)
        return float(value)

    def only(self, name: str, *neutral: Any, why: str = "not supported") -> None:
        """Refuses every value of a field but those that change nothing."""
        value = self.take(name)
        if value is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral
        ):
            shown = " or ".join(json.dumps(one) for one in neutral)
            raise BadRequest(f"{why}; leave it out" + (f" or write {shown}" if neutral else ""), self._path + name)

    def end(self) -> None:
        """Refuses the first field that nobody has taken."""
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else "leave it out"
            raise BadRequest(f"unknown field; {hint}", self._path + name[:64])


def json_object(body: bytes) -> Mapping[str, Any]:
    """Returns the JSON object of a body.

    Raises:
        BadRequest: it is none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON ({str(error)[:100]})") from None
    if not isinstance(found, dict):
        raise BadRequest("the body is no JSON object")
    return found


def proper_text(value: Any, path: str) -> str:
    """Returns a text that can be encoded.

    Raises:
        BadRequest: it is no text, or has half a character.
    """
    if not isinstance(value, str):
        raise BadRequest("write a text", path)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest("no proper text: it has one half of a surrogate pair", path) from None
    return value
