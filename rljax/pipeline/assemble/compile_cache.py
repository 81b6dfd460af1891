"""The compile cache: programs that XLA compiled, kept on disk for later runs and the other processes of this one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from pathlib import Path

import jax
from jax._src.compilation_cache import decompress_executable  # JAX has no public name for it

from rljax.config.fields import user_path
from rljax.config.schema import Config
from rljax.models.smollm2 import cache_directory

log = logging.getLogger(__name__)

_DIRECTORY, _ENABLED, _LEAST = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)
_LEAST_SECONDS = 0.0
"""Seconds; a program that compiles faster is not kept. JAX's own 1 s leaves out most of a small model's programs, and
of any run hundreds of single operations, which together take a second or two at each start.
"""
_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
"""Name of an entry: of the program, and a hash of all that it was compiled from."""
_UNUSED = 30 * 86_400.0
"""Seconds after which a program that nobody has read is deleted."""
_SWEPT = ".rljax-swept"
"""File whose time of change is that of the newest entries that were looked through."""


def keep_compiled(config: Config) -> None:
    """Has JAX keep what it compiles as ``compile_cache`` says, here and in the processes that this one starts.

    With ``auto`` JAX's own settings win where the user made them. A directory that cannot be used costs a warning.
    """
    where = config.compile_cache
    directory = compiled_directory(where)
    if directory is None:
        _set(_ENABLED, False)
        return
    if where == "auto" and getattr(jax.config, _DIRECTORY):
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _may_be_written_by_others(directory):
            log.warning(
                "%s: others may write there: compiled programs are not kept; chmod go-w it, or name another",
                directory,
            )
            return
        _sweep(directory)
    except OSError as error:
        log.warning("compile_cache: %s: compiled programs are not kept (%s)", directory, error.strerror or error)
        return
    _set(_DIRECTORY, str(directory))
    if _LEAST.upper() not in os.environ:
        _set(_LEAST, _LEAST_SECONDS)


def compiled_directory(where: str) -> Path | None:
    """Returns the directory in which compiled programs are kept as ``compile_cache`` says; None: they are not."""
    if where == "off":
        return None
    if where == "auto":
        return Path(getattr(jax.config, _DIRECTORY) or cache_directory() / "compiled")
    return user_path(where).absolute()


def _set(name: str, value: str | float) -> None:
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


def _may_be_written_by_others(directory: Path) -> bool:
    """Returns whether somebody else could put a program there, which this process would run."""
    found = directory.stat()
    return found.st_uid != os.getuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _sweep(directory: Path) -> None:
    """Deletes the entries that were cut off, and those that nobody has read for long.

    JAX writes an entry in place and never again: one that a kill cut off would cost a warning and a compilation in
    every run from then on. What another process is just writing is deleted with them, and compiled once more.
    """
    now, swept = time.time(), directory / _SWEPT
    since = swept.stat().st_mtime if swept.exists() else 0.0
    for entry in directory.iterdir():
        if not _ENTRY.fullmatch(entry.name):
            continue  # the user may have named a directory that holds other things
        with contextlib.suppress(FileNotFoundError):  # another process sweeps too
            times = entry.stat()
            unused = max(times.st_atime, times.st_mtime) < now - _UNUSED
            if unused or (times.st_mtime >= since and not _is_whole(entry)):
                entry.unlink()
    swept.touch()
    os.utime(swept, (now, now))


def _is_whole(entry: Path) -> bool:
    try:
        decompress_executable(entry.read_bytes())
    except FileNotFoundError:
        raise
    except Exception:  # zlib's error or zstandard's, whichever JAX compresses with
        return False
    return True
