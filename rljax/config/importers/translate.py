"""Translates files of ROLL and Trinity-RFT: each key is honoured, said to be unnecessary, or refused; all at once."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import typing
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rljax.config.choice import Choice
from rljax.config.fields import ConfigError, check_bounds, check_path, shown
from rljax.config.importers import published, roll, trinity, trinity_tasksets
from rljax.config.importers.documents import read_document
from rljax.config.importers.interpolation import Interpolated
from rljax.config.importers.roll_tasks import completed
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Rule
from rljax.config.importers.translation import Row, Translation, values_of
from rljax.config.schema import Config
from rljax.config.types import convert, element_of

ROLL, TRINITY = "ROLL", "Trinity-RFT"
TABLES: dict[str, tuple[Rule, ...]] = {ROLL: roll.RULES, TRINITY: trinity.RULES}
SUFFIXES = (".yaml", ".yml")
log = logging.getLogger(__name__)
_MARKS = ("buffer", "algorithm", "synchronizer", "explorer", "cluster", "checkpoint_root_dir", "trainer")


def is_foreign(path: str) -> bool:
    """Returns whether a ``--config`` names YAML: one file, or several with commas between them."""
    return path.endswith(SUFFIXES)


def translate(path: str, whose: str | None = None) -> Translation:
    """Translates ``FILE.yaml``, or ``FILE.yaml,FILE.yaml``: Trinity-RFT's pair, or ROLL's layers, the last on top.

    Args:
        path: as in ``--config``.
        whose: of which program the files are; None: what their keys tell.

    Raises:
        ConfigError: a file cannot be read, is neither's, or holds references that lead nowhere. Refused keys are rows
            of the translation: see `Translation.refused`.
    """
    files = [Path(part.strip()) for part in path.split(",")]
    for file in files:
        check_path("--config", str(file))
        if not file.is_file():
            near = difflib.get_close_matches(file.name, [p.name for p in file.parent.glob("*.y*ml")], 1)
            raise ConfigError(f"{file}: no such file{f'; did you mean {file.parent / near[0]}?' if near else ''}")
    documents = [read_document(file) for file in files]
    kinds = [_recognised(values, str(file), whose) for values, file in zip(documents, files, strict=True)]
    if len(set(kinds)) > 1:
        raise ConfigError(f"{path}: {' and '.join(kinds)}; files of one program go together")
    made = [_roll(documents, files)] if kinds[0] == ROLL else _trinity(documents, files)
    rows = [row for document, variables in made for row in _rows(document, TABLES[kinds[0]], variables)]
    settled = tuple(_of_functions(list(_agreeing(rows))))
    return Translation(kinds[0], tuple(file.name for file in files), settled)


def _recognised(values: Mapping[str, Any], file: str, whose: str | None) -> str:
    tops = {kind: {rule.path.partition(".")[0] for rule in rules} for kind, rules in TABLES.items()}
    counts = {kind: len(tops[kind].intersection(values)) for kind in tops}
    if whose is not None:
        return whose
    if not any(counts.values()):
        raise ConfigError(f"{file}: no key of {ROLL}'s or {TRINITY}'s; write a config file in Python, or their YAML")
    if counts[ROLL] != counts[TRINITY]:
        return max(counts, key=lambda kind: counts[kind])
    return TRINITY if set(_MARKS) & set(values) else ROLL


def _roll(documents: Sequence[dict[str, Any]], files: Sequence[Path]) -> tuple[_Completed, set[str]]:
    values: dict[str, Any] = {}
    for document in documents:
        values = _merged(values, document)
    resolved = Interpolated(_composed(values, files[-1]), str(files[-1]))
    given = {name: value for name, value in resolved.values.items() if name != "defaults"}
    fragment = published.FRAGMENT if all(name.endswith("_env_manager") for name in given) else {}
    example = published.EXAMPLES.get(files[0].stem, fragment)
    if "rewards" in given:  # domains of one's own are all that there are
        example = {name: value for name, value in example.items() if name != "rewards"}
    whole = completed(_merged(example, given))
    return _Completed(whole, files[0].stem, _defaults(roll.RULES), given), resolved.read


def _composed(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Returns a file laid over the blocks that its ``defaults:`` name: of two the later wins, as Hydra has it."""
    asked = values.get("defaults")
    entries = asked if isinstance(asked, list) else []
    whole: dict[str, Any] = {}
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        whole = _merged(whole, values if entry == "_self_" else _block(entry, file))
    return whole


