"""Loads configs: ConfigDict files and command-line overrides become the frozen schema (promise P9).

Whatever comes in is checked against the dataclasses of `rljax.config.schema`: an unknown key, a wrong type or an
impossible combination is a `ConfigError` with the key's path, the reason and the closest valid key.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import json
import re
import traceback
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rljax.config import bundled
from rljax.config.choice import Choice
from rljax.config.environments import EnvironmentConfig
from rljax.config.fields import ConfigError, brief, check_path, shown
from rljax.config.foreign_keys import advice
from rljax.config.importers.translate import Translation, is_foreign, translate
from rljax.config.judges import JudgeConfig
from rljax.config.reward_models import RewardModelConfig
from rljax.config.schema import Config, TasksetConfig
from rljax.config.secrets import blanked
from rljax.config.text import from_text
from rljax.config.types import Unknown, build, element_of

_NEW_NAMES: dict[str, Any] = {
    "explorer.tasksets.": TasksetConfig,
    "custom_envs.": EnvironmentConfig,
    "judges.": JudgeConfig,
    "reward_models.": RewardModelConfig,
}
"""Groups in which a new name is allowed, with the defaults of its entry."""
_NO_SUCH_KEY = re.compile(r"""[Kk]ey ["'](\w+)["']""")
_NO_SUCH_FIELD = re.compile(r"([\w.]+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def to_config_dict(config: Config) -> ConfigDict:
    """Returns the editable form of a config, for `get_config`; locked, so that a typo in a config file fails. Groups
    that hold the keys of a function are open, since another has others: they are checked when the config is loaded.
    """
    editable = ConfigDict(as_plain(config), convert_dict=True, allow_dotted_keys=True).lock()
    for group in ("algorithm", "rollout"):
        for spec in (s for s in dataclasses.fields(getattr(config, group)) if "choice" in s.metadata):
            editable[group][spec.name].unlock()
    return editable


def as_plain(config: Any) -> dict[str, Any]:
    """Returns a config as nested dicts of scalars and tuples."""
    return {spec.name: _plain(getattr(config, spec.name)) for spec in dataclasses.fields(config)}


def publishable(config: Config) -> dict[str, Any]:
    """Returns `as_plain` for files that people share: without passwords of URLs, and without what has a key's name."""
    plain = as_plain(config)
    if config.ledger is not None:
        plain["ledger"] = without_password(config.ledger)
    shared: dict[str, Any] = blanked(plain)
    return shared


def without_password(url: str) -> str:
    """Returns a database's URL with ``***`` in the place of each password."""
    from sqlalchemy import make_url

    parsed = make_url(url)
    hidden = {name: "***" for name in parsed.query if "pass" in name}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_plain(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def from_plain(values: Mapping[str, Any]) -> Config:
    """Turns nested dicts into the frozen schema.

    Raises:
        ConfigError: on an unknown key, a wrong type, a bound or an impossible combination.
    """
    return build(Config, values, "", _unknown)


def load_config(path: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Loads ``NAME[:arg]``, ``FILE.py[:arg]`` or ``FILE.json``, applies overrides by dotted key, and checks the result.

    Args:
        path: a config that comes along (see `rljax.config.bundled`), or a file with ``get_config(arg=None)``, and what
            is passed to it after a colon; a resolved config, such as a run directory's ``config.json``; or YAML of
            ROLL or Trinity-RFT.
        overrides: values, or their command-line text, by dotted key.

    Raises:
        ConfigError: the file or an override is wrong.
    """
    return load(path, overrides)[0]


def load(path: str, overrides: Mapping[str, Any] | None = None) -> tuple[Config, Translation | None]:
    """Does what `load_config` does, and returns what a file of ROLL or Trinity-RFT became beside its config."""
    source = read_source(path)
    values = source
    if isinstance(source, Translation):
        source.check(overrides or ())
        values = _translated(source)
    assert isinstance(values, dict)
    _override_all(values, overrides or {})
    if values.get("run_dir") is None:
        values["run_dir"] = f"runs/{Path(path.partition(':')[0].partition(',')[0]).stem}"
    if not isinstance(source, Translation):
        return from_plain(values), None
    try:
        return from_plain(values), source
    except ConfigError as error:
        raise source.explained(error) from error


def read_source(path: str) -> dict[str, Any] | Translation:
    """Returns the keys and values of a ``--config``, or the translation of a file of ROLL or Trinity-RFT.

    Raises:
        ConfigError: the file is wrong.
    """
    file, _, arg = path.partition(":")
    if is_foreign(file):
        return translate(path)
    check_path("--config", file)
    if bundled.is_name(file):
        return _call_get_config(bundled.find(file), arg or None)
    return _read_json(Path(path)) if path.endswith(".json") else _call_get_config(Path(file), arg or None)


def _translated(translation: Translation) -> dict[str, Any]:
    """Returns all keys of a config with those that a translation says."""
    values = as_plain(Config(mode="audit")) | {"mode": "both"}
    named: dict[str, Any] = {"tasks.train": TasksetConfig, "tasks.validation": TasksetConfig, **_NEW_NAMES}
    for key in translation.values:
        for group, entry in named.items():
            if key.startswith(f"{group.rstrip('.')}."):
                *above, name = key.split(".")[: group.rstrip(".").count(".") + 2]
                here = values
                for part in above:
                    here = here[part]
                here.setdefault(name, as_plain(entry()))
    _override_all(values, translation.values)
    return values


def _override_all(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    # What names a function stands above its keys: which there are is known when they are met.
    for dotted, value in sorted(overrides.items(), key=lambda item: item[0].count(".")):
        _override(values, dotted, value)


def parse_arguments(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Splits a command line into the config's path and its overrides: ``--config=FILE --config.key=value``.

    Raises:
        ConfigError: an argument is not of these forms, or ``--config`` is missing.
    """
    path, left = "", list(arguments)
    overrides: dict[str, str] = {}
    while left:
        name, equals, value = left.pop(0).partition("=")
        if not (name == "--config" or name.startswith("--config.")):
            raise ConfigError(f"{brief(name)}: unknown argument; write --config=FILE.py and --config.key=value")
        if not equals:
            if not left:
                raise ConfigError(f"{name}: no value; write {name}=VALUE")
            value = left.pop(0)
        if name == "--config":
            before, path = path or value, value
        else:
            before = overrides.setdefault(name.removeprefix("--config."), value)
        if before != value:
            raise ConfigError(f"{name}={shown(value)}: given before as {shown(before)}; write it once")
    if not path:
        raise ConfigError("--config: missing; write --config=quickstart, or a file of your own")
    return path, overrides


def key_help() -> list[tuple[str, str, str]]:
    """Returns every key of the schema as (dotted path, default, meaning); a function's key once for each taking it."""
    rows: list[tuple[str, str, str]] = []

    def visit(kind: Any, prefix: str, defaults: Mapping[str, Any], whose: str = "") -> None:
        hints = typing.get_type_hints(kind)
        for spec in dataclasses.fields(kind):
            element, default = element_of(hints[spec.name]), defaults[spec.name]
            if choice := spec.metadata.get("choice"):
                if whose:  # any loss may be mixed in: their keys stand there already
                    rows.append((f"{prefix}{spec.name}.KEY", "VALUE", whose + spec.metadata["help"]))
                    continue
                for entry in choice.entries():
                    below = f"{prefix}{spec.name}.{entry.name}." if choice.several(kind) else f"{prefix}{spec.name}."
                    visit(entry.keys, below, _defaults(entry.keys), f"{choice.by}={entry.name}: ")
            elif dataclasses.is_dataclass(default):
                # of the group as it is made here, which may have other defaults than elsewhere
                visit(hints[spec.name], f"{prefix}{spec.name}.", vars(default))
            elif dataclasses.is_dataclass(element):
                visit(element, f"{prefix}{spec.name}.NAME.", _defaults(element))
            else:
                rows.append((prefix + spec.name, str(default), whose + spec.metadata["help"]))

    visit(Config, "", _defaults(Config))
    return rows


def _defaults(kind: Any) -> dict[str, Any]:
    """Returns the default of each field of a dataclass, without an instance, whose defaults alone it might refuse."""
    found = {}
    for spec in dataclasses.fields(kind):
        made = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
        found[spec.name] = "VALUE" if made is dataclasses.MISSING else made
    return found


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as a config ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: holds no keys and values")
    return values


def _call_get_config(file: Path, arg: str | None) -> dict[str, Any] | Translation:
    if not file.is_file():
        near = difflib.get_close_matches(file.name, [p.name for p in file.parent.glob("*.py")], 1)
        meant = file.parent / near[0] if near else f"--config={file.stem}" if bundled.has(file.stem) else ""
        raise ConfigError(f"{file}: no such config file{f'; did you mean {meant}?' if meant else ''}")
    spec = importlib.util.spec_from_file_location(bundled.module_name(file), file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if arg is not None and not inspect.signature(module.get_config).parameters:
            raise ConfigError(f"takes no argument; write --config={file} without :{arg}")
        config = module.get_config(arg) if arg is not None else module.get_config()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{file}: {_refused(error)}") from error
    if isinstance(config, Translation):
        return config
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"{file}: get_config must return a ConfigDict, not {type(config).__name__}")
    return config.to_dict()


def _refused(error: Exception) -> str:
    """Returns why a config file failed; an unknown key gets the same message as on the command line."""
    line = str(error).splitlines()[0] if str(error) else ""
    if made_up := _made_up(error, line):
        return _unknown(made_up, made_up, typing.get_type_hints(Config), "")
    return f"{type(error).__name__}: {line}{_where(error)}"


def _made_up(error: Exception, line: str) -> str:
    """Returns the key that a dataclass of the schema, or a ConfigDict, does not have; empty for another error."""
    if isinstance(error, AttributeError | KeyError):
        found = _NO_SUCH_KEY.search(line)
        return found[1] if found else ""
    found = _NO_SUCH_FIELD.match(line) if isinstance(error, TypeError) else None
    return found[2] if found and found[1] in _groups(Config) else ""


def _groups(kind: Any) -> set[str]:
    """Returns the names of a dataclass of the schema and of those below it."""
    below = [element_of(hint) or hint for hint in typing.get_type_hints(kind).values()]
    return {kind.__qualname__}.union(*(_groups(group) for group in below if dataclasses.is_dataclass(group)))


def _where(error: Exception) -> str:
    """Returns the innermost line that led to an error and is neither an installed package's nor this package's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and file.parent != Path(__file__).parent and "site-packages" not in file.parts:
            return f" ({file}:{frame.lineno})"
    return ""


def _override(values: dict[str, Any], dotted: str, value: Any) -> None:
    _set(Config, values, dotted, 0, value, _unknown)


def _set(kind: Any, here: Any, dotted: str, depth: int, value: Any, unknown: Unknown) -> None:
    """Sets the key that a path leads to from the group at that depth of it, which ``kind`` describes."""
    names = dotted.split(".")
    name, last, prefix = names[depth], depth == len(names) - 1, "".join(f"{n}." for n in names[:depth])
    choices: dict[str, Choice] = {}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if name not in hints:
            raise ConfigError(unknown(dotted, name, hints, prefix))
        choices = {spec.name: spec.metadata["choice"] for spec in dataclasses.fields(kind) if "choice" in spec.metadata}
        if name in choices and not last:
            named = here.get(choices[name].by, _defaults(kind)[choices[name].by])
            _set_chosen(choices[name], named, here.setdefault(name, {}), dotted, depth + 1, value)
            return
        hint = hints[name]
    elif typing.get_origin(kind) is Mapping:
        hint = element_of(kind)
        if dataclasses.is_dataclass(hint) and name not in here:
            if prefix not in _NEW_NAMES:
                raise ConfigError(_no_entry(dotted, name, here, prefix))
            here[name] = as_plain(_NEW_NAMES[prefix]())
    else:
        raise ConfigError(f"{dotted}: {prefix[:-1]} is a single value and has no key {name!r}")
    if not last:
        if typing.get_origin(kind) is Mapping and typing.get_origin(hint) is Mapping:
            here.setdefault(name, {})
        _set(hint, here[name], dotted, depth + 1, value, unknown)
        return
    before = here.get(name)
    here[name] = from_text(hint, value, dotted) if isinstance(value, str) else value
    for group, choice in choices.items():
        if choice.by == name and here[name] != before:
            here[group] = choice.kept(here[name], here.get(group, {}))


def _set_chosen(choice: Choice, named: Any, keys: Any, dotted: str, depth: int, value: Any) -> None:
    """Sets a key of a function that is named beside the group at that depth of the path."""
    names = dotted.split(".")
    path = ".".join([*names[: depth - 1], choice.by])
    if not isinstance(named, str):
        short = names[depth]
        of = {name.rpartition(":")[2]: name for name in named}
        if short not in of:
            raise ConfigError(f"{dotted}: nothing reads it; add {short} to {path}")
        if depth == len(names) - 1:
            raise ConfigError(f"{dotted}={value}: this is a group of keys; write {dotted}.KEY=VALUE")
        named, keys, depth = of[short], keys.setdefault(short, {}), depth + 1
    entry = choice.entry(named, path)
    _set(entry.keys, keys, dotted, depth, value, entry.refusal)


def _no_entry(dotted: str, name: str, here: Mapping[str, Any], prefix: str) -> str:
    """Returns why a path that leads into an entry which is not there, of a group without new names, is refused."""
    if near := difflib.get_close_matches(name, list(here), 1):
        hint = f"did you mean {prefix}{near[0]}{dotted.removeprefix(prefix + name)}?"
    else:
        hint = f"{prefix[:-1]} has: {', '.join(sorted(here)) or 'none'}; a new one is written in the config file"
    return f"{dotted}: unknown key; {hint}"


def _unknown(dotted: str, name: str, known: Mapping[str, Any], prefix: str) -> str:
    everywhere = [path for path, _, _ in key_help()]
    if said := advice(dotted, name, prefix, everywhere):
        return f"{dotted}: unknown key; {said}"
    # the critic has an optimizer as the policy has: it is meant where it is named, or where nothing else has the key
    least = [path for path in everywhere if path.startswith("algorithm.critic.") and "critic" not in dotted]
    first = [path for path in everywhere if path not in least]
    elsewhere = [min(found, key=len) for group in (first, least) if (found := _ending(group, name))][:1]
    beside = [prefix + n for n in difflib.get_close_matches(name, list(known), 1)]
    near = (beside or elsewhere) if prefix else (elsewhere or beside)
    near = near or [path for group in (first, least) for path in difflib.get_close_matches(dotted, group, 1, 0.7)]
    there = ", ".join(sorted(known)[:12]) + ", …" * (len(known) > 12)
    hint = f"did you mean {near[0]}?" if near else f"{prefix or 'the config '}has: {there}"
    return f"{dotted}: unknown key; {hint}"


def _ending(paths: Sequence[str], name: str) -> list[str]:
    return [path for path in paths if path.rpartition(".")[2] == name]
