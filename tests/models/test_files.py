"""Model directories: transformers loads ours, we load theirs, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from xxhash import xxh3_64_hexdigest

from rljax.models.common.architecture import Architecture
from rljax.models.families.registry import from_config
from rljax.models.files import load_directory, save_directory
from rljax.models.hf_names import to_hf
from rljax.models.tokenizer import save_tiny_tokenizer
from tests.models.hf_models import (
    CONFIGS,
    load_with_transformers,
    our_logits,
    random_model,
    reference_logits,
    save,
    shared_model,
    tokens,
)


def _tensors(name: str) -> tuple[Architecture, dict[str, np.ndarray]]:
    tensors = {key: parameter.detach().numpy() for key, parameter in shared_model(name).named_parameters()}
    return from_config(CONFIGS[name].to_dict()), tensors


@pytest.mark.parametrize("name", CONFIGS)
def test_an_export_loads_in_transformers_with_the_same_logits(name: str, tmp_path: Path) -> None:
    architecture, params = load_directory(save(shared_model(name), tmp_path / "theirs"))
    tensors = {key: np.asarray(array) for key, array in to_hf(params, architecture).items()}
    save_directory(tmp_path / "ours", architecture, tensors, None, "fp32")
    loaded = load_with_transformers(tmp_path / "ours")
    assert loaded.dtype == torch.float32
    token_ids = tokens(2, 40)
    np.testing.assert_array_equal(reference_logits(loaded, token_ids), reference_logits(shared_model(name), token_ids))


def test_an_export_in_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    architecture, tensors = _tensors("qwen3")
    save_directory(tmp_path / "ours", architecture, tensors, None, "bf16")
    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path / "ours"), dtype="auto")
    assert loaded.dtype == torch.bfloat16
    for name, parameter in loaded.named_parameters():
        expected = torch.tensor(tensors[name]).bfloat16()
        assert torch.equal(parameter, expected), name
    # and read back into float32 masters
    found = to_hf(load_directory(tmp_path / "ours")[1], architecture)
    for name, parameter in loaded.named_parameters():
        np.testing.assert_array_equal(np.asarray(found[name]), parameter.detach().float().numpy())


def test_half_precision_of_transformers_is_read_exactly(tmp_path: Path) -> None:
    for narrow in ("bfloat16", "half"):
        model = getattr(random_model("qwen2"), narrow)()
        architecture, params = load_directory(save(model, tmp_path / narrow))
        for name, array in to_hf(params, architecture).items():
            assert array.dtype == np.float32
            np.testing.assert_array_equal(np.asarray(array), model.state_dict()[name].float().numpy())


def test_shards_are_read(tmp_path: Path) -> None:
    model = shared_model("llama-untied")
    path = save(model, tmp_path / "theirs", max_shard_size="30KB")
    assert len(list(path.glob("model-*-of-*.safetensors"))) > 2
    architecture, params = load_directory(path)
    for name, array in to_hf(params, architecture).items():
        np.testing.assert_array_equal(np.asarray(array), model.state_dict()[name].numpy())


def test_shards_are_written_and_read_by_both(tmp_path: Path) -> None:
    architecture, tensors = _tensors("llama-untied")
    path = tmp_path / "ours"
    save_directory(path, architecture, tensors, None, "fp32", shard_bytes=30_000)
    files = sorted(path.glob("model-*-of-*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 35_000 for file in files)
    loaded = AutoModelForCausalLM.from_pretrained(str(path))
    token_ids = tokens(1, 8)
    np.testing.assert_array_equal(
        reference_logits(loaded, token_ids), reference_logits(shared_model("llama-untied"), token_ids)
    )
    again, params = load_directory(path)
    assert again == architecture
    assert our_logits(params, architecture, token_ids).shape == (1, 8, architecture.vocab_size)

    files[1].unlink()
    with pytest.raises(ValueError, match=rf"ours: the weight file {files[1].name} is missing$"):
        load_directory(path)


def test_the_tokenizer_and_its_special_ids_go_along(tmp_path: Path) -> None:
    architecture, tensors = _tensors("qwen3")
    save_tiny_tokenizer(tmp_path / "tokenizer")
    save_directory(tmp_path / "ours", architecture, tensors, tmp_path / "tokenizer", "fp32")
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "ours"))
    assert tokenizer.decode(tokenizer.encode("17 + 4")) == "17 + 4"
    assert tokenizer.chat_template
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert config["pad_token_id"] == tokenizer.pad_token_id


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    architecture, tensors = _tensors("qwen2")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="ours exists already; remove it or choose another directory"):
        save_directory(tmp_path / "ours", architecture, tensors, None, "fp32")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["mine.txt"]


def test_a_failure_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, tensors = _tensors("qwen2")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rljax.models.files.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        save_directory(tmp_path / "ours", architecture, tensors, None, "fp32")
    assert not list(tmp_path.iterdir())


def test_tensors_of_another_architecture_are_not_written(tmp_path: Path) -> None:
    architecture, tensors = _tensors("qwen2")
    del tensors["model.norm.weight"]
    with pytest.raises(ValueError, match="was not written: the tensors are not those of the architecture"):
        save_directory(tmp_path / "ours", architecture, tensors, None, "fp32")
    assert not list(tmp_path.iterdir())


def _cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _edit_config(path: Path, **fields: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _edit_layers(path: Path, number: int) -> None:
    _edit_config(path, num_hidden_layers=number, layer_types=None)  # a type for each layer would be refused by itself


def _only_an_index(path: Path, text: str) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "is no Hugging Face model directory: it has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "config.json is no valid JSON"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json is no JSON object"),
        (lambda path: _edit_config(path, model_type="gpt2"), "model_type 'gpt2' is not supported"),
        (lambda path: _edit_layers(path, 3), "the model lacks 12 tensors, the first is model.lay"),
        (lambda path: _edit_layers(path, 1), "has 12 tensors that nothing reads, the first is"),
        (lambda path: _edit_config(path, vocab_size=60), r"embed_tokens.weight has shape \[61, 32\], expected \[60"),
        (lambda path: (path / "model.safetensors").unlink(), "has neither model.safetensors nor model.safetensors.in"),
        (_cut, "model.safetensors is damaged or incomplete"),
        (lambda path: _only_an_index(path, "{"), "index.json is no index of safetensors files; fetch it again"),
        (lambda path: _only_an_index(path, "{}"), "index.json is no index of safetensors files; fetch it again"),
        (lambda path: _only_an_index(path, "[]"), "index.json is no index of safetensors files; fetch it again"),
        (lambda path: _only_an_index(path, '{"weight_map": 1}'), "index.json is no index of safetensors files"),
    ],
)
def test_damage_is_named_in_one_line_with_the_directory(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = save(shared_model("qwen2"), tmp_path / "model")
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        load_directory(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_that_flipped_in_a_tensor_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    architecture, tensors = _tensors("llama")
    directory = tmp_path / "ours"
    save_directory(directory, architecture, tensors, None, "fp32")
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    for name in list(tensors)[:3]:
        content = tensors[name].tobytes()
        start = whole.index(content)
        for place in (start, start + len(content) // 2, start + len(content) - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{file.name} is damaged: the checksum of {name} is not ") as error:
                load_directory(directory)
            assert f"xxh3:{xxh3_64_hexdigest(content)}" in str(error.value)
    file.write_bytes(whole)
    load_directory(directory)
