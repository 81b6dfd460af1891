"""Translates files of ROLL and Trinity-RFT: each key is honoured, said to be unnecessary, or refused; all at once."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rljax.config.fields import ConfigError, check_path
from rljax.config.importers import published, roll, trinity, trinity_tasksets, trinity_values
from rljax.config.importers.agreement import agreeing
from rljax.config.importers.checked import checked, of_functions
from rljax.config.importers.documents import read_document
from rljax.config.importers.interpolation import Interpolated, Unresolved
from rljax.config.importers.roll_tasks import completed
from rljax.config.importers.roll_values import untold
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Rule
from rljax.config.importers.sections import Sections, filled, merged
from rljax.config.importers.translation import Row, Translation
from rljax.config.importers.unknown_keys import advice, as_meant, is_variable, leaves
from rljax.config.refusals import joined

ROLL, TRINITY = "ROLL", "Trinity-RFT"
TABLES: dict[str, tuple[Rule, ...]] = {ROLL: roll.RULES, TRINITY: trinity.RULES}
_MODEL = {ROLL: "pretrain", TRINITY: "model.model_path"}
SUFFIXES = (".yaml", ".yml")
_BETWEEN = re.compile(r"(\.ya?ml)[\s;:+|&]+(?=[^\s,])")
"""Anything but a comma between two files."""
_PAIR = "a pair is one with mode explore and one with mode train"
log = logging.getLogger(__name__)
_ROLL_MARKS = ("pretrain", "actor_train", "actor_infer", "train_env_manager", "rewards")
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
    if missing := [_missing(file) for file in files if not file.is_file()]:
        raise joined(missing)
    documents = [read_document(file) for file in files]
    kinds = [_recognised(values, str(file), whose) for values, file in zip(documents, files, strict=True)]
    if len(set(kinds)) > 1:
        raise ConfigError(f"{path}: {' and '.join(kinds)}; files of one program go together")
    names = [file.name for file in files]
    names = names if len(set(names)) == len(names) else [str(file) for file in files]
    made = [_roll(documents, files)] if kinds[0] == ROLL else _trinity(documents, files)
    for (document, _), name in zip(made, names, strict=False):
        document.file = name if len(made) > 1 else ""
    return _translation(kinds[0], tuple(names), made, {})


def _translation(
    whose: str, files: tuple[str, ...], made: Sequence[tuple[_Completed, set[str]]], overrides: Mapping[str, Any]
) -> Translation:
    """Returns what documents become where overrides are read in the place of some of their keys."""
    for document, _ in made:
        document.overridden = trinity_values.overridden(overrides) if whose == TRINITY else {}
    rows = [row for document, variables in made for row in _rows(document, TABLES[whose], variables)]
    settled = of_functions(agreeing(list(_said_by_one(rows)), made[0][0].of_each))
    left_out = [*(untold(made[0][0]) if whose == ROLL else ()), *_no_model(rows, _MODEL[whose])]
    return Translation(whose, files, (*left_out, *settled), partial(_translation, whose, files, made))


def _no_model(rows: Sequence[Row], path: str) -> Iterator[Row]:
    """Yields the row of the key that names the model, where none says anything of it: nobody means our default."""
    if not any("model.path" in (*row.here, *row.keys, *row.unsaid) for row in rows):
        why = "the file names no model; write one (a directory, or an id of Hugging Face's), or --config.model.path"
        yield Row(f"{path}, left out", ..., True, {}, why, True, ("model.path",), ("model.path",))


def _missing(file: Path) -> ConfigError:
    if (several := _BETWEEN.sub(r"\1,", str(file))) != str(file):
        return ConfigError(f"{file}: no such file; a comma stands between two files: write {several}")
    near = difflib.get_close_matches(file.name, [other.name for other in file.parent.glob("*.y*ml")], 1)
    return ConfigError(f"{file}: no such file{f'; did you mean {file.parent / near[0]}?' if near else ''}")


def _recognised(values: Mapping[str, Any], file: str, whose: str | None) -> str:
    tops = {kind: {rule.path.partition(".")[0] for rule in rules} for kind, rules in TABLES.items()}
    counts = {kind: len(tops[kind].intersection(values)) for kind in tops}
    if whose is not None:
        if counts[whose] < max(counts.values()):
            (other,) = counts.keys() - {whose}
            name = "roll" if other == ROLL else "trinity"
            raise ConfigError(f"{file}: a file of {other}'s; write --config={name}:{file} or --config={file}")
        return whose
    if not any(counts.values()):
        raise ConfigError(
            f"{file}: no key of {ROLL}'s or {TRINITY}'s stands at its top (looked for {', '.join(_ROLL_MARKS)}, … and "
            f"{', '.join(_MARKS)}, …); write one, or name whose it is: --config=roll:FILE or --config=trinity:FILE"
        )
    if counts[ROLL] != counts[TRINITY]:
        return max(counts, key=lambda kind: counts[kind])
    return TRINITY if set(_MARKS) & set(values) else ROLL


def _roll(documents: Sequence[dict[str, Any]], files: Sequence[Path]) -> tuple[_Completed, set[str]]:
    values: dict[str, Any] = {}
    for document in documents:
        values = merged(values, document)
    blocks = _Blocks(values, files[-1])
    resolved = Interpolated(blocks.composed, str(files[-1]))
    sections = Sections(resolved.values, roll.RULES, resolved.unresolved, resolved.read)
    given = {name: value for name, value in sections.values.items() if name != "defaults"}
    given = dict(as_meant(given, roll.RULES, resolved.read))
    fragment = (
        published.FRAGMENT
        if all(name.endswith("_env_manager") for name, value in given.items() if value is not None)
        else {}
    )
    example = published.EXAMPLES.get(files[0].stem, fragment)
    if "rewards" in given:  # domains of one's own are all that there are
        example = {name: value for name, value in example.items() if name != "rewards"}
    made = _Completed(completed(filled(given, example)), files[0].stem, _defaults(roll.RULES), given)
    if blocks.absent:
        for unresolved in resolved.unresolved.values():
            unresolved.of = blocks.absent
    made.refuse(resolved, sections, blocks.refused)
    return made, resolved.read


class _Blocks:
    """A file laid over the blocks that its ``defaults:`` name: of two the later wins, as Hydra has it.

    Attributes:
        composed: both.
        refused: rows of the entries that name no block.
        absent: path of the last of them that is near to none; empty: none.
    """

    def __init__(self, values: dict[str, Any], file: Path) -> None:
        asked = values.get("defaults")
        entries = asked if isinstance(asked, list) else []
        self._file, self.composed, self.refused, self.absent = file, dict[str, Any](), list[Row](), ""
        for index, entry in enumerate(entries if "_self_" in entries else [*entries, "_self_"]):
            block = values if entry == "_self_" else self._block(entry, f"defaults.{index}")
            self.composed = merged(self.composed, block)

    def _block(self, entry: Any, path: str) -> dict[str, Any]:
        """Returns what an entry of ``defaults:`` puts beside the file's own keys; of a misspelt one, what is meant."""
        if entry is None:
            return {}
        if not isinstance(entry, str):
            return self._refused(path, entry, "only blocks @_here_ are known")
        name = Path(entry.partition("@")[0]).name.removesuffix(".yaml")
        beside = (self._file.parent / entry.partition("@")[0]).with_suffix(".yaml")
        if beside.is_file():
            return read_document(beside)
        if name in published.BLOCKS:
            return published.BLOCKS[name]
        near = difflib.get_close_matches(name, published.BLOCKS, 1)
        there = ", ".join(near or sorted(published.BLOCKS))
        why = f"neither a file ({beside}) nor published ({there}); correct it in the file: no override settles it"
        return self._refused(path, entry, why, published.BLOCKS[near[0]] if near else None)

    def _refused(self, path: str, entry: Any, why: str, meant: dict[str, Any] | None = None) -> dict[str, Any]:
        self.refused.append(Row(path, entry, True, {}, why, True))
        self.absent = self.absent if meant else path
        return meant or {}


