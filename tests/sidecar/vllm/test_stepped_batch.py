"""What vLLM is told as its weights are replaced."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.vllm.batch import VllmBatch
from sidecar.vllm.tokenizer import LazyTokenizer


def test_a_connector_drops_the_kv_of_older_weights_too_or_nothing_is_loaded() -> None:
    engine = create_autospec(LLMEngine, instance=True)
    batch = VllmBatch(engine, 1, LazyTokenizer("nowhere"))
    batch.load({}, 3, 1)
    engine.reset_prefix_cache.assert_called_once_with(reset_running_requests=True, reset_connector=True)
    assert batch.version == 3
    engine.reset_prefix_cache.return_value = False
    with pytest.raises(RuntimeError, match="connector"):
        batch.load({}, 4, 1)
    assert batch.version == 3
    assert engine.collective_rpc.call_count == 1
