"""torch's side of the learner's step: transformers on the same packed rows, with the same loss and optimizer.

What is like rljax: the rows and their sequences, float32 masters with bfloat16 computation (as FSDP's mixed precision
has it), gradients summed in float32 over the microbatches, the PPO loss as a token mean, clipping by the global norm,
AdamW (fused). What is kinder to torch: no entropy, advantages and packing are made before, one mask serves every
microbatch, and each chunk of logits gives its gradient at once, so that none is computed twice and few exist.

Attention is the first of these that works: FlashAttention 3 or 2 where their packages are, `flex_attention` with a
block mask (which skips what segments and causality hide), `scaled_dot_product_attention` with a dense mask. Each is
tried with torch.compile first, layer by layer, so that one compilation serves all of them (PyTorch's regional
compilation), and around the log-probabilities; on a CPU, `scaled_dot_product_attention` alone and not compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available

from bench.accelerator import NoDeviceError
from bench.accelerator.peaks import time_steps
from bench.accelerator.shapes import (
    CLIP,
    LEARNING_RATE,
    MAX_NORM,
    Shape,
    Way,
    cuts,
    first_way,
    grpo_advantages,
    made_up_tokens,
    uniform_logprob,
    ways,
)
from rljax.models.families.registry import to_config

LOGITS_CHUNK = 4096  # tokens whose logits exist at once
Row = dict[str, Any]
Bodies = list[tuple[str, bool]]


def device_of(platform: str) -> torch.device:
    """Returns torch's name of the first device of JAX's platform.

    Raises:
        NoDeviceError: torch has no such device.
    """
    if platform == "cpu":
        return torch.device("cpu")
    if platform in ("gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", 0)
    raise NoDeviceError(f"torch {torch.__version__} sees no {platform} here")


def bodies(device: torch.device) -> Bodies:
    """Returns attention's names to try in order, and whether the layers are compiled around it."""
    if device.type == "cpu":
        return [("sdpa", False)]
    names = ["flash_attention_2"] if is_flash_attn_2_available() else []
    try:
        from transformers.utils import is_flash_attn_3_available
    except ImportError:
        pass
    else:
        names[:0] = ["flash_attention_3"] if is_flash_attn_3_available() else []
    return [(name, compiled) for name in (*names, "flex_attention", "sdpa") for compiled in (True, False)]