def _trinity(documents: Sequence[dict[str, Any]], files: Sequence[Path]) -> list[tuple[_Completed, set[str]]]:
    made = []
    if len(files) > 2:
        raise ConfigError(f"{','.join(map(str, files))}: {len(files)} files; {_PAIR}")
    for values, file in zip(documents, files, strict=True):
        resolved = Interpolated(values, str(file))
        numbered = trinity_tasksets.numbered(resolved.values)
        sections = Sections(numbered, trinity.RULES, resolved.unresolved, resolved.read)
        whole = as_meant(sections.values, trinity.RULES, resolved.read)
        made.append((_Completed(whole, file.stem, _defaults(trinity.RULES), whole), resolved.read))
        made[-1][0].refuse(resolved, sections)
    if len(made) == 2:
        (one, _), (other, _) = made
        one.alike = other.alike = one.get("mode") == other.get("mode")
        one.other, other.other = other, one
        one.of_each = other.of_each = trinity.OF_EACH
        modes = trinity_values.paired(*(trinity_values.meant_mode(each.get("mode")) for each in (one, other)))
        for document, mode in zip((one, other), modes, strict=True):
            document.mean_mode(mode)
    return made


class _Completed(Document):
    """A document with what is published for it.

    Attributes:
        user: what the file itself says, that of misspelt keys at those that are meant.
        file: its name in a pair.
        unresolved: see `Interpolated`.
        refused: rows of what is refused beside its keys.
    """

    file = ""
    unresolved: Mapping[str, Unresolved] = {}
    refused: Sequence[Row] = ()

    def refuse(self, resolved: Interpolated, sections: Sections, more: Sequence[Row] = ()) -> None:
        """Takes what is refused: references, groups, and ``more``."""
        self.unresolved = {_renamed(path, sections.meant): why for path, why in resolved.unresolved.items()}
        for why in self.unresolved.values():
            why.of = _renamed(why.of, sections.meant)
        self.refused = [*more, *sections.refused]

    def mean_mode(self, mode: str) -> None:
        """Takes the mode that a file of a pair is meant to have; another that it has is refused."""
        said = self.get("mode")
        if "mode" in self.unresolved:
            return
        if said != mode:
            given, placed = self.user.given("mode") is not LEFT_OUT, ("learner.devices", "sidecar.devices")
            alone = ", or start each explorer in a shell of its own" if self.alike and said == "explore" else ""
            path, value = ("mode", said) if given else ("mode, left out", ...)
            row = Row(path, value, given, {}, f"{_PAIR}; write mode: {mode}{alone}", True, unsaid=placed)
            self.refused = [*self.refused, row]
        self.values = {**self.values, "mode": mode}

    def __init__(self, values: Mapping[str, Any], name: str, defaults: Mapping[str, Any], user: Mapping[str, Any]):
        super().__init__(values, name, defaults)
        self.user = Document(user, name, {})


