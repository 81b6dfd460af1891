"""Disks that hang, are full, or refuse something, and what a version leaves on them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
import tensorstore

from rljax.weights import arrays
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels.files import read_version
from sidecar.channels.versions import VersionGoneError
from tests.weights.given import TENSORS, Failing


def test_a_disk_that_hangs_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    """P12. What it writes in the end is hidden, and swept once the disk answers again."""
    channel = OrbaxPublisher(tmp_path)
    never, future = tensorstore.Promise.new()
    with monkeypatch.context() as hanging:
        hanging.setattr(arrays, "WRITE_SECONDS", 0.05)
        hanging.setattr(arrays, "_begun", lambda *_: future)
        hanging.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("nothing more is asked of the disk"))
        line = (
            r"^version 5 is not published to .*v5-1: a write took more than 0\.05 s; look at the disk or network .* on$"
        )
        with pytest.raises(PublishError, match=line):
            channel.publish(5, 1, TENSORS, model="", dtype="fp32")
    del never
    channel.prune((), lineage=1)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_hangs_is_left_alone_also_where_something_else_failed_first(tmp_path, monkeypatch):
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    never, future = tensorstore.Promise.new()

    monkeypatch.setattr(arrays, "WRITE_SECONDS", 0.05)
    monkeypatch.setattr(arrays, "_begun", lambda *_: future)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("nothing more is asked of the disk"))
    with pytest.raises(PublishError, match=r"a write took more than 0\.05 s"):
        OrbaxPublisher(tmp_path).publish(5, 1, Failing(TENSORS), model="", dtype="fp32")
    del never


def test_a_disk_that_does_not_even_open_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "WRITE_SECONDS", 0.05)
    never, future = tensorstore.Promise.new()
    monkeypatch.setattr(arrays.tensorstore, "open", lambda *_, **__: future)
    with pytest.raises(PublishError, match=r"a write took more than 0\.05 s"):
        OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32")
    del never


def test_a_slow_disk_has_its_time_for_each_group(tmp_path, monkeypatch):
    monkeypatch.setattr("rljax.weights.gathering.GROUP_BYTES", 1)
    given, begun = [], arrays._begun

    class Slow:
        def __init__(self, future):
            self.future = future

        def result(self, timeout):
            given.append(timeout)
            self.future.result()

    monkeypatch.setattr(arrays, "_begun", lambda *made: Slow(begun(*made)))
    OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32")
    assert given == [arrays.WRITE_SECONDS] * 2


def test_a_leftover_that_cannot_be_renamed_is_removed_all_the_same(tmp_path, monkeypatch):
    """As where a share has a file of it open."""
    channel = OrbaxPublisher(tmp_path)
    channel._hidden(1).mkdir()

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    monkeypatch.setattr(Path, "unlink", refused)  # nor its first files
    channel.prune((), lineage=2)
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_that_a_share_has_forgotten_ends_nobody(tmp_path, monkeypatch):
    def stale(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    channel = OrbaxPublisher(tmp_path)
    left = channel._hidden(1)
    left.mkdir()
    with monkeypatch.context() as forgotten:
        forgotten.setattr(shutil, "rmtree", lambda *_, **__: None)
        forgotten.setattr(os, "stat", stale)
        forgotten.setattr(os, "lstat", stale)
        channel._remove_tree(left)
    assert left.exists()


def test_a_leftover_that_cannot_be_removed_is_told_once(tmp_path, monkeypatch, caplog):
    channel = OrbaxPublisher(tmp_path)
    channel._hidden(1).mkdir()
    with monkeypatch.context() as held:
        held.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(2):
            channel.prune((), lineage=2)
    (said,) = caplog.messages
    assert said.endswith(" cannot be removed, and takes disk space; every later version tries again")
    channel.prune((), lineage=2)
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_cannot_be_renamed_is_gone_before_the_first_of_its_files(tmp_path, monkeypatch):
    channel = OrbaxPublisher(tmp_path)
    path = channel.publish(5, 1, TENSORS, model="", dtype="fp32")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as it begins
    channel.delete(5, 1)
    with pytest.raises(VersionGoneError):
        read_version(path)


def test_a_file_system_that_syncs_no_directories_will_do(tmp_path, monkeypatch):
    sync = os.fsync

    def refused(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(file)

    monkeypatch.setattr(os, "fsync", refused)
    read_version(OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32"))


def test_a_file_system_that_syncs_no_files_publishes_nothing(tmp_path, monkeypatch):
    """After a crash the ledger would name half a version."""

    def refused(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(PublishError, match="Invalid argument"):
        OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    begun = arrays._begun

    class Full:
        def __init__(self, future):
            future.result()

        def result(self, timeout):
            raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(arrays, "_begun", lambda *given: Full(begun(*given)))
    with pytest.raises(
        PublishError, match=r"version 5 cannot be published to .*: .*No space left on device; free disk"
    ):
        OrbaxPublisher(tmp_path).publish(5, 1, TENSORS, model="", dtype="fp32")
    assert list(tmp_path.iterdir()) == []
