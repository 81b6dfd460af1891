"""docs/from_roll.md and docs/from_trinity.md say what the importers do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rljax.config.importers.page import pages

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"<!-- What follows is printed by python -m rljax\.config\.importers\.page (\S+) (.*) -->\n\n")


@pytest.mark.parametrize("name", ["from_roll.md", "from_trinity.md"])
def test_a_page_is_what_its_command_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    text = (ROOT / "docs" / name).read_text()
    command = COMMAND.search(text)
    assert command is not None
    printed = "\n".join(pages(command[1], [str(ROOT / file) for file in command[2].split()])) + "\n"
    assert text[command.end() :] == printed
