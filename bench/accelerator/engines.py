"""The embedded engine and transformers' `generate`: tokens per second of so many sequences at once, random weights.

All prompts have the same length and nothing ends early, which is `generate`'s best case. Ours arrive while the engine
is paused, so that every turn reads them together, and also record log-probability and version of every token. Sampled
at temperature 1, not truncated. Turns before the timed ones compile.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.accelerator.shapes import MODELS

Row = dict[str, Any]
UNTIMED, TIMED = 2, 3


def prompts(model: str, sequences: int, tokens: int) -> np.ndarray:
    """Returns random tokens, int32 ``[sequences, prompt]``."""
    shape = (sequences, tokens)
    return np.random.default_rng(sequences).integers(0, MODELS[model].vocab_size, shape).astype(np.int32)


def result(side: str, model: str, how: str, sequences: int, new: int, seconds: list[float]) -> Row:
    """Returns the row of one number of sequences, from the seconds of all turns."""
    counted = seconds[UNTIMED:]
    rate = sequences * new / statistics.median(counted)
    row = {"side": side, "model": model, "how": how, "sequences": sequences, "tokens_per_second": rate}
    return row | {"all_seconds": counted, "first_turn_seconds": seconds[0]}


def measure_ours(model: str, counts: list[int], prompt: int, new: int, dtype: str) -> Iterator[Row]:
    """Yields a row for each number of sequences."""
    import jax

    from rljax.config.schema import SidecarConfig
    from rljax.models.hf_names import to_hf
    from rljax.models.transformer import init_params
    from rljax.sampler.engine import EmbeddedEngine
    from rljax.weights.memory import MemoryPublisher
    from sidecar.protocol import GenerateRequest, PauseMode, SamplingParams, WeightUpdate

    architecture = MODELS[model]
    precision = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    cast = jax.jit(lambda: jax.tree.map(lambda x: x.astype(precision), init_params(architecture, 0)))
    steps = SidecarConfig().decode_steps
    engine = EmbeddedEngine(
        architecture, slots=max(counts), max_length=prompt + new, decode_steps=steps, dtype=precision
    )

    async def turn(sequences: int, number: int) -> float:
        sampled = [SamplingParams(max_new_tokens=new, seed=1000 * number + n) for n in range(sequences)]
        given = prompts(model, sequences, prompt)
        requests = [GenerateRequest(f"{number}/{n}", given[n], how) for n, how in enumerate(sampled)]
        await engine.pause(PauseMode.KEEP)
        running = [asyncio.ensure_future(engine.generate(request)) for request in requests]
        while (await engine.status()).waiting < sequences:  # noqa: ASYNC110  (an engine has no event for it)
            await asyncio.sleep(0.001)
        begin = time.perf_counter()
        await engine.resume()
        done = await asyncio.gather(*running)
        seconds = time.perf_counter() - begin
        assert all(len(completion.token_ids) == new for completion in done)
        return seconds

    with tempfile.TemporaryDirectory(prefix="bench-engine-") as name, asyncio.Runner() as runner:
        publisher = MemoryPublisher(Path(name))
        path = publisher.publish(0, 1, to_hf(cast(), architecture), model=model, dtype=dtype)
        runner.run(engine.update_weights(WeightUpdate(0, 1, path)))
        publisher.close()
        for sequences in counts:
            seconds = [runner.run(turn(sequences, number)) for number in range(UNTIMED + TIMED)]
            yield result("rljax", model, "embedded", sequences, new, seconds)
        runner.run(engine.close())


def measure_torch(
    model: str, counts: list[int], prompt: int, new: int, dtype: str, platform: str, cache: str
) -> Iterator[Row]:
    """Yields a row for each number of sequences. ``cache`` is ``dynamic``, as `generate` does by itself, or ``static``,
    with which transformers compiles the decoding.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from bench.accelerator.torch_learner import device_of
    from rljax.models.families.registry import to_config

    device = device_of(platform)
    torch.manual_seed(0)
    precision = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    with device:
        config = AutoConfig.for_model(**to_config(MODELS[model]))
        made = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=precision).eval()
    made.generation_config.eos_token_id = None  # nothing ends early
    for sequences in counts:
        ids = torch.from_numpy(prompts(model, sequences, prompt).astype(np.int64)).to(device)
        seconds = []
        for _ in range(UNTIMED + TIMED):
            begin = time.perf_counter()
            with torch.inference_mode():
                out = made.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=new,
                    pad_token_id=0,
                    cache_implementation=cache,
                )
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
            assert out.shape[1] == prompt + new
        yield result("torch", model, f"{cache} cache", sequences, new, seconds)
