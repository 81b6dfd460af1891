"""Files that take the place of others whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.observe.atomic_write import atomic_path, write_atomic


def test_readers_see_the_old_text_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text("old")
    with atomic_path(path) as draft:
        draft.write_text("ne")
        assert path.read_text() == "old"
        assert draft.parent == tmp_path, "on one file system, or it could not be renamed"
        draft.write_text("new")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("audit.json", "new")]


@pytest.mark.parametrize("ended", [OSError("no space left"), KeyboardInterrupt()])
def test_what_ends_early_leaves_the_old_text_and_no_draft(tmp_path: Path, ended: BaseException) -> None:
    path = tmp_path / "audit.json"
    path.write_text("old")

    def write() -> None:
        with atomic_path(path) as draft:
            draft.write_text("ne")
            raise ended

    with pytest.raises(type(ended)):
        write()
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("audit.json", "old")]


def test_text_is_kept_in_utf8_and_nothing_has_to_be_there_before(tmp_path: Path) -> None:
    write_atomic(tmp_path / "report.html", "α → 0")
    assert (tmp_path / "report.html").read_bytes() == "α → 0".encode()
