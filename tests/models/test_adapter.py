"""Adapters against PEFT's own: what is computed, its gradients, and the files."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import peft
import pytest
import torch
from safetensors.numpy import load_file, save_file

from rljax.config.fields import ConfigError
from rljax.config.model import LoraConfig, ModelConfig
from rljax.models.adapter import abstract_adapter, init_adapter, merged_tensors, targeted
from rljax.models.adapter_files import adapter_directory, base_config, check_adapter, load_adapter, save_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.common.lora import joined
from rljax.models.common.params import Params
from rljax.models.families.registry import from_config
from rljax.models.files import load_architecture, load_directory, stored_tensors
from rljax.models.resolve import resolve_model
from rljax.models.transformer import hidden_states, output_head
from tests.models.hf_models import (
    CONFIGS,
    assert_same_logits,
    load_with_transformers,
    our_logits,
    random_model,
    reference_logits,
    save,
    tokens,
)

CASES: dict[str, tuple[str, LoraConfig]] = {
    "all-linear": ("qwen3", LoraConfig(rank=4, alpha=8.0)),
    "rslora": ("llama-untied", LoraConfig(rank=4, alpha=8.0, rslora=True)),
    "two targets": ("qwen2", LoraConfig(rank=3, alpha=5.0, targets=("q_proj", "down_proj"))),
}


def adapted_by_peft(directory: Path, name: str, lora: LoraConfig) -> Any:
    """A model of transformers with an adapter of PEFT's that changes it, both written below a directory."""
    save(random_model(name), directory / "base")
    model = load_with_transformers(directory / "base")
    targets = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, use_rslora=lora.rslora, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.6 / lora.scale * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(str(directory / "adapter"))
    return model.eval()


def loaded(directory: Path, lora: LoraConfig) -> tuple[Architecture, Params, Params]:
    """Architecture, base and adapter as rljax reads them."""
    architecture, base = load_directory(directory / "base")
    return architecture, base, load_adapter(directory / "adapter", architecture, lora)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_of_peft_gives_its_logits_and_its_gradients(case: str, tmp_path: Path) -> None:
    name, lora = CASES[case]
    model, ids = adapted_by_peft(tmp_path, name, lora), tokens(2, 24)
    architecture, base, adapter = loaded(tmp_path, lora)
    check_adapter(tmp_path / "adapter", architecture, lora)
    expected = reference_logits(model, ids)
    assert_same_logits(our_logits(joined(base, adapter, lora.scale), architecture, ids), expected, 1e-4)
    assert np.abs(expected - our_logits(base, architecture, ids)).max() > 0.5, "the adapter changes nothing"

    words = torch.from_numpy(ids.astype(np.int64))
    torch.nn.functional.cross_entropy(model(words).logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()).backward()
    theirs = {
        name.replace(".default", ""): p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None
    }

    def loss(trained: Params) -> jax.Array:
        steps = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        params = joined(base, trained, lora.scale)
        hidden = hidden_states(params, architecture, ids, steps, jnp.ones_like(ids), remat="full")
        logprobs = jax.nn.log_softmax(hidden @ output_head(params, architecture))[:, :-1]
        return -jnp.mean(jnp.take_along_axis(logprobs, ids[:, 1:, None], axis=2))

    gradient = jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(adapter))
    save_adapter(tmp_path / "gradient", gradient, architecture, lora, "unused")
    ours = load_file(tmp_path / "gradient" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, found in ours.items():
        np.testing.assert_allclose(found, theirs[key], atol=2e-5 * np.abs(theirs[key]).max(), err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_peft_loads_what_is_exported_and_merges_it_to_the_same_weights(case: str, tmp_path: Path) -> None:
    name, lora = CASES[case]
    adapted_by_peft(tmp_path, name, lora)
    architecture, base, _ = loaded(tmp_path, lora)
    adapter = init_adapter(architecture, lora, 3)
    adapter = jax.tree.map(lambda x: np.random.default_rng(x.size).normal(0, 0.2, x.shape).astype(np.float32), adapter)
    save_adapter(tmp_path / "ours", adapter, architecture, lora, str(tmp_path / "base"))
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())

    model = peft.AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "ours")).eval()
    assert model.active_peft_config.base_model_name_or_path == str(tmp_path / "base")
    ids = tokens(2, 24, seed=2)
    assert_same_logits(
        our_logits(joined(base, adapter, lora.scale), architecture, ids), reference_logits(model, ids), 1e-4
    )
    whole = {name: p.detach().numpy() for name, p in model.merge_and_unload().named_parameters()}
    merged = merged_tensors(stored_tensors(tmp_path / "base"), adapter, architecture, lora)
    assert sum(not hasattr(x, "file") for x in merged.values()) == len(targeted(architecture, lora)) * 2
    for name, tensor in merged.items():
        assert tensor.shape == whole[name].shape
        np.testing.assert_allclose(np.asarray(tensor), whole[name], atol=1e-5, err_msg=name)


