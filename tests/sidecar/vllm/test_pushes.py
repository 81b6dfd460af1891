"""An engine after five pushes, one of them a roll back, is the engine that was started on those weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljax.models.smollm2 import smollm2_directory
from sidecar.vllm.weights import FALLBACK
from tests.sidecar.vllm.conftest import MODEL, Lab, run_alone
from tests.sidecar.vllm.models import (
    CONFIGS,
    EXPERTS,
    WINDOWED,
    adapted_model,
    publish,
    publish_adapters,
    random_model,
    tensors,
    token_logprobs,
)

ORDER = (0, 1, 2, 1, 3)
TOKENS = np.arange(3, 45)


def job(directory: Path, model: Path, fresh: Path, versions: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    updates = [publish(directory / "weights", i, arrays) for i, arrays in enumerate(versions)]
    pushes = [(updates[i].version, updates[i].lineage, updates[i].path) for i in ORDER]
    out = str(directory / "out.json")
    return {"model": str(model), "fresh": str(fresh), "tokens": TOKENS.tolist(), "updates": pushes, "out": out}


ADAPTED = "an adapter on the base that the engine has"


Expected = tuple[np.ndarray, np.ndarray]
"""What transformers says of version 1, which is rolled back to, and of the last."""


def adapted(directory: Path) -> tuple[dict[str, Any], Expected]:
    base = directory / "model"
    random_model(MODEL, 0).save_pretrained(base)
    models = [adapted_model(MODEL, seed) for seed in range(4)]
    updates = publish_adapters(directory / "weights", base, [factors for _, factors in models])
    whole = models[3][0].merge_and_unload()
    whole.save_pretrained(directory / "fresh")
    pushes = [(i, 1, updates[i].path) for i in ORDER]
    given = {"model": str(base), "fresh": str(directory / "fresh"), "tokens": TOKENS.tolist(), "updates": pushes}
    expected = token_logprobs(models[1][0], TOKENS), token_logprobs(whole, TOKENS)
    return {**given, "out": str(directory / "out.json")}, expected


def of_family(name: str, directory: Path) -> tuple[dict[str, Any], Expected]:
    models = [random_model(name, seed) for seed in range(4)]
    models[0].save_pretrained(directory / "model")
    models[3].save_pretrained(directory / "fresh")
    made = job(directory, directory / "model", directory / "fresh", [tensors(m) for m in models])
    return made, (token_logprobs(models[1], TOKENS), token_logprobs(models[3], TOKENS))


@pytest.fixture(scope="session")  # pytest takes the concurrent body's test before the rest of the module
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Expected]]:
    """What engines say, and transformers, by model. One process has all engines: vLLM is imported once."""
    root = tmp_path_factory.mktemp("pushes")
    made = {name: of_family(name, root / name) for name in CONFIGS | WINDOWED | EXPERTS}
    made[ADAPTED] = adapted(root / "adapted")
    run_alone("pushes", root, [one for one, _ in made.values()], seconds=550)
    return {name: (json.loads(Path(one["out"]).read_text()), expected) for name, (one, expected) in made.items()}


@pytest.mark.parametrize("name", [*CONFIGS, *WINDOWED, *EXPERTS, ADAPTED])
def test_tiny_models(name: str, found: dict[str, tuple[dict[str, Any], Expected]]) -> None:
    engines, (back, last) = found[name]
    np.testing.assert_allclose(engines["rolled back"], back, atol=1e-4)
    np.testing.assert_allclose(engines["pushed"], engines["fresh"], atol=1e-5)
    np.testing.assert_allclose(engines["pushed"], last, atol=1e-4)
    assert engines["packed lookups"] == 0
    # of the three pushes to an engine that has a request, each a tensor at a time, and an end
    assert engines["parts"] == 3 * (1 if name in EXPERTS else engines["tensors"] + 1)


def test_a_version_that_cannot_be_loaded_beside_is_loaded_in_place(
    found: dict[str, tuple[dict[str, Any], Expected]],
) -> None:
    engines, (_, last) = found[next(iter(CONFIGS))]
    unstaged = engines["unstaged"]
    np.testing.assert_allclose(unstaged["pushed"], last, atol=1e-4)
    assert unstaged["warnings"] == [f"{FALLBACK}: no room for the second set"]
    assert unstaged["tried"] == [2, 1], "a part and the failure; then it is not tried again"
    assert unstaged["left"] == [False], "the memory of the second set is kept"


def test_a_part_takes_as_long_as_the_engine_was_away(found: dict[str, tuple[dict[str, Any], Expected]]) -> None:
    engines, _ = found[next(iter(CONFIGS))]
    assert engines["unstaged"]["parts"] == [3, 5]


def test_an_embedding_looks_up_alone_where_the_head_is_a_module_of_its_own(
    found: dict[str, tuple[dict[str, Any], Expected]],
) -> None:
    engines, _ = found[next(iter(CONFIGS))]
    assert engines["unstaged"]["lookups"] == [["model.embed_tokens"], []]


def test_the_hosted_bodies(lab: Lab, tmp_path: Path, found: dict[str, tuple[dict[str, Any], Expected]]) -> None:
    models = [*lab.models, *(random_model(MODEL, seed) for seed in (2, 3))]
    later = [publish(tmp_path / "weights", version, tensors(models[version])) for version in (2, 3)]
    updates = [*lab.updates, *later]

    async def scored() -> np.ndarray:
        for version in ORDER:
            await lab.engine.update_weights(updates[version])
        return await lab.engine.score(TOKENS)

    pushed = lab.run(scored())
    engines, (_, last) = found[MODEL]
    np.testing.assert_allclose(pushed, engines["fresh"], atol=1e-5)
    np.testing.assert_allclose(pushed, last, atol=1e-4)


@pytest.mark.timeout(480)
def test_smollm2(tmp_path: Path) -> None:
    model = smollm2_directory()
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    versions = []
    for _ in range(4):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=3e-4)
        versions.append({name: array.copy() for name, array in tensors(policy).items()})
    policy.save_pretrained(tmp_path / "fresh")
    run_alone("pushes", tmp_path, [job(tmp_path, model, tmp_path / "fresh", versions)], seconds=550)
    found = json.loads((tmp_path / "out.json").read_text())
    np.testing.assert_allclose(found["pushed"], found["fresh"], atol=1e-5)
    # the noise drives it to -28 nats and beyond, where float32 itself is some 3e-4 off
    np.testing.assert_allclose(found["pushed"], token_logprobs(policy, TOKENS), rtol=1e-3)
    assert found["parts"] == 3 * (found["tensors"] + 1)
