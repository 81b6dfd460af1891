"""The page of the Python interface has what users are shown to import, and the classes of a config."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator

from rljax.config import environments, schema
from tests.docs.pages import PAGES, ROOT, blocks

PAGE = PAGES["docs/interface.md"]
OURS = ("rljax", "sidecar", "envs")


def programs() -> Iterator[str]:
    """The Python of pages, of notebooks, and of the config that shows how a workflow is written."""
    yield from (block.text for page in PAGES for block in blocks(page) if block.language == "python")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        for cell in cells:
            if cell["cell_type"] == "code":
                yield re.sub(r"^(\s*)%.*", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE)
    yield (ROOT / "configs" / "critique.py").read_text()


def imported() -> set[tuple[str, str]]:
    """Each name of ours that they import, and from where."""
    nodes = (node for text in programs() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return {
        (alias.name, str(node.module)) for node in nodes for alias in node.names if str(node.module).startswith(OURS)
    }


def test_what_users_are_shown_to_import_is_on_the_page_and_comes_from_one_module() -> None:
    found = imported()
    assert ("TasksetConfig", "rljax.config.schema") in found
    assert sorted(name for name, _ in found if not re.search(rf"\b{name}\b", PAGE)) == []
    names = [name for name, _ in found]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_classes_of_a_config_are_there() -> None:
    listed = set(re.findall(r"`(\w*Config)`", PAGE))
    assert listed == {name for name in vars(schema) if name.endswith("Config")}
    assert all(dataclasses.is_dataclass(vars(schema)[name]) for name in listed)
    assert {"EnvironmentConfig", "TrainEnvManagerConfig", "ValEnvManagerConfig"} <= listed & set(vars(environments))
