"""The tables of docs/from_trl.md and docs/from_verl.md: our keys exist, and are those that messages name."""

from __future__ import annotations

import re

import pytest

from rljax.config.foreign_keys import FOREIGN_KEYS
from rljax.config.load import load_config
from tests.docs.pages import PAGES, ROOT
from tests.docs.test_blocks import exists

WHOSE = {"docs/from_trl.md": "TRL", "docs/from_verl.md": "verl"}
ROW = re.compile(r"^\| (`.+?) \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)


def rows(page: str) -> list[tuple[list[str], list[str]]]:
    """Their names and ours, row by row, of the table whose last column has no title."""
    table = PAGES[page].partition("\n| TRL | here | |\n")[2] or PAGES[page].partition("\n| verl | here | |\n")[2]
    found = ROW.findall(table.partition("\n\n")[0])
    assert len(found) > 30
    return [(re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours)) for theirs, ours, _ in found]


@pytest.mark.parametrize("page", WHOSE)
def test_each_of_our_keys_exists_and_takes_the_value_that_is_named(page: str) -> None:
    for _, ours in rows(page):
        for key, _, value in (name.partition("=") for name in ours):
            assert exists(key), key
            if value and key != "sidecar.colocate":  # which wants vLLM beside it
                load_config(str(ROOT / "configs" / "quickstart.py"), {"mode": "audit", key: value})


@pytest.mark.parametrize("page", WHOSE)
def test_the_page_says_what_a_message_says(page: str) -> None:
    said = {name.rpartition(".")[2].partition("=")[0]: set(ours) for theirs, ours in rows(page) for name in theirs}
    keys = {name: {key.partition("=")[0] for key in ours} for name, ours in said.items()}
    for name, key in FOREIGN_KEYS.items():
        if key.whose == WHOSE[page] and name in keys:
            assert set(key.here) <= keys[name], name
