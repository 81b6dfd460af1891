"""Holds what a file of ROLL's or Trinity-RFT's becomes to the types of our keys, and to the functions that it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljax.config.choice import Choice
from rljax.config.fields import ConfigError, check_bounds
from rljax.config.importers.translation import Row, values_of
from rljax.config.schema import Config
from rljax.config.types import convert, element_of, hints_of


def checked(key: str, value: Any, kind: Any = Config, below: int = 0) -> Any:
    """Returns a value of the type that our key has; of a key of a function, which `of_functions` checks, as it is.

    Args:
        key: its path.
        value: as the file has it.
        kind: dataclass of the keys at this depth of the path.
        below: that depth.

    Raises:
        ConfigError: the key has no such value.
    """
    hint: Any = kind
    metadata: Mapping[str, Any] = {}
    for name in key.split(".")[below:]:
        if dataclasses.is_dataclass(hint):
            spec = next((spec for spec in dataclasses.fields(hint) if spec.name == name), None)
            if spec is None:
                raise ConfigError(f"{key}: unknown key")
            if "choice" in spec.metadata:
                return value
            hint, metadata = hints_of(hint)[name], spec.metadata
        else:
            hint = element_of(hint)
            if hint is None or hint is Any:
                return value
    made = convert(hint, value, key, lambda dotted, *_: f"{dotted}: unknown key")
    check_bounds(key, made, metadata)
    return made


def of_functions(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the rows, those refused whose value is none of the function, such as a loss, that another row names."""
    values = values_of(rows)
    for row in rows:
        settling = [*row.here]
        try:
            for key, value in () if row.refused else row.here.items():
                if group := group_of(key):
                    by, keys, depth = _chosen(key, *group, values)
                    settling.append(by)
                    checked(key, value, keys, depth)
            yield row
        except ConfigError as error:
            unsaid = tuple(row.here)
            yield dataclasses.replace(
                row, here={}, remark=str(error), refused=True, keys=tuple(settling), unsaid=unsaid
            )


def group_of(key: str) -> tuple[Choice, Any, int] | None:
    """Returns what says of which function a key is, the default of its name, and the depth of the path of its group;
    None for a key that is of no function.
    """
    hint: Any = Config
    for depth, name in enumerate(key.split(".")):
        fields = {spec.name: spec for spec in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else {}
        if name not in fields:
            return None
        if choice := fields[name].metadata.get("choice"):
            return choice, fields[choice.by].default, depth
        hint = hints_of(hint)[name]
    return None


def _chosen(key: str, choice: Choice, default: Any, depth: int, values: Mapping[str, Any]) -> tuple[str, Any, int]:
    """Returns which key names the function that a key is of, the dataclass of its keys, and their depth of the path."""
    above = key.split(".")
    by = ".".join([*above[:depth], choice.by])
    names = values.get(by, default)
    several = not isinstance(names, str)
    name = above[depth + 1] if several else names
    entry = None if ":" in name or (several and name not in names) else choice.find(name)
    return by, entry.keys if entry else Any, depth + 1 + several
