"""Validates the keys of ``mode=serve``."""

from __future__ import annotations

from rljax.config.fields import ConfigError, check_path, shown
from rljax.config.schema import Config


def check_serve(config: Config) -> None:
    """Refuses what cannot be served.

    Raises:
        ConfigError: on the first such key.
    """
    serve = config.serve
    if serve.version not in (None, "newest") and not serve.version.isdecimal():
        raise ConfigError(f"serve.version={shown(serve.version)}: write newest, batches seen, or None")
    if serve.follow and serve.version not in (None, "newest"):
        raise ConfigError(f"serve.version={serve.version}: serve.follow=true goes on from it; leave one of them out")
    if serve.key_file is not None:
        check_path("serve.key_file", serve.key_file)
        if not serve.require_key:
            raise ConfigError("serve.key_file: nothing reads it with serve.require_key=false; leave one of them out")
    if not serve.host:
        raise ConfigError("serve.host: empty; write 127.0.0.1, or 0.0.0.0 for every address of this machine")
    if serve.model_name == "":
        raise ConfigError("serve.model_name: empty; write a name, or None")
    if config.mode == "serve":
        _check_mode(config)


def _check_mode(config: Config) -> None:
    published = config.serve.follow or config.serve.version is not None
    if config.checkpoint == "all" and not published:
        raise ConfigError("checkpoint=all: mode=serve serves one; write latest, initial or batches seen")
    if published and config.sync_method != "checkpoint":
        raise ConfigError(
            f"sync_method={config.sync_method}: such versions are no files, and end with the learner's process; serve "
            "a checkpoint, or train with sync_method=checkpoint"
        )
