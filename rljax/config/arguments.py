"""Reads a command line: a config's path, and values of its keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

from rljax.config import bundled
from rljax.config.fields import ConfigError, brief, shown
from rljax.config.importers.translate import is_foreign
from rljax.config.keys import key_help, types_of
from rljax.config.refusals import REFUSED, joined
from rljax.config.types import options_of

_TRUTH = ("true", "false", "1", "0")
_OTHERS = ("dry-run", "help", "version")
_NEAR = 0.8
_OPTION = re.compile("--|-[A-Za-z]")  # and no negative number


def parse_arguments(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Does what `read_arguments` does.

    Raises:
        ConfigError: arguments are refused; all but the first are its ``others``.
    """
    path, overrides, refused = read_arguments(arguments)
    if refused:
        raise joined(refused)
    return path, overrides


def read_arguments(arguments: Sequence[str]) -> tuple[str, dict[str, Any], list[ConfigError]]:
    """Splits a command line into the config's path and its overrides: ``--config=FILE --config.key=value``. Of a key
    that is true or false ``--config.key`` and ``--noconfig.key`` are enough.

    Returns:
        The path, empty where there is none; the overrides, `REFUSED` where one has no value; and what is refused. An
        argument that is near one of these forms is refused, and taken for that.
    """
    left, given = list(arguments), dict[str, Any]()
    refused: list[ConfigError] = []
    mistyped = set[str]()
    while left:
        written = left[0].partition("=")[0]
        name, value = _taken(left, refused.append)
        mistyped |= {name} if _meant(written) != written else set()
        before = given.setdefault(name, value)
        if REFUSED not in (before, value) and before != value and name not in mistyped:
            files = name == "--config" and is_foreign(before) and is_foreign(value)
            write = f"{name}={before},{value}" if files else "it once"
            refused.append(ConfigError(f"{name}={shown(value)}: given before as {shown(before)}; write {write}"))
    path = given.pop("--config", None)
    if path is None:
        refused.append(ConfigError("--config: missing; write --config=quickstart, or a file of your own"))
    overrides = {key.removeprefix("--config."): value for key, value in given.items() if key.startswith("--config.")}
    return "" if path in (None, REFUSED) else path, overrides, refused


def _taken(left: list[str], note: Callable[[ConfigError], None]) -> tuple[str, Any]:
    """Takes the next argument away from those that are left, with its value; returns both, as they are meant."""
    written, equals, value = left.pop(0).partition("=")
    name, bare = _meant(written), _is_config(written)
    key = name.removeprefix("--config.")
    if bare:
        equals, value = "=", written
    if name != written:
        meant = f"{name}={written}" if bare else name
        note(ConfigError(f"{brief(written)}: unknown argument; did you mean {brief(meant)}?"))
    if name.startswith("--noconfig.") and not equals:
        key = name.removeprefix("--noconfig.")
        if _is_truth(key):
            return f"--config.{key}", "false"
        note(ConfigError(f"{name}: not true or false; write --config.{key}=VALUE"))
        return f"--config.{key}", REFUSED
    if key == name != "--config":
        if name == written:
            note(ConfigError(f"{brief(name)}: unknown argument; write --config=FILE.py and --config.key=value"))
        if name.startswith("-") and not equals and left and not _OPTION.match(left[0]):
            left.pop(0)  # its value
        return "", REFUSED
    if not equals:
        truth = _is_truth(key)
        if left and (left[0].lower() in _TRUTH if truth else not _OPTION.match(left[0])):
            value = left.pop(0)
        elif truth:
            value = "true"
        else:
            note(ConfigError(f"{name}: no value; write {name}=VALUE"))
            return name, REFUSED
    pair = [value.removesuffix(","), *left[:1]]
    if name == "--config" and len(pair) > 1 and all(map(is_foreign, pair)) and not _OPTION.match(pair[1]):
        spaced, value = f"{value} {left.pop(0)}", ",".join(pair)
        note(ConfigError(f"--config={spaced}: leave the space out; write --config={value}"))
    if name == "--config" and not value:
        note(ConfigError("--config: no value; write --config=quickstart, or a file of your own"))
        return name, REFUSED
    return name, value


def _meant(written: str) -> str:
    """Returns the argument that one which there is not is near to; of any other itself."""
    if _is_config(written):
        return "--config"
    bare = written.lstrip("-")
    first, dot, key = bare.partition(".")
    forms = ("config", "noconfig") if dot else ("config", *_OTHERS)
    if near := difflib.get_close_matches(first, forms, 1, _NEAR):
        return f"--{near[0]}{dot}{key}"
    keys = [path for path, _, _ in key_help()]
    if near := [bare] if any(types_of(bare)) else difflib.get_close_matches(bare, keys, 1, _NEAR):
        return f"--config.{near[0]}"
    return written


def _is_config(written: str) -> bool:
    """Returns whether what was written is a config that comes along, or looks like the file of one."""
    name = written.partition(":")[0]
    return not name.startswith("-") and (bundled.has(name) or name.endswith((".py", ".json")) or is_foreign(name))


def _is_truth(key: str) -> bool:
    """Returns whether a key is true or false."""
    hints = list(types_of(key))
    return bool(hints) and all(set(options_of(hint)) <= {bool, type(None)} for hint in hints)
