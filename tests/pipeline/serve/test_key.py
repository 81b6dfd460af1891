"""The key of the endpoint: where it comes from, and who may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rljax.commands import serve
from rljax.config.schema import Config, ServeConfig
from rljax.config.validate import ConfigError
from rljax.launch import engine_launchers
from rljax.pipeline.serve.key import VARIABLE, open_key
from sidecar.protocol import EngineError
from tests.config.making import make
from tests.pipeline.serve.lab import config_of


def test_one_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    key, where = open_key(make(), tmp_path)
    file = tmp_path / "key"
    assert (where, file.read_text()) == (str(file), key + "\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(key) >= 32
    assert open_key(make(), tmp_path) == (key, where)
    other, _ = open_key(make(), tmp_path.parent)
    (tmp_path.parent / "key").unlink()
    assert other != key


def test_the_variable_is_taken_out_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "abcdefghijklmnop")
    assert open_key(make(), tmp_path) == ("abcdefghijklmnop", f"the variable {VARIABLE}")
    assert VARIABLE not in os.environ
    assert list(tmp_path.iterdir()) == []


def test_it_is_taken_before_engines_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(_: Config) -> Any:
        raise EngineError(f"launched with {os.environ.get(VARIABLE)}")

    monkeypatch.setattr(engine_launchers, "ENGINE_LAUNCHERS", {"local": launch})
    monkeypatch.setenv(VARIABLE, "abcdefghijklmnop")
    with pytest.raises(EngineError, match="launched with None"):
        serve(config_of(tmp_path / "run", checkpoint="initial"))


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    config = make(serve=ServeConfig(key_file=str(file)))
    with pytest.raises(ConfigError, match=r"serve\.key_file=.*the key cannot be read"):
        open_key(config, tmp_path)
    file.write_text("abcdefghijklmnop\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read the key; chmod 600"):
        open_key(config, tmp_path)
    file.chmod(0o400)
    assert open_key(config, tmp_path) == ("abcdefghijklmnop", str(file))


@pytest.mark.parametrize("key", ["", "short", "two words of a key", "sixteen letters…", "\x07" * 20])
def test_what_is_no_key_is_refused_and_not_repeated(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(ConfigError, match="one word of at least 16 printable ASCII characters") as refused:
        open_key(make(), tmp_path)
    assert not key or key not in str(refused.value)


def test_none_is_needed_where_the_config_says_so(tmp_path: Path) -> None:
    assert open_key(make(serve=ServeConfig(require_key=False)), tmp_path) == ("", "")
    assert list(tmp_path.iterdir()) == []
