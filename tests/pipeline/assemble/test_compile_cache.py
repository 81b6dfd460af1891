"""Where compiled programs are kept, seen by processes of their own: JAX reads its settings once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMPILE = """
import sys, jax
import rljax.config.rules
from rljax.config.schema import Config
from rljax.pipeline.assemble.compile_cache import keep_compiled
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
keep_compiled(Config(mode="evaluate", compile_cache=sys.argv[1]))
jax.jit(lambda x: x + 1)(jax.numpy.ones(3))
print(len(hits))
"""


def compiles(home: Path, where: str = "auto", **environment: str) -> tuple[int, str]:
    """Compiles in a process of its own; returns how many programs it found, and what it said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "RLJAX_"))}
    given = clean | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(home), "HOME": str(home)} | environment
    command = [sys.executable, "-c", COMPILE, where]
    found = subprocess.run(command, env=given, capture_output=True, text=True, check=True, timeout=120)
    return int(found.stdout), found.stderr


def entries(directory: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in directory.glob("*-cache")}


def test_the_second_process_finds_what_the_first_compiled_and_mends_what_a_kill_cut_off(tmp_path: Path) -> None:
    found, said = compiles(tmp_path)
    kept = tmp_path / "rljax" / "compiled"
    whole = entries(kept)
    assert (found, said) == (0, "")
    assert whole
    assert kept.stat().st_mode & 0o777 == 0o700
    for name, content in whole.items():
        (kept / name).write_bytes(content[: len(content) // 2])
    assert compiles(tmp_path) == (0, "")
    assert entries(kept).keys() == whole.keys()
    found, said = compiles(tmp_path)
    assert (found, said) == (len(whole), "")


def test_the_key_and_the_user_s_own_setting_say_where_and_whether(tmp_path: Path) -> None:
    compiles(tmp_path, str(tmp_path / "named"))
    assert entries(tmp_path / "named")
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    compiles(tmp_path, **own)
    assert entries(tmp_path / "own")
    compiles(tmp_path, "off", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "none"))
    assert not entries(tmp_path / "none")
    assert not (tmp_path / "rljax").exists()


def test_what_others_could_write_or_nobody_can_is_not_used_and_said(tmp_path: Path) -> None:
    kept = tmp_path / "rljax" / "compiled"
    kept.mkdir(parents=True)
    kept.chmod(0o777)
    _, said = compiles(tmp_path)
    assert said.splitlines() == [
        f"{kept}: others may write there: compiled programs are not kept; chmod go-w it, or name another"
    ]
    assert not entries(kept)
    _, said = compiles(tmp_path, str(kept))  # what the config names is run as well
    assert f"{kept}: others may write there" in said
    assert not entries(kept)
    (tmp_path / "file").touch()
    _, said = compiles(tmp_path, str(tmp_path / "file" / "below"))
    assert said.count("\n") == 1
    assert f"compile_cache: {tmp_path}/file/below: compiled programs are not kept (Not a directory)" in said
    old = tmp_path / "old"
    old.mkdir()
    unread = f"jit_f-{'0a' * 32}-cache"
    for name in (unread, "my-cache"):
        (old / name).touch()
        os.utime(old / name, (0, 0))
    compiles(tmp_path, str(old))
    assert unread not in entries(old), "nobody has read it for a month"
    assert "my-cache" in entries(old), "it is none of JAX's"
