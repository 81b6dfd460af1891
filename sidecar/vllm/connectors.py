"""Refuses connectors that would keep the keys and values of older weights."""

from __future__ import annotations

from collections.abc import Iterator

from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

from sidecar.protocol import EngineError


def checked_config(arguments: EngineArgs) -> VllmConfig:
    """Returns the config of an engine with these arguments.

    Raises:
        EngineError: its connector, or one of several, cannot drop what it keeps. vLLM takes that for success: its
            scheduler asks for ``reset_cache() is False``, and the method that a connector inherits returns None.
    """
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    for connector in _connectors(config.kv_transfer_config):
        if connector.reset_cache is KVConnectorBase_V1.reset_cache:
            raise EngineError(
                f"sidecar.engine_args: {connector.__name__} cannot drop keys and values of older weights (it has no "
                "reset_cache of its own); write a connector that can, such as OffloadingConnector, or leave it out"
            )
    return config


def _connectors(config: KVTransferConfig | None) -> Iterator[type[KVConnectorBase_V1]]:
    if config is None or config.kv_connector is None:
        return
    connector = KVConnectorFactory.get_connector_class(config)
    if not issubclass(connector, MultiConnector):
        yield connector
        return
    for child in config.kv_connector_extra_config["connectors"]:
        yield from _connectors(KVTransferConfig(**{"engine_id": config.engine_id, **child}))
