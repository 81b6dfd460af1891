"""Sliding windows of layers, as the families' `config.json` tell of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rljax.models.common.architecture import Architecture

_SLIDING, _FULL = "sliding_attention", "full_attention"


class Windows(ABC):
    """Reads and writes which layers of a family's models have a window."""

    @abstractmethod
    def read(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the window of each layer, as `Architecture.windows`.

        Raises:
            ValueError: the family has no such windows.
        """

    @abstractmethod
    def written(self, architecture: Architecture) -> dict[str, Any]:
        """Returns the fields that tell of the windows."""


class _NoWindows(Windows):
    def read(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        slides = config.get("use_sliding_window") or _SLIDING in (config.get("layer_types") or ())
        if slides:
            raise ValueError(f"{config['model_type']} with a sliding attention window in use is not supported")
        return ()

    def written(self, architecture: Architecture) -> dict[str, Any]:
        return {}


class _EveryLayer(Windows):
    def read(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        window = config.get("sliding_window")
        if set(config.get("layer_types") or ()) - {_SLIDING if window else _FULL}:
            raise ValueError(f"{config['model_type']} with a window in some layers alone is not supported")
        return (int(window),) * int(config["num_hidden_layers"]) if window else ()

    def written(self, architecture: Architecture) -> dict[str, Any]:
        return {"sliding_window": architecture.window(0) or None}


@dataclass(frozen=True)
class ByLayer(Windows):
    """Some layers have the window, others see everything.

    Attributes:
        slides: whether a layer, by its number, has it where ``layer_types`` does not say so.
        always: whether a model has windows without being told to by ``use_sliding_window``.
    """

    slides: Callable[[Mapping[str, Any], int], bool]
    always: bool

    def read(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the window of each layer."""
        window = config.get("sliding_window") if self.always or config.get("use_sliding_window") else None
        layers = range(int(config["num_hidden_layers"]))
        derived = [_SLIDING if window and self.slides(config, layer) else _FULL for layer in layers]
        kinds = config.get("layer_types") or derived
        if strange := sorted(set(kinds) - {_SLIDING, _FULL}):
            raise ValueError(f"{config['model_type']} with layers of type {strange[0]!r} is not supported")
        if len(kinds) != len(layers):
            raise ValueError(f"{config['model_type']}: layer_types has {len(kinds)} of {len(layers)} layers")
        if _SLIDING not in kinds:
            return ()
        if not window:
            raise ValueError(f"{config['model_type']}: layer_types has a sliding attention window of no size")
        return tuple(int(window) if kind == _SLIDING else 0 for kind in kinds)

    def written(self, architecture: Architecture) -> dict[str, Any]:
        """Returns the fields that tell of the windows."""
        used = {} if self.always else {"use_sliding_window": bool(architecture.windows)}
        if not architecture.windows:
            return used or {"layer_types": [_FULL] * architecture.num_layers}
        kinds = [_SLIDING if window else _FULL for window in architecture.windows]
        return used | {"sliding_window": max(architecture.windows), "layer_types": kinds}


NO_WINDOWS: Windows = _NoWindows()
"""No layer has a window."""

EVERY_LAYER: Windows = _EveryLayer()
"""All layers have the window of ``sliding_window``, or none does."""

FROM_A_LAYER_ON: Windows = ByLayer(lambda config, layer: layer >= int(config["max_window_layers"]), always=False)
"""Those from ``max_window_layers`` on have one, where ``use_sliding_window`` says so: Qwen's."""

IN_ALL_IF_USED: Windows = ByLayer(lambda config, layer: True, always=False)
"""All have one, where ``use_sliding_window`` says so: of Qwen3 with experts transformers asks for no layer's number."""

QWEN_WINDOWS: Mapping[str, Any] = {"sliding_window": 4096, "max_window_layers": 28}
"""Defaults of transformers for what a `config.json` of a Qwen lacks."""
