"""Builds tasksets from the config: a source, an order, a template, rewards."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from rljax.config.fields import user_path
from rljax.config.refusals import Refusals, distinct, joined, readable, refused_by
from rljax.config.schema import RowsConfig, TasksetConfig
from rljax.config.tasksets import FILES, TEXT_FILES
from rljax.config.validate import ConfigError
from rljax.tasks.cells import nearest, optional, paths
from rljax.tasks.gym_rows import ReasoningGymRows
from rljax.tasks.permutation import Permutation
from rljax.tasks.procedural import GENERATORS, SIDES, procedural_rows
from rljax.tasks.rewards.registry import (
    answer_checks,
    answer_is_read,
    may_read_answer,
    resolve_reward,
    reward_terms,
    row_checks,
)
from rljax.tasks.rows import Columns, JoinedRows, Problem, Rows
from rljax.tasks.seeds import environment_seed, fingerprint, stable_hash
from rljax.tasks.table import check_parquet, hub_rows, parquet_rows, saved_rows
from rljax.tasks.task import BadRow, RewardTerm, Task, Taskset
from rljax.tasks.templates import chat_messages
from rljax.tasks.text_files import TextRows, first_row
from rljax.trajectory import TaskId

Role = Literal["train", "validation"]
_Asked = TypeVar("_Asked")
_Opened = TypeVar("_Opened")

_LOG = logging.getLogger(__name__)
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
        ConfigError: a source, column, argument or reward that does not exist, or a taskset without a usable row; what
            is wrong with further tasksets are its ``others``.
        BadRow: a bad row, with ``on_bad_row="fail"``, where nothing else is wrong.
    """
    section = section or f"tasks.{role}"

    def load(name: str) -> RowTaskset:
        return load_taskset(name, configs[name], seed, on_bad_row, role=role, section=section, imitated=imitated)

    loaded = dict(zip(configs, _all_opened(configs, load), strict=True))
    for source in sorted({config.source for config in configs.values() if config.tags}):
        mine = [name for name, config in configs.items() if config.source == source]
        if all(configs[name].tags for name in mine):
            taken = {tag for name in mine for tag in configs[name].tags}
            if left := set().union(*(loaded[name].other_tags for name in mine)) - taken:
                _LOG.warning("%s: no taskset takes the rows of %s tagged %s", section, source, ", ".join(sorted(left)))
    return {**loaded}


def _all_opened(asked: Iterable[_Asked], open_one: Callable[[_Asked], _Opened]) -> list[_Opened]:
    """Returns what each becomes.

    Raises:
        ConfigError: some are refused; all but the first are its ``others``.
        BadRow: of one alone, where nothing is wrong with the others.
    """
    opened: list[_Opened] = []
    refused: list[ConfigError] = []
    bad: list[BadRow] = []
    for one in asked:
        try:
            opened.append(open_one(one))
        except ConfigError as error:
            refused += [error, *error.others]
        except BadRow as error:
            bad.append(error)
    if bad and not (refused or bad[1:]):
        raise bad[0]
    if refused or bad:
        raise joined([*refused, *(ConfigError(str(error)) for error in bad)])
    return opened


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


def load_taskset(
    name: str,
    config: TasksetConfig,
    seed: int,
    on_bad_row: str,
    *,
    role: Role,
    section: str,
    imitated: bool = False,
) -> RowTaskset:
    """Opens one taskset, whatever others there are; see `load_tasksets`.

    Raises:
        ConfigError, BadRow: see there.
    """
    key = f"{section}.{name}"
    terms = reward_terms(config.rewards, config.reward_weights, f"{key}.rewards", config.reward_args)
    for term in terms:
        scored = resolve_reward(term.name, f"{key}.rewards").source
        if not config.source.startswith(scored):
            raise ConfigError(f"{key}.rewards: {term.name!r} scores sources of {scored}NAME only")
    if refused := [*_option_refusals(config, key)]:
        raise joined(refused)
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


def _is_templated(config: RowsConfig) -> bool:
    return config.template != "{prompt}" or config.system_prompt is not None or bool(config.examples)


def check_source(source: str, key: str) -> None:
    """Refuses a source that is none, or a file that is not there; opens nothing. ``key`` is the taskset's.

    Raises:
        ConfigError: see above.
    """
    if source in GENERATORS or source.startswith(_GYM):
        return
    if source.startswith(_HUB):
        if not source.removeprefix(_HUB).strip("/"):
            raise ConfigError(f"{key}.source={source!r}: names no data set; write {_HUB}OWNER/NAME")
        return
    if refused := [error for part in _parts(source) for error in refused_by(_check_file, part, key)]:
        raise joined(refused)


def row_refusals(rows: RowsConfig, on_bad_row: str, key: str) -> Refusals:
    """Yields options that a source would not read, and columns that its files, where they are here, do not have; of a
    file it reads the beginning.

    Args:
        rows: a taskset, or what is imitated.
        on_bad_row: with ``skip`` another row than the first may have the columns of JSON.
        key: the config path of ``rows``.
    """
    yield from _option_refusals(rows, key)
    columns = Columns(rows.prompt_key, rows.answer_key, messages=rows.messages_key, imitated=True)
    if isinstance(rows, TasksetConfig):
        names = readable(lambda one: iter(one.rewards), rows)  # refused, they name no columns
        read = any(map(may_read_answer, names))
        tagged = dataclasses.replace(columns, tag=rows.tag_key, tags=frozenset(rows.tags))
        columns = dataclasses.replace(tagged, needs_answer=read, imitated=False)
    files = [path for part in _parts(rows.source) if os.path.isfile(path := user_path(part))]
    yield from distinct(error for file in files for error in refused_by(_check_columns, file, columns, on_bad_row, key))


