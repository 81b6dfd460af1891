"""Weights outside of a run's loop: read when they are used, and on no device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.models.files import save_directory
from rljax.models.hf_names import to_hf
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.evaluate import weights_of
from tests.learner.made_up import ARCHITECTURE, make_config, make_params


@pytest.fixture
def model(tmp_path: Path) -> Model:
    tensors = {name: np.asarray(x) for name, x in to_hf(make_params(), ARCHITECTURE).items()}
    save_directory(tmp_path / "model", ARCHITECTURE, tensors, None, "bf16")
    return Model(tmp_path / "model", ARCHITECTURE, None, ())


def test_those_that_a_model_came_with_are_read_one_at_a_time(tmp_path: Path, model: Model) -> None:
    run: Any = SimpleNamespace(checkpoints=tmp_path / "checkpoints")
    expected = {name: np.array(x) for name, x in to_hf(make_params(), ARCHITECTURE).items()}
    found = weights_of(make_config(), run, model, 0)
    file = model.directory / "model.safetensors"
    content, before = file.read_bytes(), len(jax.live_arrays())
    for name, tensor in expected.items():
        array = np.asarray(found[name])
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, tensor.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert len(jax.live_arrays()) == before
    file.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or incomplete") as caught:
        np.asarray(found["model.norm.weight"])
    assert "\n" not in str(caught.value)


def test_those_of_a_checkpoint_are_on_the_host_alone_and_once(tmp_path: Path, model: Model) -> None:
    run: Any = SimpleNamespace(checkpoints=tmp_path / "checkpoints")
    checkpoints = Checkpoints(run.checkpoints, keep=1)
    checkpoints.save(2, Learner(make_config(), ARCHITECTURE, make_params(3)).state, {"lineage": 1})
    checkpoints.wait()
    before = len(jax.live_arrays())
    found = weights_of(make_config(), run, model, 2)
    assert len(jax.live_arrays()) == before
    for name, tensor in to_hf(make_params(3), ARCHITECTURE).items():
        array: Any = found[name]
        assert isinstance(array, np.ndarray)
        assert not array.flags.owndata, "a view of what was read"
        np.testing.assert_array_equal(array, np.asarray(tensor))
