"""Resolves what OmegaConf would: ``${key}``, ``${.beside}``, ``${oc.env:NAME,default}``. Nothing is evaluated.

A resolver of our own: OmegaConf 2.3 pins an antlr4 that math-verify's parser does not take, and bounds no expansion.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljax.config.fields import ConfigError, shown

_MOST = 100_000
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}|[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_STEPS = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


class Unresolved(Exception):
    """A reference that leads nowhere, or in a circle, or asks for a resolver other than ``oc.env``: why.

    Attributes:
        of: path of the text that it stands in.
    """

    def __init__(self, path: tuple[str, ...], why: str) -> None:
        super().__init__(why)
        self.of = ".".join(path)


class Interpolated:
    """A document whose references are resolved.

    Attributes:
        values: the document; where a reference is not resolved, the text with it stands as it is written.
        unresolved: why, by the path of such a text.
        read: paths that references have read, or were near to.
    """

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        """Resolves all references of a document.

        Raises:
            ConfigError: they make more values than any config has.
        """
        self._document, self._file, self._made = values, file, 0
        self.read: set[str] = set()
        self.unresolved: dict[str, Unresolved] = {}
        self.values: dict[str, Any] = self._resolved(values, (), ())

    def _resolved(self, value: Any, path: tuple[str, ...], within: tuple[str, ...], in_text: bool = False) -> Any:
        """Returns a value with its references resolved; ``in_text``: it becomes a part of a text."""
        self._made += 1
        if self._made > _MOST:
            raise ConfigError(f"{self._file}: {'.'.join(path)}: its references make more than {_MOST:,} values")
        if isinstance(value, Mapping):
            return {str(name): self._resolved(item, (*path, str(name)), within) for name, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item, (*path, str(index)), within) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            return self._text(value, path, within, in_text)
        except Unresolved as error:
            if within:  # of the text that refers to this one
                raise
            self.unresolved[".".join(path)] = error
            return value

    def _text(self, text: str, path: tuple[str, ...], within: tuple[str, ...], in_text: bool = False) -> Any:
        parts: list[Any] = []
        at = 0
        in_text = in_text or not (text.startswith("${") and _closing(text, 2) == len(text) - 1)
        while (start := text.find("${", at)) >= 0:
            if start and text[start - 1] == "\\":
                parts.append(text[at : start - 1] + "${")
                at = start + 2
                continue
            if before := text[at:start]:
                parts.append(before)
            end = _closing(text, start + 2)
            if end < 0:
                raise Unresolved(path, f"{shown(text)} has no closing brace")
            parts.append(self._reference(text[start + 2 : end].strip(), path, within, in_text))
            at = end + 1
        if rest := text[at:]:
            parts.append(rest)
        if len(parts) == 1:
            return parts[0]
        if any(isinstance(part, Mapping | list) for part in parts):
            raise Unresolved(path, f"{shown(text)} puts a group into a text")
        return "".join(_written(part) for part in parts)

    def _reference(self, inner: str, path: tuple[str, ...], within: tuple[str, ...], in_text: bool) -> Any:
        if "${" in inner.partition(",")[0]:
            inner = _written(self._text(inner, path, within)) if "," not in inner else inner
        resolver, colon, argument = inner.partition(":")
        if colon:
            if resolver != "oc.env":
                raise Unresolved(path, f"${{{resolver}:…}} is not resolved here; write its value")
            return self._environment(argument, path, within, in_text)
        if inner in within:
            raise Unresolved(path, f"${{{inner}}} leads in a circle ({' -> '.join([*within, inner])})")
        target = self._target(inner, path)
        return self._resolved(self._at(target, inner, path), target, (*within, inner), in_text)

    def _environment(self, argument: str, path: tuple[str, ...], within: tuple[str, ...], in_text: bool) -> Any:
        """Returns a variable as the value that YAML would read there; as it is, where it becomes a part of a text."""
        name, comma, default = argument.partition(",")
        found = os.environ.get(name.strip())
        if found is None and not comma:
            raise Unresolved(path, f"${{oc.env:{name}}}: the environment has no {name}; set it, or write a default")
        default = default.strip()
        text = default.strip("'\"") if found is None else found
        if found is None and "${" in text:
            return self._text(text, path, within, in_text)
        quoted = found is None and text != default
        return text if in_text or quoted else _scalar(text)

    def _target(self, inner: str, path: tuple[str, ...]) -> tuple[str, ...]:
        dots = len(inner) - len(inner.lstrip("."))
        names = tuple(a or b for a, b in _STEPS.findall(inner[dots:]))
        return (*path[: max(len(path) - dots, 0)], *names) if dots else names

    def _at(self, target: tuple[str, ...], inner: str, path: tuple[str, ...]) -> Any:
        found: Any = self._document
        dotted = ".".join(target)
        for name in target:
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                raise Unresolved(path, f"${{{inner}}}: the file has no {dotted}; {self._nearest(dotted, path)}")
        self.read.add(dotted)
        return found

    def _nearest(self, dotted: str, path: tuple[str, ...]) -> str:
        """Returns what to write for a path that there is not."""
        near = difflib.get_close_matches(dotted, [".".join(one) for one in _paths(self._document)], 1, 0.7)
        if not near or near[0] == ".".join(path):
            return "write a key that it has"
        self.read.add(near[0])
        return f"did you mean {near[0]}? Correct it"


def _paths(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (path := (*above, str(name)))
        if isinstance(value, Mapping):
            yield from _paths(value, path)


def _closing(text: str, at: int) -> int:
    """Returns where the brace closes that was opened before ``at``; -1 where none does."""
    depth = 1
    for index in range(at, len(text)):
        if text.startswith("${", index):
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if not depth:
                return index
    return -1


def _scalar(text: str) -> Any:
    """Returns a text of the environment as the value that YAML would read there."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        return float(text) if set(text) & set(".eE") else int(text)
    return text


def _written(part: Any) -> str:
    return (
        {True: "true", False: "false", None: "null"}[part]
        if part is None or part is True or part is False
        else str(part)
    )
