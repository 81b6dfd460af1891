"""Where a ledger is kept, by its key: what is no such place is refused, and no password is shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pytest

from rljax.config.load import publishable
from rljax.config.validate import ConfigError
from tests.config.making import make


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"ledger": "mysql://u:s3cret@h/d"},
            "ledger=mysql://…: not a database that a ledger can be kept in; write post",
        ),
        ({"ledger": "postgres://u:s3cret@h/d"}, "ledger=postgres://…: not a database that"),
        ({"ledger": "postgresql+psycopg2://u:s3cret@h/d"}, "ledger=postgresql+psycopg2://…: not a database that"),
        ({"ledger": "u:s3cret@h"}, "ledger: no URL; write postgresql://user:password@host:5432/database"),
        ({"ledger": "postgresql://u:s3cret@h:five/d"}, "ledger: no URL; write"),
        ({"ledger": "postgresql://u:s3cret@h"}, "ledger=postgresql://…: names no database; write"),
        ({"ledger": "sqlite://"}, "ledger=sqlite://…: names no file; write"),
        ({"ledger": "postgresql://h/d", "run_dir": "runs/two words"}, "ledger_schema='two words': PostgreSQL takes"),
        ({"ledger": "postgresql://h/d", "ledger_schema": "pg_mine"}, "ledger_schema='pg_mine': PostgreSQL takes"),
    ],
)
def test_a_ledger_that_cannot_be_is_refused_without_its_password(changes: Mapping[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as info:
        make(**changes)
    assert str(info.value).startswith(line)
    assert "s3cret" not in str(info.value)


def test_a_ledger_without_its_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r'needs psycopg 3; pip install -e "\.\[postgres\]"'):
        make(ledger="postgresql://h/d")


@pytest.mark.parametrize(
    ("ledger", "shown"),
    [
        ("postgresql://u:s3cret@h:1/d", "postgresql://u:***@h:1/d"),
        (
            "postgresql://h/d?user=u&password=s3cret&sslpassword=s3cret",
            "postgresql://h/d?password=***&sslpassword=***&user=u",
        ),
        ("sqlite:///s.db", "sqlite:///s.db"),
        (None, None),
    ],
)
def test_what_is_written_down_holds_no_password(ledger: str | None, shown: str | None) -> None:
    assert unquote(publishable(make(ledger=ledger, run_dir="runs/r"))["ledger"] or "") == (shown or "")
