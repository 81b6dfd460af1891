"""Versions that several hosts write, each a part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.learner.hosts import HostsError
from rljax.weights import arrays
from rljax.weights.gathering import Tensors
from rljax.weights.parts import PartWriter, owners
from rljax.weights.publisher import OrbaxPublisher, PublishError, SharedTensors
from sidecar.channels.files import read_version
from sidecar.channels.versions import TensorInfo, VersionError, part_directory

WHOLE = {name: np.full((64, 64), size, np.float32) for size, name in enumerate("abcdefg", start=1)}


class OfTwo(SharedTensors):
    """Tensors every other of which another host writes; in this process."""

    def __init__(self) -> None:
        self._theirs = list(WHOLE)[1::2]

    def own(self, beside: Path) -> Tensors:
        self._beside = beside
        return {name: array for name, array in WHOLE.items() if name not in self._theirs}

    def others(self) -> Mapping[str, TensorInfo]:
        writer = PartWriter(part_directory(self._beside, 1), 1, self._theirs, "fp32")
        for name in self._theirs:
            writer.put({name: WHOLE[name]})
        return writer.close()

    def __getitem__(self, name: str) -> Any:
        return WHOLE[name]

    def __iter__(self) -> Iterator[str]:
        return iter(WHOLE)

    def __len__(self) -> int:
        return len(WHOLE)


def test_a_version_of_two_hosts_is_read_as_one(tmp_path: Path) -> None:
    path = Path(OrbaxPublisher(tmp_path).publish(3, 1, OfTwo(), model="m", dtype="fp32"))
    published = read_version(path)
    assert list(published.tensors) == list(WHOLE)
    for name, array in WHOLE.items():
        np.testing.assert_array_equal(published.tensors[name], array)
    assert [info.part for info in published.manifest.tensors.values()] == [0, 1, 0, 1, 0, 1, 0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["v3-1"], "nothing unfinished is left"


def test_where_another_host_fails_nothing_more_is_asked_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang there. What is left is swept before its successor writes."""

    class Failing(OfTwo):
        def others(self) -> Mapping[str, TensorInfo]:
            raise HostsError("host 1: its disk hangs")

    channel = OrbaxPublisher(tmp_path)
    with monkeypatch.context() as hanging:
        hanging.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("the disk is asked"))
        with pytest.raises(HostsError, match="its disk hangs"):
            channel.publish(3, 1, Failing(), model="m", dtype="fp32")
    assert channel.published() == []
    again = OrbaxPublisher(tmp_path)
    again.publish(3, 2, OfTwo(), model="m", dtype="fp32")
    assert [entry.name for entry in tmp_path.iterdir()] == ["v3-2"], "a successor makes room before it writes"


def test_what_host_0_gives_up_takes_no_room_of_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host 1 may be writing its part as host 0's disk is full, so that nothing is removed beneath it."""
    begun = arrays._begun

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def with_room(*given: Any) -> Any:
        assert len(list(tmp_path.iterdir())) == 1, "its own draft alone"
        return begun(*given)

    for lineage in (1, 2):
        monkeypatch.setattr(arrays, "_begun", full)
        with pytest.raises(PublishError, match="No space left on device; free disk space"):
            OrbaxPublisher(tmp_path).publish(3, lineage, OfTwo(), model="m", dtype="fp32")
        assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(arrays, "_begun", with_room)
    OrbaxPublisher(tmp_path).publish(3, 3, OfTwo(), model="m", dtype="fp32")
    assert [entry.name for entry in tmp_path.iterdir()] == ["v3-3"]


@pytest.mark.parametrize("failure", [MemoryError(), KeyError("c"), RuntimeError("Gloo AllReduce failed")])
def test_a_host_alone_leaves_nothing_whatever_fails(tmp_path: Path, failure: Exception) -> None:
    class Failing(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise failure

    with pytest.raises((PublishError, type(failure))):
        OrbaxPublisher(tmp_path).publish(3, 1, Failing(WHOLE), model="m", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = Path(OrbaxPublisher(tmp_path).publish(3, 1, OfTwo(), model="m", dtype="fp32"))
    file = max((part_directory(path, 1) / "state").rglob("d/*"), key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(VersionError, match=r"tensor [bdf]"):
        read_version(path)


def test_a_part_that_cannot_be_written_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    writer = PartWriter(tmp_path / "file" / "part1", 1, list(WHOLE), "fp32")
    for name, array in WHOLE.items():  # more than may wait to be written
        writer.put({name: array})
    with pytest.raises(PublishError, match=r"part1 cannot be written: .*; free disk space or choose another run_dir"):
        writer.close()


def test_a_part_that_host_0_gives_up_is_not_waited_for(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "part1", 1, list(WHOLE), "fp32")
    writer.put({"a": WHOLE["a"]})
    with pytest.raises(PublishError, match="given up"):
        writer.close()


def test_hosts_write_about_as_much_each() -> None:
    """By hand: the second has less until its third unit, of 12 in all."""
    assert owners([10, 4, 4, 4, 4], 2) == [0, 1, 1, 1, 0]
    assert owners([7], 4) == [0]
