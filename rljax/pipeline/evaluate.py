"""Evaluates weights outside a run's own loop: the model as it came, a checkpoint, or every checkpoint of a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rljax.config.fields import user_path
from rljax.config.schema import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.ledger.versions import Announced
from rljax.models.adapter import abstract_trained, merged_tensors
from rljax.models.adapter_files import base_config, save_adapter
from rljax.models.common.params import Params
from rljax.models.files import save_directory, stored_tensors
from rljax.models.hf_names import to_hf
from rljax.observe.atomic_write import write_atomic
from rljax.observe.trace import NullTrace
from rljax.pipeline.assemble.checkpoints import INITIAL, chosen_checkpoints, export_targets
from rljax.pipeline.assemble.engines import make_pool
from rljax.pipeline.assemble.learner import check_saved_adapter
from rljax.pipeline.assemble.run import Model, initial_tensors
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import Workflows
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.validation import validate
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.seeds import stable_hash
from rljax.tasks.task import BadRow, Task
from rljax.tasks.templates import render_messages, response_text
from rljax.timeouts import timeout
from rljax.trajectory import Trajectory
from rljax.weights.draft import scratch
from rljax.weights.publisher import OrbaxPublisher
from sidecar.hosting.spec import EngineLauncher
from sidecar.protocol import GenerateRequest, SamplingParams
from sidecar.stored import Tensor

log = logging.getLogger(__name__)


def weights_of(config: Config, run: RunDir, model: Model, steps: int) -> Mapping[str, Tensor]:
    """Returns the weights of a checkpoint by Hugging Face name, in float32. Those that the model came with are read
    when they are used.
    """
    if steps == INITIAL:
        return {name: tensor.astype(np.float32) for name, tensor in initial_tensors(config, model).items()}
    trained, lora = trained_at(config, run, model, steps), config.model.lora
    if lora.rank is None:
        return to_hf(trained, model.architecture)
    base = {name: tensor.astype(np.float32) for name, tensor in stored_tensors(model.directory).items()}
    return merged_tensors(base, trained, model.architecture, lora)


def trained_at(config: Config, run: RunDir, model: Model, steps: int) -> Params:
    """Returns what a checkpoint holds, float32 numpy arrays: all weights, or an adapter."""
    checkpoints = Checkpoints(run.checkpoints, config.learner.checkpoints_to_keep)
    check_saved_adapter(config, model, checkpoints, steps)
    return checkpoints.restore_params(steps, abstract_trained(model.architecture, config.model.lora))


def publish_checkpoint(config: Config, run: RunDir, model: Model, steps: int, directory: Path) -> Announced:
    """Publishes a checkpoint in float32 below ``directory``, for engines to load."""
    tensors = weights_of(config, run, model, steps)
    path = OrbaxPublisher(directory).publish(steps, 0, tensors, model=config.model.path, dtype="fp32")
    return Announced(steps, 0, run.announced_path(path))


class Evaluator:
    """Evaluates one set of weights at a time, on engines of its own beside a run."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        model: Model,
        engine_launcher: EngineLauncher,
        *,
        tasksets: Tasksets | None = None,
        scores: bool = True,
    ) -> None:
        """Takes the run and ``engine_launcher``, which starts the engines; closing it is the caller's. One that does
        not score opens neither judges nor environments: it can `generate` alone. ``tasksets`` may be open already.
        """
        self._config = config
        self._tasksets = tasksets or Tasksets(config)
        self._engine_launcher = engine_launcher
        self._run = run
        self._model = model
        self._workflows = Workflows(config, run, model, engine_launcher)
        self._scores = scores
        self._pool: EnginePool | None = None
        self._parts = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Evaluator:
        async with self._parts as parts:
            self._scratch = scratch(self._run.root, "evaluation")
            parts.callback(self._scratch.delete)
            parts.push_async_callback(self._workflows.close)
            if self._scores:
                await self._workflows.open()
            self._pool = make_pool(self._config, self._run, self._model, NullTrace(), FaultLog(), self._engine_launcher)
            parts.push_async_callback(self._pool.close)
            await self._pool.start()
            self._parts = parts.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.aclose()

    @property
    def _engines(self) -> EnginePool:
        if self._pool is None:
            raise RuntimeError("enter the evaluator first: async with Evaluator(...)")
        return self._pool

    async def serve(self, steps: int) -> None:
        """Loads a checkpoint into the engines, through the channel of training weights."""
        await self._engines.load(publish_checkpoint(self._config, self._run, self._model, steps, self._scratch.path))

    async def evaluate(self) -> dict[str, float]:
        """Returns ``val/<taskset>/…`` of the weights served."""
        tasksets = self._tasksets.held_out
        await self._workflows.try_rewards("tasks.validation", tasksets)
        plan = self._workflows.validation_plan(tasksets)
        return await validate(self._engines, plan, seed=self._config.seed, on_failure=self._note_failure)

    async def play(self, task: Task) -> Trajectory:
        """Plays one episode of an environment, as in validation."""
        attempt = Attempt(self._config.seed, 0, validation=True)
        return await self._workflows.validation.run(task, attempt, self._engines)

    async def _note_failure(self, error: Exception, where: str) -> None:
        if isinstance(error, BadRow) and self._config.tasks.on_bad_row == "fail":
            raise error
        log.warning("%s: %s", where, str(error) or type(error).__name__)

    async def generate(self, prompts: Sequence[str], temperature: float) -> list[str]:
        """Generates answers to user messages, with the model's chat template."""
        sampling = self._config.sidecar.val_generating_args
        budget = sampling.max_new_tokens or self._config.model.max_response_tokens

        async def one(index: int, prompt: str) -> str:
            params = SamplingParams(
                temperature=temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                max_new_tokens=budget,
                stop_token_ids=self._model.stop_token_ids,
                stop_strings=sampling.stop,
                seed=stable_hash(self._config.seed, "generate", index),
            )
            ids = render_messages(self._model.tokenizer, [{"role": "user", "content": prompt}])
            done = await self._engines.generate(GenerateRequest(f"prompt-{index}", ids, params), 0, validation=True)
            return response_text(self._model.tokenizer, done.token_ids, self._model.stop_token_ids)

        async with timeout(self._config.wait_timeout, "wait_timeout"):
            return list(await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts))))


