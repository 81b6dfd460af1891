"""Lays what a config file says over the defaults of the schema, before the command line sets keys of it.

References (`ConfigDict.get_ref`, placeholders) are resolved last: what refers to a key has the value that the command
line gives it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import RequiredValueError

from rljax.config.fields import ConfigError
from rljax.config.keys import types_of
from rljax.config.schema import Config
from rljax.config.text import from_text
from rljax.config.types import as_plain, element_of, hints_of, plain


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all keys of a config: those that are given, and the defaults of the others. Of a group with names of its
    own the given entries are all that there are.
    """
    whole: dict[str, Any] = _over(Config, as_plain(Config(mode="audit")) | {"mode": "both"}, plain(values))
    return whole


def _over(kind: Any, below: Any, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    if dataclasses.is_dataclass(kind):
        whole, hints = dict(below), hints_of(kind)
        functions = {
            spec.name: spec.metadata["choice"].by for spec in dataclasses.fields(kind) if "choice" in spec.metadata
        }
        for name, value in values.items():
            if name not in functions:
                whole[name] = _over(hints.get(name), below.get(name), value)
        for name, by in functions.items():  # another function has other keys
            same = whole[by] == below[by]
            whole[name] = _keys(below[name] if same else {}, values.get(name, {}))
        return whole
    element = element_of(kind)
    if dataclasses.is_dataclass(element):
        return {name: _over(element, _made(element), value) for name, value in values.items()}
    return values


def _made(kind: Any) -> dict[str, Any]:
    return as_plain(kind())


def _keys(below: Mapping[str, Any], given: Any) -> Any:
    return {**below, **given} if isinstance(given, Mapping) else given


def resolved(config: ConfigDict, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config file's keys and values, those that refer to a key with the value that it is given.

    Raises:
        ConfigError: a placeholder must be filled, and nothing does.
    """
    for dotted, value in overrides.items():
        *above, name = dotted.split(".")
        here: Any = config
        for part in above:
            here = here.get(part) if isinstance(here, ConfigDict) else None
        if isinstance(here, ConfigDict) and (reference := _references(here).get(name)) is not None:
            _set(reference, dotted, value)
    if missing := _unfilled(config, ""):
        raise ConfigError(f"{missing}: a placeholder; write --config.{missing}=VALUE")
    values: dict[str, Any] = config.to_dict()
    return values


def _references(config: ConfigDict) -> dict[str, FieldReference[Any]]:
    fields = config.items(preserve_field_references=True)
    return {name: field for name, field in fields if isinstance(field, FieldReference)}


def _set(reference: FieldReference[Any], dotted: str, value: Any) -> None:
    """Gives a reference an override as the type of its key has it; what cannot be is refused where the key is set."""
    hint = next(types_of(dotted), None)
    with contextlib.suppress(ConfigError):
        typed = from_text(hint, value, dotted) if isinstance(value, str) and hint is not None else value
        reference.set(typed, type_safe=False)


def _unfilled(config: ConfigDict, above: str) -> str:
    """Returns the path of a required placeholder that has no value; empty: there is none."""
    for name, field in config.items(preserve_field_references=True):
        try:
            value = field.get() if isinstance(field, FieldReference) else field
        except RequiredValueError:
            return f"{above}{name}"
        if isinstance(value, ConfigDict) and (found := _unfilled(value, f"{above}{name}.")):
            return found
    return ""
