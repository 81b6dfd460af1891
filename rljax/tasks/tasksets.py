"""Builds tasksets from the config: a source, an order, a template, rewards."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rljax.config.schema import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.tasks.cells import nearest
from rljax.tasks.gym_rows import ReasoningGymRows
from rljax.tasks.permutation import Permutation
from rljax.tasks.procedural import GENERATORS, SIDES, procedural_rows
from rljax.tasks.rewards.registry import answer_checks, answer_is_read, resolve_reward, reward_terms, row_checks
from rljax.tasks.rows import Columns, JoinedRows, Problem, Rows
from rljax.tasks.seeds import environment_seed, fingerprint, stable_hash
from rljax.tasks.table import hub_rows, parquet_rows, saved_rows
from rljax.tasks.task import BadRow, RewardTerm, Task, Taskset
from rljax.tasks.templates import chat_messages
from rljax.tasks.text_files import ENDINGS, TextRows
from rljax.trajectory import TaskId

Role = Literal["train", "validation"]

_LOG = logging.getLogger(__name__)
_FILES = (*ENDINGS, ".parquet")
_HUB = "hub:"
_GYM = "reasoning_gym:"


def load_tasksets(
    configs: Mapping[str, TasksetConfig],
    seed: int,
    on_bad_row: str,
    *,
    role: Role,
    section: str | None = None,
    imitated: bool = False,
) -> dict[str, Taskset]:
    """Opens tasksets and checks all that can be checked at the start.

    Args:
        configs: tasksets by name.
        seed: the run's seed.
        on_bad_row: ``fail`` or ``skip``.
        role: ``train`` or ``validation``; validation is never shuffled, and its seeds are its own.
        section: the key that holds them, for messages; None: ``tasks.train`` or ``tasks.validation``.
        imitated: whether their answers are, and so their rows may be dialogues that end with the reply.

    Raises:
        ConfigError: a source, column, argument or reward that does not exist, or a taskset without a usable row.
        BadRow: a bad row, with ``on_bad_row="fail"``.
    """
    section = section or f"tasks.{role}"
    loaded = {
        name: _load(name, one, seed, on_bad_row, role, f"{section}.{name}", imitated) for name, one in configs.items()
    }
    for source in sorted({config.source for config in configs.values() if config.tags}):
        mine = [name for name, config in configs.items() if config.source == source]
        if all(configs[name].tags for name in mine):
            taken = {tag for name in mine for tag in configs[name].tags}
            if left := set().union(*(loaded[name].other_tags for name in mine)) - taken:
                _LOG.warning("%s: no taskset takes the rows of %s tagged %s", section, source, ", ".join(sorted(left)))
    return dict(loaded)


class RowTaskset:
    """Taskset over the rows of a source.

    Args:
        name: its key in the config.
        config: offset, limit, shuffle, template, weight.
        rows: the usable rows.
        terms: reward terms of its tasks.
        seed: the run's seed.
        role: ``train`` or ``validation``.
    """

    def __init__(
        self, name: str, config: TasksetConfig, rows: Rows, terms: tuple[RewardTerm, ...], seed: int, role: Role
    ) -> None:
        self.name = name
        self.weight = config.weight
        self._config = config
        self._rows = rows
        self._terms = terms
        self._seed = seed
        # A taskset may have the same name on both sides; '/' cannot occur in a name, so their seeds never meet.
        self._stream = name if role == "train" else f"{role}/{name}"
        self._shuffle = config.shuffle and role == "train"
        rest = max(0, len(rows) - config.offset)
        self._size = rest if config.limit is None else min(rest, config.limit)

    @property
    def bad_rows(self) -> int:
        """Rows that were skipped while loading."""
        return self._rows.bad_rows

    @property
    def other_tags(self) -> set[str]:
        """Tags of the rows that were passed over for them."""
        return getattr(self._rows, "other_tags", set())

    @property
    def fingerprint(self) -> str:
        """See `Taskset.fingerprint`; of some of its tasks."""
        return fingerprint(self._size, self._content)

    def _content(self, index: int) -> tuple[str, str]:
        try:
            problem = self._problem(0, index)
        except BadRow:  # its claim reports it; for the fingerprint it is a problem like others
            return "", ""
        return problem.prompt, problem.answer

    def _problem(self, epoch: int, index: int) -> Problem:
        place = self._order(epoch)[index] if self._shuffle else index
        return self._rows.problem(self._config.offset + place)

    def __len__(self) -> int:
        return self._size

    def task(self, epoch: int, index: int) -> Task:
        """See `Taskset.task`. With shuffling off the epoch changes the seed alone."""
        if not 0 <= index < self._size:
            raise IndexError(f"taskset {self.name}: task {index} of {self._size}")
        problem, config = self._problem(epoch, index), self._config
        return Task(
            id=TaskId(self.name, epoch, index),
            messages=problem.messages
            or chat_messages(config.template, config.system_prompt, problem.prompt, config.examples),
            answer=problem.answer,
            seed=environment_seed(self._seed, TaskId(self._stream, epoch, index)),
            metadata=problem.metadata,
            rewards=self._terms,
        )

    def _order(self, epoch: int) -> Permutation:
        return Permutation(self._size, stable_hash(self._seed, self._stream, epoch, "order"))


def _load(
    name: str, config: TasksetConfig, seed: int, on_bad_row: str, role: Role, key: str, imitated: bool
) -> RowTaskset:
    terms = reward_terms(config.rewards, config.reward_weights, f"{key}.rewards", config.reward_args)
    for term in terms:
        scored = resolve_reward(term.name, f"{key}.rewards").source
        if not config.source.startswith(scored):
            raise ConfigError(f"{key}.rewards: {term.name!r} scores sources of {scored}NAME only")
    _check_options(config, key)
    rows = _open(config, _columns(config, terms, key, imitated), on_bad_row, role, key)
    taskset = RowTaskset(name, config, rows, terms, seed, role)
    first = getattr(rows, "first_bad_row", None)
    if not len(taskset):
        bad = f", {rows.bad_rows} bad rows skipped; first: {first}" if first else ""
        if tags := ", ".join(sorted(taskset.other_tags)):
            bad += f"; none tagged {', '.join(config.tags)}, there are {tags}"
        raise ConfigError(
            f"{key}.source={config.source!r}: no usable row (offset {config.offset}, {len(rows)} rows{bad})"
        )
    if first:
        _LOG.warning("%s: %d bad rows skipped; first: %s", key, rows.bad_rows, first)
    return taskset


def _columns(config: TasksetConfig, terms: tuple[RewardTerm, ...], key: str, imitated: bool) -> Columns:
    asked = f"{key}.rewards"
    return Columns(
        config.prompt_key,
        config.answer_key,
        answer_checks(config.rewards, asked),
        answer_is_read(config.rewards, asked),
        config.tag_key,
        frozenset(config.tags),
        *row_checks(terms, asked),
        messages=config.messages_key,
        imitated=imitated,
        templated=_is_templated(config),
    )


def _is_templated(config: TasksetConfig) -> bool:
    return config.template != "{prompt}" or config.system_prompt is not None or bool(config.examples)


def _open(config: TasksetConfig, columns: Columns, on_bad_row: str, role: Role, key: str) -> Rows:
    source, needed = config.source, None if config.limit is None else config.offset + config.limit
    if source in GENERATORS:
        return procedural_rows(source, _side(config, role, key), config.args, key)
    if source.startswith(_GYM):
        return ReasoningGymRows(source.removeprefix(_GYM), _side(config, role, key), config.args, key)
    if source.startswith(_HUB):
        split = config.split or role
        dataset = source.removeprefix(_HUB)
        if not dataset.strip("/"):
            raise ConfigError(f"{key}.source={source!r}: names no data set; write {_HUB}OWNER/NAME")
        return hub_rows(dataset, config.subset, split, columns, on_bad_row, key, needed)
    if "," in source and _is_stored(source):
        parts = [dataclasses.replace(config, source=part.strip()) for part in source.split(",")]
        return JoinedRows([_open(part, columns, on_bad_row, role, key) for part in parts])
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return saved_rows(path, config.split, role, columns, on_bad_row, key, needed)
        if not path.name.endswith(_FILES):
            raise ConfigError(
                f"{key}.source={source!r}: not a file ({' '.join(_FILES)}), a directory of datasets' save_to_disk, "
                f"{_HUB}ID, a generator or {_GYM}NAME; {nearest(source, GENERATORS, 'generators')}"
            )
        if path.exists() and not path.is_file():
            raise ConfigError(f"{key}.source={source!r}: a pipe or device, not a file; write what it gives into a file")
        if path.suffix == ".parquet":
            return parquet_rows(path, columns, on_bad_row, key, needed)
        return TextRows(path, columns, on_bad_row, needed)
    except OSError as error:
        raise ConfigError(
            f"{key}.source={source!r}: cannot be read ({error.strerror or error}; looked in {Path.cwd()})"
        ) from error


def _is_stored(source: str) -> bool:
    """Returns whether a source is a file or directory, or several with commas between."""
    parts = [Path(part.strip()).expanduser() for part in source.split(",")]
    return all(path.name.endswith(_FILES) or path.is_dir() for path in parts)


def _side(config: TasksetConfig, role: Role, key: str) -> str:
    side = config.split or role
    if side not in SIDES:
        raise ConfigError(f"{key}.split={side!r}: a generator has the sides {' and '.join(SIDES)}")
    return side


def _check_options(config: TasksetConfig, key: str) -> None:
    """Refuses options that the source would not read."""
    hub, stored = config.source.startswith(_HUB), _is_stored(config.source)
    generated = config.source in GENERATORS or config.source.startswith(_GYM)
    if not (hub or generated or stored):
        return  # no source at all: that is said when it is opened
    if config.subset is not None and not hub:
        raise ConfigError(f"{key}.subset={config.subset!r}: only a hub data set has subsets")
    if config.split is not None and stored and config.source.endswith(_FILES):
        raise ConfigError(
            f"{key}.split={config.split!r}: a file has no splits; name another file, or use offset and limit"
        )
    if config.tags and generated:
        raise ConfigError(f"{key}.tags={config.tags}: only the rows of a file or of a hub data set have tags")
    if config.messages_key and (generated or _is_templated(config)):
        raise ConfigError(
            f"{key}.messages_key={config.messages_key!r}: rows of a file or of a hub data set are whole dialogues; "
            "leave template, system_prompt and examples out"
        )
    if config.args and not generated:
        raise ConfigError(f"{key}.args: only generators and reasoning_gym:NAME take arguments")
