"""Every engine that a config may name has what starts it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from rljax.config.schema import SidecarConfig
from rljax.pipeline.assemble.engines import ENGINES

ROOT = Path(__file__).parents[3]


def test_each_choice_has_its_factory() -> None:
    choices = {spec.name: spec.metadata.get("choices") for spec in dataclasses.fields(SidecarConfig)}["engine"]
    assert set(ENGINES) == set(choices)
    for factory, _ in ENGINES.values():
        module, _, name = factory.partition(":")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()  # read only: vLLM need not be installed
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in ast.parse(source).body if isinstance(node, functions)}, factory


def test_nobody_asks_for_the_name_of_an_engine() -> None:
    """A new kind of engine would be taken for one of those: what holds of each stands in `rljax.config.engines`."""
    asking = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in sorted((ROOT / "rljax").rglob("*.py"))
        if path.parent.name != "importers"  # which read the names that others have
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Constant) and one.value in ENGINES for one in ast.walk(node))
    ]
    assert asking == []
