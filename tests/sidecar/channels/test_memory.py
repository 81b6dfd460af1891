"""Versions in memory: the same arrays, checked, gone when withdrawn or when their holder is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rljax.weights import memory as weights
from rljax.weights.memory import MemoryPublisher, RayPublisher, SharedDevicePublisher, is_on_accelerator
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels import chains
from sidecar.channels import memory as received
from sidecar.channels.files import read_version
from sidecar.channels.memory import packed, unpacked
from sidecar.channels.versions import VersionError, VersionGoneError, is_address, receive
from tests.waiting import HANGS, until

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.full((3,), 0.5, np.float32),
    "scalar": np.array(2.5, np.float32),
}


def publish(channel, version=3, lineage=1, tensors=TENSORS, dtype="fp32"):
    return channel.publish(version, lineage, tensors, model="tiny", dtype=dtype)


def test_engines_see_the_very_arrays(tmp_path: Path) -> None:
    address = publish(MemoryPublisher(tmp_path))
    assert is_address(address)
    found = receive(address)
    assert (found.manifest.version, found.manifest.lineage, found.manifest.dtype) == (3, 1, "fp32")
    assert all(np.shares_memory(found.tensors[name], array) for name, array in TENSORS.items())
    assert not list(tmp_path.iterdir())


def test_arrays_of_the_learner_are_not_copied_on_a_cpu(tmp_path: Path) -> None:
    array = jnp.arange(8, dtype=jnp.bfloat16)
    found = receive(publish(MemoryPublisher(tmp_path), tensors={"a": array}, dtype="bf16")).tensors["a"]
    assert found.ctypes.data == array.unsafe_buffer_pointer()
    assert found.dtype == ml_dtypes.bfloat16


def test_arrays_of_an_accelerator_stay_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the one device of learner and engine a version is handed over, not copied by way of the host."""
    tensors = {name: jnp.asarray(array) for name, array in TENSORS.items()}
    assert not any(is_on_accelerator(array) for array in (*tensors.values(), *TENSORS.values())), "a CPU is none"
    monkeypatch.setattr(weights, "is_on_accelerator", lambda array: isinstance(array, jax.Array))
    monkeypatch.setattr(jax, "device_get", lambda _: pytest.fail("it went by way of the host"))
    found = receive(publish(MemoryPublisher(tmp_path), tensors=tensors))
    assert all(found.tensors[name] is array for name, array in tensors.items())
    assert {name: (t.shape, t.dtype) for name, t in found.manifest.tensors.items()} == {
        "a": ((2, 3), "float32"),
        "b": ((3,), "float32"),
        "scalar": ((), "float32"),
    }
    with pytest.raises(PublishError, match="tensor a is float32, to be published as bf16"):
        publish(MemoryPublisher(tmp_path), tensors=tensors, dtype="bf16")


def test_the_newest_version_is_on_the_accelerator_and_all_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines in the learner's process read no file, those of other processes do."""
    moved: list[jax.Array] = []
    publish_files = OrbaxPublisher.publish

    def watched(self: OrbaxPublisher, version: int, lineage: int, tensors: Any, **named: str) -> str:
        moved.extend(tensors.values())
        return publish_files(self, version, lineage, tensors, **named)

    monkeypatch.setattr(OrbaxPublisher, "publish", watched)
    channel = SharedDevicePublisher(tmp_path)
    versions = [{name: jnp.asarray(array) + number for name, array in TENSORS.items()} for number in range(2)]
    first, second = (publish(channel, number, tensors=tensors) for number, tensors in enumerate(versions))
    assert all(receive(second).tensors[name] is array for name, array in versions[1].items())
    stay = {id(array) for tensors in versions for array in tensors.values()}
    assert stay.isdisjoint(map(id, moved)), "JAX would keep them on the host as well"
    for path, tensors in zip((first, second), versions, strict=True):
        for read in (read_version, receive):
            for name, array in read(path).tensors.items():
                np.testing.assert_array_equal(array, tensors[name])
    assert isinstance(receive(first).tensors["a"], np.ndarray), "the one before would take the device's memory"
    channel.delete(1, 1)
    with pytest.raises(VersionGoneError):
        receive(second)
    third = publish(channel, 2, tensors=versions[0])
    channel.close()
    assert isinstance(receive(third).tensors["a"], np.ndarray)


def test_where_the_device_has_no_room_for_a_version_engines_read_the_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(UserDict[str, Any]):
        """A learner's weights, whose last layers find no room while the first are kept."""

        def keys(self) -> Any:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")

    tensors = Full(TENSORS)
    channel = SharedDevicePublisher(tmp_path)
    for number in (3, 4):
        found = receive(publish(channel, number, tensors=tensors)).tensors
        assert all(isinstance(array, np.ndarray) for array in found.values())
    assert [record.message for record in caplog.records] == [
        "the device has no room for a version beside the engine's: engines read the files"
    ]


