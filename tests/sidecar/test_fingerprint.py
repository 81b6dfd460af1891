"""Which weights are the same model's: random models as transformers writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from rljax.models.files import stored_tensors
from sidecar.fingerprint import fingerprint
from tests.models.hf_models import random_model, save, shared_model


def of(directory: Path) -> str:
    return fingerprint(stored_tensors(directory))


def test_files_and_their_order_do_not_count(tmp_path: Path) -> None:
    one = save(shared_model("llama-untied"), tmp_path / "one")
    shards = save(shared_model("llama-untied"), tmp_path / "shards", max_shard_size="30KB")
    assert len(list(shards.glob("model-*-of-*.safetensors"))) > 2
    tensors = load_file(one / "model.safetensors")
    assert of(one) == of(shards) == fingerprint(dict(reversed(tensors.items())))


def test_it_stays_what_adapters_and_checkpoints_have_written() -> None:
    """The SHA-256 of ``a [3] float32 crc32:30c8bc70 ``, by hashlib; the CRC-32, by binascii, is of 0, 1 and 2."""
    assert fingerprint({"a": np.arange(3, dtype=np.float32)}) == "583ad73891af6ea2"


def test_other_numbers_names_and_dtypes_count(tmp_path: Path) -> None:
    model = save(shared_model("llama-untied"), tmp_path / "model")
    found = {of(model), of(save(random_model("llama-untied", seed=1), tmp_path / "seed"))}
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    changed = tensors[name].copy()
    changed[-1, -1] = np.nextafter(changed[-1, -1], np.float32(np.inf))
    found.add(fingerprint(tensors | {name: changed}))
    found.add(fingerprint({("other" if key == name else key): value for key, value in tensors.items()}))
    save_file({key: value.astype(np.float16) for key, value in tensors.items()}, model / "model.safetensors")
    found.add(of(model))
    assert len(found) == 5


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    model = save(shared_model("llama-untied"), tmp_path / "model")
    tensors, before = load_file(model / "model.safetensors"), of(model)
    assert of(model) == before
    tensors["model.embed_tokens.weight"][5, 3] += 1
    save_file(tensors, model / "model.safetensors")
    assert of(model) != before


def test_bfloat16_is_read(tmp_path: Path) -> None:
    model = random_model("llama-untied")
    wide = of(save(model, tmp_path / "fp32"))
    assert of(save(model.bfloat16(), tmp_path / "bf16")) != wide
