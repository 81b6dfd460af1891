"""Connectors that keep the keys and values of older weights: those that vLLM brings, in engines that would start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs

from sidecar.protocol import EngineError
from sidecar.vllm import concurrent, stepped
from sidecar.vllm.connectors import checked_config
from sidecar.vllm.settings import VllmSettings
from tests.sidecar.vllm.models import random_model

OFFLOADS = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**20}}
FILES = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "nowhere"}]}
TIERED = {**OFFLOADS, "kv_connector_extra_config": {"cpu_bytes_to_use": 2**20, **FILES}}
EXAMPLE = {"kv_connector": "ExampleConnector"}
OPENS = {"0": stepped.open_engine, "1": concurrent.open_engine}


def several(*connectors: dict[str, Any]) -> dict[str, Any]:
    children = [{**connector, "kv_role": "kv_both"} for connector in connectors]
    return {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": children}}


def given(connector: dict[str, Any]) -> dict[str, Any]:
    return {"kv_transfer_config": {**connector, "kv_role": "kv_both"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("connectors")
    random_model("qwen3-tied", 0).save_pretrained(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "0")
        yield directory


def settings(model: Path, engine_args: dict[str, Any]) -> VllmSettings:
    return VllmSettings(str(model), 64, 2, dtype="fp32", kv_cache_bytes=2**24, engine_args=engine_args)


@pytest.mark.parametrize(
    "engine_args",
    [
        *({}, {"kv_offloading_size": 0.01}, given(OFFLOADS), given(several(OFFLOADS))),
        given({"kv_connector": "SimpleCPUOffloadConnector"}),
    ],
)
def test_one_that_drops_what_it_keeps_is_taken(engine_args: dict[str, Any], model: Path) -> None:
    arguments = settings(model, engine_args).arguments(on_cpu=True)
    kept = checked_config(EngineArgs(**arguments)).kv_transfer_config
    assert (kept is None) == (not engine_args)


@pytest.mark.parametrize(
    ("engine_args", "named"),
    [
        (given(EXAMPLE), "ExampleConnector"),
        (given(TIERED), "OffloadingConnector"),
        (given({"kv_connector": "MooncakeStoreConnector"}), "MooncakeStoreConnector"),
        (given({"kv_connector": "LMCacheConnectorV1"}), "LMCacheConnectorV1"),
        (given(several(OFFLOADS, EXAMPLE)), "ExampleConnector"),
        (given(several(OFFLOADS, several(EXAMPLE))), "ExampleConnector"),
    ],
)
@pytest.mark.parametrize("processes", list(OPENS))
def test_one_that_cannot_is_refused_before_an_engine_starts(
    processes: str, engine_args: dict[str, Any], named: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", processes)
    wanted = re.escape(f"sidecar.engine_args: {named} may bring keys and values of older weights back")
    with pytest.raises(EngineError, match=wanted):
        OPENS[processes](name="engine", settings=asdict(settings(model, engine_args)))