def _block(entry: Any, file: Path) -> dict[str, Any]:
    """Returns what an entry of ``defaults:`` puts beside the file's own keys."""
    if entry is None:
        return {}
    if not isinstance(entry, str):
        raise ConfigError(f"{file}: defaults: {shown(entry)}: only blocks @_here_ are known")
    name = Path(entry.partition("@")[0]).name.removesuffix(".yaml")
    beside = (file.parent / entry.partition("@")[0]).with_suffix(".yaml")
    if beside.is_file():
        return read_document(beside)
    if name not in published.BLOCKS:
        near = difflib.get_close_matches(name, published.BLOCKS, 1) or sorted(published.BLOCKS)
        raise ConfigError(
            f"{file}: defaults: {shown(entry)}: neither a file ({beside}) nor published ({', '.join(near)})"
        )
    return published.BLOCKS[name]


def _trinity(documents: Sequence[dict[str, Any]], files: Sequence[Path]) -> list[tuple[_Completed, set[str]]]:
    made = []
    modes = [document.get("mode", "both") for document in documents]
    if len(files) > 2 or (len(files) == 2 and sorted(map(str, modes)) != ["explore", "train"]):
        raise ConfigError(
            f"{','.join(map(str, files))}: modes {', '.join(map(str, modes))}; a pair is one with mode explore and one "
            "with mode train"
        )
    for values, file in zip(documents, files, strict=True):
        resolved = Interpolated(values, str(file))
        whole = trinity_tasksets.numbered(resolved.values)
        document = _Completed(whole, file.stem, _defaults(trinity.RULES), whole)
        document.paired = len(files) == 2
        made.append((document, resolved.read))
    return made


class _Completed(Document):
    """A document with what is published for it; ``user`` is what the file itself says."""

    paired = False

    def __init__(self, values: Mapping[str, Any], name: str, defaults: Mapping[str, Any], user: Mapping[str, Any]):
        super().__init__(values, name, defaults)
        self.user = Document(user, name, {})


def _defaults(rules: Sequence[Rule]) -> dict[str, Any]:
    return {rule.path: rule.default for rule in rules if rule.default is not LEFT_OUT}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one mapping of two; where both have a group, of both."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def _rows(document: _Completed, rules: Sequence[Rule], variables: set[str]) -> Iterator[Row]:
    for path, value, rule in _leaves(document.values, (), rules):
        dotted = ".".join(path)
        given = document.user.given(dotted) is not LEFT_OUT
        if rule is None:
            yield _unknown(dotted, value, rules, variables)
        elif value is None and (rule.here or rule.default is not LEFT_OUT):
            continue  # null is what a file without the key says
        else:
            yield _row(rule, Found(dotted, value, rule.matches(path) or "", document), given)
    for rule in rules:
        if rule.default is not LEFT_OUT and document.given(rule.path) is LEFT_OUT:
            row = _row(rule, Found(rule.path, rule.default, "", document), False)
            if row.here or row.refused:
                yield row


def _leaves(values: Mapping[str, Any], above: tuple[str, ...], rules: Sequence[Rule]) -> Iterator[Any]:
    for name, value in values.items():
        path = (*above, name)
        rule = next((rule for rule in rules if rule.matches(path) is not None), None)
        if isinstance(value, Mapping) and not (rule and rule.whole):
            yield from _leaves(value, path, rules)
            if not value and rule is not None:
                yield path, value, rule
        else:
            yield path, value, rule


def _row(rule: Rule, found: Found, given: bool) -> Row:
    ours = tuple(key.replace("NAME", found.name or "NAME") for key in rule.here)
    try:
        made = rule.make(found)
        if isinstance(made, str):
            return Row(found.path, found.value, given, {}, made)
        here = {".".join(found.name if n == "NAME" else n for n in key.split(".")): v for key, v in made.items()}
        if isinstance(found.document, _Completed) and found.document.paired and "mode" in here:
            here = {"mode": "both"}
        here = {key: _checked(key, value) for key, value in here.items() if _declared(key, rule)}
        return Row(found.path, found.value, given, here, rule.remark)
    except Refusal as refusal:
        keys = tuple(key.replace("NAME", found.name or "NAME") for key in refusal.keys)
        here = {key: value for key, value in refusal.here.items() if _declared(key, rule)}
        unsaid = tuple(key for key in (*keys, *ours) if key not in here)
        return Row(found.path, found.value, given, here, str(refusal), True, keys, unsaid)
    except ConfigError as error:
        return Row(found.path, found.value, given, {}, str(error), True, rule.here, ours)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError):
        log.debug("%s=%r", found.path, found.value, exc_info=True)  # a mistake of a rule ends here too
        why = f"not a value that this key has; write {' or '.join(rule.here) or 'leave it out'}"
        return Row(found.path, found.value, given, {}, why, True, rule.here, ours)


