"""XLA's temporary memory of loss and gradient on 8 rows of 256 tokens: SmolLM2-135M, float32.

    python -m bench.memory [--quick]

What: ``compiled.memory_analysis().temp_size_in_bytes``; nothing is run and no weights are loaded. *naive* keeps all
activations and the logits of every token. The others are the learner's own loss, without and with the microbatch
loop around it: two microbatches need a second gradient (513 MiB in float32) to add up in. The last is the pass that a
reference policy or a recomputed proximal one costs; it runs before the update, so its memory does not add to that.

Target: at or below 345 MiB for loss and gradient with remat and chunked log-probabilities (naive: 5970 MiB).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.paired import print_machine, print_table
from rljax.config.schema import Config, LearnerConfig, ModelConfig
from rljax.learner.objective import PolicyObjective, Progress
from rljax.learner.packing import Batch
from rljax.learner.scoring import Score, bare
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.params import Params
from rljax.models.files import load_architecture
from rljax.models.smollm2 import smollm2_directory
from rljax.models.transformer import abstract_params, hidden_states, output_head

ROWS, TIME = 8, 256
TARGET_MIB = 345
CHUNKS = (1024, 512, 256, 128)


def abstract_batch(*slots: int) -> Batch:
    """Returns the shapes of a batch; ``slots`` is the number of microbatches, or nothing for a single one."""

    def every(dtype: type) -> Any:
        return jax.ShapeDtypeStruct((*slots, ROWS, TIME), dtype)

    integers, floats = every(np.int32), every(np.float32)
    return Batch(
        token_ids=integers,
        positions=integers,
        segment_ids=integers,
        targets=integers,
        mask=every(np.bool_),
        turns=integers,
        owners=integers,
        behaviour_logprobs=floats,
        versions=integers,
        advantages=floats,
        rewards=floats,
        temperature=floats,
        weights=floats,
        places=integers,
    )


def objective(architecture: Architecture, remat: str, chunk: int) -> PolicyObjective:
    """Returns the learner's loss, on one device."""
    model = ModelConfig(
        path="smollm2-135m", remat=remat, logprob_chunk=chunk, max_prompt_tokens=1, max_response_tokens=TIME - 1
    )
    config = Config(
        mode="evaluate", rollout_batch_size=ROWS, model=model, learner=LearnerConfig(rows_per_microbatch=ROWS)
    )
    return PolicyObjective(config, architecture, Hardware.of(jax.devices()[0]))


def naive(architecture: Architecture) -> Callable[[Params, Batch], Any]:
    """Returns the loss with the logits of all tokens at once, and nothing recomputed."""

    def loss(params: Params, batch: Batch) -> jax.Array:
        hidden = hidden_states(params, architecture, batch.token_ids, batch.positions, batch.segment_ids)
        logprobs = jax.nn.log_softmax(hidden @ output_head(params, architecture))
        chosen = jnp.take_along_axis(logprobs, batch.targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.exp(chosen - batch.behaviour_logprobs) * batch.advantages * batch.weights)

    return jax.value_and_grad(loss)


def one_microbatch(architecture: Architecture, remat: str, chunk: int) -> Callable[[Params, Batch], Any]:
    """Returns the learner's loss and gradient of a microbatch."""
    whole = objective(architecture, remat, chunk)
    return jax.value_and_grad(lambda params, batch: whole.microbatch_loss(params, batch, Progress()), has_aux=True)


def temporary_mib(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the memory that XLA allocates beside arguments and results, in MiB."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise RuntimeError("this backend does not say how much memory a program takes")
    return analysis.temp_size_in_bytes / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the naive loss and one chunk size only")
    options = parser.parse_args()
    print_machine()
    architecture = load_architecture(smollm2_directory())
    params, batch = abstract_params(architecture), abstract_batch()
    rows: list[list[object]] = [["naive", temporary_mib(naive(architecture), params, batch), ""]]
    for chunk in CHUNKS[1:2] if options.quick else CHUNKS:
        mib = temporary_mib(one_microbatch(architecture, "full", chunk), params, batch)
        rows.append([f"remat full, chunks of {chunk} tokens", mib, "met" if mib <= TARGET_MIB else "missed"])
    if not options.quick:
        chunk = CHUNKS[1]
        for remat in ("none", "dots"):
            mib = temporary_mib(one_microbatch(architecture, remat, chunk), params, batch)
            rows.append([f"remat {remat}, chunks of {chunk} tokens", mib, ""])
        full = objective(architecture, "full", chunk)
        count = jax.ShapeDtypeStruct((), np.int32)
        for slots in (1, 2):
            step = temporary_mib(lambda p, b, n: loss_and_gradient(full, p, b, n), params, abstract_batch(slots), count)
            rows.append([f"the same in the learner's loop over {slots} microbatch{'es'[: 2 * (slots - 1)]}", step, ""])
        scored = bare(abstract_batch(2))
        score = Score(full, lambda p, b: full.logprobs(p, b)[0])
        alone = temporary_mib(score.program(scored), params, scored, count)
        rows.append(["log-probabilities alone (reference, proximal), of 2 microbatches", alone, ""])
    print_table(f"loss and gradient at {ROWS}x{TIME}, float32", ("what", "MiB", f"<= {TARGET_MIB}"), rows)


if __name__ == "__main__":
    main()
