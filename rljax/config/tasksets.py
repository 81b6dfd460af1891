"""The section ``tasks`` of the config: tasksets, and where their rows come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljax.config.fields import key

TEXT_FILES = (".jsonl", ".json", ".csv", ".jsonl.gz", ".json.gz", ".csv.gz")
FILES = (*TEXT_FILES, ".parquet")
"""Endings of the files whose rows are read."""


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """Source of rows, and the template of their prompts. The answers of `tasks.expert` are imitated."""

    source: str = key(
        "",
        "FILE.jsonl|json|csv[.gz], FILE.parquet or a directory of datasets' save_to_disk, several with commas | hub:ID "
        "| reverse_digits | add_numbers | reasoning_gym:NAME",
    )
    split: str | None = key(
        None, "hub data set or directory: its split; generator: train or validation side; None: by role"
    )
    subset: str | None = key(None, "subset (configuration name) of a hub data set")
    prompt_key: str = key(
        "question", "column of the prompt, a text or chat messages; a.b: field b of column a, also in the other keys"
    )
    answer_key: str = key("answer", "column of the reference answer; needed where a reward reads it")
    messages_key: str | None = key(
        None, "column of chat messages in the prompt's place: a list of role and content, or its JSON"
    )
    template: str = key("{prompt}", "user message; {prompt} is replaced")
    system_prompt: str | None = key(None, "system message, where the chat template has one")
    examples: tuple[str, ...] = key((), "few-shot turns before the prompt: prompt, answer, prompt, answer")
    offset: int = key(0, "rows skipped at the start", low=0)
    limit: int | None = key(None, "rows used after the offset; None: all", low=1)
    shuffle: bool = key(True, "a new order each epoch, from the run's seed; false: the file's order")
    args: Mapping[str, Any] = key({}, "arguments of a procedural or reasoning_gym generator")


@dataclass(frozen=True, kw_only=True)
class TasksetConfig(RowsConfig):
    """One taskset. Its name is its key in `tasks.train` or `tasks.validation`."""

    rewards: tuple[str, ...] = key(
        ("exact",),
        "exact digits numeric choice code ifeval llm_judge reward_model format[:REGEX] reasoning_gym module:function",
    )
    reward_weights: tuple[float, ...] | None = key(None, "weight of each reward; None: all 1")
    reward_args: Mapping[str, Mapping[str, Any]] = key(
        {}, "keyword arguments of rewards, by the name of the function: reward_args.NAME.KEY"
    )
    weight: float = key(
        1.0, "share of the tasks, relative to the others': of every prefix, within a task", low=0, low_open=True
    )
    tags: tuple[str, ...] = key((), "rows whose tag is one of these; empty: all")
    tag_key: str = key("tag", "column of a row's tag, a text or a list of texts; read where tags are asked for")


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Tasksets of training and validation, and demonstrations: an empty ``expert.source`` is none."""

    train: Mapping[str, TasksetConfig] = key({}, "training tasksets by name")
    validation: Mapping[str, TasksetConfig] = key({}, "validation tasksets by name")
    expert: RowsConfig = field(default_factory=RowsConfig)
    on_bad_row: str = key("fail", "what a bad row of a file does", choices=("skip", "fail"))
