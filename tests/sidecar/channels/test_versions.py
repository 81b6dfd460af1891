"""A published version is read back exactly, or refused with a line that names what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax
import pytest
import tensorstore
from orbax.checkpoint import v1 as ocp

from rljax.weights.gathering import infos_of
from rljax.weights.publisher import OrbaxPublisher
from sidecar.channels import files
from sidecar.channels.files import read_version
from sidecar.channels.versions import MANIFEST_NAME, Manifest, VersionError, read_manifest
from tests.waiting import HANGS

DTYPES = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}


def tensors(dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "model.embed_tokens.weight": rng.normal(size=(17, 8)).astype(DTYPES[dtype]),
        "model.layers.0.self_attn.q_proj.weight": rng.normal(size=(8, 8)).astype(DTYPES[dtype]),
        "model.norm.weight": rng.normal(size=(8,)).astype(DTYPES[dtype]),
    }


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return Path(OrbaxPublisher(tmp_path).publish(3, 1, tensors("fp32"), model="tiny", dtype="fp32"))


def rewrite_manifest(path: Path, change) -> None:
    file = path / MANIFEST_NAME
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_reads_what_was_published_bit_by_bit(tmp_path, dtype):
    path = Path(OrbaxPublisher(tmp_path).publish(7, 2, tensors(dtype), model="some model", dtype=dtype))
    assert path.name == "v7-2"
    version = read_version(path)
    manifest = version.manifest
    assert (manifest.version, manifest.lineage, manifest.model, manifest.dtype) == (7, 2, "some model", dtype)
    assert set(version.tensors) == set(tensors(dtype))
    for name, array in tensors(dtype).items():
        assert version.tensors[name].dtype == DTYPES[dtype]
        np.testing.assert_array_equal(version.tensors[name].view(np.uint8), array.view(np.uint8))


def test_is_an_orbax_checkpoint(published):
    assert ocp.is_orbax_checkpoint(published)
    loaded = ocp.load(published)
    for name, array in tensors("fp32").items():
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_reads_what_orbax_itself_wrote(tmp_path, dtype):
    """As an rljax of before 2026-11-30 did: an explorer may load such a version before a resumed learner publishes."""
    path, given = tmp_path / "v3-1", tensors(dtype)
    arrays = orbax.PyTreeCheckpointHandler(use_zarr3=True, use_compression=False)
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler(state=arrays)) as checkpointer:
        checkpointer.save(path, orbax.args.Composite(state=orbax.args.PyTreeSave(given)))
    (path / MANIFEST_NAME).write_text(Manifest(3, 1, "", dtype, infos_of(given)).to_json())
    found = read_version(path)
    assert list(found.tensors) == list(given)
    assert all(found.tensors[name].tobytes() == array.tobytes() for name, array in given.items())


def test_needs_no_jax(published):
    code = (
        "import sys; from sidecar.channels.files import read_version; "
        f"assert len(read_version({str(published)!r}).tensors) == 3; "
        "assert not {'jax', 'torch', 'rljax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANGS)


def test_missing_version(tmp_path):
    for read in (read_manifest, read_version):
        with pytest.raises(VersionError, match=r"v9-1 is not there"):
            read(tmp_path / "v9-1")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 99}', '{"format": 1}', '{"format": 1, "tensors": {"a": 1}}']
)
def test_damaged_manifest(published, text):
    (published / MANIFEST_NAME).write_text(text)
    with pytest.raises(VersionError, match=MANIFEST_NAME):
        read_version(published)


def test_a_version_of_an_earlier_program_is_checked_by_its_own_checksums(published):
    def change(content):
        for name, array in tensors("fp32").items():
            content["tensors"][name]["checksum"] = f"crc32:{zlib.crc32(array.tobytes()):08x}"

    rewrite_manifest(published, change)
    np.testing.assert_array_equal(
        read_version(published).tensors["model.norm.weight"], tensors("fp32")["model.norm.weight"]
    )


def test_wrong_checksum_names_the_tensor(published):
    def change(content):
        content["tensors"]["model.norm.weight"]["checksum"] = "crc32:00000000"

    rewrite_manifest(published, change)
    with pytest.raises(VersionError, match=r"tensor model\.norm\.weight is corrupted"):
        read_version(published)


def test_wrong_shape_names_the_tensor(published):
    def change(content):
        content["tensors"]["model.norm.weight"]["shape"] = [4]

    rewrite_manifest(published, change)
    with pytest.raises(VersionError, match=r"tensor model\.norm\.weight is float32 \[8\], .* float32 \[4\]"):
        read_version(published)


def test_missing_tensor_is_named(published):
    def change(content):
        content["tensors"]["model.absent"] = content["tensors"]["model.norm.weight"]

    rewrite_manifest(published, change)
    with pytest.raises(VersionError, match=r"tensor model\.absent cannot be read"):
        read_version(published)


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_flipped_bit_or_truncation_in_any_data_file_is_seen(tmp_path, position):
    for damage in ("flip", "truncate", "remove"):
        path = Path(OrbaxPublisher(tmp_path / f"{damage}").publish(0, 1, tensors("fp32"), model="", dtype="fp32"))
        file = max((path / "state").rglob("d/*"), key=lambda f: f.stat().st_size)
        data = bytearray(file.read_bytes())
        data[int(len(data) * position)] ^= 0x10
        if damage == "flip":
            file.write_bytes(data)
        elif damage == "truncate":
            file.write_bytes(data[: int(len(data) * position)])
        else:
            file.unlink()
        with pytest.raises(VersionError):
            read_version(path)


def test_deleted_while_read(published, monkeypatch):
    def vanish(path, manifest):
        shutil.rmtree(path)
        return read_arrays(path, manifest)

    read_arrays = files._read_arrays
    monkeypatch.setattr(files, "_read_arrays", vanish)
    with pytest.raises(VersionError, match=r"v3-1 is not there: never published, or withdrawn in the meantime"):
        read_version(published)


def test_a_disk_that_hangs_is_not_waited_for_for_ever(published, monkeypatch):
    """Every store opens, and what is read from it never comes."""
    never = [tensorstore.Promise.new() for _ in range(3)]

    class Stuck:
        def __init__(self, future):
            self.future = future

        def read(self):
            return self.future

    opened = iter(tensorstore.Future(Stuck(future)) for _, future in never)
    monkeypatch.setattr(files, "READ_SECONDS", 0.05)
    monkeypatch.setattr(files.tensorstore, "open", lambda *_, **__: next(opened))
    with pytest.raises(VersionError, match=r"v3-1: tensor model.embed_tokens.weight was not read within 0.05 s"):
        read_version(published)
