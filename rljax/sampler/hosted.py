"""Factory of the embedded engine in a process of its own."""

from __future__ import annotations

from pathlib import Path

from rljax.models.files import load_architecture
from rljax.models.tokenizer import load_tokenizer
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from sidecar.stepping.jobs import Trace


def open_engine(
    *,
    name: str,
    model: str,
    slots: int,
    max_length: int,
    decode_steps: int,
    dtype: str,
    record_routes: bool = False,
    held: int = 0,
    trace: Trace | None = None,
) -> EmbeddedEngine:
    """Opens the embedded engine on this process's first device; ``model`` is the directory of the policy. For
    the rest see `EmbeddedEngine`.
    """
    return EmbeddedEngine(
        load_architecture(Path(model)).within(max_length),
        slots=slots,
        max_length=max_length,
        decode_steps=decode_steps,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[dtype],
        tokenizer=load_tokenizer(model),
        name=name,
        record_routes=record_routes,
        below=Below(Path(model)),
        held=held,
        trace=trace,
    )
