"""Arguments of vLLM that rljax sets itself: nobody overrules them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

pytest.importorskip("vllm")

from sidecar.protocol import EngineError
from sidecar.vllm import concurrent, stepped
from sidecar.vllm.settings import VllmSettings

OPENS = {"0": stepped.open_engine, "1": concurrent.open_engine}


def start(processes: str, engine_args: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", processes)
    OPENS[processes](name="engine", settings=asdict(VllmSettings("nowhere", 8, 1, engine_args=engine_args)))


@pytest.mark.parametrize("processes", list(OPENS))
def test_tokens_come_with_the_step_that_sampled_them(processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"engine_args: stream_interval cannot be overruled"):
        start(processes, {"stream_interval": 4}, monkeypatch)


def test_a_step_that_is_asked_for_ends_with_its_tokens_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"engine_args: async_scheduling cannot be overruled"):
        start("0", {"async_scheduling": True}, monkeypatch)
    settings = VllmSettings("nowhere", 8, 1, engine_args={"async_scheduling": False})
    assert settings.arguments(on_cpu=True)["async_scheduling"] is False, "vllm_async may have either"