def evaluate(
    config: Config, run: RunDir, model: Model, engine_launcher: EngineLauncher, tasksets: Tasksets
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (batches completed, ``val/<taskset>/…``) of each chosen checkpoint; writes ``evaluation.json``.

    Raises:
        ConfigError: no such checkpoint.
    """
    chosen = chosen_checkpoints(config, run)
    found: dict[int, dict[str, float]] = {}

    async def one(steps: int) -> dict[str, float]:
        async with Evaluator(config, run, model, engine_launcher, tasksets=tasksets) as evaluator:
            await evaluator.serve(steps)
            return await evaluator.evaluate()

    for steps in chosen:
        found[steps] = asyncio.run(one(steps))
        rows = [
            {"step": s, **{name: value if math.isfinite(value) else None for name, value in metrics.items()}}
            for s, metrics in found.items()
        ]
        write_atomic(run.root / "evaluation.json", json.dumps(rows, indent=1) + "\n")
        yield steps, found[steps]


def export(config: Config, run: RunDir, model: Model) -> Iterator[str]:
    """Exports each chosen checkpoint as a Hugging Face directory, with the chat template that the run has; yields
    where. An adapter is merged there, and is exported as a directory of PEFT's too.

    Raises:
        ConfigError: one was exported before, or there is no such checkpoint.
    """
    is_own = config.model.chat_template is not None or config.model.enable_thinking is not None
    template = model.tokenizer.chat_template if is_own else None
    for steps, target in export_targets(config, run).items():
        tensors = weights_of(config, run, model, steps)
        dtype = config.resolved_sync_dtype
        save_directory(target, model.architecture, tensors, model.directory, dtype, chat_template=template)
        yield str(target)
        if config.model.lora.rank is not None and steps != INITIAL:
            yield str(_export_adapter(config, run, model, steps))


def _export_adapter(config: Config, run: RunDir, model: Model, steps: int) -> Path:
    target, base = run.root / "export" / f"step_{steps}_adapter", base_config(config.model).path
    named = base if "/" in base and not user_path(base).is_dir() else str(model.directory.absolute())
    trained = trained_at(config, run, model, steps)
    save_adapter(target, trained, model.architecture, config.model.lora, named)
    return target
