"""The embedded engine against transformers' `generate`: SmolLM2-135M, float32, two cores.

    python -m bench.engine_vs_transformers [--quick] [--pairs N] [--greedy]

What: 1, 8 and 32 prompts of 32 random tokens, 64 new tokens each, none stops early; sampled at temperature 1, without
top-k and top-p (as training does), or greedy. transformers gets all prompts as one batch of equal lengths, which is its
best case: no padding, static membership. Ours arrive as requests and also record log-probability and version of every
token. Each side runs in its own process, by turns.

Targets: at least level at 1 and 8 sequences, 1.3 times as fast at 32.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from bench.paired import CORES, PAIR_COLUMNS, Answer, Side, alternate, pair_row, print_machine, print_table
from rljax.models.smollm2 import smollm2_directory

PROMPT_TOKENS, NEW_TOKENS = 32, 64
TARGETS = {1: "1.0", 8: "1.0", 32: "1.3"}
GENERATE_SECONDS = 900.0


def prompts(sequences: int, vocab_size: int) -> np.ndarray:
    """Returns random tokens, int32 ``[sequences, prompt]``."""
    shape = (sequences, PROMPT_TOKENS)
    return np.random.default_rng(sequences).integers(0, vocab_size, shape).astype(np.int32)


def start_rljax() -> Answer:
    """Starts rljax's side in its process: an engine of as many slots as there are sequences at most."""
    from rljax.config.schema import SidecarConfig
    from rljax.models.files import load_directory
    from rljax.models.hf_names import to_hf
    from rljax.sampler.engine import EmbeddedEngine
    from rljax.weights.publisher import OrbaxPublisher
    from sidecar.protocol import GenerateRequest, SamplingParams, WeightUpdate

    architecture, params = load_directory(smollm2_directory())
    loop = asyncio.new_event_loop()

    def run(awaited: Coroutine[Any, Any, Any]) -> Any:
        return loop.run_until_complete(asyncio.wait_for(awaited, GENERATE_SECONDS))

    engine = EmbeddedEngine(
        architecture,
        slots=max(TARGETS),
        max_length=PROMPT_TOKENS + NEW_TOKENS,
        decode_steps=SidecarConfig().decode_steps,
        dtype="float32",
    )
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as name:
        tensors = to_hf(params, architecture)
        path = OrbaxPublisher(Path(name)).publish(0, 1, tensors, model="smollm2-135m", dtype="fp32")
        run(engine.update_weights(WeightUpdate(0, 1, str(path))))
    turn = 0

    async def generate(sequences: int, temperature: float) -> None:
        requests = [
            GenerateRequest(
                f"{turn}/{index}",
                prompt,
                SamplingParams(temperature=temperature, max_new_tokens=NEW_TOKENS, seed=1000 * turn + index),
            )
            for index, prompt in enumerate(prompts(sequences, architecture.vocab_size))
        ]
        done = await asyncio.gather(*(engine.generate(request) for request in requests))
        assert all(len(completion.token_ids) == NEW_TOKENS for completion in done)

    def answer(request: dict[str, Any]) -> float:
        nonlocal turn
        turn += 1
        begin = time.perf_counter()
        run(generate(request["sequences"], request["temperature"]))
        return time.perf_counter() - begin

    return answer


def start_torch() -> Answer:
    """Starts torch's side in its process."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(CORES)
    model = AutoModelForCausalLM.from_pretrained(smollm2_directory(), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # nothing ends early

    def answer(request: dict[str, Any]) -> float:
        ids = torch.from_numpy(prompts(request["sequences"], model.config.vocab_size).astype(np.int64))
        sampled = request["temperature"] > 0
        how: dict[str, Any] = {"temperature": request["temperature"], "top_k": 0, "top_p": 1.0} if sampled else {}
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=sampled,
                max_new_tokens=NEW_TOKENS,
                use_cache=True,
                pad_token_id=0,
                **how,
            )
        assert out.shape[1] == PROMPT_TOKENS + NEW_TOKENS
        return time.perf_counter() - begin

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pairs, 1 and 32 sequences")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--greedy", action="store_true", help="temperature 0")
    options = parser.parse_args()
    print_machine()
    smollm2_directory(lambda text, fraction: print(f"{text}: {fraction:.0%}", flush=True))
    sizes = [1, 32] if options.quick else list(TARGETS)
    ours, theirs = Side("rljax", start_rljax), Side("torch", start_torch)
    rows = []
    try:
        for n in sizes:
            pairs = 2 if options.quick else options.pairs
            timed = alternate(ours, theirs, pairs, sequences=n, temperature=0.0 if options.greedy else 1.0)
            rows.append(pair_row(f"{n} sequences", "new tokens/s", n * NEW_TOKENS, timed, TARGETS[n]))
    finally:
        ours.close()
        theirs.close()
    how = "greedy" if options.greedy else "sampled at temperature 1"
    print_table(f"{PROMPT_TOKENS} + {NEW_TOKENS} tokens, SmolLM2-135M, float32, {how}", PAIR_COLUMNS, rows)


if __name__ == "__main__":
    main()
