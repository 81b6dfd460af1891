"""Loads configs: ConfigDict files and command-line overrides become the frozen schema (promise P9).

Whatever comes in is checked against the dataclasses of `rljax.config.schema`: unknown keys, wrong types and impossible
combinations are a `ConfigError` with the path of each key, the reason and the closest valid key, all at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import json
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from rljax.config import bundled
from rljax.config.fields import ConfigError, check_path, walk
from rljax.config.importers.translate import is_foreign, translate
from rljax.config.importers.translation import Translation, implied
from rljax.config.keys import key_help as key_help
from rljax.config.keys import unknown_key
from rljax.config.layers import completed, resolved
from rljax.config.overrides import NEW_NAMES, override_all, refused_of_any, take_away
from rljax.config.refusals import (
    REFUSED,
    RefusedConfig,
    Rule,
    Unreadable,
    by_key,
    collected,
    joined,
    judged_later,
    table,
    without,
)
from rljax.config.schema import Config
from rljax.config.secrets import blanked
from rljax.config.types import as_plain as as_plain
from rljax.config.types import build, element_of, hints_of

Source: TypeAlias = dict[str, Any] | Translation
"""Keys and values of a file; of one of ROLL or Trinity-RFT what became of them."""

_NO_SUCH_KEY = re.compile(r"""[Kk]ey ["'](\w+)["']""")
_NO_SUCH_FIELD = re.compile(r"([\w.]+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def to_config_dict(config: Config) -> ConfigDict:
    """Returns the editable form of a config, for `get_config`. It takes any key and value: they are checked when the
    config is loaded, all at once and with the overrides.
    """
    return ConfigDict(as_plain(config), convert_dict=True, allow_dotted_keys=True, type_safe=False)


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


def from_plain(
    values: Mapping[str, Any], refused: Sequence[ConfigError] = (), also: Sequence[Rule[Config]] = ()
) -> Config:
    """Turns nested dicts into the frozen schema.

    Args:
        values: `REFUSED` where a key is refused already.
        refused: why.
        also: what else a config that is refused is held to, as far as its keys can be read.

    Raises:
        ConfigError: unknown keys, wrong types, bounds, combinations; all but the first are its ``others``.
    """
    found = list(refused)
    try:
        with judged_later(False):  # a config file may be under way that asks for this config
            config: Config = build(Config, values, "", unknown_key, lambda error: found.extend((error, *error.others)))
    except ConfigError as error:
        found += [error, *error.others]
        config = error.left
    if found:
        raise joined(by_key(found, _also_refused(config, also)))
    return config


def _also_refused(config: Config | None, also: Sequence[Rule[Config]]) -> list[ConfigError]:
    found, left = list[ConfigError](), config
    if left is None:
        return found
    with contextlib.suppress(Unreadable):  # of one that rules have refused these are taken away already
        left = without(left, {path for path, value, _ in walk(left) if value is REFUSED})
    for rule in also:  # of a config that one makes the same would be said again; one that fails loses its own lines
        with judged_later(), contextlib.suppress(Exception):
            found += collected(left, rule)
    return found


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


def load(
    path: str,
    overrides: Mapping[str, Any] | None = None,
    refused: Sequence[ConfigError] = (),
    also: Sequence[Rule[Config]] = (),
    seen: Rule[Source] = lambda source: iter(()),
) -> tuple[Config, Translation | None]:
    """Does what `load_config` does, and returns what a file of ROLL or Trinity-RFT became beside its config.

    Args:
        path, overrides: see there; `REFUSED` where an override is refused already.
        refused: what is refused already, to be told with the rest.
        also: see `from_plain`.
        seen: is shown what the file says, before that is judged, and yields what else is refused.
    """
    given = overrides or {}
    try:
        source = _read_source(path, given)
    except ConfigError as error:
        also_refused = [*refused, *refused_of_any(given)]
        raise (joined([*also_refused, error, *error.others]) if also_refused else error) from error
    overrides = implied(given) if isinstance(source, Translation) else given
    source = source.beside(overrides) if isinstance(source, Translation) else source
    refused = [*refused, *seen(source)]
    if isinstance(source, Translation):
        values, wrong = _translated(source, overrides)
    else:
        values, wrong = completed(source), []
    wrong += override_all(values, overrides)
    if values.get("run_dir") is None:
        values["run_dir"] = f"runs/{Path(path.partition(':')[0].partition(',')[0]).stem}"
    try:
        config = from_plain(values, [*refused, *wrong], also)
    except ConfigError as error:
        found = [error, *error.others]
        if isinstance(source, Translation):
            raise source.refused(found, given) from error
        if len(found) == 1 and not (given or refused):  # nothing but the file can be wrong
            raise ConfigError(f"{path}: {error}") from error
        raise table(f"{path}: keys that are refused", found) from error
    if not isinstance(source, Translation):
        return config, None
    if source.refusals(overrides):
        raise source.refused(_also_refused(config, also), given)
    return config, source


def _read_source(path: str, overrides: Mapping[str, Any]) -> Source:
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


def _translated(translation: Translation, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigError]]:
    """Returns all keys of a config with those that a translation says, those refused that it does not say, and why
    others are.
    """
    values = as_plain(Config(mode="audit")) | {"mode": "both"}
    said = translation.values_beside(overrides)
    for key in said:
        for group, entry in NEW_NAMES.items():
            if key.startswith(f"{group.rstrip('.')}."):
                *above, name = key.split(".")[: group.rstrip(".").count(".") + 2]
                here = values
                for part in above:
                    here = here[part]
                here.setdefault(name, as_plain(entry()))
    refused = override_all(values, said)
    for form in translation.unsaid(overrides):
        take_away(values, form.split("."))
    return values, refused


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
        meant = file.parent / near[0] if near else _bundled(file.stem, arg)
        raise ConfigError(f"{file}: no such config file{f'; did you mean {meant}?' if meant else ''}")
    spec = importlib.util.spec_from_file_location(bundled.module_name(file), file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        with judged_later():  # what the command line says instead is not known yet
            spec.loader.exec_module(module)
            if arg is not None and not inspect.signature(module.get_config).parameters:
                raise ConfigError(f"takes no argument; write --config={file} without :{arg}")
            config = module.get_config(arg) if arg is not None else module.get_config()
        if isinstance(config, dict):
            config = ConfigDict(config, convert_dict=True, allow_dotted_keys=True)
        if isinstance(config, ConfigDict):
            return resolved(config, overrides)
    except RefusedConfig as error:
        raise RefusedConfig(f"{file}: {error.title}", error.said, error.errors) from error
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


def _bundled(name: str, arg: str | None) -> str:
    """Returns the argument for a config that comes along, which works in any folder; empty where there is none. Of YAML
    that is here its keys tell whose it is.
    """
    if bundled.has(name) and arg and is_foreign(arg) and all(Path(part).is_file() for part in arg.split(",")):
        return f"--config={arg}"
    return f"--config={name}{f':{arg}' if arg else ''}" if bundled.has(name) else ""


def _refused(error: Exception) -> str:
    """Returns why a config file failed; an unknown key gets the same message as on the command line."""
    line = str(error).splitlines()[0] if str(error) else ""
    if made_up := _made_up(error, line):
        name, kind, prefix = made_up
        return unknown_key(prefix + name, name, hints_of(kind), prefix, None) + _where(error)
    return f"{type(error).__name__}: {line}{_where(error)}"


def _made_up(error: Exception, line: str) -> tuple[str, Any, str] | None:
    """Returns the key that a dataclass of the schema, or a ConfigDict, does not have, that dataclass, and what stands
    before its keys: of a ConfigDict, which does not say where it is, those of the config. None for another error.
    """
    if isinstance(error, AttributeError | KeyError):
        found = _NO_SUCH_KEY.search(line)
        return (found[1], Config, "") if found else None
    found = _NO_SUCH_FIELD.match(line) if isinstance(error, TypeError) else None
    if found is None or (group := _groups_by_name().get(found[1])) is None:
        return None
    return found[2], *group


def _groups_by_name() -> dict[str, tuple[Any, str]]:
    """Returns the dataclasses of the schema by name; of those that stand in several places the shortest path."""
    return dict(sorted(_groups(Config, ""), key=lambda found: -len(found[1][1])))


def _groups(kind: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yields the names of a dataclass of the schema and of those below it, each with what stands before its keys."""
    for name, hint in hints_of(kind).items():
        element = element_of(hint)
        if dataclasses.is_dataclass(group := element or hint):
            yield from _groups(group, f"{prefix}{name}.{'NAME.' if element else ''}")
    yield kind.__qualname__, (kind, prefix)


def _where(error: Exception) -> str:
    """Returns the innermost line that led to an error and is neither an installed package's nor this package's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and file.parent != Path(__file__).parent and "site-packages" not in file.parts:
            return f" ({file}:{frame.lineno})"
    return ""
