"""Reads YAML that nobody vouches for: scalars, lists and mappings alone, and no more of them than a config has."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rljax.config.fields import ConfigError, shown

MOST_BYTES, MOST_VALUES, DEEPEST = 1 << 20, 100_000, 40
_FLOAT = re.compile(
    r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))\Z"
)
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Reads ``1e-6`` as the number that everybody means, and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges ``<<`` in, each key once: a file of merges of merges stays as small as it is."""
        super().flatten_mapping(node)
        node.value = list(
            {
                getattr(key, "value", index) if isinstance(key, yaml.ScalarNode) else index: (key, value)
                for index, (key, value) in enumerate(node.value)
            }.values()
        )


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_document(file: Path) -> dict[str, Any]:
    """Returns the mapping that a YAML file holds.

    Raises:
        ConfigError: it cannot be read, is no mapping, is larger or deeper than any config, or wants more of YAML than
            plain values (a tag, a second document, a key twice).
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{file}: larger than {MOST_BYTES >> 20} MiB, which is no config")
    try:
        values = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark, why = error.problem_mark, error.problem or ""
        if "quoted scalar" in (error.context or "") and "unexpected" in why:
            mark, why = error.context_mark, "the quote that opens here is not closed"
        elif "escape" in why:
            why += "; write it in single quotes"
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}{where}: not plain YAML ({why})") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, UnicodeError) as error:
        said = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: not plain YAML ({said})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: holds {'nothing' if values is None else shown(values)}, not keys and values")
    _Count(str(file)).plain(values, "", 0)
    return values


class _Count:
    """Counts the values of a document as they are once every alias is written out."""

    def __init__(self, file: str) -> None:
        self._file, self._left = file, MOST_VALUES

    def plain(self, value: Any, path: str, depth: int) -> None:
        """Checks a value and what is below it.

        Raises:
            ConfigError: there are too many, they are too deep, or one is no plain value.
        """
        self._left -= 1
        if self._left < 0:
            raise ConfigError(f"{self._file}: more than {MOST_VALUES:,} values once its aliases are written out")
        if depth > DEEPEST:
            raise ConfigError(f"{self._file}: {path[:60]}…: deeper than {DEEPEST} levels, or an alias of what it is in")
        if isinstance(value, dict):
            for name, item in value.items():
                if not isinstance(name, str | int | float | bool | None):
                    raise ConfigError(f"{self._file}: {path}{shown(name)}: a key is a name")
                self.plain(item, f"{path}{name}.", depth + 1)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.plain(item, f"{path}{index}.", depth + 1)
        elif not isinstance(value, str | int | float | bool | None):
            raise ConfigError(f"{self._file}: {path[:-1]}: a {type(value).__name__}, and no plain value")
