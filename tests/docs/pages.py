"""The pages of the documentation as the tests read them: blocks of code, each with its mark, and commands.

A comment before a block says what becomes of it:

- ``<!-- file: NAME -->``: a file of the page's reader. It is written, compiled, and loaded where it is a config.
- ``<!-- run -->``: run as it stands, in the folder of the page's files; ``<!-- run: after COMMAND -->`` has
  that run before it.
- ``<!-- not run: WHY -->``: parsed alone, its configs resolved.

Each block of a shell has one. Python without one is executed.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
SHELLS = ("sh", "console")
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>file|run|not run)(?:: (?P<what>[^\n]*))? -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(
    r"(?:^|[`$ ])(?:\.venv/bin/)?(?:python -m rljax\.main|rljax) (--config=(?:(?! -->)[^`\n])*)", re.MULTILINE
)
KEYS = re.compile(r"--config\.([\w.]+)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where it begins, its language, its mark and what the mark says, and its text."""

    page: str
    line: int
    language: str
    mark: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = PAGES[page]
    return [
        Block(page, text.count("\n", 0, found.end("language")) + 1, *(found[name] or "" for name in PARTS))
        for found in FENCE.finditer(text)
    ]


PARTS = ("language", "mark", "what", "text")


def commands(text: str) -> list[list[str]]:
    """The arguments of each of our commands in a text, without comments: ``--config=… --config.key=value …``."""
    return [shlex.split(found, comments=True) for found in COMMAND.findall(re.sub(r"\\\n\s*", "", text))]


def write_files(page: str, folder: Path) -> list[Path]:
    """Lays a page's files into a folder, beside the configs of the repository; returns those of the page."""
    (folder / "configs").symlink_to(ROOT / "configs")
    written = []
    for block in blocks(page):
        if block.mark == "file":
            written.append(folder / block.what)
            written[-1].write_text(block.text)
    return written
