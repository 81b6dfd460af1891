"""Tokenizer for stop strings, loaded when the first request brings one."""

from __future__ import annotations

import functools
from typing import Any


class LazyTokenizer:
    """`sidecar.stepping.jobs.Tokenizer` of a model's directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Returns the text of these tokens."""
        return _load(self._directory).decode(token_ids, **options)


@functools.lru_cache(maxsize=4)
def _load(directory: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, local_files_only=True)