def test_a_version_that_somebody_wrote_to_is_refused(tmp_path: Path) -> None:
    tensors = {name: array.copy() for name, array in TENSORS.items()}
    address = publish(MemoryPublisher(tmp_path), tensors=tensors)
    tensors["a"][1, 2] = 7.0
    with pytest.raises(VersionError, match="tensor a is corrupted") as refused:
        receive(address)
    assert not isinstance(refused.value, VersionGoneError)


def test_a_version_is_gone_once_withdrawn_or_once_its_publisher_is(tmp_path: Path) -> None:
    channel = MemoryPublisher(tmp_path)
    first, second = publish(channel, 1), publish(channel, 2)
    channel.delete(1, 1)
    channel.delete(1, 1)
    with pytest.raises(VersionGoneError, match="v1-1 is not in this process"):
        receive(first)
    held = receive(second)
    channel.close()
    with pytest.raises(VersionGoneError):
        receive(second)
    assert held.tensors["b"].tolist() == [0.5] * 3
    assert publish(MemoryPublisher(tmp_path), 2) != second, "what an earlier process announced is not mistaken"


def test_what_an_explorer_published_as_files_is_deleted_as_well(tmp_path: Path) -> None:
    directory = publish(OrbaxPublisher(tmp_path), 0, 0)
    receive(directory)
    MemoryPublisher(tmp_path).delete(0, 0)
    with pytest.raises(VersionGoneError):
        receive(directory)


def test_a_wrong_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="tensor a is float32, to be published as bf16"):
        publish(MemoryPublisher(tmp_path), dtype="bf16")


def test_plain_bytes_become_the_same_version_without_a_copy(tmp_path: Path) -> None:
    made = receive(publish(MemoryPublisher(tmp_path)))
    names, manifest = list(TENSORS), made.manifest
    parts = [packed({name: made.tensors[name] for name in some}) for some in (names[:1], names[1:])]
    found = unpacked(manifest, parts, "here")
    for name, array in TENSORS.items():
        assert np.shares_memory(found[name], array)
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape
    with pytest.raises(VersionError, match="here: tensor b does not fit"):
        unpacked(manifest, [*parts, {"b": np.zeros(5, np.uint8)}], "here")
    with pytest.raises(VersionError, match="here: tensor a does not fit"):
        unpacked(manifest, parts[1:], "here")


class Engine:
    """What an engine's process does with an address."""

    def read(self, address: str) -> tuple[float, bool]:
        tensors = receive(address).tensors
        return float(sum(array.astype(np.float32).sum() for array in tensors.values())), tensors["a"].flags.writeable

    def gone(self, address: str) -> bool:
        try:
            receive(address)
        except VersionGoneError:
            return True
        return False


@pytest.fixture(scope="module")
def ray():
    """A cluster of this machine, and a driver in it."""
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_ray_is_needed_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="joined no Ray cluster"):
        RayPublisher(tmp_path)


