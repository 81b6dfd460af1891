"""The configs that come along, by name: the repository's `configs/`, which a wheel has as ``rljax.configs``."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from rljax.config.fields import ConfigError, shown

_PACKAGE = Path(__file__).parents[1]
FOLDER = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"
"""Of their files, and of the data that some read."""


def is_name(path: str) -> bool:
    """Returns whether a ``--config`` without its argument names a config that comes along: no path, no suffix."""
    return path.isidentifier()


def has(name: str) -> bool:
    """Returns whether a config of that name comes along."""
    return name in _names()


def find(name: str) -> Path:
    """Returns the file of a config that comes along.

    Raises:
        ConfigError: there is none of that name.
    """
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}; a file ends in .py"
        raise ConfigError(f"--config={shown(name)}: no such config comes along; {hint}")
    return FOLDER / f"{name}.py"


def source(name: str) -> str:
    """Returns the text of a config that comes along.

    Raises:
        ConfigError: there is none of that name.
    """
    return find(name).read_text(encoding="utf-8").rstrip()


def listed() -> list[str]:
    """Returns a line for each config that comes along: its name, and the first of its docstring."""
    meanings = {name: ast.get_docstring(ast.parse(source(name))) or "" for name in _names()}
    width = max(map(len, meanings), default=0)
    return [f"{name:<{width}}  {meaning.partition(chr(10))[0]}" for name, meaning in meanings.items()]


def module_name(file: Path) -> str:
    """Returns the name by which Python imports a config file, from the folder in which the command is given or as one
    that comes along: so a config can name functions of its own, by its ``__name__``.
    """
    ours, theirs = (FOLDER, ("rljax", "configs")), (Path.cwd(), ())
    for folder, package in (ours, theirs) if FOLDER.parent == _PACKAGE else (theirs, ours):
        if file.absolute().is_relative_to(folder):
            parts = [*package, *file.absolute().relative_to(folder).with_suffix("").parts]
            if all(part.isidentifier() for part in parts):
                return ".".join(parts)
    return f"rljax_config_{file.stem}"


def _names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))
