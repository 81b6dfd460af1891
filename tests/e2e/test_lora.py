"""An adapter through a whole run: killed, replayed, exported, gone on from, and refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from lives import Role, live_to_the_end
from program import assert_balanced, run, undocumented
from safetensors.numpy import load_file, save_file

RANK = 4
KEYS = (f"model.lora.rank={RANK}", "model.lora.alpha=8", "algorithm.kl.where=loss", "algorithm.kl.coef=0.01")
SCALE = 8 / RANK


def test_a_killed_run_keeps_its_adapter_and_goes_on_from_what_it_exports(tmp_path: Path, cache: Path) -> None:
    killed = tmp_path / "killed"
    live_to_the_end(killed, cache, KEYS, {"both": Role((), ("train:4", "publish:2", "checkpoint:2", ""))})
    assert_balanced(killed, groups=6 * 4)
    assert undocumented(killed) == []
    rows = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("parity/max_abs_logprob_gap", 0.0) for row in rows) < 1e-3, (
        "engines have the adapter on the base"
    )
    (manifest, *_) = (json.loads(file.read_text()) for file in (killed / "weights").glob("v6-*/manifest.json"))
    assert manifest["adapter"]["scale"] == SCALE
    assert len(manifest["tensors"]) == 2 * 7, "the factors of seven matrices, and nothing of the base"
    assert max(row.get("policy/kl_reference", 0.0) for row in rows) > 0, "the base is the reference"
    replayed = run(killed, cache, *KEYS, "mode=replay")
    assert "replayed to step 6: bit for bit the same" in replayed.stdout, replayed.stderr
    saved = json.loads((killed / "checkpoints" / "6" / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]
    params = {name for name in saved["checksums"] if name.startswith("params.")}
    words = ("query", "key", "value", "output", "gate", "up", "down")
    assert params == {f"params.layers.{word}.lora_{factor}" for word in words for factor in "ab"}
    assert not any("reference" in name for name in saved["checksums"])

    scaled = run(killed, cache, *(key.replace("alpha=8", "alpha=16") for key in KEYS), "max_steps=7")
    assert scaled.returncode == 2, scaled.stderr
    (line,) = (line for line in scaled.stderr.splitlines() if line.startswith("rljax: model.lora"))
    assert line.startswith("rljax: model.lora.alpha=16.0: the adapter of the checkpoint of step 6 in ")
    assert line.endswith("has others; write model.lora.alpha=8.0, or choose another run_dir")
    assert "Traceback" not in scaled.stderr

    exported = run(killed, cache, *KEYS, "mode=export", "checkpoint=6")
    assert exported.returncode == 0, exported.stderr
    merged, adapter = killed / "export" / "step_6", killed / "export" / "step_6_adapter"
    weights, base = load_file(merged / "model.safetensors"), load_file(killed / "model" / "model.safetensors")
    factors = load_file(adapter / "adapter_model.safetensors")
    module = "model.layers.0.mlp.down_proj"
    a, b = (factors[f"base_model.model.{module}.lora_{word}.weight"] for word in "AB")
    assert np.abs(b).max() > 0
    expected = base[f"{module}.weight"] + SCALE * b @ a
    np.testing.assert_allclose(weights[f"{module}.weight"], expected, atol=1e-6)
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"], base["model.embed_tokens.weight"])

    onward = tmp_path / "onward"
    began = (f"model.path={adapter}", "max_steps=2", "save_steps=1", "seed=1")
    assert run(onward, cache, *KEYS, *began).returncode == 0
    again = run(onward, cache, *KEYS, *began, "mode=export", "checkpoint=initial")
    assert again.returncode == 0, again.stderr
    first = load_file(onward / "export" / "step_0" / "model.safetensors")
    for name, tensor in first.items():
        np.testing.assert_allclose(tensor, weights[name], atol=1e-6, err_msg=name)
    other = run(tmp_path / "other", cache, f"model.path={adapter}", "model.lora.rank=8", "model.lora.alpha=8")
    assert other.returncode != 0
    assert f"model.lora.rank=8: the adapter in {adapter} has 4; write model.lora.rank=4" in other.stderr
    assert "Traceback" not in other.stderr

    name = f"{module}.weight"
    save_file(base | {name: base[name] + np.float32(0.01)}, killed / "model" / "model.safetensors")
    for keys in (("max_steps=7",), ("mode=replay",)):
        swapped = run(killed, cache, *KEYS, *keys)
        assert swapped.returncode != 0
        assert "is not the one that the adapter of the checkpoint of step " in swapped.stderr
        assert "Traceback" not in swapped.stderr


def test_trajectories_are_pinned_to_the_version_that_they_begin_with(tmp_path: Path, cache: Path) -> None:
    """With few slots for long trajectories, a version finds some of them under way."""
    run_dir = tmp_path / "run"
    pinned = ("sidecar.update_policy=pin", "async_generation_ratio=2.0", "max_steps=8", "sidecar.max_concurrency=6")
    long = ("model.tiny.characters=none", "model.max_response_tokens=120", "sidecar.decode_steps=1")
    done = run(run_dir, cache, *KEYS, *pinned, *long)
    assert done.returncode == 0, done.stderr
    assert_balanced(run_dir, groups=8 * 4)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][1:]
    assert [row["response/mixed_versions"] for row in rows] == [0.0] * 8
    assert max(row["staleness/max"] for row in rows) == 2
    assert max(row.get("parity/max_abs_logprob_gap", 0.0) for row in rows) < 1e-3
    refused = run(run_dir, cache, *pinned, "model.lora.rank=none")
    assert refused.returncode != 0
    assert "sidecar.update_policy=pin: engines hold several versions as adapters" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_adapter_that_nothing_would_read_or_that_no_model_has_is_refused_in_a_line(
    tmp_path: Path, cache: Path
) -> None:
    without = run(tmp_path / "without", cache, "model.lora.alpha=8")
    assert "model.lora.alpha=8.0: there is no adapter; write model.lora.rank=16, say, or leave it out" in without.stderr
    misspelt = run(tmp_path / "misspelt", cache, "model.lora.rank=4", "model.lora.targets=q_prj,v_proj")
    assert "model.lora.targets='q_prj': not one of all-linear, " in misspelt.stderr
    assert "did you mean q_proj?" in misspelt.stderr
    large = run(tmp_path / "large", cache, "model.lora.rank=64")
    assert "model.lora.rank=64: the model's matrices have at most 32, its width" in large.stderr
    assert not any((one.returncode == 0 or "Traceback" in one.stderr) for one in (without, misspelt, large))
