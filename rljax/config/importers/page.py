"""Shows a translation side by side, as a config file of one's own, and as the tables of docs/from_*.md.

python -m rljax.config.importers.page ROLL FILE.yaml …
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljax.config.fields import shown
from rljax.config.importers.literal import literal
from rljax.config.importers.rule import LEFT_OUT
from rljax.config.importers.translate import TABLES, translate
from rljax.config.importers.translation import Row, Translation, implied
from rljax.config.secrets import blanked, left_out

_WIDTH = 64
_HEADER = ("| there | here | what differs, and why |", "|---|---|---|")
_HEAD = '''"""{files} of {whose}, in our words.

    python -m rljax.main --config=THIS_FILE
{without}"""

from ml_collections import ConfigDict

VALUES = {values}


def get_config() -> ConfigDict:
    return ConfigDict(VALUES, convert_dict=True, allow_dotted_keys=True)
'''


def side_by_side(translation: Translation, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a translation: their key and value on the left, ours or the reason on the right. What is
    refused stands in the table of its error.
    """
    overridden = implied(overrides)
    unsettled = set(map(_alike, translation.unsettled(overridden)))
    said = {key for row in translation.rows if row.given for key in row.here}
    rows = [row for row in _unique(translation.rows) if row.given or row.refused or set(row.here) - said]
    taken = [row for row in rows if row.here and not row.refused]
    by_file: dict[str, list[Row]] = {}
    for row in taken:
        if row.given:
            by_file.setdefault(row.file, []).append(row)
    groups = (
        *(
            (f"{file or ', '.join(translation.files)}: {translation.whose}'s keys", of_file)
            for file, of_file in by_file.items()
        ),
        ("published defaults of what is left out", [r for r in taken if not r.given]),
        ("unnecessary", [r for r in rows if not r.here and not r.refused and r.given]),
        ("settled by an override", [r for r in rows if r.refused and _alike(r) not in unsettled]),
    )
    for title, chosen in groups:
        if chosen:
            yield title
            width = min(max(len(_placed(row)) for row in chosen), _WIDTH)
            yield from (f"  {_placed(row):<{width}}  {_ours(row)}" for row in chosen)


def _unique(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the rows; of a key that both files of a pair say alike, one that names both."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(_alike(row), []).append(row)
    for same in alike.values():
        yield replace(same[-1], file=", ".join(dict.fromkeys(row.file for row in same)))


def _alike(row: Row) -> tuple[str, ...]:
    return (row.path, repr(row.value), repr(row.here), row.file if row.refused else "")


def _placed(row: Row) -> str:
    return f"{row.file}: {_theirs(row)}" if row.file and row.refused else _theirs(row)


def _theirs(row: Row) -> str:
    return row.path if row.value is ... else f"{row.path} = {shown(blanked(row.value, row.path))}"


def _ours(row: Row) -> str:
    if row.here and not row.refused:
        written = ", ".join(f"{key} = {shown(blanked(value, key))}" for key, value in row.here.items())
        return f"-> {written}" + (f"  ({row.remark})" if row.remark and row.given else "")
    return row.remark


def config_file(translation: Translation, values: Mapping[str, Any]) -> str:
    """Returns the text of a ``configs/*.py`` whose config is ``values``, all keys of it but those that hold a password
    or a key: it names them.
    """
    kept, secret = left_out(values)
    said = "".join(f"Left out, since it holds a password or a key: write --config.{key}=VALUE\n" for key in secret)
    written = literal(kept, len("VALUES = "))
    files = " and ".join(translation.files)
    return _HEAD.format(files=files, whose=translation.whose, values=written, without=said and f"\n{said}")


def pages(whose: str, files: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a program's page: each file beside ours, then all of its keys, as tables of Markdown."""
    for file in files:
        translation = translate(file, whose)
        yield from (f"## `{'`, `'.join(translation.files)}`", "", *_HEADER)
        for row in translation.rows:
            if row.given:
                here = ", ".join(f"`{key} = {_cell(shown(blanked(value, key)))}`" for key, value in row.here.items())
                yield f"| `{_cell(_theirs(row))}` | {here or _nothing(row.refused)} | {_cell(row.remark)} |"
        yield ""
    yield from ("## All keys", "", *_HEADER)
    for rule in TABLES[whose]:
        here = ", ".join(f"`{key}`" for key in rule.here)
        default = "" if rule.default in (LEFT_OUT, None) else f" = {_cell(shown(rule.default))}"
        yield f"| `{rule.path}{default}` | {here or _nothing(rule.refused)} | {_cell(rule.remark)} |"


def _nothing(refused: bool) -> str:
    return "*refused*" if refused else "not needed"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print("\n".join(pages(sys.argv[1], sys.argv[2:])))