def test_a_fresh_adapter_is_made_as_peft_makes_it(tmp_path: Path) -> None:
    """A uniform within 1/√rows (kaiming_uniform_ with a = √5), B zero: it changes nothing yet."""
    lora = LoraConfig(rank=16)
    architecture = load_architecture(save(random_model("qwen3"), tmp_path / "base"))
    made = jax.tree.map(np.asarray, init_adapter(architecture, lora, 0))["layers"]
    theirs = torch.empty(16, 48)
    torch.nn.init.kaiming_uniform_(theirs, a=5**0.5)
    a, b = made["down"]["lora_a"], made["down"]["lora_b"]
    assert a.shape == (2, 48, 16)
    assert b.shape == (2, 16, 32)
    assert not b.any()
    assert 0.95 * 48**-0.5 < np.abs(a).max() <= 48**-0.5
    assert np.abs(theirs.numpy()).max() <= 48**-0.5
    assert a.std() == pytest.approx(theirs.numpy().std(), rel=0.1)
    assert np.abs(made["up"]["lora_a"]).max() <= 32**-0.5
    assert np.abs(a[0] - a[1]).max() > 0.01, "layers share their noise"
    assert np.abs(made["up"]["lora_a"] - made["gate"]["lora_a"]).max() > 0.01, "matrices share their noise"
    again = init_adapter(architecture, lora, 0)["layers"]["down"]["lora_a"]
    np.testing.assert_array_equal(np.asarray(again), a)
    assert np.abs(np.asarray(init_adapter(architecture, lora, 1)["layers"]["down"]["lora_a"]) - a).max() > 0.01


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        (
            LoraConfig(rank=4, targets=("q_prj",)),
            r"model\.lora\.targets='q_prj': not one of all-linear, .*did you mean q_",
        ),
        (LoraConfig(rank=4, targets=("lm_head",)), r"model\.lora\.targets='lm_head': not one of all-linear"),
        (LoraConfig(rank=4, targets=()), r"model\.lora\.targets=\(\): nothing would be trained; write all-linear"),
        (LoraConfig(rank=33), r"model\.lora\.rank=33: the model's matrices have at most 32, its width"),
    ],
    ids=["misspelt", "head", "none", "rank"],
)
def test_targets_and_ranks_that_a_model_does_not_have_are_refused(lora: LoraConfig, told: str) -> None:
    architecture = Architecture("qwen3", 61, 32, 48, 2, 4, 2, 8)
    with pytest.raises(ConfigError, match=told):
        targeted(architecture, lora)


def test_of_a_layer_with_experts_attention_alone_has_adapters() -> None:
    """PEFT's all-linear takes the modules that are linear layers: transformers keeps router and experts otherwise."""
    architecture = from_config(CONFIGS["qwen3_moe"].to_dict())
    assert {name.rpartition(".")[2] for name in targeted(architecture, LoraConfig(rank=2))} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    }


def test_matrices_that_are_one_in_the_files_have_no_adapters() -> None:
    architecture = from_config(CONFIGS["phi3"].to_dict())
    assert len(targeted(architecture, LoraConfig())) == 7
    with pytest.raises(ConfigError, match=r"^model\.lora\.rank=2: models of the family phi3 have several matrices"):
        targeted(architecture, LoraConfig(rank=2))


