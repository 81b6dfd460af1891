"""The `tiny` model: made from the seed alone, whole, whoever makes it first."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models.common.architecture import Experts
from rljax.models.families.registry import to_config
from rljax.models.files import load_directory
from rljax.models.hf_names import tensor_shapes
from rljax.models.tiny import make_tiny, tiny_architecture
from rljax.models.tokenizer import load_tokenizer
from tests.models.hf_models import assert_same_logits, load_with_transformers, our_logits, reference_logits, tokens
from tests.waiting import HANGS

pytestmark = pytest.mark.slow

SMALL = TinyConfig(hidden_size=32, intermediate_size=48, num_heads=2, num_kv_heads=1, head_dim=16)
MODEL = ModelConfig(tiny=SMALL)
DEADLINE = HANGS
_MAKER = """
import sys, time
from pathlib import Path
from rljax.models.tiny import make_tiny
from rljax.config.schema import ModelConfig, TinyConfig
tiny = TinyConfig(hidden_size=32, intermediate_size=48, num_heads=2, num_kv_heads=1, head_dim=16)
target, start = Path(sys.argv[1]), Path(sys.argv[2])
start.with_name(sys.argv[3]).touch()
end = time.monotonic() + 300
while not start.exists():
    assert time.monotonic() < end
    time.sleep(0.001)
make_tiny(ModelConfig(tiny=tiny), 5, target)
"""


def _files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_transformers_loads_it_with_the_same_logits(tmp_path: Path) -> None:
    path = make_tiny(MODEL, 0, tmp_path / "model")
    architecture, params = load_directory(path)
    assert architecture == tiny_architecture(MODEL)
    assert architecture.vocab_size == len(load_tokenizer(path))
    model = load_with_transformers(path)
    token_ids = tokens(2, 32)
    assert_same_logits(our_logits(params, architecture, token_ids), reference_logits(model, token_ids), 1e-4)


@pytest.mark.parametrize(("family", "config"), [("llama", LlamaConfig), ("qwen2", Qwen2Config), ("qwen3", Qwen3Config)])
@pytest.mark.parametrize("tied", [True, False])
def test_every_family_has_the_tensors_of_transformers(family: str, config: type[PreTrainedConfig], tied: bool) -> None:
    architecture = tiny_architecture(ModelConfig(tiny=dataclasses.replace(SMALL, family=family, tie_embeddings=tied)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(**to_config(architecture)))
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert tensor_shapes(architecture) == expected


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_a_family_with_experts_is_loaded_by_transformers_too(family: str, tmp_path: Path) -> None:
    model = ModelConfig(tiny=dataclasses.replace(SMALL, family=family, num_experts=4, num_experts_per_tok=3))
    path = make_tiny(model, 0, tmp_path / "model")
    architecture, params = load_directory(path)
    assert architecture.experts == Experts(count=4, per_token=3, width=48)
    token_ids = tokens(2, 32)
    expected = reference_logits(load_with_transformers(path), token_ids)
    assert_same_logits(our_logits(params, architecture, token_ids), expected, 1e-4)


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    first, again, other = (
        _files(make_tiny(MODEL, seed, tmp_path / name)) for seed, name in ((5, "a"), (5, "b"), (6, "c"))
    )
    assert first == again
    assert first["model.safetensors"] != other.pop("model.safetensors")
    assert {name: first[name] for name in other} == other


def test_processes_may_race(tmp_path: Path) -> None:
    target, start = tmp_path / "run" / "model", tmp_path / "start"
    makers = [
        subprocess.Popen([sys.executable, "-c", _MAKER, str(target), str(start), f"ready-{number}"])
        for number in range(2)
    ]
    try:
        end = time.monotonic() + DEADLINE
        while len(list(tmp_path.glob("ready-*"))) < 2:
            assert time.monotonic() < end
            assert [maker.poll() for maker in makers] == [None, None]
            time.sleep(0.01)
        start.touch()
        assert [maker.wait(DEADLINE) for maker in makers] == [0, 0]
    finally:
        for maker in makers:
            maker.kill()
    assert [path.name for path in target.parent.iterdir()] == ["model"]  # no draft is left over
    assert _files(target) == _files(make_tiny(MODEL, 5, tmp_path / "alone"))


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    before = _files(make_tiny(MODEL, 5, tmp_path / "model"))
    assert _files(make_tiny(MODEL, 6, tmp_path / "model")) == before


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    make_tiny(MODEL, 5, tmp_path / "model")
    wider = ModelConfig(tiny=TinyConfig(hidden_size=64))
    with pytest.raises(
        ValueError,
        match=r"model\.tiny: .* of another shape: \w+ \w+, and the config asks for \w+; use",
    ):
        make_tiny(wider, 5, tmp_path / "model")


def test_it_is_made_for_the_longest_sequence() -> None:
    assert tiny_architecture(MODEL).max_position_embeddings == 2048
    long = ModelConfig(tiny=SMALL, max_prompt_tokens=1000, max_response_tokens=3000)
    assert tiny_architecture(long).max_position_embeddings == 4000
