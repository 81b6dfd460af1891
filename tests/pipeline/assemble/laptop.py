"""A machine that has a processor alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest


class Processor(SimpleNamespace):
    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has JAX find one processor, and nothing else."""

    def there(platform: str = "cpu") -> list[Any]:
        if platform != "cpu":
            raise RuntimeError("none")
        return [Processor(platform="cpu", id=0, process_index=0)]

    monkeypatch.setattr(jax, "devices", there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
