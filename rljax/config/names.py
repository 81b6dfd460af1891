"""The names that a config may give to parts of the objective: those of the files, and what this process has added."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

_REGISTERED = re.compile(r"""\.register\(\s*["']([^"']+)["']""")
_own: defaultdict[str, set[str]] = defaultdict(set)


def built_in(folders: str) -> set[str]:
    """Names of the functions in folders of `rljax.algorithms`, a pattern; reads the files and imports nothing."""
    files = (Path(__file__).parents[1] / "algorithms").glob(f"{folders}/*.py")
    return {name for file in files for name in _REGISTERED.findall(file.read_text())}


def note(folder: str, name: str, own: bool) -> None:
    """Notes that the function of that name is this process's own, or (again) the one of a file in the folder."""
    (_own[folder].add if own else _own[folder].discard)(name)


def own(folders: str) -> set[str]:
    """Names that mean what this process alone has said they do."""
    return {name for folder in fnmatch.filter(_own, folders) for name in _own[folder]}


def known(folders: str) -> set[str]:
    """Names that lead somewhere in this process."""
    return built_in(folders) | own(folders)


def closest(name: str, there: Collection[str]) -> str:
    """Which of the names there may have been meant, whatever its case; all of them where none is near."""
    by_case = {found.casefold(): found for found in there}
    close = [by_case[near] for near in difflib.get_close_matches(name.casefold(), by_case, n=3, cutoff=0.5)]
    return f"closest: {', '.join(close)}" if close else f"there are: {', '.join(sorted(there))}"
