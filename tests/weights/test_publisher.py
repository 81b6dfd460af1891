"""Versions appear whole or not at all, and go when they are withdrawn."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rljax.observe import parts
from rljax.weights import arrays, publisher
from rljax.weights.memory import MemoryPublisher
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels.files import read_version
from sidecar.channels.versions import VersionError
from sidecar.checksum import checksum
from sidecar.stored import DamagedFileError, StoredTensor
from tests.waiting import HANGS
from tests.weights.given import TENSORS, Failing

CRASH = """
import os, signal, sys
from pathlib import Path
import numpy as np
from rljax.weights import arrays, gathering, publisher
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "after the arrays":
    Path.write_text = die
elif sys.argv[2] == "before the rename":
    Path.rename = die
else:
    gathering.GROUP_BYTES = 1
    gathered = arrays.gathered
    def first(*arguments):
        yield next(gathered(*arguments))
        die()
    arrays.gathered = first
tensors = {name: np.ones((3, 4), np.float32) for name in "ab"}
publisher.OrbaxPublisher(Path(sys.argv[1])).publish(5, 2, tensors, model="", dtype="fp32")
"""


@pytest.mark.parametrize("moment", ["among the arrays", "after the arrays", "before the rename"])
def test_a_crash_leaves_nothing_visible(tmp_path, moment):
    OrbaxPublisher(tmp_path).publish(4, 2, TENSORS, model="", dtype="fp32")
    end = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), moment], timeout=HANGS)
    assert end.returncode == -signal.SIGKILL
    with pytest.raises(VersionError, match="not there"):
        read_version(tmp_path / "v5-2")
    assert len(list(tmp_path.iterdir())) == 2  # what the crash left, hidden
    again = OrbaxPublisher(tmp_path)
    again.prune({(4, 2)}, lineage=3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["v4-2"]
    assert again.published() == [(4, 2)]
    read_version(tmp_path / "v4-2")


def test_gathering_and_checksums_are_noted_whoever_does_them(tmp_path, monkeypatch):
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    for channel in (OrbaxPublisher(tmp_path), MemoryPublisher(tmp_path)):
        found = []
        with parts.recorded(lambda name, begin, end, found=found: found.append((name, end - begin))):
            channel.publish(5, 2, TENSORS, model="", dtype="fp32")
        names = [name for name, _ in found]
        assert names.count(parts.GATHER) == len(TENSORS)
        assert parts.CHECKSUM in names
        assert all(seconds >= 0 for _, seconds in found)


def test_a_tensor_that_fails_in_mid_version_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    with pytest.raises(PublishError, match=r"version 5 cannot be published to .*: out of memory; "):
        OrbaxPublisher(tmp_path).publish(5, 2, Failing(TENSORS), model="", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_a_successor_removes_is_not_published(tmp_path, monkeypatch):
    """What is written after that would make the directory anew, without the arrays of before."""
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    begun = arrays._begun

    def replaced_meanwhile(*given):
        writing = begun(*given)
        writing.result()
        if "a" in given[1]:
            OrbaxPublisher(tmp_path).prune((), lineage=2)
        return writing

    monkeypatch.setattr(arrays, "_begun", replaced_meanwhile)
    with pytest.raises(PublishError, match=r"^version 5 is not published to .*v5-1: .* was removed .*taken over\?$"):
        OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, tensors, dtype):
        Path(path).mkdir()
        raise OSError(28, "No space left on device")

    channel = OrbaxPublisher(tmp_path)
    monkeypatch.setattr(publisher, "write_arrays", full)
    with pytest.raises(
        PublishError, match=r"version 1 cannot be published to .*v1-1: .*No space left.*; free"
    ) as error:
        channel.publish(1, 1, TENSORS, model="", dtype="fp32")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flipped", "cut"])
@pytest.mark.parametrize("channel", [OrbaxPublisher, MemoryPublisher])
def test_a_damaged_file_of_the_model_is_what_is_named(tmp_path, channel, damage):
    """The disk is not full: to free space would not help."""
    file = tmp_path / "model" / "model.safetensors"
    file.parent.mkdir()
    save_file({"a": np.asarray(TENSORS["a"])}, file)
    if damage == "flipped":
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    else:
        file.write_bytes(file.read_bytes()[:-1])
    stored = StoredTensor(file, "a", (2, 3), checksum(np.asarray(TENSORS["a"])))
    with pytest.raises(DamagedFileError) as error:
        channel(tmp_path / "weights").publish(1, 1, {"a": stored}, model="", dtype="fp32")
    what_to_do = {"flipped": "put a copy in its place, or remove", "cut": "fetch it again"}[damage]
    assert str(error.value).startswith(f"{file} is damaged")
    assert what_to_do in str(error.value)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "weights").iterdir()) == []


def test_an_unusable_directory_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match=r"file/weights cannot be used for weights"):
        OrbaxPublisher(tmp_path / "file" / "weights")


def test_versions_of_one_process_are_written_at_once(tmp_path, monkeypatch):
    """Such as the learner's first and a judge's: neither waits for the other."""
    both, gathered = threading.Barrier(2), arrays.gathered

    def together(*given):
        both.wait(HANGS)
        yield from gathered(*given)

    monkeypatch.setattr(arrays, "gathered", together)
    with ThreadPoolExecutor(2) as pool:
        publishers = [OrbaxPublisher(tmp_path / name) for name in ("learner", "judge")]
        paths = list(pool.map(lambda one: one.publish(0, 0, TENSORS, model="tiny", dtype="fp32"), publishers))
    for path in paths:
        np.testing.assert_array_equal(read_version(path).tensors["a"], np.asarray(TENSORS["a"]))


def test_what_is_being_written_ends_before_a_failure_is_told(tmp_path, monkeypatch):
    """Else it would write into a directory that is being removed."""
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    ended, begun = [], arrays._begun

    class Writing:
        def __init__(self, future):
            self.future = future

        def result(self, timeout):
            self.future.result(timeout=timeout)
            ended.append(1)

    monkeypatch.setattr(arrays, "_begun", lambda *given: Writing(begun(*given)))
    with pytest.raises(PublishError, match="out of memory"):
        OrbaxPublisher(tmp_path).publish(5, 1, Failing(TENSORS), model="", dtype="fp32")
    assert ended == [1]


def test_publishing_again_replaces(tmp_path):
    channel = OrbaxPublisher(tmp_path)
    channel.publish(1, 1, TENSORS, model="", dtype="fp32")
    path = channel.publish(1, 1, {"a": TENSORS["a"] + 1}, model="", dtype="fp32")
    assert set(read_version(path).tensors) == {"a"}
    np.testing.assert_array_equal(read_version(path).tensors["a"], np.asarray(TENSORS["a"]) + 1)


def test_publishing_the_same_again_leaves_the_first_in_place(tmp_path):
    path = OrbaxPublisher(tmp_path).publish(0, 0, TENSORS, model="", dtype="fp32")
    before = Path(path).stat().st_ino
    assert OrbaxPublisher(tmp_path).publish(0, 0, TENSORS, model="", dtype="fp32") == path
    assert Path(path).stat().st_ino == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["v0-0"]


def test_what_a_later_lineage_writes_is_left_alone(tmp_path):
    channel = OrbaxPublisher(tmp_path)
    later = channel.publish(9, 3, TENSORS, model="", dtype="fp32")
    work = channel._hidden(3)
    work.mkdir()
    channel._hidden(2).mkdir()
    channel.publish(9, 2, TENSORS, model="", dtype="fp32")
    OrbaxPublisher(tmp_path).prune((), lineage=2)
    assert {entry.name for entry in tmp_path.iterdir()} == {Path(later).name, work.name}


def test_delete_and_prune(tmp_path):
    channel = OrbaxPublisher(tmp_path)
    for version, lineage in [(0, 1), (1, 1), (10, 1), (1, 2)]:
        channel.publish(version, lineage, TENSORS, model="", dtype="fp32")
    assert channel.published() == [(0, 1), (1, 1), (1, 2), (10, 1)]
    channel.delete(0, 1)
    channel.delete(0, 1)
    assert channel.published() == [(1, 1), (1, 2), (10, 1)]
    channel.prune({(1, 2), (10, 1), (99, 9)}, lineage=2)
    assert channel.published() == [(1, 2), (10, 1)]
    assert {entry.name for entry in tmp_path.iterdir()} == {"v1-2", "v10-1"}


def test_dtype_must_be_what_it_is_said_to_be(tmp_path):
    channel = OrbaxPublisher(tmp_path)
    with pytest.raises(ValueError, match="tensor a is float32, to be published as bf16"):
        channel.publish(0, 1, TENSORS, model="", dtype="bf16")
    with pytest.raises(ValueError, match="dtype 'int8' is unknown"):
        channel.publish(0, 1, TENSORS, model="", dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_what_orbax_left_of_a_killed_writer_of_an_earlier_rljax_is_swept(tmp_path):
    """Killed while Orbax wrote, a version's hidden name carries Orbax's own words at its end."""
    left = tmp_path / f".unfinished-1-{uuid.uuid4().hex}.orbax-checkpoint-tmp"
    left.mkdir()
    OrbaxPublisher(tmp_path).prune((), lineage=2)
    assert not left.exists()


@pytest.mark.parametrize("host", ["node-3", "17", "10.0.0.7"])
def test_what_a_killed_writer_of_an_earlier_rljax_left_is_swept(tmp_path, host):
    """It named its host and process, and no lineage."""
    for name in (f".unfinished-{host}-4242-{uuid.uuid4().hex}", f".unfinished-{host}-4242-01ab.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir()
    OrbaxPublisher(tmp_path).prune((), lineage=2)
    assert list(tmp_path.iterdir()) == []
