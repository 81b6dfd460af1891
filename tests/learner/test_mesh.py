import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.models.transformer import abstract_params
from tests.classifiers import random_classifier, save
from tests.learner.eight_devices import EightDevices
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params
from tests.learner.mesh_worker import KERNELS
from tests.models.hf_models import tokens

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def devices() -> Iterator[EightDevices]:
    with contextlib.closing(EightDevices("mesh_worker")) as started:
        yield started


def test_loss_and_gradient_do_not_depend_on_the_mesh(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("layouts", tmp_path)
    assert {result["devices"] for result in outcome} == {1, 2, 4, 6, 8}
    assert sum(result["sequence_parallel"] for result in outcome) == 4
    for result in outcome:
        assert result["loss"] < 1e-5, result
        assert result["gradient"] < 1e-5, result
        sharded = {"fsdp", "tensor"} & set(result["layout"])
        assert bool(result["cut"]) == bool(sharded), "fsdp and tensor cut the parameters, data does not"


def test_the_embedding_gradient_counts_every_token_under_every_mesh(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("embedding", tmp_path)
    assert {str(result["layout"]) for result in outcome} >= {"{}", "{'fsdp': 8}", "{'data': 8}", "{'tensor': 8}"}
    for result in outcome:
        assert result["most"] > 1024, "beyond what a bf16 sum of ones reaches"
        assert result["error"] == 0, result
        assert not (result["whole"] and "fsdp" in result["layout"]), "each device adds up its columns alone"


def test_what_a_step_logs_does_not_depend_on_the_mesh(devices: EightDevices, tmp_path: Path) -> None:
    for result in devices.ask("objectives", tmp_path):
        for one, eight in zip(result["one"], result["eight"], strict=True):
            assert one.keys() == eight.keys()
            for name, value in one.items():
                assert eight[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (result["keys"], name)


def test_sequence_parallelism_keeps_a_part_of_each_row_on_a_device(devices: EightDevices, tmp_path: Path) -> None:
    alone, parallel = devices.ask("streams", tmp_path)
    # of 8 rows of 48 places: 4 rows over `fsdp`, 48 / 4 places over `tensor`
    assert alone["kept"] == [[4, 48]]
    assert parallel["kept"] == [[4, 12]]


def test_gradients_of_weights_are_reduced_in_the_dtype_that_the_config_says(
    devices: EightDevices, tmp_path: Path
) -> None:
    narrow, wide = devices.ask("reductions", tmp_path)
    params = abstract_params(ARCHITECTURE)
    assert narrow["narrow"] >= len(jax.tree.leaves(params["layers"]))
    assert wide["narrow"] == 0
    assert wide["wide"] >= len(jax.tree.leaves(params))


def test_a_checkpoint_of_eight_devices_is_restored_onto_one(devices: EightDevices, tmp_path: Path) -> None:
    (metrics,) = devices.ask("save", tmp_path)
    learner = Learner(make_config(), ARCHITECTURE, make_params(1))
    learner.restore(Checkpoints(tmp_path / "checkpoints", keep=1), 1)
    saved = np.load(tmp_path / "state.npz")
    leaves = jax.tree.leaves(learner.state)
    assert len(leaves) == len(saved.files)
    for leaf, name in zip(leaves, saved.files, strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), saved[name])
    assert learner.steps == 1
    params = Checkpoints(tmp_path / "checkpoints", keep=1).restore_params(1, abstract_params(ARCHITECTURE))
    for leaf, expected in zip(jax.tree.leaves(params), jax.tree.leaves(learner.state.params), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(expected))
    # and what eight devices computed is what one does
    alone = Learner(make_config(), ARCHITECTURE, make_params())
    assert alone.train(make_groups(0))["loss"] == pytest.approx(metrics["loss"], rel=1e-5)


def test_attention_does_not_depend_on_the_mesh(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("bodies", tmp_path)
    assert [result["layout"] for result in outcome if not result["window"]] == KERNELS
    assert [result["layout"] for result in outcome if result["window"]] == KERNELS
    for result in outcome:
        for name in ("chosen", "splash", "triton"):
            assert result[name] < 1e-5, result


def test_every_mesh_of_accelerators_gets_their_kernel_and_no_array_of_a_row_squared(
    devices: EightDevices, tmp_path: Path
) -> None:
    outcome = devices.ask("lowered", tmp_path)
    assert len(outcome) == (17 if jax.__version_info__ < (0, 12) else 13)
    for result in outcome:
        target = result["target"]
        slow_gpu = target["platform"] == "gpu" and (target["capability"] < 8 or target.get("dtype") == "fp32")
        kernel = "none" if slow_gpu else {"gpu": "triton", "tpu": "splash"}[target["platform"]]
        assert result["kernel"] == kernel, result
        assert not result["squares"], result
        # By itself JAX has a TPU round float32 to bf16 before it multiplies, and a GPU to TF32.
        assert result["exact"] == (result["products"] if target.get("dtype") == "fp32" else 0), result
        assert result["products"] > 20
        if target["platform"] == "gpu":
            assert not result["scatters"], "one that is deterministic adds one number after the other there"


def test_a_vocabulary_that_is_cut_is_whole_on_no_device(devices: EightDevices, tmp_path: Path) -> None:
    assert devices.ask("vocabulary", tmp_path) == [{"whole": False, "part": True, "at_once": True}]


def test_a_reward_model_that_is_cut_over_devices_scores_as_transformers_does(
    devices: EightDevices, tmp_path: Path
) -> None:
    model, rows = random_classifier("qwen2-untied", bias=True), tokens(8, 40)
    lengths = np.asarray([1, 40, 7, 24, 3, 33, 16, 2], np.int32)
    directory = save(model, tmp_path / "model")
    np.save(directory / "rows.npy", rows)
    np.save(directory / "lengths.npy", lengths)
    with torch.no_grad():
        alone = [torch.from_numpy(row[None, :n].astype(np.int64)) for row, n in zip(rows, lengths, strict=True)]
        expected = [model(row).logits.item() for row in alone]
    np.testing.assert_allclose(devices.ask("score", directory), expected, rtol=1e-5, atol=1e-5)
