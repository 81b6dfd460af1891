"""docs/algorithms.md against the registries and the schema, and names on all pages: nothing left out or made up."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from bench.variants import VARIANTS
from rljax.algorithms import registry
from rljax.config import validate_objective
from rljax.config.schema import AlgorithmConfig
from rljax.config.validate import walk

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
KEYS = {
    path: (value, metadata)
    for path, value, metadata in walk(AlgorithmConfig())
    if not path.startswith("loss.") and "choice" not in metadata
}
SLOTS = [
    ("Policy losses", [registry.policy_losses]),
    ("Advantages", [registry.advantages, registry.turn_advantages, registry.token_advantages]),
    ("Aggregation", [registry.aggregations]),
    ("Filters, masks and sample weights", [registry.filters]),
]


def built_in(*slots: registry.Registry[Any]) -> set[str]:
    return {name for slot in slots for name in slot.names() if slot.get(name).__module__.startswith("rljax.")}


def written(value: object) -> str:
    """As the page writes a default."""
    if isinstance(value, bool):
        return str(value).lower()
    return "empty" if value in ((), {}) else str(value)


def same(text: str, value: object) -> bool:
    return float(text) == value if isinstance(value, float) else text == written(value)


@pytest.mark.parametrize(("section", "slots"), SLOTS, ids=[name for name, _ in SLOTS])
def test_each_built_in_function_has_its_row_and_no_other_has_one(
    section: str, slots: list[registry.Registry[Any]]
) -> None:
    rows = re.findall(r"^\| `([\w+-]+)` \|", SECTIONS[section], re.MULTILINE)
    assert sorted(rows) == sorted(built_in(*slots))


def own_keys() -> dict[str, dict[str, tuple[object, dict[str, Any]]]]:
    """By function, then by path: defaults of its keys and what they may be."""
    found: dict[str, dict[str, tuple[object, dict[str, Any]]]] = {}
    for (_, slots), group in zip(SLOTS, ("loss", "advantage", "", "filter.{}"), strict=True):
        for entry in [one for slot in slots for one in slot.built_in()]:
            fields = [spec for spec in dataclasses.fields(entry.keys) if "choice" not in spec.metadata]
            path = group.format(entry.name)
            found[entry.name] = {f"{path}.{spec.name}": (spec.default, dict(spec.metadata)) for spec in fields}
    return found


def test_each_key_stands_there_with_its_default() -> None:
    told = [
        (key, text)
        for key, text in re.findall(r"`algorithm\.([\w.]+)` \(([^)]*)\)", PAGE)
        if not key.startswith(("loss.", "advantage.", "filter."))
    ]
    assert sorted(set(KEYS) - {key for key, _ in told}) == []
    assert [(key, text) for key, text in told if not same(text, KEYS[key][0])] == []


def test_each_key_of_a_function_stands_in_its_row_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([\w+-]+)` \|(.*)$", PAGE, re.MULTILINE))
    for name, keys in own_keys().items():
        told = dict(re.findall(r"`algorithm\.((?:loss|advantage|filter)\.[\w.]+)` \(([^)]*)\)", rows[name]))
        assert set(told) == set(keys), name
        assert [(key, text) for key, text in told.items() if not same(text, keys[key][0])] == [], name


def test_each_key_that_is_named_exists_and_can_have_the_value_that_is_named() -> None:
    groups = {path.rpartition(".")[0] for path in KEYS} | {"loss", "advantage", "filter", "loss.variant_args"}
    names = {
        "pg_variant": built_in(registry.policy_losses),
        "adv_estimator": built_in(*SLOTS[1][1]),
        "aggregation": built_in(registry.aggregations),
    }
    known: dict[str, set[object]] = {key: set(metadata.get("choices", ())) for key, (_, metadata) in KEYS.items()}
    for keys in own_keys().values():
        for key, (_, metadata) in keys.items():
            known.setdefault(key, set()).update(metadata.get("choices", ()))
    for key, value in re.findall(r"`algorithm\.([\w.]+)(?:=([^`]*))?`", PAGE):
        assert key in known or (key in groups and not value) or key == "filter.few", key
        choices = names.get(key) or known.get(key)
        assert not (value and choices) or value in choices, (key, value)


def test_each_row_of_a_loss_says_what_the_config_is_checked_by() -> None:
    row = r"^\| `(\w+)` \|.*\| (?:([\w, ]+) )?\| [^|]+ \|$"
    said = {name: words.split(", ") for name, words in re.findall(row, SECTIONS["Policy losses"], re.MULTILINE)}
    assert {name for name, words in said.items() if "bounded" in words} == set(validate_objective.bounding())
    assert {name for name, words in said.items() if "truncate" in words} == set(validate_objective.unweighted())


def test_the_bench_has_a_row_of_each_loss_that_the_page_says_it_has() -> None:
    rows = dict(re.findall(r"^\| `([\w+-]+)` \|.*\| ([^|]+) \|$", SECTIONS["Policy losses"], re.MULTILINE))
    assert {name for name, steps in rows.items() if steps != "not in the bench"} == set(VARIANTS)


def test_the_examples_of_functions_of_ones_own_do_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    own, direct = re.findall(r"```python\n(.*?)```", SECTIONS["Functions of one's own"], re.DOTALL)
    scope: dict[str, Any] = {}
    exec(own, scope)
    exec(direct, scope)
    printed = capsys.readouterr().out.splitlines()
    assert [float(x) for x in re.findall(r"-?\d\.\d*", " ".join(printed))] == pytest.approx([-0.5, -1.2, 0, 1])
    assert re.findall(r"# (.*)", direct) == printed
    loss, metrics = scope["clipped_weight"](scope["inputs"])
    assert loss.tolist() == [pytest.approx([-0.5, -1.2])]
    assert metrics["above"].tolist() == [[False, True]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_names_of_the_package_that_a_page_gives_exist(page: Path) -> None:
    for name in re.findall(r"`@?(rljax(?:\.\w+)+(?::\w+)?)", page.read_text()):
        pkgutil.resolve_name(name)
