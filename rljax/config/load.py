"""Loads configs: ConfigDict files and command-line overrides become the frozen schema (promise P9).

Whatever comes in is checked against the dataclasses of `rljax.config.schema`: unknown keys, wrong types and impossible
combinations are a `ConfigError` with the path of each key, the reason and the closest valid key, all at once.
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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rljax.config import bundled
from rljax.config.fields import ConfigError, brief, check_path, shown
from rljax.config.importers.translate import is_foreign, translate
from rljax.config.importers.translation import Translation, implied
from rljax.config.keys import key_help as key_help
from rljax.config.keys import types_of, unknown_key
from rljax.config.layers import completed, resolved
from rljax.config.overrides import NEW_NAMES, override_all, take_away
from rljax.config.refusals import joined, table
from rljax.config.schema import Config
from rljax.config.secrets import blanked
from rljax.config.types import as_plain as as_plain
from rljax.config.types import build, element_of, options_of

_TRUTH = ("true", "false", "1", "0")
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


def from_plain(values: Mapping[str, Any], refused: Sequence[ConfigError] = ()) -> Config:
    """Turns nested dicts into the frozen schema.

    Args:
        values: `REFUSED` where a key is refused already.
        refused: why.

    Raises:
        ConfigError: on unknown keys, wrong types, bounds and impossible combinations; all but the first are its
            ``others``.
    """
    found = list(refused)
    try:
        config: Config = build(Config, values, "", unknown_key, lambda error: found.extend((error, *error.others)))
    except ConfigError as error:
        found += [error, *error.others]
    if found:
        raise joined(found)
    return config


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
    given = overrides or {}
    source = read_source(path, given)
    overrides = implied(given) if isinstance(source, Translation) else given
    if isinstance(source, Translation):
        values, refused = _translated(source, overrides)
    else:
        values, refused = completed(source), []
    refused += override_all(values, overrides)
    if values.get("run_dir") is None:
        values["run_dir"] = f"runs/{Path(path.partition(':')[0].partition(',')[0]).stem}"
    try:
        config = from_plain(values, refused)
    except ConfigError as error:
        found = [error, *error.others]
        if isinstance(source, Translation):
            raise source.refused(found, given) from error
        raise table(f"{path}: keys that are refused", found) from error
    if not isinstance(source, Translation):
        return config, None
    if source.refusals(overrides):
        raise source.refused([], given)
    return config, source


def read_source(path: str, overrides: Mapping[str, Any]) -> dict[str, Any] | Translation:
    """Returns the keys and values of a ``--config``, or the translation of a file of ROLL or Trinity-RFT.

    Args:
        path: see `load_config`.
        overrides: what keys are given that others may refer to.

    Raises:
        ConfigError: the file is wrong.
    """
    file, _, arg = path.partition(":")
    if is_foreign(file):
        return translate(path)
    check_path("--config", file)
    if bundled.is_name(file):
        return _call_get_config(bundled.find(file), arg or None, overrides)
    return _read_json(Path(path)) if path.endswith(".json") else _call_get_config(Path(file), arg or None, overrides)


def _translated(translation: Translation, overrides: Collection[str]) -> tuple[dict[str, Any], list[ConfigError]]:
    """Returns all keys of a config with those that a translation says, those refused that it does not say, and why
    others are.
    """
    values = as_plain(Config(mode="audit")) | {"mode": "both"}
    for key in translation.values:
        for group, entry in NEW_NAMES.items():
            if key.startswith(f"{group.rstrip('.')}."):
                *above, name = key.split(".")[: group.rstrip(".").count(".") + 2]
                here = values
                for part in above:
                    here = here[part]
                here.setdefault(name, as_plain(entry()))
    refused = override_all(values, translation.values)
    for form in translation.unsaid(overrides):
        take_away(values, form.split("."))
    return values, refused


def parse_arguments(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Splits a command line into the config's path and its overrides: ``--config=FILE --config.key=value``. Of a key
    that is true or false ``--config.key`` and ``--noconfig.key`` are enough.

    Raises:
        ConfigError: an argument is not of these forms, or ``--config`` is missing.
    """
    path, left = "", list(arguments)
    overrides: dict[str, str] = {}
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name.startswith("--noconfig.") and not equals:
            name, equals, value = f"--{name.removeprefix('--no')}", "=", "false"
            if not _is_truth(name.removeprefix("--config.")):
                raise ConfigError(f"--no{name.removeprefix('--')}: not true or false; write {name}=VALUE")
        if not (name == "--config" or name.startswith("--config.")):
            raise ConfigError(f"{brief(name)}: unknown argument; write --config=FILE.py and --config.key=value")
        if not equals:
            truth = _is_truth(name.removeprefix("--config."))
            if left and (left[0].lower() in _TRUTH if truth else not left[0].startswith("--")):
                value = left.pop(0)
            elif truth:
                value = "true"
            else:
                raise ConfigError(f"{name}: no value; write {name}=VALUE")
        if name == "--config":
            before, path = path or value, value
        else:
            before = overrides.setdefault(name.removeprefix("--config."), value)
        if before != value:
            raise ConfigError(f"{name}={shown(value)}: given before as {shown(before)}; write it once")
    if not path:
        raise ConfigError("--config: missing; write --config=quickstart, or a file of your own")
    return path, overrides


def _is_truth(key: str) -> bool:
    """Returns whether a key is true or false."""
    hints = list(types_of(key))
    return bool(hints) and all(set(options_of(hint)) <= {bool, type(None)} for hint in hints)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as a config ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: holds no keys and values")
    return values


def _call_get_config(file: Path, arg: str | None, overrides: Mapping[str, Any]) -> dict[str, Any] | Translation:
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
        if isinstance(config, dict):
            config = ConfigDict(config, convert_dict=True, allow_dotted_keys=True)
        if isinstance(config, ConfigDict):
            return resolved(config, overrides)
    except ConfigError as error:
        if error.others:
            raise table(f"{file}: keys that are refused", [error, *error.others]) from error
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{file}: {_refused(error)}") from error
    if isinstance(config, Translation):
        return config
    if isinstance(config, Config):
        return as_plain(config)
    raise ConfigError(f"{file}: get_config must return a ConfigDict, a dict or a Config, not {type(config).__name__}")


def _refused(error: Exception) -> str:
    """Returns why a config file failed; an unknown key gets the same message as on the command line."""
    line = str(error).splitlines()[0] if str(error) else ""
    if made_up := _made_up(error, line):
        return unknown_key(made_up, made_up, typing.get_type_hints(Config), "")
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