def _check_columns(path: Path, columns: Columns, on_bad_row: str, key: str) -> None:
    if path.suffix == ".parquet":
        check_parquet(path, columns, key)
    elif path.name.endswith(TEXT_FILES):
        _check_first_row(path, columns, on_bad_row, key)


def _check_first_row(path: Path, columns: Columns, on_bad_row: str, key: str) -> None:
    header = path.name.endswith((".csv", ".csv.gz"))  # that of all rows, and without a tag
    if on_bad_row == "skip" and not header:
        return
    row = first_row(path)
    if not isinstance(row, Mapping):
        return
    with contextlib.suppress(BadRow):  # it has no tag
        if not header and columns.other_tags(row, str(path)):
            return
    columns.check(paths(row), str(path), key, texts=isinstance(optional(row, columns.prompt), str))


def _check_file(source: str, key: str) -> None:
    path = user_path(source)
    if not (path.is_dir() or path.name.endswith(FILES)):
        raise ConfigError(
            f"{key}.source={source!r}: not a file ({' '.join(FILES)}), a directory of datasets' save_to_disk, "
            f"{_HUB}ID, a generator or {_GYM}NAME; {nearest(source, GENERATORS, 'generators')}"
        )
    try:
        path.stat()
    except OSError as error:
        raise _unread(source, key, error) from error
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"{key}.source={source!r}: a pipe or device, not a file; write what it gives into a file")


def _unread(source: str, key: str, error: OSError) -> ConfigError:
    reason = f"{error.strerror or error}; looked in {Path.cwd()}"
    return ConfigError(f"{key}.source={source!r}: cannot be read ({reason}); write the path of a file that is there")


def _open(config: TasksetConfig, columns: Columns, on_bad_row: str, role: Role, key: str) -> Rows:
    source, needed = config.source, None if config.limit is None else config.offset + config.limit
    if len(parts := _parts(source)) > 1:
        each = [dataclasses.replace(config, source=part) for part in parts]
        return JoinedRows(_all_opened(each, lambda one: _open(one, columns, on_bad_row, role, key)))
    check_source(source, key)
    if source in GENERATORS:
        return procedural_rows(source, _side(config, role, key), config.args, key)
    if source.startswith(_GYM):
        return ReasoningGymRows(source.removeprefix(_GYM), _side(config, role, key), config.args, key)
    if source.startswith(_HUB):
        split = config.split or role
        return hub_rows(source.removeprefix(_HUB), config.subset, split, columns, on_bad_row, key, needed)
    path = user_path(source)
    try:
        if path.is_dir():
            return saved_rows(path, config.split, role, columns, on_bad_row, key, needed)
        if path.suffix == ".parquet":
            return parquet_rows(path, columns, on_bad_row, key, needed)
        _check_first_row(path, columns, on_bad_row, key)
        return TextRows(path, columns, on_bad_row, needed)
    except OSError as error:
        raise _unread(source, key, error) from error


def is_of_hub(config: RowsConfig) -> bool:
    """Returns whether rows are of the Hugging Face hub, which may take long to answer."""
    return config.source.startswith(_HUB)


def _parts(source: str) -> list[str]:
    """Returns the files of a source of several; of any other itself."""
    return [part.strip() for part in source.split(",")] if "," in source and _is_stored(source) else [source]


def _is_stored(source: str) -> bool:
    """Returns whether a source is a file or directory, or several with commas between, of which one may be none."""
    named = [part.strip() for part in source.split(",")]
    paths_of = [user_path(part) for part in named]
    if all(path.name.endswith(FILES) or path.is_dir() for path in paths_of):
        return True
    others = any(part in GENERATORS or part.startswith((_HUB, _GYM)) for part in named)
    return not others and not user_path(source).exists() and any(path.exists() for path in paths_of)


def _side(config: TasksetConfig, role: Role, key: str) -> str:
    side = config.split or role
    if side not in SIDES:
        raise ConfigError(f"{key}.split={side!r}: a generator has the sides {' and '.join(SIDES)}")
    return side


def _option_refusals(config: RowsConfig, key: str) -> Refusals:
    """Yields options that the source would not read."""
    hub, stored = is_of_hub(config), _is_stored(config.source)
    generated = config.source in GENERATORS or config.source.startswith(_GYM)
    if not (hub or generated or stored):
        return  # no source at all: that is said when it is opened
    if config.subset is not None and not hub:
        yield ConfigError(f"{key}.subset={config.subset!r}: only a hub data set has subsets")
    if config.split is not None and stored and config.source.endswith(FILES):
        yield ConfigError(
            f"{key}.split={config.split!r}: a file has no splits; name another file, or use offset and limit"
        )
    if isinstance(config, TasksetConfig) and config.tags and generated:
        yield ConfigError(f"{key}.tags={config.tags}: only the rows of a file or of a hub data set have tags")
    if config.messages_key and (generated or _is_templated(config)):
        yield ConfigError(
            f"{key}.messages_key={config.messages_key!r}: rows of a file or of a hub data set are whole dialogues; "
            "leave template, system_prompt and examples out"
        )
    if config.args and not generated:
        yield ConfigError(f"{key}.args: only generators and reasoning_gym:NAME take arguments")