def test_the_scale_is_that_of_the_papers() -> None:
    assert LoraConfig(rank=16, alpha=32).scale == 2.0
    assert LoraConfig(rank=16, alpha=32, rslora=True).scale == 8.0


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A directory with a base and an adapter of rank 4 and alpha 8 of two of its matrices."""
    architecture = load_architecture(save(random_model("qwen3"), tmp_path / "base"))
    lora = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
    adapter = jax.tree.map(np.asarray, init_adapter(architecture, lora, 0))
    save_adapter(tmp_path / "adapter", adapter, architecture, lora, str(tmp_path / "base"))
    return tmp_path


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ({"rank": 8}, r"model\.lora\.rank=8: the adapter in .* has 4; write model\.lora\.rank=4"),
        ({"alpha": 32.0}, r"model\.lora\.alpha=32\.0: the adapter in .* has 8; write model\.lora\.alpha=8"),
        ({"rslora": True}, r"model\.lora\.rslora=True: the adapter in .* has False; write model\.lora\.rslora=False"),
        ({"targets": ("all-linear",)}, r"model\.lora\.targets=all-linear: the adapter in .*; write q_proj,v_proj"),
    ],
    ids=["rank", "alpha", "rslora", "targets"],
)
def test_a_run_goes_on_from_an_adapter_by_its_own_settings(exported: Path, lora: dict[str, Any], told: str) -> None:
    """Another scale would be another model, in silence."""
    architecture = load_architecture(exported / "base")
    right = {"rank": 4, "alpha": 8.0, "targets": ("q_proj", "v_proj")}
    check_adapter(exported / "adapter", architecture, LoraConfig(**right))
    with pytest.raises(ConfigError, match=told):
        check_adapter(exported / "adapter", architecture, LoraConfig(**{**right, **lora}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("rank_pattern", {"q_proj": 8}),
        ("peft_type", "IA3"),
        ("alora_invocation_tokens", [3]),
    ],
)
def test_adapters_of_other_kinds_are_refused(exported: Path, field: str, value: Any) -> None:
    file = exported / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ConfigError, match=f"{field}=.*is not supported"):
        check_adapter(exported / "adapter", load_architecture(exported / "base"), LoraConfig(rank=4))


def test_the_model_of_an_adapter_is_its_base(exported: Path) -> None:
    named = ModelConfig(path=str(exported / "adapter"), lora=LoraConfig(rank=4, alpha=8.0))
    assert adapter_directory(named) == exported / "adapter"
    assert resolve_model(named, 0, exported) == exported / "base"
    assert adapter_directory(ModelConfig(path=str(exported / "base"))) is None
    with pytest.raises(
        ConfigError, match=r"to train it on write model\.lora\.rank=4, .*alpha=8, .*targets=q_proj,v_proj;"
    ):
        base_config(ModelConfig(path=str(exported / "adapter")))
    (exported / "base").rename(exported / "moved")
    with pytest.raises(ConfigError, match=r"adapter: it is an adapter, and of its base: .*there is no such directory"):
        resolve_model(named, 0, exported)


@pytest.mark.parametrize("base", ["adapter", "second"])
def test_an_adapter_of_an_adapter_is_refused(exported: Path, base: str) -> None:
    """What the first changed would be left out in silence; one of itself would have no end."""
    shutil.copytree(exported / "adapter", exported / "second")
    config = exported / "second" / "adapter_config.json"
    fields = json.loads(config.read_text()) | {"base_model_name_or_path": str(exported / base)}
    config.write_text(json.dumps(fields))
    model = ModelConfig(path=str(exported / "second"), lora=LoraConfig(rank=4))
    with pytest.raises(
        ConfigError, match=r"^model\.path=.*second: the base that .* names, .*, is an adapter too; merge"
    ):
        base_config(model)


def test_a_damaged_adapter_is_refused_by_its_tensor(exported: Path) -> None:
    architecture, lora = (
        load_architecture(exported / "base"),
        LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj")),
    )
    file = exported / "adapter" / "adapter_model.safetensors"
    whole = load_file(file)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    save_file({key: x for key, x in whole.items() if key != name}, file)
    with pytest.raises(ConfigError, match=f"the adapter lacks {name}"):
        load_adapter(exported / "adapter", architecture, lora)
    save_file(whole | {name: whole[name][:3]}, file)
    with pytest.raises(ConfigError, match=rf"tensor {name} has shape \[3, 4\], expected \[48, 4\]"):
        load_adapter(exported / "adapter", architecture, lora)
    file.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_adapter(exported / "adapter", architecture, lora)


def test_only_the_adapter_is_stored(exported: Path) -> None:
    architecture, lora = load_architecture(exported / "base"), LoraConfig(rank=4, targets=("q_proj", "v_proj"))
    stored = load_file(exported / "adapter" / "adapter_model.safetensors")
    wanted = sum(x.size for x in jax.tree.leaves(abstract_adapter(architecture, lora)))
    # q: (32 + 96) · 4, v: (32 + 48) · 4, in two layers
    assert sum(x.size for x in stored.values()) == wanted == 2 * 4 * (32 + 96 + 32 + 48)
