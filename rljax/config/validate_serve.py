"""Validates the keys of ``mode=serve``."""

from __future__ import annotations

from rljax.config.fields import ConfigError, check_path, shown
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.schema import Config


def check_serve(config: Config) -> Refusals:
    """Refuses what cannot be served."""
    return collected(config, _check_version, _check_follow, _check_key_file, _check_texts, _check_one)


def _check_version(config: Config) -> Refusals:
    version = config.serve.version
    if version not in (None, "newest") and not version.isdecimal():
        yield ConfigError(f"serve.version={shown(version)}: write newest, batches seen, or None")


def _check_follow(config: Config) -> Refusals:
    version = config.serve.version
    if config.serve.follow and version not in (None, "newest"):
        yield ConfigError(f"serve.version={version}: serve.follow=true goes on from it; leave one of them out")


def _check_key_file(config: Config) -> Refusals:
    if config.serve.key_file is None:
        return
    yield from refused_by(check_path, "serve.key_file", config.serve.key_file)
    if not config.serve.require_key:
        yield ConfigError("serve.key_file: nothing reads it with serve.require_key=false; leave one of them out")


def _check_texts(config: Config) -> Refusals:
    if not config.serve.host:
        yield ConfigError("serve.host: empty; write 127.0.0.1, or 0.0.0.0 for every address of this machine")
    if config.serve.model_name == "":
        yield ConfigError("serve.model_name: empty; write a name, or None")


def _check_one(config: Config) -> Refusals:
    if config.mode != "serve":
        return
    if not config.serve.published and config.checkpoint == "all":
        yield ConfigError("checkpoint=all: mode=serve serves one; write latest, initial or batches seen")
    if config.serve.published and config.checkpoint != "latest":
        yield ConfigError(
            f"checkpoint={config.checkpoint}: serve.version and serve.follow serve a published version; leave one of "
            "them out"
        )
    if config.serve.published and config.sync_method != "checkpoint":
        yield ConfigError(
            f"sync_method={config.sync_method}: such versions are no files, and end with the learner's process; serve "
            "a checkpoint, or train with sync_method=checkpoint"
        )
