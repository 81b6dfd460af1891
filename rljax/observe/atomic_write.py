"""Atomic file writes: readers see the old content, or all of the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a hidden temporary path beside ``path``, which replaces ``path`` when the ``with``
    block has ended without error.

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
    """Writes ``text``, in UTF-8, to ``path``, replacing the file atomically.

    Raises:
        OSError: see `atomic_path`.
    """
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")
