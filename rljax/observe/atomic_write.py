"""Files that readers see whole: what they saw before, or all of what is new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A hidden path beside ``path``, for the block to write, which takes its place when the block has ended well.

    Raises:
        OSError: it cannot; ``path`` is left as it is.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Puts a file of ``text``, in UTF-8, in the place of ``path``.

    Raises:
        OSError: see `staged`.
    """
    with staged(path) as draft:
        draft.write_text(text, encoding="utf-8")