def _renamed(path: str, meant: Mapping[str, str]) -> str:
    for written, near in meant.items():
        if path.startswith(f"{written}."):
            path = f"{near}{path.removeprefix(written)}"
    return path


def _defaults(rules: Sequence[Rule]) -> dict[str, Any]:
    return {rule.path: rule.default for rule in rules if rule.default is not LEFT_OUT}


def _rows(document: _Completed, rules: Sequence[Rule], variables: set[str]) -> Iterator[Row]:
    yield from (dataclasses.replace(row, file=document.file) for row in document.refused)
    for path, value, rule in leaves(document.values, rules):
        dotted = ".".join(path)
        given = document.user.given(dotted) is not LEFT_OUT
        if rule is None and dotted in document.unresolved:
            row = Row(dotted, value, given, {}, "", True, file=document.file)
            yield _unresolved(row, document.unresolved[dotted])
        elif rule is None:
            yield dataclasses.replace(_unknown(dotted, value, rules, variables), file=document.file)
        elif value is None and (rule.here or rule.default is not LEFT_OUT):
            if document.user.has(dotted):
                yield Row(dotted, None, True, {}, "empty: what a file without the key says", file=document.file)
        else:
            yield _of_file(document, rule, Found(dotted, value, rule.matches(path) or "", document), given)
    below = tuple(f"{row.path}." for row in document.refused)
    for rule in rules:
        if rule.default is not LEFT_OUT and document.said(rule.path) is LEFT_OUT and not rule.path.startswith(below):
            row = _of_file(document, rule, Found(rule.path, rule.default, "", document), False)
            if row.here or row.refused:
                yield row