def _declared(key: str, rule: Rule) -> bool:
    """Returns whether a key is one that a rule says it becomes; a function of several rules returns all it makes."""
    asked = key.replace("explorer.tasksets.", "tasks.train.", 1)
    return any(fnmatchcase(asked, one.replace("NAME", "*")) for one in rule.here)


def _checked(key: str, value: Any, kind: Any = Config, below: int = 0) -> Any:
    """Returns a value of the type that our key has; of a key of a function, which `_of_functions` checks, as it is.

    Args:
        key: its path.
        value: as the file has it.
        kind: dataclass of the keys at this depth of the path.
        below: that depth.

    Raises:
        ConfigError: the key has no such value.
    """
    hint: Any = kind
    metadata: Mapping[str, Any] = {}
    for name in key.split(".")[below:]:
        if dataclasses.is_dataclass(hint):
            spec = next((spec for spec in dataclasses.fields(hint) if spec.name == name), None)
            if spec is None:
                raise ConfigError(f"{key}: unknown key")
            if "choice" in spec.metadata:
                return value
            hint, metadata = typing.get_type_hints(hint)[name], spec.metadata
        else:
            hint = element_of(hint)
            if hint is None or hint is Any:
                return value
    made = convert(hint, value, key, lambda dotted, *_: f"{dotted}: unknown key")
    check_bounds(key, made, metadata)
    return made


def _of_functions(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the rows, those refused whose value is none of the function, such as a loss, that another row names."""
    values = values_of(rows)
    for row in rows:
        settling = [*row.here]
        try:
            for key, value in () if row.refused else row.here.items():
                if group := _group_of(key):
                    by, keys, depth = _chosen(key, *group, values)
                    settling.append(by)
                    _checked(key, value, keys, depth)
            yield row
        except ConfigError as error:
            unsaid = tuple(row.here)
            yield dataclasses.replace(
                row, here={}, remark=str(error), refused=True, keys=tuple(settling), unsaid=unsaid
            )


def _group_of(key: str) -> tuple[Choice, Any, int] | None:
    """Returns what says of which function a key is, the default of its name, and the depth of the path of its group;
    None for a key that is of no function.
    """
    hint: Any = Config
    for depth, name in enumerate(key.split(".")):
        fields = {spec.name: spec for spec in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else {}
        if name not in fields:
            return None
        if choice := fields[name].metadata.get("choice"):
            return choice, fields[choice.by].default, depth
        hint = typing.get_type_hints(hint)[name]
    return None


def _chosen(key: str, choice: Choice, default: Any, depth: int, values: Mapping[str, Any]) -> tuple[str, Any, int]:
    """Returns which key names the function that a key is of, the dataclass of its keys, and their depth of the path."""
    above = key.split(".")
    by = ".".join([*above[:depth], choice.by])
    names = values.get(by, default)
    several = not isinstance(names, str)
    name = above[depth + 1] if several else names
    entry = None if ":" in name or (several and name not in names) else choice.find(name)
    return by, entry.keys if entry else Any, depth + 1 + several


def _unknown(dotted: str, value: Any, rules: Sequence[Rule], variables: set[str]) -> Row:
    if any(dotted == read or dotted.startswith(f"{read}.") or read.startswith(f"{dotted}.") for read in variables):
        return Row(dotted, value, True, {}, "a variable of the file, read where ${…} names it")
    paths = [rule.path for rule in rules]
    last = dotted.rpartition(".")[2]
    near = difflib.get_close_matches(dotted, paths, 1, 0.75)
    near = near or [path for path in paths if path.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(dotted, paths, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else "leave it out"
    return Row(dotted, value, True, {}, f"unknown key; {hint}", True)


def _agreeing(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the rows, those refused that contradict one before: one key of ours, two values."""
    said: dict[str, tuple[Any, str]] = {}
    for row in rows:
        clash = next((k for k, v in row.here.items() if row.given and k in said and said[k][0] != v), None)
        if clash is not None:
            value, path = said[clash]
            why = f"{clash} would be {shown(row.here[clash])}, and by {path} it is {shown(value)}; make them agree"
            unsaid = tuple(row.here)
            yield dataclasses.replace(row, here={}, remark=why, refused=True, keys=(clash,), unsaid=unsaid)
            continue
        if row.given:
            said |= {key: (value, row.path) for key, value in row.here.items() if key not in said}
        yield row
