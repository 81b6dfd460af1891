"""What cannot be served is refused when the config is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.schema import ServeConfig
from rljax.config.validate import ConfigError
from tests.config.making import make


@pytest.mark.parametrize(
    ("serve", "others", "line"),
    [
        ({"version": "new"}, {}, "serve.version='new': write newest, batches seen, or None"),
        ({"version": "3", "follow": True}, {}, "serve.version=3: serve.follow=true goes on from it"),
        ({"port": 65536}, {}, "serve.port=65536: must be at most 65535"),
        ({"host": ""}, {}, "serve.host: empty"),
        ({"model_name": ""}, {}, "serve.model_name: empty"),
        ({"key_file": "x", "require_key": False}, {}, "serve.key_file: nothing reads it with serve.require_key=false"),
        ({"max_requests": 0}, {}, "serve.max_requests=0: must be at least 1"),
        ({"drain_timeout": -1.0}, {}, "serve.drain_timeout=-1.0: must be at least 0"),
        ({}, {"mode": "serve", "checkpoint": "all"}, "checkpoint=all: mode=serve serves one"),
        ({"version": "3"}, {"mode": "serve", "checkpoint": "2"}, "checkpoint=2: serve.version and serve.follow serve"),
        ({"follow": True}, {"mode": "serve", "sync_method": "nccl"}, "sync_method=nccl: such versions are no files"),
        ({"version": "newest"}, {"mode": "serve", "sync_method": "memory"}, "sync_method=memory: such versions are no"),
    ],
)
def test_what_cannot_be_is_refused(serve: dict[str, Any], others: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(serve=ServeConfig(**serve), **others)
    assert str(refused.value).startswith(line)


def test_what_needs_no_run_needs_no_taskset() -> None:
    assert make(mode="serve", serve=ServeConfig(version="newest", follow=True)).serve.follow