def test_ray_carries_a_version_to_another_process(ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ray.remote(num_cpus=0)(Engine).remote()
    channel = RayPublisher(tmp_path)
    large = np.arange(2**18, dtype=np.float32).astype(ml_dtypes.bfloat16)
    tensors = {"a": large, "b": np.ones(3, ml_dtypes.bfloat16)}
    expected = float(sum(array.astype(np.float32).sum() for array in tensors.values()))
    first, second = (publish(channel, v, tensors=tensors, dtype="bf16") for v in (1, 2))
    # what lies in the store is read-only; a copy of it would be writeable
    assert ray.get(engine.read.remote(first), timeout=HANGS) == (expected, False)
    channel.delete(1, 1)
    assert ray.get(engine.gone.remote(first), timeout=HANGS)
    assert ray.get(engine.read.remote(second), timeout=HANGS)[0] == expected
    late = []
    monkeypatch.setattr(ray, "kill", late.append)
    channel.close()
    assert ray.get(engine.gone.remote(second), timeout=HANGS)
    monkeypatch.undo()
    ray.kill(*late)


def of_changes(count: int) -> list[dict[str, np.ndarray]]:
    """Versions in bfloat16, each with one value of each tensor changed, the first by one, the next by two, …"""
    made = [{"a": np.zeros((64, 32), ml_dtypes.bfloat16), "b": np.ones(700, ml_dtypes.bfloat16)}]
    for version in range(1, count):
        made.append({name: array.copy() for name, array in made[-1].items()})
        for array in made[-1].values():
            array.reshape(-1)[version * 30] += version
    return made


def test_ray_carries_what_has_changed(ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, given = RayPublisher(tmp_path, deltas=2), of_changes(5)
    addresses, sent = [], []
    for version, tensors in enumerate(given):
        addresses.append(publish(channel, version, tensors=tensors, dtype="bf16"))
        sent.append((channel.metrics["publish/whole"], channel.metrics["publish/bytes"]))
        read = receive(addresses[-1])  # by the one before
        assert all(read.tensors[name].tobytes() == array.tobytes() for name, array in tensors.items())
        if version in (1, 2, 4):
            assert read.manifest.base == (version - 1, 1)
    # A byte of gap for each 255 values, one more, and two of value: 1 + 2, twice; of the whole 2 × (64 × 32 + 700).
    assert sent[:2] == [(1.0, 5496.0), (0.0, 6.0)]
    assert [whole for whole, _ in sent] == [1, 0, 0, 1, 0]
    joined = ray.remote(num_cpus=0)(Engine).remote()  # back to version 3, which is whole
    assert ray.get(joined.read.remote(addresses[4]), timeout=HANGS)[0] == 700 + 2 * (1 + 2 + 3 + 4)
    monkeypatch.setattr(received._Objects, "arrays", lambda _, where, __: pytest.fail(f"{where} was read whole"))
    given.append({name: array + np.array(array == 1, array.dtype) for name, array in given[-1].items() if name == "a"})
    given[-1]["b"] = given[-2]["b"]
    newest = publish(channel, 5, tensors=given[5], dtype="bf16")
    assert receive(newest).tensors["a"].tobytes() == given[5]["a"].tobytes()
    channel.close()


def test_what_a_kept_version_was_written_against_stays_in_the_store(ray, tmp_path: Path) -> None:
    channel = RayPublisher(tmp_path, deltas=8)
    addresses = [publish(channel, v, tensors=t, dtype="bf16") for v, t in enumerate(of_changes(4))]
    engine = ray.remote(num_cpus=0)(Engine).remote()
    channel.prune({(2, 1)}, 1)
    assert ray.get(engine.gone.remote(addresses[3]), timeout=HANGS)
    assert ray.get(engine.read.remote(addresses[2]), timeout=HANGS)[0] == 700 + 2 * (1 + 2)
    # 3 is not there to be written against
    assert read_base(publish(channel, 4, tensors=of_changes(5)[4], dtype="bf16")) is None
    channel.delete(0, 1)
    chains._last.clear()
    with pytest.raises(VersionError, match="v2-1 has what changed since v0-1, which is not there; load a version that"):
        receive(addresses[2])
    channel.prune((), 1)
    assert all(ray.get(engine.gone.remote(address), timeout=HANGS) for address in addresses)
    channel.close()


def read_base(address: str) -> tuple[int, int] | None:
    return received._Objects().manifest(address).base


@pytest.mark.parametrize("passing", ["ActorUnavailableError", "ObjectFetchTimedOutError"])
def test_what_ray_may_still_have_is_not_gone(
    ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: str
) -> None:
    address = publish(channel := RayPublisher(tmp_path))
    error = {
        "ActorUnavailableError": lambda: ray.exceptions.ActorUnavailableError("not now", None),
        "ObjectFetchTimedOutError": lambda: ray.exceptions.ObjectFetchTimedOutError("0" * 56, "", ""),
    }[passing]()

    def not_now(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(ray, "get", not_now)
        with pytest.raises(VersionError, match=f"{address} was not handed over by Ray: .*; look at the clu") as refused:
            receive(address)
    assert not isinstance(refused.value, VersionGoneError)
    channel.close()


def test_after_a_version_that_the_store_did_not_take_the_next_is_whole(
    ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, given = RayPublisher(tmp_path, deltas=8), of_changes(3)
    publish(channel, 0, tensors=given[0], dtype="bf16")

    def full(*_: object) -> None:
        raise ray.exceptions.ObjectStoreFullError("full")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(PublishError, match=r"v1-1 cannot be put into Ray's object store: .*give the store more memory"):
        publish(channel, 1, tensors=given[1], dtype="bf16")
    monkeypatch.undo()
    assert read_base(publish(channel, 1, tensors=given[1], dtype="bf16")) is None
    assert read_base(publish(channel, 2, tensors=given[2], dtype="bf16")) == (1, 1)
    channel.close()


LEARNER = """
import sys
from pathlib import Path
import numpy as np
import ray
from rljax.weights.memory import RayPublisher
ray.init(address=sys.argv[2], configure_logging=False, log_to_driver=False)
tensors = {"a": np.ones(10**6, np.float32)}
publisher = RayPublisher(Path(sys.argv[1]))
print(publisher.publish(1, 1, tensors, model="", dtype="fp32"), flush=True)
sys.stdin.read()
"""


def test_a_learner_of_another_job_takes_its_versions_with_it(ray, tmp_path: Path) -> None:
    engine = ray.remote(num_cpus=0)(Engine).remote()
    command = [sys.executable, "-c", LEARNER, str(tmp_path), ray.get_runtime_context().gcs_address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as learner:
        address = learner.stdout.readline().strip()
        assert ray.get(engine.read.remote(address), timeout=HANGS)[0] == 10**6
        learner.send_signal(signal.SIGKILL)
    until(lambda: ray.get(engine.gone.remote(address), timeout=HANGS))  # as soon as Ray has seen it