def _of_file(document: _Completed, rule: Rule, found: Found, given: bool) -> Row:
    """Returns the row of a key with what its file is called, and what it depends on."""
    document.read.clear()
    row = dataclasses.replace(_row(rule, found, given), file=document.file, read=frozenset(document.read))
    if row.of in document.overridden:
        row = dataclasses.replace(row, of=f"--config.{document.overridden[row.of][0]}")
    for path, unresolved in document.unresolved.items():
        if f"{path}.".startswith(f"{row.path}.") and (row.refused or row.here):  # not of what nothing reads
            ours = tuple(key.replace("NAME", found.name or "NAME") for key in rule.here)
            return _unresolved(dataclasses.replace(row, here={}, refused=True, keys=ours, unsaid=ours), unresolved)
        if row.refused and any(f"{read}.".startswith(f"{path}.") for read in row.read):
            return dataclasses.replace(row, of=path)
    return row


def _unresolved(row: Row, unresolved: Unresolved) -> Row:
    """Returns the row of a key as one that is refused for a reference that is not resolved."""
    ours = next((f"--config.{key}" for key in row.keys if not set(key.split(".")) & {"*", "NAME"}), "")
    of = "" if unresolved.of.startswith(f"{row.path}.") else unresolved.of
    return dataclasses.replace(row, remark=f"{unresolved}; or {ours}" if ours else str(unresolved), of=of)


def _row(rule: Rule, found: Found, given: bool) -> Row:
    ours = tuple(key.replace("NAME", found.name or "NAME") for key in rule.here)
    try:
        made = rule.make(found)
        if isinstance(made, str):
            return Row(found.path, found.value, given, {}, made)
        here = {".".join(found.name if n == "NAME" else n for n in key.split(".")): v for key, v in made.items()}
        if found.document.other is not None and "mode" in here:
            here = {"mode": "both"}
        here = {key: checked(key, value) for key, value in here.items() if _declared(key, rule)}
        return Row(found.path, found.value, given, here, rule.remark)
    except Refusal as refusal:
        keys = tuple(key.replace("NAME", found.name or "NAME") for key in refusal.keys)
        here = {key: value for key, value in refusal.here.items() if _declared(key, rule)}
        forms = {key: key.replace("NAME", "*") for key in (*keys, *ours)}
        meant = refusal.meant
        if refusal.near not in ("", found.value):
            meant = _row(rule, dataclasses.replace(found, value=refusal.near), given).here
        said = (*here, *meant)
        unsaid = tuple(key for key, form in forms.items() if not any(fnmatchcase(one, form) for one in said))
        why = str(refusal) if found.name.isdigit() else str(refusal).replace("NAME", found.name or "NAME")
        row = Row(found.path, found.value, given, here, why, True, keys or ours, unsaid, meant, of=refusal.of)
        return dataclasses.replace(row, near=refusal.near)
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


def _unknown(dotted: str, value: Any, rules: Sequence[Rule], variables: set[str]) -> Row:
    if is_variable(dotted, variables):
        return Row(dotted, value, True, {}, "a variable of the file, read where ${…} names it")
    return Row(dotted, value, True, {}, f"unknown key; {advice(dotted, rules)}: no override settles it", True)


def _said_by_one(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the rows; a key that one file of a pair says, and says well, is not taken away for the other's."""
    said = {(row.file, key) for row in rows if row.given and not row.refused for key in row.here}
    files = {row.file for row in rows}
    for row in rows:
        kept = {key for key in row.unsaid if any((file, key) in said for file in files - {row.file})}
        yield dataclasses.replace(row, unsaid=tuple(key for key in row.unsaid if key not in kept)) if kept else row
