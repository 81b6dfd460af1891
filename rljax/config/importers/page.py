"""Shows a translation side by side, and writes it as a config file of one's own."""

from __future__ import annotations

import pprint
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rljax.config.fields import shown
from rljax.config.importers.rule import Rule
from rljax.config.importers.translate import TABLES, Row, Translation

_WIDTH = 64
_HEAD = '''"""{files} of {whose}, in our words.

    python -m rljax.main --config=THIS_FILE
"""

from ml_collections import ConfigDict

VALUES = {values}


def get_config() -> ConfigDict:
    return ConfigDict(VALUES, convert_dict=True, allow_dotted_keys=True)
'''


def side_by_side(translation: Translation, overridden: Collection[str] = ()) -> Iterator[str]:
    """Yields the lines of a translation: their key and value on the left, ours or the reason on the right."""
    refused = set(map(id, translation.refusals(overridden)))
    said = {key for row in translation.rows if row.given for key in row.here}
    unique = {(row.path, repr(row.value), repr(row.here)): row for row in translation.rows}
    rows = [row for row in unique.values() if row.given or row.refused or set(row.here) - said]
    groups = (
        (f"{', '.join(translation.files)}: {translation.whose}'s keys", [r for r in rows if r.given and r.here]),
        ("published defaults of what is left out", [r for r in rows if not r.given and r.here]),
        ("unnecessary", [r for r in rows if not r.here and not r.refused and r.given]),
        ("settled by an override", [r for r in rows if r.refused and id(r) not in refused]),
        ("refused", [r for r in rows if id(r) in refused]),
    )
    for title, chosen in groups:
        if chosen:
            yield title
            width = min(max(len(_theirs(row)) for row in chosen), _WIDTH)
            yield from (f"  {_theirs(row):<{width}}  {_ours(row)}" for row in chosen)


def _theirs(row: Row) -> str:
    return f"{row.path} = {shown(row.value)}"


def _ours(row: Row) -> str:
    if row.here:
        written = ", ".join(f"{key} = {shown(value)}" for key, value in row.here.items())
        return f"-> {written}" + (f"  ({row.remark})" if row.remark and row.given else "")
    return row.remark


def config_file(translation: Translation, values: Mapping[str, Any]) -> str:
    """Returns the text of a ``configs/*.py`` whose config is ``values``, all keys of it."""
    written = pprint.pformat(dict(values), width=116, sort_dicts=False)
    return _HEAD.format(files=" and ".join(translation.files), whose=translation.whose, values=written)


def table(whose: str) -> str:
    """Returns a program's keys as a table of Markdown: what each becomes, and what differs and why."""
    lines = ["| its key | ours | what differs, and why |", "|---|---|---|"]
    lines += [f"| `{rule.path}` | {_cell(rule)} | {rule.remark.replace('|', '/')} |" for rule in _sorted(whose)]
    return "\n".join(lines)


def _sorted(whose: str) -> list[Rule]:
    return sorted(TABLES[whose], key=lambda rule: (rule.path.count(".") > 0, rule.path.split(".")[:-1]))


def _cell(rule: Rule) -> str:
    if rule.here:
        return ", ".join(f"`{key}`" for key in rule.here)
    return "*refused*" if rule.refused else "—"
