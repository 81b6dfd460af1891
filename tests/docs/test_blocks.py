"""Each block of code and each command on the pages: it runs, or says why not, and asks for what there is."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljax.algorithms.registry import check_names
from rljax.config.arguments import parse_arguments
from rljax.config.load import key_help, load_config
from rljax.config.sweep import is_sweep, points
from tests.docs.pages import COMMAND, KEYS, PAGES, ROOT, SHELLS, Block, blocks, commands, write_files

BLOCKS = [block for page in PAGES for block in blocks(page)]
TESTED_ELSEWHERE = {"docs/algorithms.md", "docs/data.md", "docs/rewards.md"}
"""Pages whose blocks of Python are executed by tests of their own."""
PATHS = [*(path for path, _, _ in key_help()), "rollout.workflow_args.NAME"]
KNOWN = [re.compile(re.escape(path).replace("NAME", r"\w+")) for path in PATHS]
PLACEHOLDER = re.compile(r"[^.:]*(?:[A-Z]{3}|\.\.\.)")
SEEDS = ROOT / "tests" / "data" / "seeds"


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the reader of a page has before them: its files, the configs, and the YAML files that it speaks of."""
    write_files(page, tmp_path)
    for name, copy in re.findall(r"rljax configs (\w+) > (\w+\.py)", PAGES[page]):
        (tmp_path / copy).symlink_to(ROOT / "configs" / f"{name}.py")
    for file in SEEDS.glob("*.yaml"):
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for variable in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.setenv(variable, "somewhere")
    return tmp_path


def resolve(path: str, overrides: dict[str, Any]) -> None:
    """Loads a config as a run does; of a placeholder such as FILE.py the keys are looked at alone."""
    if not PLACEHOLDER.match(path):
        check_names(load_config(path, overrides).algorithm)
    else:
        assert [key for key in overrides if not exists(key)] == []


def exists(key: str) -> bool:
    groups = key.rstrip(".").replace("NAME", "x")
    return any(pattern.fullmatch(groups) or pattern.pattern.startswith(re.escape(f"{groups}.")) for pattern in KNOWN)


def loads(tree: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arguments of the calls of load_config in a program, where they are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load_config"):
            path, *_ = node.args
            yield ast.literal_eval(path), {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}


def test_every_config_that_a_command_asks_for_is_accepted(page: str, folder: Path) -> None:
    for words in commands(PAGES[page]):
        options = [word for word in words if word.startswith("--config")]
        others = [word for word in words if word not in options and not word.startswith(("--dry-run", "["))]
        assert set(others) <= {"...]"}, words
        path, overrides = parse_arguments(options)
        if is_sweep(overrides):
            assert len(points(path, overrides)) > 1
        else:
            resolve(path, overrides)


def test_every_key_that_a_page_writes_as_an_option_exists(page: str) -> None:
    text = COMMAND.sub("", re.sub(r"\\\n\s*", "", PAGES[page]))  # what stands in a command is accepted or refused there
    made_up = [key for key in KEYS.findall(text) if key not in ("KEY", "key") and not exists(key)]
    assert made_up == []


def test_files_of_a_page_are_python_or_rows_and_its_configs_load(page: str, folder: Path) -> None:
    for block in blocks(page):
        if block.mark == "file":
            named = PAGES[page].partition(f"<!-- file: {block.what} -->")[0].rstrip().rpartition("\n\n")[2]
            assert f"`{block.what}`" in named, "a reader does not see the comment: name the file before it"
        if block.mark == "file" and block.what.endswith(".py"):
            compile(block.text, str(block), "exec")
            if "def get_config" in block.text:
                load_config(block.what)


def test_python_on_a_page_does_what_it_says(page: str, folder: Path) -> None:
    for block in blocks(page):
        if block.language != "python" or block.mark in ("file", "run"):
            continue
        tree = ast.parse(block.text)
        for path, overrides in loads(tree):
            resolve(path, overrides)
        if not block.mark and page not in TESTED_ELSEWHERE:
            exec(compile(tree, str(block), "exec"), {})


def test_make_and_pip_on_a_page_name_what_there_is(page: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for block in [*(b for b in blocks(page) if b.language in SHELLS), PAGES[page]]:
        text = block.text if isinstance(block, Block) else "\n".join(re.findall(r"`([^`\n]+)`", block))
        for line in text.splitlines():
            found = re.match(r"(?:\$ )?make ([\w-]+)", line)
            assert found is None or found[1] in targets, line
            for names in re.findall(r"pip install .*\[([\w,-]+)\]\"?", line):
                assert set(names.split(",")) <= {*extras, "cuda12", "tpu"}, line


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert block.mark in ("", "run") or block.what
    assert block.mark or block.language != "sh", "write <!-- run --> or <!-- not run: WHY --> before it"
