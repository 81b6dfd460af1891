"""Declares, walks and bounds the fields of the schema."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import errno
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.config.refusals import REFUSED, is_refused
from rljax.config.refusals import ConfigError as ConfigError
from rljax.config.secrets import without_passwords

LARGEST_INTEGER = 10**9
"""Bound of integers that have none of their own: sums of two fit the ledger's 32-bit columns."""
_LEAST_NORMAL, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Magnitudes of float32 numbers; what is smaller is flushed to 0."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_SHOWN = 60
_NEAR = 0.8
"""Likeness from which what is written is read as what it is near to, so that the rest is judged with it."""


def key(default: Any, help: str, **bounds: Any) -> Any:
    """Declares a dataclass field: its meaning and bounds ``low``, ``high``, ``low_open``, ``high_open``, ``choices``.

    The bounds of a tuple are those of its elements. ``instead`` has, for values of other programs, which of the
    choices is meant, and what to write.
    """
    metadata = {"help": help, "optional": default is None, **bounds}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def walk(config: Any, path: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yields (dotted path, value, metadata) of every leaf key; what is `REFUSED` is one, whatever stood there."""
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        here = f"{path}{spec.name}"
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{here}.")
        elif isinstance(value, Mapping) and any(dataclasses.is_dataclass(v) or is_refused(v) for v in value.values()):
            for name, item in value.items():
                if dataclasses.is_dataclass(item):
                    yield from walk(item, f"{here}.{name}.")
                elif is_refused(item):
                    yield f"{here}.{name}", REFUSED, {}
        else:
            yield here, value, spec.metadata


def check_bounds(path: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Checks one value, or each element of a tuple, against its bounds, and numbers against what arithmetic can hold.

    Raises:
        ConfigError: it is out of bounds.
    """
    choices = metadata.get("choices")
    if choices and value not in choices:
        meant, instead = metadata.get("instead", {}).get(value, (None, ""))
        error = ConfigError(f"{path}={shown(value)}: {instead}") if instead else not_a_choice(path, value, choices)
        error.meant = error.meant or meant
        raise error
    if isinstance(value, tuple):
        for index, element in enumerate(value):
            check_bounds(f"{path}[{index}]", element, metadata)
    elif isinstance(value, float):
        _check_float(path, value, metadata)
    elif isinstance(value, int) and not isinstance(value, bool):
        _check_range(path, value, {"high": LARGEST_INTEGER, **metadata})


def check_name(before: str, name: str, what: str) -> None:
    """Refuses names that cannot be a part of a path, a row of the ledger and a metric alike.

    Args:
        before: what stands before the name in the message: its key.
        name: of an explorer, taskset or environment.
        what: the kind of thing that is named, for the message.

    Raises:
        ConfigError: it is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{before}{shown(name)}: {what} is letters, digits, '_', '-' and '.', from 1 to 64 of them, and begins "
            "with no '-' or '.'"
        )


def not_a_choice(path: str, value: Any, choices: Sequence[Any], *also: str) -> ConfigError:
    """Returns the refusal of a value that is none of the choices, nor what is ``also`` taken, with the nearest of them,
    which is `ConfigError.meant` where it is very near.
    """
    near = difflib.get_close_matches(str(value), [choice for choice in choices if isinstance(choice, str)], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    error = ConfigError(f"{path}={shown(value)}: not one of {', '.join(map(str, (*choices, *also)))}{hint}")
    error.meant = next(iter(difflib.get_close_matches(str(value), near, 1, _NEAR)), None)
    return error


def user_path(text: str) -> Path:
    """Returns the path of a file, with the folder of ``~`` or ``~user`` in it. With a user that there is not it is as
    written: then there is no such file.
    """
    return Path(os.path.expanduser(text))


def check_path(path: str, file: str) -> None:
    """Refuses paths that no file can have; whether there is a file is not checked.

    Raises:
        ConfigError: the system takes no path like this.
    """
    try:
        os.stat(file)
    except ValueError as error:  # it holds a NUL
        raise ConfigError(f"{path}={shown(file)}: cannot be a path ({error}); write another") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{path}={shown(file)}: the path is too long; write a shorter one") from None


def named_explorer(name: str) -> str:
    """Returns how messages call an explorer: by its name, where that says more than what it is."""
    return name if name == "explorer" else f"explorer {name}"


def shown(value: Any) -> str:
    """Returns ``repr(value)`` for a message, as `brief` makes it."""
    return brief(value, repr) if isinstance(value, str) else brief(repr(value))


def brief(text: str, quote: Callable[[str], str] = str) -> str:
    """Returns the text for a message: without the passwords of URLs, and cut where it is long."""
    public = without_passwords(text)
    return quote(public[:_SHOWN]) + "…" * (len(public) > _SHOWN)


def _check_float(path: str, value: float, metadata: Mapping[str, Any]) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{path}={value}: must be finite")
    _check_range(path, value, metadata)
    if abs(value) > _LARGEST:
        raise ConfigError(f"{path}={value}: float32 holds at most {_LARGEST:.1e}; write a smaller number")
    if 0 < abs(value) < _LEAST_NORMAL:
        raise ConfigError(f"{path}={value}: float32 makes 0 of it; write 0, or at least {_LEAST_NORMAL:.1e}")
    (single,) = struct.unpack("f", struct.pack("f", value))
    if metadata.get("high_open") and single == metadata["high"]:
        raise ConfigError(f"{path}={value}: must be below {metadata['high']}, which float32 rounds it to")


def _check_range(path: str, value: float, metadata: Mapping[str, Any]) -> None:
    low, high = metadata.get("low"), metadata.get("high")
    if low is not None and (value < low or (metadata.get("low_open") and value == low)):
        above = "above" if metadata.get("low_open") else "at least"
        or_none = ", or None" * metadata.get("optional", False)
        raise ConfigError(f"{path}={shown(value)}: must be {above} {low}{or_none}")
    if high is not None and (value > high or (metadata.get("high_open") and value == high)):
        below = "below" if metadata.get("high_open") else "at most"
        raise ConfigError(f"{path}={shown(value)}: must be {below} {high}")