class PackedTorchLearner:
    """Trains a causal language model with its optimizer."""

    def __init__(
        self,
        shape: Shape,
        way: Way,
        device: torch.device,
        attention: str,
        compiled: bool,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Makes the model with random weights, or with those of the Hugging Face names in ``weights``."""
        torch.manual_seed(0)
        fields = to_config(shape.architecture)
        config = AutoConfig.for_model(**{**fields, "max_position_embeddings": 2 * shape.row})
        with device:
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        if weights is not None:
            model.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in weights.items()}, strict=False)
        self.model = model.train()
        self._parameters = list(model.parameters())
        self._mixed = shape.dtype == "bf16"
        self.masters = self._parameters
        if self._mixed:
            self.masters = [torch.nn.Parameter(p.detach().clone()) for p in self._parameters]
            for parameter in self._parameters:  # and no buffer: rotations stay float32
                parameter.data = parameter.data.to(torch.bfloat16)
        if way.remat:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if compiled:
            for layer in self.model.model.layers:
                layer.compile()
        self._logprobs: Callable[..., Any] = torch.compile(_logprobs) if compiled else _logprobs
        self._optimizer = torch.optim.AdamW(self.masters, LEARNING_RATE, weight_decay=0.0, fused=True)
        self._flat = attention.startswith("flash")
        self._mask = make_mask(shape, device, attention)
        self._batch = make_batch(shape, device)
        self._rows = way.rows

    def step(self) -> float:
        """Makes one optimizer update; returns the loss."""
        loss = self.accumulate()
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._mixed:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, self.masters)
        return loss

    def accumulate(self) -> float:
        """Sums the gradient of all microbatches in the masters; returns the loss."""
        total = torch.zeros((), device=self.masters[0].device)
        rows = self._batch["token_ids"].shape[0]
        for start in range(0, rows, self._rows):
            part = {name: array[start : start + self._rows] for name, array in self._batch.items()}
            total += self._backward(part)
            self._add_up()
        return float(total)

    def gradient(self) -> dict[str, np.ndarray]:
        """Returns the summed gradient by Hugging Face name."""
        names = [name for name, _ in self.model.named_parameters()]
        found = zip(names, self.masters, strict=True)
        return {name: p.grad.float().cpu().numpy() for name, p in found if p.grad is not None}

    def _backward(self, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self._flat:  # one long row: FlashAttention reads the sequences off the positions
            part = {name: array.reshape(1, -1) for name, array in part.items()}
        output = self.model.model(
            input_ids=part["token_ids"],
            position_ids=part["positions"],
            attention_mask=self._mask,
            use_cache=False,
        ).last_hidden_state.flatten(0, 1)
        hidden = output.detach().requires_grad_()
        flat = {name: part[name].reshape(-1) for name in ("targets", "behaviour", "advantages")}
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), LOGITS_CHUNK):
            few = slice(start, start + LOGITS_CHUNK)
            logprobs = self._logprobs(hidden[few], self.model.lm_head.weight, flat["targets"][few])
            ratio = torch.exp(logprobs - flat["behaviour"][few])
            advantages = flat["advantages"][few]
            clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages
            loss = -torch.min(ratio * advantages, clipped).sum() / self._batch["token_ids"].numel()
            loss.backward()
            total += loss.detach()
        output.backward(hidden.grad)
        return total

    def _add_up(self) -> None:
        if not self._mixed:
            return  # the masters are what is computed with, and torch has added to their gradient
        for master, parameter in zip(self.masters, self._parameters, strict=True):
            if parameter.grad is not None:
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                master.grad += parameter.grad
                parameter.grad = None


def _logprobs(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(hidden, head).float()
    return torch.gather(logits, -1, targets[:, None])[:, 0] - torch.logsumexp(logits, -1)


def make_batch(shape: Shape, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns the rows of a step, every array ``[row, time]``."""
    tokens, pieces = made_up_tokens(shape).astype(np.int64), cuts(shape)

    def every(values: list[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(np.concatenate(values), (shape.rows, shape.row))

    arrays = {
        "token_ids": np.concatenate([tokens[:, a : b - 1] for a, b in pieces], 1),
        "targets": np.concatenate([tokens[:, a + 1 : b] for a, b in pieces], 1),
        "positions": every([np.arange(n) for n in shape.sequences]),
        "advantages": every(
            [np.full(n, x, np.float32) for n, x in zip(shape.sequences, grpo_advantages(), strict=True)]
        ),
        "behaviour": np.full((shape.rows, shape.row), uniform_logprob(shape), np.float32),
    }
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in arrays.items()}


def make_mask(shape: Shape, device: torch.device, attention: str) -> Any:
    """Returns what a query sees of a packed row, as the named attention takes it; None where positions say it."""
    segments = torch.repeat_interleave(torch.arange(len(shape.sequences)), torch.tensor(shape.sequences)).to(device)
    if attention.startswith("flash"):
        return None
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (query >= key) & (segments[query] == segments[key])

        make: Any = torch.compile(create_block_mask)
        return make(seen, B=None, H=None, Q_LEN=shape.row, KV_LEN=shape.row, device=device)
    causal = torch.ones(shape.row, shape.row, dtype=torch.bool, device=device).tril()
    return (causal & (segments[:, None] == segments[None, :]))[None, None]


def measure(shape: Shape, attempt: int | None, platform: str, spawned: float) -> Iterator[Row]:
    """Yields the row of a shape. ``spawned`` is when this process was started, in Unix seconds."""
    device = device_of(platform)
    on_gpu = device.type == "cuda"
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else None
    attempt = first_way(shape, memory) if attempt is None else attempt
    way = ways(shape)[attempt]
    row: Row = {"side": "torch", "way": str(way), "failed": []}
    torch.set_float32_matmul_precision("high")
    for attention, compiled in bodies(device):
        body = f"{attention}{', torch.compile' if compiled else ''}"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            found = timed(PackedTorchLearner(shape, way, device, attention, compiled), shape, on_gpu, spawned)
        except torch.OutOfMemoryError as error:
            yield row | {"body": body, "out_of_memory": str(error).splitlines()[0][:200], "next": attempt + 1}
            return
        except Exception as error:  # whatever a compiler may raise: the next body is tried, and the row says so
            row["failed"].append(f"{body}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
            continue
        yield row | {"body": body} | found
        return
    raise RuntimeError(f"no attention works: {'; '.join(row['failed'])}")


def timed(learner: PackedTorchLearner, shape: Shape, on_gpu: bool, spawned: float) -> Row:
    """Returns what the steps of one learner took."""
    opened = time.time()

    def step() -> float:
        loss = learner.step()
        if on_gpu:
            torch.cuda.synchronize()
        return loss

    row = time_steps(step, shape.architecture, shape.all_sequences, shape.steps, opened, spawned)
    memory = {"peak_bytes": torch.cuda.max_memory_allocated(), "peak_from": "the device"} if on_gpu else {}
    return row | memory
