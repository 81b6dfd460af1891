"""Builds the dataclasses of the schema from plain values of files and command lines, with types checked."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rljax.config.fields import ConfigError, shown
from rljax.config.refusals import REFUSED

Unknown = Callable[[str, str, Mapping[str, Any], str, Any], str]
"""Makes the message for an unknown key, from its path, its name, the keys that there are, what stands before, and the
value that it was given; None where that is not known.
"""
Note = Callable[[ConfigError], None]
"""Is told what is refused of a key, which has the value `REFUSED` then; or raises it."""
hints_of: Callable[[Any], Mapping[str, Any]] = functools.cache(typing.get_type_hints)
"""Returns the types of a dataclass's fields by name, whose texts typing would compile at each call."""


def raised(error: ConfigError) -> None:
    """Raises what is refused: nothing is made of values that are wrong."""
    raise error


def imported(path: str, target: str) -> Callable[..., Any]:
    """Returns what ``module:function`` points to; ``path`` is the key that names it.

    Raises:
        ConfigError: it cannot be imported, or called.
    """
    module, _, attribute = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        said = " ".join(f"{type(error).__name__}: {error}".split())
        cure = hidden(module) or "; write module:function"
        raise ConfigError(f"{path}={target!r}: cannot be imported ({said}){cure}") from error
    if not callable(function):
        raise ConfigError(f"{path}={target!r}: not a function but a {type(function).__name__}")
    return function


def hidden(module: str) -> str:
    """Returns what is added to the message on a module that is not there, where a folder of the user's has it: ours of
    the same name is found before that.
    """
    package, folder = module.partition(".")[0], os.path.abspath(module.partition(".")[0])
    ours = getattr(sys.modules.get(package), "__file__", None) or folder
    if package not in ("envs", "rljax", "sidecar") or not os.path.isdir(folder) or ours.startswith(folder):
        return ""
    return f"; {package} is a package of rljax: give your folder another name"


def build(kind: Any, values: Mapping[str, Any], path: str, unknown: Unknown, note: Note = raised) -> Any:
    """Builds a dataclass of plain values, whose types are checked.

    Args:
        kind: the dataclass.
        values: of its fields; groups are mappings.
        path: what stands before its keys, with a dot behind; empty at the top.
        unknown: the message for a key that there is not.
        note: what becomes of each refusal.

    Raises:
        ConfigError: an unknown key, a wrong type, or what the dataclass itself refuses; the latter two where ``note``
            raises it, or where they are of the keys of no function.
    """
    fields = converted(kind, values, path, unknown, note)
    try:
        return kind(**fields)
    except ConfigError as error:
        if not (wrong := _unsettled(kind, fields, path)):
            raise
        note(error)
        return kind(**fields | dict.fromkeys(wrong, REFUSED))


def converted(kind: Any, values: Mapping[str, Any], path: str, unknown: Unknown, note: Note = raised) -> dict[str, Any]:
    """Returns values of the types of a dataclass's fields; see `build`."""
    hints = hints_of(kind)
    settled = {spec.name for spec in dataclasses.fields(kind) if "choice" in spec.metadata}
    fields = {}
    for name, value in values.items():
        if name not in hints:
            note(ConfigError(unknown(f"{path}{name}", name, hints, path, value)))
            continue
        try:
            made = value if name in settled else convert(hints[name], value, f"{path}{name}", unknown, note)
        except ConfigError as error:
            note(error)
            made = REFUSED
        fields[name] = made
    return fields


def unchecked(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Makes a dataclass of values some of which are `REFUSED`, without the checks of its own, which may read these."""
    made = object.__new__(kind)
    for spec in dataclasses.fields(kind):
        default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
        object.__setattr__(made, spec.name, fields.get(spec.name, default))
    return made


def _unsettled(kind: Any, fields: Mapping[str, Any], path: str) -> list[str]:
    """Returns the fields with keys of a function that it does not take: a dataclass types them when it is made."""
    specs, wrong = {spec.name: spec for spec in dataclasses.fields(kind)}, []
    for name, spec in specs.items():
        if (choice := spec.metadata.get("choice")) and name in fields:
            try:
                choice.settled(fields.get(choice.by, specs[choice.by].default), fields[name], f"{path}{name}")
            except ConfigError:
                wrong.append(name)
    return wrong


def convert(hint: Any, value: Any, path: str, unknown: Unknown, note: Note = raised) -> Any:
    """Returns a plain value as the type of a field has it; see `build`.

    Raises:
        ConfigError: it cannot be of that type.
    """
    if value is REFUSED:
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}={value!r}: this is a group of keys; write {path}.KEY=VALUE")
        return build(hint, value, f"{path}.", unknown, note)
    options = options_of(hint)
    if Any in options or (value is None and type(None) in options):
        return value
    hint = next(option for option in options if option is not type(None))
    origin = typing.get_origin(hint) or hint
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}={value!r}: expected keys and values")
        element = element_of(hint)
        nested = dataclasses.is_dataclass(element) or typing.get_origin(element) is Mapping
        return {n: convert(element, v, f"{path}.{n}", unknown, note) if nested else v for n, v in value.items()}
    if origin is tuple and isinstance(value, (tuple, list)):
        element = typing.get_args(hint)[0]
        return tuple(convert(element, item, f"{path}[{i}]", unknown) for i, item in enumerate(value))
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{path}={shown(value)}: beyond any number that is computed with") from None
    if not isinstance(value, origin) or (isinstance(value, bool) and origin is not bool):
        near = _nearly(value, origin)
        raise ConfigError(f"{path}={shown(value)}: expected {type_name(hint)}, not {type(value).__name__}{near}")
    return value


def _nearly(value: Any, kind: Any) -> str:
    """Returns what to write for a value that is of another type and can be read as this one; empty: it cannot."""
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    if kind is bool and value.lower() in ("true", "false"):
        return f"; write {value.lower()} without quotes"
    if kind in (int, float):
        with contextlib.suppress(ValueError):
            kind(value)
            return "; write the number without quotes"
    return ""


def as_plain(config: Any) -> dict[str, Any]:
    """Returns a config as nested dicts of scalars and tuples."""
    return {spec.name: plain(getattr(config, spec.name)) for spec in dataclasses.fields(config)}


def plain(value: Any) -> Any:
    """Returns a value with every dataclass in it as nested dicts."""
    if dataclasses.is_dataclass(value):
        return as_plain(value)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value


def options_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union; of any other hint itself."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def element_of(hint: Any) -> Any:
    """Returns the type of a mapping's values; None for what is no mapping."""
    return typing.get_args(hint)[1] if typing.get_origin(hint) is Mapping else None


def type_name(hint: Any) -> str:
    """Returns the name of a type for messages."""
    if len(options_of(hint)) > 1:
        return " or ".join("none" if option is type(None) else type_name(option) for option in options_of(hint))
    if typing.get_origin(hint) is Mapping:
        return "keys and values"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", Any: "any value"}
    return words.get(hint, "a tuple: a,b,c")
