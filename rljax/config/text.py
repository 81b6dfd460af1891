"""Reads values as they are written on a command line: by the type of their key."""

from __future__ import annotations

import ast
import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from rljax.config.fields import ConfigError
from rljax.config.types import options_of, type_name

_NONE = ("none", "null")


def from_text(hint: Any, text: str, path: str) -> Any:
    """Returns the value of a key from its text.

    Args:
        hint: the type of the key in the schema.
        text: as written.
        path: the key's, for messages.

    Raises:
        ConfigError: it is none of that type.
    """
    options = options_of(hint)
    if type(None) in options and text.lower() in _NONE:
        return None
    kind = next(option for option in options if option is not type(None))
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{path}={text}: expected true or false")
        return text.lower() in ("true", "1")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            if kind is int and (number := _whole(text)) is not None:
                return number
            raise ConfigError(f"{path}={text}: expected {type_name(hint)}") from None
    if typing.get_origin(kind) is tuple:
        if text.lower() in _NONE:
            raise ConfigError(f"{path}={text}: expected {type_name(kind)}; an empty one is written {path}=()")
        element = typing.get_args(kind)[0]
        return tuple(from_text(element, part, path) for part in _parts(text, path))
    if kind is Any:
        return _literal(text)
    if typing.get_origin(kind) is Mapping and text.strip() == "{}":
        return {}
    few = [field.name for field in dataclasses.fields(hint)][:4] if dataclasses.is_dataclass(hint) else []
    such = f" ({', '.join(few)}, …)" if few else ""
    raise ConfigError(f"{path}={text}: this is a group of keys; write {path}.KEY=VALUE{such}")


def _whole(text: str) -> int | None:
    """Returns the whole number that is written with an exponent, such as 1e3; None: the text is none."""
    try:
        number = float(text) if "e" in text.lower() else math.nan
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def _parts(text: str, path: str) -> list[str]:
    """Returns the elements of a tuple: of a Python literal, or texts with commas between them."""
    inner = text.strip()
    if inner[:1] in ("(", "[", "'", '"'):
        try:
            value = ast.literal_eval(inner)
            return [str(item) for item in value] if isinstance(value, (tuple, list)) else [str(value)]
        except (ValueError, SyntaxError):
            if (inner[0], inner[-1]) in (("(", ")"), ("[", "]")):
                inner = inner[1:-1]
    parts = [part.strip() for part in inner.removesuffix(",").split(",")]
    if text and not all(parts):
        raise ConfigError(f"{path}={text!r}: an element is empty; write a,b,c or ('a', 'b') or ()")
    return parts if text else []


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)
