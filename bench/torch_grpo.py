"""GRPO step of PyTorch and transformers, as TRL's GRPOTrainer makes it (read in trl 1.16.0).

What is like TRL: one batch padded to its longest prompt (left) and longest completion (right), cut into microbatches of
that width; logits of the completion positions only; `selective_log_softmax` row by row with `logsumexp`; the entropy of
every position for the log, without gradient, in chunks of 128; PPO clipping; the token mean over the whole batch (its
default loss type, dapo); gradients accumulated; clipping by the global norm; fused AdamW (the Trainer's default).

What is kinder to torch than TRL: no gradient checkpointing (TRL's default), and no Trainer, accelerate or data loader
around the step. ``entropy=False`` also leaves the entropy out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from rljax.trajectory import Trajectory

ENTROPY_CHUNK = 128
CLIP, MAX_NORM = 0.2, 1.0


class TorchLearner:
    """Trains a causal language model with its optimizer."""

    def __init__(self, directory: Path, learning_rate: float, entropy: bool, threads: int) -> None:
        """Loads the model in float32."""
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.model.train()
        self._entropy = entropy
        self._optimizer = torch.optim.AdamW(self.model.parameters(), learning_rate, weight_decay=0.0, fused=True)

    def step(self, trajectories: Sequence[Trajectory], advantages: np.ndarray, rows: int) -> float:
        """Makes one optimizer update; returns the loss. ``rows`` is the microbatch."""
        loss = self.accumulate(trajectories, advantages, rows)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def accumulate(self, trajectories: Sequence[Trajectory], advantages: np.ndarray, rows: int) -> float:
        """Accumulates the gradient of the whole batch in the parameters; returns the loss."""
        batch = _pad(trajectories, advantages)
        trained = float(batch["mask"].sum())
        total = 0.0
        for start in range(0, len(trajectories), rows):
            loss = self._loss({name: part[start : start + rows] for name, part in batch.items()}) / trained
            loss.backward()
            total += loss.item()
        return total

    def gradient(self) -> dict[str, np.ndarray]:
        """Returns the accumulated gradient by Hugging Face name, and clears it."""
        found = {n: p.grad.numpy().copy() for n, p in self.model.named_parameters() if p.grad is not None}
        self._optimizer.zero_grad()
        return found

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        completion, mask = batch["completion"], batch["mask"]
        width = completion.shape[1]
        output = self.model(
            input_ids=torch.cat([batch["prompt"], completion], 1),
            attention_mask=torch.cat([batch["prompt_mask"], mask], 1),
            logits_to_keep=width + 1,
            use_cache=False,
        )
        logits = output.logits[:, :-1]
        logprobs = _selective_log_softmax(logits, completion)
        if self._entropy:
            with torch.no_grad():
                _entropy(logits)
        ratio = torch.exp(logprobs - batch["behaviour"])
        advantages = batch["advantages"][:, None]
        clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages
        return (-torch.min(ratio * advantages, clipped) * mask).sum()


def _selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    chosen = torch.gather(logits, -1, index[..., None])[..., 0]
    return chosen - torch.stack([torch.logsumexp(row, -1) for row in logits])


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    parts = []
    for chunk in logits.reshape(-1, logits.shape[-1]).split(ENTROPY_CHUNK):
        logps = functional.log_softmax(chunk, -1)
        parts.append(-(torch.exp(logps) * logps).sum(-1))
    return torch.cat(parts).reshape(logits.shape[:-1])


def _pad(trajectories: Sequence[Trajectory], advantages: np.ndarray) -> dict[str, torch.Tensor]:
    prompts = [t.token_ids[: t.prompt_length] for t in trajectories]
    completions = [t.token_ids[t.prompt_length :] for t in trajectories]
    before, after = max(map(len, prompts)), max(map(len, completions))
    rows = len(trajectories)
    arrays: dict[str, np.ndarray] = {
        "prompt": np.zeros((rows, before), np.int64),
        "prompt_mask": np.zeros((rows, before), np.int64),
        "completion": np.zeros((rows, after), np.int64),
        "mask": np.zeros((rows, after), np.int64),
        "behaviour": np.zeros((rows, after), np.float32),
        "advantages": np.asarray(advantages, np.float32),
    }
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        arrays["prompt"][row, before - len(prompt) :] = prompt
        arrays["prompt_mask"][row, before - len(prompt) :] = 1
        arrays["completion"][row, : len(completion)] = completion
        arrays["mask"][row, : len(completion)] = 1
        arrays["behaviour"][row, : len(completion)] = trajectories[row].logprobs[len(prompt) :]
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
