"""The key that clients of the endpoint must show: read, or made."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from rljax.config.schema import Config
from rljax.config.validate import ConfigError

VARIABLE = "RLJAX_SERVE_KEY"
"""Environment variable that may hold the key. It is taken out of the environment, which engines inherit."""
SHORTEST = 16
"""Characters of a key, at least."""


class Key(NamedTuple):
    """A key, and where it is to be found; both are empty where none is required."""

    text: str
    place: str


def open_key(config: Config, directory: Path) -> Key:
    """Returns the key. What is started before has the variable in its environment.

    Args:
        config: of the server.
        directory: where a key is made, as a file that nobody else can read, unless the config or the environment has
            one. One that is there is kept.

    Raises:
        ConfigError: the file is not there, is readable by others, or holds no key.
    """
    given = os.environ.pop(VARIABLE, None)
    if not config.serve.require_key:
        return Key("", "")
    if config.serve.key_file is not None:
        return Key(_read(Path(config.serve.key_file), "serve.key_file"), config.serve.key_file)
    if given is not None:
        return Key(_checked(given, VARIABLE), f"the variable {VARIABLE}")
    file = directory / "key"
    directory.mkdir(exist_ok=True)
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return Key(_read(file, "run_dir"), str(file))
    with os.fdopen(descriptor, "w") as made:
        made.write(secrets.token_urlsafe(32) + "\n")
    return Key(_read(file, "run_dir"), str(file))


def _read(file: Path, where: str) -> str:
    try:
        mode = file.stat().st_mode
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise ConfigError(f"{where}={file}: the key cannot be read ({reason}); write a file with one line") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{where}={file}: others can read the key; chmod 600 {file}, and choose another key")
    return _checked(text, f"{where}={file}")


def _checked(text: str, where: str) -> str:
    key = text.strip()
    if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where}: a key is one word of at least {SHORTEST} printable ASCII characters; write another"
        )
    return key
