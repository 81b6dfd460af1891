"""Opens the tasksets of a config, each once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from rljax.config.schema import Config, RowsConfig, TasksetConfig
from rljax.tasks.environments import environment_tasksets
from rljax.tasks.task import BadRow, Task, Taskset
from rljax.tasks.tasksets import load_tasksets
from rljax.tasks.templates import render_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 64
"""Tasks of a taskset whose prompts say how long prompts are."""


class Tasksets:
    """The tasksets of a process, each opened when it is first asked for.

    Raises, whichever is asked for:
        ConfigError, BadRow: a taskset that does not work.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def training(self) -> Mapping[str, Taskset]:
        """Those that an explorer serves."""
        config, (section, explored) = self._config, self._config.explored
        rows = load_tasksets(explored, config.seed, config.tasks.on_bad_row, role="train", section=section)
        return rows | environment_tasksets(config.train_groups, config.custom_envs, config.seed, "train")

    @cached_property
    def held_out(self) -> Mapping[str, Taskset]:
        """Those that validation measures."""
        config = self._config
        rows = load_tasksets(config.tasks.validation, config.seed, config.tasks.on_bad_row, role="validation")
        return rows | environment_tasksets(config.val_groups, config.custom_envs, config.seed, "validation")

    @cached_property
    def expert(self) -> Taskset:
        """That whose answers a learner imitates, where it imitates any."""
        config = self._config
        rows = {field.name: getattr(config.tasks.expert, field.name) for field in dataclasses.fields(RowsConfig)}
        asked, bad = {"expert": TasksetConfig(**rows)}, config.tasks.on_bad_row
        return load_tasksets(asked, config.seed, bad, role="train", section="tasks", imitated=True)["expert"]

    def prompt_lengths(self, tokenizer: PreTrainedTokenizerBase) -> Int[np.ndarray, " prompts"] | None:
        """Returns the lengths of some prompts of `training`, in tokens, of each taskset in turn, or of `expert` where
        nothing else is trained; None where there are none, as of environments, which ask at their time.
        """
        lengths = []
        for task in self._some():
            try:
                lengths.append(len(render_prompt(tokenizer, task, self._config.model.max_prompt_tokens)))
            except BadRow:
                continue  # an explorer says so, if it is served
        return np.array(lengths) if lengths else None

    def _some(self) -> Iterator[Task]:
        tasksets = [self.expert] if self._config.imitates_alone else list(self.training.values())
        for index in range(SHOWN):
            for taskset in tasksets:
                if index < len(taskset) and not (task := taskset.task(0, index)).environment:
                    yield task
