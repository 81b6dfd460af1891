"""Records the experts that vLLM's routers choose, where it computes in this process: by the slots of its KV cache.

vLLM returns them itself from its Model Runner V2 alone, which needs Triton; its hooks in the routers work with any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import routed_experts_capturer as hooks
from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.protocol import UNKNOWN_ROUTE


class RouteRecorder:
    """Keeps a token's experts beside its keys and values: the pass that computes these writes those. So a request that
    shares a prefix has its experts too, and what is read again after an update, or a preemption, has those of now.
    """

    def __init__(self, runner: Any, layers: int, picked: int) -> None:
        """Records for vLLM's model runner (version 1), once its KV cache stands; a token has ``picked`` experts in each
        of ``layers``. Memory: two bytes for each of these, for each token that the KV cache has room for.
        """
        group = runner.kv_cache_config.kv_cache_groups[0]
        slots = runner.kv_cache_config.num_blocks * group.kv_cache_spec.block_size
        self._runner = runner
        self._attention = group.layer_names[0]
        self._experts = torch.full((slots, layers, picked), UNKNOWN_ROUTE, dtype=torch.int16)

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """Writes what a layer's router has chosen for the tokens of a pass, ``[n, picked]``. Called by vLLM."""
        mapping: Any = get_forward_context().slot_mapping  # a list of them only where a batch is cut in two
        slots = mapping.get(self._attention)
        if slots is not None:  # there is none yet where vLLM measures its memory
            held = slots >= 0  # what only fills a pass has no slot
            self._experts[slots[held], layer_id] = topk_ids[held].to(torch.int16)

    def read(self, name: str, begin: int, end: int) -> np.ndarray:
        """Returns int16 ``[end - begin, layers, picked]``, the experts of these tokens of a request that was part of
        the last step. What a window has left behind of a shared prefix is `UNKNOWN_ROUTE`.
        """
        batch = self._runner.input_batch
        table, places = batch.block_table[0], np.arange(begin, end)
        blocks = table.get_numpy_array()[batch.req_id_to_index[name], places // table.block_size]
        return self._experts[torch.from_numpy(blocks * table.block_size + places % table.block_size)].numpy()


def record_routes(engine: LLMEngine) -> RouteRecorder:
    """Returns a recorder of the experts that an engine in this process chooses from now on.

    Raises:
        ValueError: the model has none, or routes with a kernel that says nothing of it.
    """
    (recorder,) = engine.collective_rpc(_recorder)
    return recorder


def _recorder(worker: Any) -> RouteRecorder:
    runner, config = worker.model_runner, worker.model_config
    recorder = RouteRecorder(runner, config.get_total_num_hidden_layers(), config.get_num_experts_per_tok())
    capturer: Any = recorder  # which has of vLLM's own what a hook calls
    hooks.bind_routed_experts_capturer(runner.get_model(), capturer)
    return recorder
