"""Sets keys by dotted path in the plain values of a config: overrides, and what a file of another program says."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljax.config.choice import Choice
from rljax.config.distill import TEACHERS, TeacherConfig
from rljax.config.environments import EnvironmentConfig
from rljax.config.fields import ConfigError
from rljax.config.importers.checked import checked, group_of
from rljax.config.judges import JudgeConfig
from rljax.config.keys import defaults_of, types_of, unknown_key
from rljax.config.refusals import REFUSED, refused_by
from rljax.config.reward_models import RewardModelConfig
from rljax.config.schema import Config, TasksetConfig
from rljax.config.text import from_text
from rljax.config.types import Unknown, as_plain, element_of, hints_of

NEW_NAMES: dict[str, Any] = {
    "tasks.train.": TasksetConfig,
    "tasks.validation.": TasksetConfig,
    "explorer.tasksets.": TasksetConfig,
    "custom_envs.": EnvironmentConfig,
    "judges.": JudgeConfig,
    "reward_models.": RewardModelConfig,
    f"{TEACHERS}.": TeacherConfig,
}
"""Groups in which a new name is allowed, with the defaults of its entry; a taskset's where its source is given."""


def take_away(values: dict[str, Any], form: Sequence[str]) -> bool:
    """Refuses the keys of a path, in which ``*`` stands for any name, or the group that has no such; returns whether
    there is a key of the first name.
    """
    first, *below = form
    names = fnmatch.filter(list(values), first)
    for name in names:
        if not (below and isinstance(values[name], dict) and take_away(values[name], below)):
            values[name] = REFUSED
    return bool(names)


def override_all(values: dict[str, Any], overrides: Mapping[str, Any]) -> list[ConfigError]:
    """Sets the keys; returns why some cannot be, which are `REFUSED` then."""
    refused = []
    # What names a function stands above its keys: which there are is known when they are met.
    for dotted, value in sorted(overrides.items(), key=lambda item: (item[0].count("."), not _is_source(item[0]))):
        try:
            _set(Config, values, dotted, 0, value, unknown_key)
        except ConfigError as error:
            refused += [error, *error.others]
    return refused


def refused_of_any(overrides: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yields what is refused of overrides whatever their file says: keys that no config has, and values that a key
    never has. Which functions and tasksets there are, and so their keys, is the file's to say.
    """
    for key, value in overrides.items():
        if value is REFUSED or group_of(key) or key.startswith(("tasks.", "explorer.tasksets.")):
            continue
        values = as_plain(Config(mode="audit"))
        if wrong := override_all(values, {key: value}):
            yield from wrong
        elif any(types_of(key)):
            here: Any = values
            for name in key.split("."):
                here = here[name]
            yield from refused_by(checked, key, here)


def _set(kind: Any, here: Any, dotted: str, depth: int, value: Any, unknown: Unknown) -> None:
    """Sets the key that a path leads to from the group at that depth of it, which ``kind`` describes."""
    if here is REFUSED:
        return  # of a group that is refused nothing more is known
    names = dotted.split(".")
    name, last, prefix = names[depth], depth == len(names) - 1, "".join(f"{n}." for n in names[:depth])
    choices: dict[str, Choice] = {}
    if dataclasses.is_dataclass(kind):
        hints = hints_of(kind)
        if name not in hints:
            for near in difflib.get_close_matches(name, hints, 1):
                if here.get(near) == "":
                    here[near] = REFUSED  # it was meant, and nothing else says it
            raise ConfigError(unknown(dotted, name, hints, prefix, value))
        choices = {spec.name: spec.metadata["choice"] for spec in dataclasses.fields(kind) if "choice" in spec.metadata}
        if name in choices and not last:
            named = here.get(choices[name].by, defaults_of(kind)[choices[name].by])
            _set_chosen(choices[name], named, here.setdefault(name, {}), dotted, depth + 1, value)
            return
        hint = hints[name]
    elif typing.get_origin(kind) is Mapping:
        hint = element_of(kind)
        if dataclasses.is_dataclass(hint) and name not in here:
            if prefix not in NEW_NAMES or (prefix.startswith("tasks.") and not _is_source(dotted)):
                raise ConfigError(_no_entry(dotted, name, here, prefix))
            here[name] = as_plain(NEW_NAMES[prefix]())
    else:
        raise ConfigError(f"{dotted}: {prefix[:-1]} is a single value and has no key {name!r}")
    if not last:
        if typing.get_origin(kind) is Mapping and typing.get_origin(hint) is Mapping:
            here.setdefault(name, {})
        _set(hint, here[name], dotted, depth + 1, value, unknown)
        return
    before, here[name] = here.get(name), REFUSED  # for as long as its text is not read
    found = from_text(hint, value, dotted) if isinstance(value, str) else value
    of_keys = isinstance(found, Mapping) or dataclasses.is_dataclass(found)
    if _is_group(hint, name in choices) and not (of_keys or found is REFUSED):
        raise ConfigError(f"{dotted}={value}: this is a group of keys; write {dotted}.KEY=VALUE")
    here[name] = found
    for group, choice in choices.items():
        if choice.by == name and here[name] != before:
            here[group] = choice.kept(here[name], here.get(group, {}))


def _is_group(hint: Any, chosen: bool) -> bool:
    """Returns whether keys stand below a key of that type; ``chosen``: those of a function that another key names."""
    each = element_of(hint) if typing.get_origin(hint) is Mapping else hint
    return chosen or dataclasses.is_dataclass(each)


def _set_chosen(choice: Choice, named: Any, keys: Any, dotted: str, depth: int, value: Any) -> None:
    """Sets a key of a function that is named beside the group at that depth of the path."""
    if named is REFUSED or keys is REFUSED or not isinstance(named, str | tuple | list):
        return  # what names no function is refused where it stands
    names = dotted.split(".")
    path = ".".join([*names[: depth - 1], choice.by])
    if not isinstance(named, str):
        short = names[depth]
        of = {name.rpartition(":")[2]: name for name in named}
        if short not in of:
            raise ConfigError(f"{dotted}: nothing reads it; add {short} to {path}")
        if depth == len(names) - 1:
            keys[short] = REFUSED
            raise ConfigError(f"{dotted}={value}: this is a group of keys; write {dotted}.KEY=VALUE")
        named, keys, depth = of[short], keys.setdefault(short, {}), depth + 1
    entry = choice.entry(named, path)
    _set(entry.keys, keys, dotted, depth, value, entry.refusal)


def _is_source(dotted: str) -> bool:
    return dotted.startswith("tasks.") and dotted.endswith(".source")


def _no_entry(dotted: str, name: str, here: Mapping[str, Any], prefix: str) -> str:
    """Returns why a path that leads into an entry which is not there, of a group without new names, is refused."""
    if near := difflib.get_close_matches(name, list(here), 1):
        hint = f"did you mean {prefix}{near[0]}{dotted.removeprefix(prefix + name)}?"
    else:
        hint = f"{prefix[:-1]} has: {', '.join(sorted(here)) or 'none'}; a new one has {prefix}{name}.source"
    return f"{dotted}: unknown key; {hint}"
