"""The embedded engine: `sidecar.protocol.Engine` in this process, in JAX, on any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.hf_names import check_tensors
from rljax.models.layered import LayeredTensors
from rljax.sampler import programs
from rljax.sampler.adapted import Below, FrozenWeights
from rljax.sampler.batch import RunningBatch
from sidecar.channels.versions import PublishedVersion, Receiver, receive
from sidecar.protocol import GenerateRequest, RequestError
from sidecar.stepping.engine import SteppedEngine
from sidecar.stepping.jobs import Tokenizer, Trace


class EmbeddedEngine(SteppedEngine):
    """Continuous batching over slots of a JAX cache. Implements `sidecar.protocol.Engine`."""

    _shapes: Any = None  # of the parameters of the first version, where several are held

    def __init__(
        self,
        architecture: Architecture,
        *,
        slots: int,
        max_length: int,
        decode_steps: int,
        dtype: jax.typing.DTypeLike,
        tokenizer: Tokenizer | None = None,
        device: jax.Device | None = None,
        name: str = "engine-0",
        receive: Receiver = receive,
        trace: Trace | None = None,
        record_routes: bool = False,
        below: Below | None = None,
        held: int = 0,
    ) -> None:
        """Creates the engine and starts its thread.

        Args:
            architecture: of the model whose versions will be loaded.
            slots: requests that run at once.
            max_length: longest prompt and response together, in tokens.
            decode_steps: tokens sampled between two checks of the request queue.
            dtype: of the computation and the cache, float32 or bfloat16.
            tokenizer: decodes for stop strings; without one they are refused.
            device: where to compute; None for JAX's default.
            name: used in error messages.
            receive: reads the versions that `update_weights` names.
            trace: called for every ``prefill`` and ``decode``, and as `SteppedEngine` says.
            record_routes: see `Completion.routes`; of a model with experts.
            below: the frozen weights below versions that hold an adapter alone; None: there are none.
            held: versions that are in use at once, each an adapter; 0: one at a time.
        """
        if min(slots, max_length - 1, decode_steps) < 1:
            raise ValueError(f"{name}: slots {slots}, max_length {max_length}, decode_steps {decode_steps}: too small")
        self._dtype, self._device = np.dtype(dtype).name, device or jax.local_devices()[0]
        self._architecture, self._frozen = architecture, FrozenWeights(below, architecture, self._dtype, self._device)
        self._batch = RunningBatch(
            architecture,
            slots=slots,
            max_length=max_length,
            decode_steps=decode_steps,
            dtype=self._dtype,
            device=self._device,
            tokenizer=tokenizer,
            trace=trace,
            record_routes=record_routes,
            held=held,
        )
        super().__init__(
            self._batch,
            name=name,
            max_length=max_length,
            vocab_size=architecture.vocab_size,
            has_tokenizer=tokenizer is not None,
            receive=receive,
            held=held,
            trace=trace,
        )

    def _check(self, request: GenerateRequest) -> None:
        super()._check(request)
        if request.sampling.min_p or request.sampling.repetition_penalty != 1:
            raise RequestError(f"request {request.id}: {self.name} has neither min_p nor repetition_penalty")

    def _place(self, published: PublishedVersion) -> Params:
        params = self._frozen.adapted(published) if published.manifest.adapter else self._whole(published)
        if self._held:
            self._check_fits(published, params)
        return params

    def _check_fits(self, published: PublishedVersion, params: Params) -> None:
        """Checks that a version can be held beside those before it.

        Raises:
            ValueError: it is no adapter, or one of another shape.
        """
        shapes = jax.tree.structure(params), [x.shape for x in jax.tree.leaves(params)]
        self._shapes = self._shapes or shapes
        if published.manifest.adapter is None or shapes != self._shapes:
            raise ValueError("it is no adapter of the rank, targets and scale of those that it is to be held beside")

    def _whole(self, published: PublishedVersion) -> Params:
        given, a = published.tensors, self._architecture
        if isinstance(given, LayeredTensors) and (params := given.on(a, self._dtype, self._device)) is not None:
            return params
        check_tensors(given, a)
        return programs.place(given, architecture=a, dtype=self._dtype, device=self._device)

    def _details(self) -> Mapping[str, float]:
        slots, length = self._batch.cache_shape
        return {
            "compiling": float(self._batch.compiling),
            "cache_slots": float(slots),
            "cache_length": float(length),
            "prefilled_tokens": float(self._batch.tokens_prefilled),
        }
