"""The structure of the code: no circles, and documents that name what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rljax", "sidecar", "envs")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
MADE_BY_A_RUN = {"metrics.jsonl", "audit.json", "weights/", "checkpoints/"}
PROMISES = {f"P{number}" for number in range(1, 14)}


@cache
def imports() -> networkx.DiGraph:
    """Every import between modules, those for type checking and those within functions included."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    edges = ((module, used) for module in graph.modules for used in graph.find_modules_directly_imported_by(module))
    # the package's own door names what is imported on demand, and nothing imports it
    return networkx.DiGraph((module, used) for module, used in edges if "rljax" not in (module, used))


def room(module: str) -> str:
    """The room of a module, subfolders included: ``rljax.ledger``, ``rljax.run``, ``sidecar``."""
    return ".".join(module.split(".")[: 2 if module.startswith("rljax.") else 1])


def rooms() -> networkx.DiGraph:
    edges = {(room(module), room(used)) for module, used in imports().edges}
    return networkx.DiGraph((above, below) for above, below in edges if above != below)


def circles(graph: networkx.DiGraph) -> list[list[str]]:
    return [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]


def test_neither_module_nor_room_imports_itself_by_way_of_others() -> None:
    assert circles(imports()) == []
    assert circles(rooms()) == []


def test_no_folder_imports_itself_by_way_of_others() -> None:
    """A folder may use modules of the folder around it, as long as it is not these that use it."""
    siblings = networkx.DiGraph()
    for module, used in imports().edges:
        above, below = module.split("."), used.split(".")
        shared = next((i for i, (a, b) in enumerate(zip(above, below, strict=False)) if a != b), None)
        if shared:
            siblings.add_edge(".".join(above[: shared + 1]), ".".join(below[: shared + 1]))
    assert circles(siblings) == []


RIDDLES = {"What", "Whether", "Who", "Whom", "Whose", "Which", "How", "Where", "When", "Why"}


def test_docstrings_open_with_what_a_thing_is_or_does() -> None:
    """A docstring that opens like a question makes its reader guess."""
    riddles = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in SOURCES
        for text in docstrings(ast.parse(path.read_text()))
        if text.split()[0].strip(".,:;") in RIDDLES
    ]
    assert riddles == []


LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def test_files_and_functions_are_short_enough_to_be_read_at_once() -> None:
    long = []
    for path in [*SOURCES, *(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        if (lines := len(path.read_text().splitlines())) > LONGEST_FILE:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert long == []


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Of modules, classes, functions and attributes: of all texts that stand as statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+(?:/|\.(?:py|md|toml|ipynb)))`")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "WORKSPACE.md"])
def test_files_that_a_document_names_exist(page: str) -> None:
    """A bare name in a row of the map is a file of the row's folder."""
    missing = []
    for line in (ROOT / page).read_text().splitlines():
        row = re.match(r"\| `([\w/]+/)` \|", line)
        for name in NAMED.findall(line):
            folder = ROOT / row[1] if row else ROOT
            if not (ROOT / name).exists() and not (folder / name).exists() and name not in MADE_BY_A_RUN:
                missing.append(name)
    assert missing == []


def test_the_map_shows_every_folder() -> None:
    shown = set(re.findall(r"^\| `([\w/]+)/` \|", (ROOT / "WORKSPACE.md").read_text(), re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in SOURCES}
    slots = {folder for folder in folders if folder.startswith("rljax/algorithms/")}  # one row shows them all
    assert sorted(folders - slots - shown - {"envs/webshop"}) == []


def test_the_contract_numbers_its_promises_and_names_for_each_who_keeps_and_holds_it() -> None:
    rows = re.findall(r"^\| (P\d+) \| .* \| (.+) \| (.+) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert {number for number, _, _ in rows} == PROMISES
    assert [number for number, kept, held in rows if "`rljax/" not in kept or "`tests/" not in held] == []


CITED = re.compile(r"(?:[Pp]romises? |[(;] ?)(P\d+(?:(?:, | and |,? or )P\d+)*)|\"\"\"(P\d+)")


def cited(paths: Iterable[Path]) -> set[str]:
    phrases = (phrase for path in paths for phrase in CITED.findall(path.read_text()))
    return {number for phrase in phrases for number in re.findall(r"P\d+", " ".join(phrase))}


def test_promises_that_code_and_pages_cite_exist_and_each_is_cited() -> None:
    assert cited([*SOURCES, *(ROOT / "tests").rglob("*.py")]) == PROMISES
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")]
    assert {"P1", "P11"} <= cited(pages) <= PROMISES


if __name__ == "__main__":  # python -m tests.test_structure: the structure in figures
    packages = rooms()
    floors = networkx.dag_longest_path_length(networkx.condensation(packages)) + 1
    size = f"{len(packages)} rooms, {floors} floors, {packages.number_of_edges()} arrows"
    print(f"{size}, circles: {circles(packages) or 'none'}")
    print(f"{len(imports())} modules, {imports().number_of_edges()} imports, circles: {circles(imports()) or 'none'}")
