"""Refuses connectors that would bring the keys and values of older weights back."""

from __future__ import annotations

from collections.abc import Iterator

from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

from sidecar.protocol import EngineError

OWN = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""Connectors of vLLM that keep in the memory of their own engine, and drop that with its cache. Of others some drop
nothing, which vLLM takes for success, and some share a store with engines of other versions.
"""
OWN_MEMORY = "CPUOffloadingSpec"
"""The memory that the first keeps in by default."""


def checked_config(arguments: EngineArgs) -> VllmConfig:
    """Returns the config of an engine with these arguments.

    Raises:
        EngineError: its connector, or one of several, keeps elsewhere than in the engine's own memory.
    """
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    for connector in _connectors(config.kv_transfer_config):
        if not _is_own(connector):
            raise EngineError(
                f"sidecar.engine_args: {connector.kv_connector} may bring keys and values of older weights back after "
                f"an update; write {' or '.join(OWN)} without other tiers than memory, or leave it out"
            )
    return config


def _is_own(config: KVTransferConfig) -> bool:
    options = config.kv_connector_extra_config
    memory = options.get("spec_name", OWN_MEMORY) == OWN_MEMORY and not options.get("secondary_tiers")
    return config.kv_connector in OWN and config.kv_connector_module_path is None and memory


def _connectors(config: KVTransferConfig | None) -> Iterator[KVTransferConfig]:
    if config is None or config.kv_connector is None:
        return
    if config.kv_connector != "MultiConnector":
        yield config
        return
    for child in config.kv_connector_extra_config["connectors"]:
        yield from _connectors(KVTransferConfig(**{"engine_id": config.engine_id, **child}))
