"""YAML that nobody vouches for: what is read, and that the rest is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.config.fields import ConfigError
from rljax.config.importers.documents import read_document
from rljax.config.importers.interpolation import Interpolated


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "a.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def resolved(tmp_path: Path, text: str) -> dict[str, object]:
    """The document; raises the first of its references that are not resolved, with its key."""
    found = Interpolated(read_document(written(tmp_path, text)), "a.yaml")
    for path, why in found.unresolved.items():
        raise ConfigError(f"a.yaml: {path}: {why}")
    return found.values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("5E3", 5000.0),
        ("-2e2", -200.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("10", 10),
        ("true", True),
        ("null", None),
        ("1e", "1e"),
        ("e6", "e6"),
        ("1.0e-6x", "1.0e-6x"),
        ("3.5 GiB", "3.5 GiB"),
        (".info", ".info"),
        ("2024-01-01", "2024-01-01"),
        ("list(range(0,4))", "list(range(0,4))"),
        ("[FrozenLake]", ["FrozenLake"]),
    ],
)
def test_a_scalar_is_what_everybody_means(text: str, value: object, tmp_path: Path) -> None:
    read = read_document(written(tmp_path, f"a: {text}\n"))["a"]
    assert (type(read), read) == (type(value), value)


def test_anchors_and_merges_are_written_out(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nagain: *b\n"
    assert read_document(written(tmp_path, text)) == {
        "base": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "again": {"x": 1, "y": 2},
    }


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: !!python/object/apply:os.system ['true']\n", "a.yaml, line 1: not plain YAML .*python/object/apply"),
        ("a: !mine 3\n", "line 1: not plain YAML"),
        ("a: !!binary aGk=\n", "a: a bytes, and no plain value"),
        ("a: !!set {x, y}\n", "a: a set, and no plain value"),
        ("a: 1\nb: 2\na: 3\n", "line 3: not plain YAML .*'a' stands twice"),
        ("- 1\n- 2\n", r"holds \[1, 2\], not keys and values"),
        ("hello\n", "holds 'hello', not keys and values"),
        ("", "holds nothing, not keys and values"),
        ("a: 1\n---\nb: 2\n", "not plain YAML"),
        ("a: [1\n", "not plain YAML"),
        ("a: " + "[" * 2000 + "]" * 2000, "nested too deep|deeper than"),
        ("a: &a [*a]\n", "deeper than 40 levels, or an alias of what it is in"),
        ("a: " + "9" * 5000, "not plain YAML"),
        (LAUGHS, "more than 100,000 values once its aliases are written out"),
        ("? [1, 2]\n: 3\n", "not plain YAML|a key is a name"),
        (b"a: \xff\xfe\n", "not plain YAML"),
        (b"a: \x00\n", "not plain YAML"),
        ("a: '" + "x" * (1 << 20) + "'\n", "larger than 1 MiB"),
    ],
    ids=range(18),
)
def test_what_is_no_plain_config_is_one_line(text: str | bytes, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        read_document(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_merges_of_merges_stay_small(tmp_path: Path) -> None:
    assert read_document(written(tmp_path, MERGES))["a11"] == {"x": 1}


def test_references_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJAX_A", "7")
    monkeypatch.setenv("RLJAX_B", "some/path")
    monkeypatch.setenv("RLJAX_V", "1.10")
    monkeypatch.delenv("RLJAX_C", raising=False)
    text = """
n: 8
group: {size: 3, twice: "${.size}", up: "${..n}"}
typed: ${n}
chain: ${typed}
text: run-${n}-${group.size}
whole: ${group}
listed: [1, "${n}"]
first: ${listed[0]}
number: ${oc.env:RLJAX_A}
path: ${oc.env:RLJAX_B,other}
default: ${oc.env:RLJAX_C,./checkpoints}
model: ${oc.env:RLJAX_C,Qwen/Qwen2.5-1.5B-Instruct}
nested: ${oc.env:RLJAX_C,${n}}
quoted: ${oc.env:RLJAX_C,"0012"}
version: ${oc.env:RLJAX_V}
name: run-${oc.env:RLJAX_V}-${version}
escaped: \\${n}
"""
    assert resolved(tmp_path, text) == {
        "n": 8,
        "group": {"size": 3, "twice": 3, "up": 8},
        "typed": 8,
        "chain": 8,
        "text": "run-8-3",
        "whole": {"size": 3, "twice": 3, "up": 8},
        "listed": [1, 8],
        "first": 1,
        "number": 7,
        "path": "some/path",
        "default": "./checkpoints",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "nested": 8,
        "quoted": "0012",
        "version": 1.1,
        "name": "run-1.10-1.10",
        "escaped": "${n}",
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: ${b}\nb: ${a}\n", r"a.yaml: a: \$\{b\} leads in a circle|leads in a circle"),
        ("a: ${a}\n", "leads in a circle"),
        ("a: {b: '${a}'}\n", "leads in a circle"),
        ("a: ${nowhere.at}\n", r"a: \$\{nowhere.at\}: the file has no nowhere.at"),
        ("a: ${oc.env:RLJAX_NOT_SET}\n", "a: .* the environment has no RLJAX_NOT_SET; set it, or write a default"),
        ("a: ${oc.create:1}\n", r"a: \$\{oc.create:…\} is not resolved here; write its value"),
        ("a: ${eval:1+1}\n", "is not resolved here"),
        ("a: ${b\n", "no closing brace"),
        ("a: x${b}\nb: {c: 1}\n", "puts a group into a text"),
        (
            "a0: [1,1]\n" + "".join(f"a{i}: ['${{a{i - 1}}}','${{a{i - 1}}}']\n" for i in range(1, 25)),
            "more than 100,000",
        ),
    ],
    ids=range(10),
)
def test_a_reference_that_leads_nowhere_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        resolved(tmp_path, text)
    assert "\n" not in str(refused.value)
