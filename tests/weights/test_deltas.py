"""Versions that are written as what has changed: the same bits as whole ones, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rljax.weights import deltas
from rljax.weights.deltas import DeltaPublisher
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels import chains, files
from sidecar.channels.changes import with_changes
from sidecar.channels.files import read_version
from sidecar.channels.versions import (
    CHANGES_NAME,
    Manifest,
    PublishedVersion,
    VersionError,
    VersionGoneError,
    gone,
    read_manifest,
    receive,
)
from tests.waiting import HANGS

BF16 = ml_dtypes.bfloat16
SPECIAL = np.array([0x7FC0, 0xFFC1, 0x7F81, 0x7F80, 0xFF80, 0x8000, 0x0000, 0x0001, 0x8001, 0x7F7F], np.uint16)
"""NaN, quiet, negative and signalling; both infinities; both zeros; the least numbers of both signs; the largest."""


def made(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (64, 33), "b.gaps": (700,), "scalar": (), "large": (40, 1000)}
    return {
        name: rng.integers(0, 2**16, shape, dtype=np.uint16).astype(np.uint16).view(BF16)
        for name, shape in shapes.items()
    }


def stepped(tensors: dict[str, np.ndarray], seed: int, share: float = 0.02) -> dict[str, np.ndarray]:
    """The next version: new arrays, of which some values are others, among them special ones."""
    rng, after = np.random.default_rng(seed), {}
    for name, array in tensors.items():
        bits = np.array(array).reshape(-1).view(np.uint16)
        bits[rng.random(bits.size) < share] = rng.choice(SPECIAL)
        after[name] = bits.view(BF16).reshape(array.shape)
    return after


def run_of(publisher: OrbaxPublisher, count: int, share: float = 0.02) -> tuple[list[str], list[dict[str, np.ndarray]]]:
    """Publishes versions 0, 1, … of lineage 1; returns their paths and their tensors."""
    given, paths = [made(0)], []
    for version in range(count):
        if version:
            given.append(stepped(given[-1], version, share))
        paths.append(publish(publisher, version, given[-1]))
    return paths, given


def publish(publisher: OrbaxPublisher, version: int, tensors: dict[str, np.ndarray], lineage: int = 1) -> str:
    return publisher.publish(version, lineage, tensors, model="", dtype="bf16")


def assert_same(found: PublishedVersion, expected: dict[str, np.ndarray]) -> None:
    assert set(found.tensors) == set(expected)
    for name, array in expected.items():
        assert found.tensors[name].dtype == BF16
        assert found.tensors[name].shape == array.shape
        assert found.tensors[name].tobytes() == array.tobytes(), name


def is_whole(path: str) -> bool:
    return read_manifest(path).base is None


@pytest.fixture(autouse=True)
def _nothing_held() -> None:
    chains._last.clear()


def test_every_version_is_read_bit_by_bit_by_who_follows_and_by_who_joins(tmp_path: Path) -> None:
    publisher = DeltaPublisher(tmp_path, most=3)
    paths, given = run_of(publisher, 9)
    assert [is_whole(path) for path in paths] == [version % 4 == 0 for version in range(9)]
    for path, tensors in zip(paths, given, strict=True):
        assert_same(receive(path), tensors)  # by what it read before
        assert_same(read_version(path), tensors)  # back to the whole one
    changed = read_manifest(paths[6])
    assert (changed.base, changed.followed) == ((5, 1), True)


def test_who_follows_reads_the_changes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = DeltaPublisher(tmp_path, most=8)
    paths, given = run_of(publisher, 5)
    first = receive(paths[1])
    kept = {name: array.copy() for name, array in first.tensors.items()}
    monkeypatch.setattr(files, "_read_arrays", lambda path, _: pytest.fail(f"{path} was read whole"))
    assert_same(receive(paths[4]), given[4])  # several at once
    assert receive(paths[4]) is receive(paths[4]), "another engine of this process reads nothing"
    assert_same(first, kept)  # who still uses the version before finds it as it was


def test_an_engine_keeps_nothing_of_versions_that_none_is_written_against(tmp_path: Path) -> None:
    receive(publish(DeltaPublisher(tmp_path / "deltas", most=1), 0, made(0)))
    assert chains._last
    receive(publish(OrbaxPublisher(tmp_path / "whole"), 0, made(0)))
    assert not chains._last


def test_what_is_held_and_is_not_what_it_was_is_read_again(tmp_path: Path) -> None:
    paths, given = run_of(DeltaPublisher(tmp_path, most=8), 3)
    receive(paths[1]).tensors["large"].reshape(-1).view(np.uint16)[7] ^= 1
    assert_same(receive(paths[2]), given[2])


def test_what_cannot_be_read_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes minutes to say so would be waited for twice."""
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 3)
    receive(paths[1])
    asked = list[str]()

    def hangs(_: files.Files, where: str) -> object:
        asked.append(where)
        raise VersionError(f"{where} was not read within 300 s")

    monkeypatch.setattr(files.Files, "changes", hangs)
    with pytest.raises(VersionError, match="was not read within 300 s"):
        receive(paths[2])
    assert asked == [paths[2]]


def test_all_of_a_version_is_on_the_disk_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = list[str](), os.fsync

    def noted(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    paths, given = run_of(publisher := DeltaPublisher(tmp_path, most=8), 1)
    monkeypatch.setattr(os, "fsync", noted)
    path = publish(publisher, 1, stepped(given[0], 1))
    assert not is_whole(path)
    assert is_whole(paths[0])
    assert synced == [CHANGES_NAME, "manifest.json", "v1-1", tmp_path.name]


def test_a_base_that_was_published_again_is_not_taken_for_the_one_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be seen by the checksums; here it is not even tried."""
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 2)
    receive(paths[1])
    again = DeltaPublisher(tmp_path, most=8)
    other = made(7)
    publish(again, 1, other)
    then = stepped(other, 8)
    newest = publish(again, 2, then)
    tried = list[int]()
    monkeypatch.setattr(chains, "with_changes", lambda *given: tried.append(1) or with_changes(*given))
    assert_same(receive(newest), then)
    assert len(tried) == sum(then[name].tobytes() != array.tobytes() for name, array in other.items())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_base_that_is_lost_is_named(tmp_path: Path, lost: int) -> None:
    paths, given = run_of(DeltaPublisher(tmp_path, most=8), 4)
    receive(paths[2])
    shutil.rmtree(paths[lost])
    assert_same(receive(paths[3]), given[3])  # who follows does without
    with pytest.raises(VersionError, match=rf"v3-1 has what changed since v{lost}-1, which is not there") as refused:
        read_version(paths[3])
    assert not isinstance(refused.value, VersionGoneError)


@pytest.mark.parametrize("lost", ["arrays", "changes"])
def test_a_base_that_is_lost_but_for_its_manifest_is_named(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an object store has lost an object."""
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 4)
    first = {"arrays": 0, "changes": 1}[lost]
    real = getattr(files.Files, lost)

    def without(self: files.Files, where: str, *more: Manifest) -> object:
        if where == paths[first]:
            raise VersionGoneError(f"{gone(where)} (Ray: an object is lost)")
        return real(self, where, *more)

    monkeypatch.setattr(files.Files, lost, without)
    with pytest.raises(VersionError, match=rf"v3-1 has what changed since v{first}-1, which is not there") as refused:
        read_version(paths[3])
    assert not isinstance(refused.value, VersionGoneError)
    with pytest.raises(VersionGoneError, match=rf"v{first}-1 is not there.* \(Ray: an object is lost\)$"):
        read_version(paths[first])


def test_a_version_that_is_gone_is_gone_though_its_base_is_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned while it is read: its engine looks for a newer one."""
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 3)
    real, read = files.read_manifest, []

    def pruned(path: Path) -> Manifest:
        manifest = real(path)
        if not read:
            for entry in tmp_path.iterdir():
                shutil.rmtree(entry)
        read.append(path)
        return manifest

    monkeypatch.setattr(files, "read_manifest", pruned)
    with pytest.raises(VersionGoneError, match="v2-1 is not there"):
        read_version(paths[2])


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "empty", "another"])
def test_damaged_changes_are_refused(tmp_path: Path, damage: str) -> None:
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 3)
    receive(paths[1])
    file = Path(paths[2]) / CHANGES_NAME
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-9] ^= 0x10
        file.write_bytes(content)
    elif damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "remove":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        shutil.copy(Path(paths[1]) / CHANGES_NAME, file)
    with pytest.raises(VersionError, match=r"v2-1.*publish the version again"):
        receive(paths[2])


@pytest.mark.parametrize("base", [[2, 1], [3, 1], [1], "v0-1"])
def test_a_manifest_whose_base_is_none_is_refused(tmp_path: Path, base: object) -> None:
    paths, _ = run_of(DeltaPublisher(tmp_path, most=8), 3)
    file = Path(paths[2]) / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base": base}))
    with pytest.raises(VersionError, match=r"v2-1(/manifest\.json)? is damaged"):
        receive(paths[2])


def test_a_version_of_which_too_much_has_changed_is_whole(tmp_path: Path) -> None:
    """A byte of gap and two of value each: at 13 % of the values a fifth of the bytes."""
    publisher = DeltaPublisher(tmp_path, most=8)
    _, given = run_of(publisher, 1)
    whole = 2 * sum(array.size for array in given[0].values())
    assert publisher.metrics == {"publish/bytes": whole, "publish/whole": 1.0}
    for version, flipped, pays in ((1, 0.12, True), (2, 0.15, False), (3, 0.01, True)):
        rng, tensors = np.random.default_rng(version), {}
        for name, array in given[-1].items():
            bits = array.reshape(-1).view(np.uint16).copy()
            bits[rng.random(bits.size) < flipped] ^= 1
            tensors[name] = bits.view(BF16).reshape(array.shape)
        given.append(tensors)
        path = publish(publisher, version, tensors)
        assert is_whole(path) != pays
        assert publisher.metrics["publish/whole"] == (not pays)
        assert publisher.metrics["publish/changed_share"] == pytest.approx(flipped, abs=0.01)
        assert (publisher.metrics["publish/bytes"] == whole) != pays
        assert_same(receive(path), tensors)
        assert_same(read_version(path), tensors)


@pytest.mark.parametrize(("share", "said"), [(0.5, 1), (0.02, 0)])
def test_where_it_does_not_pay_users_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float, said: int
) -> None:
    run_of(DeltaPublisher(tmp_path, 2), 12, share)
    assert len(caplog.messages) == said
    assert all("the last 8 versions have changed too much" in message for message in caplog.messages)


def test_where_nothing_has_changed_nothing_is_written(tmp_path: Path) -> None:
    publisher = DeltaPublisher(tmp_path, most=8)
    _, given = run_of(publisher, 1)
    path = publish(publisher, 1, given[0])
    assert publisher.metrics == {"publish/bytes": 0.0, "publish/whole": 0.0, "publish/changed_share": 0.0}
    assert_same(receive(path), given[0])


@pytest.mark.parametrize("change", ["shape", "less", "more", "lineage", "lower"])
def test_another_model_or_life_is_written_whole(tmp_path: Path, change: str) -> None:
    publisher = DeltaPublisher(tmp_path, most=8)
    publish(publisher, 4, made(0))
    tensors, version, lineage = made(0), 5, 1
    if change == "shape":
        tensors["large"] = tensors["large"].reshape(1000, 40)
    elif change == "less":
        del tensors["scalar"]
    elif change == "more":
        tensors["more"] = tensors["large"]
    elif change == "lineage":
        lineage = 2
    else:
        version = 3
    path = publish(publisher, version, tensors, lineage)
    assert is_whole(path)
    assert_same(read_version(path), tensors)


def test_after_a_version_that_was_not_written_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = DeltaPublisher(tmp_path, most=8)
    _, given = run_of(publisher, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deltas, "save_file", full)
    with pytest.raises(PublishError, match=r"version 2 cannot be published to .*No space left.*; free"):
        publish(publisher, 2, stepped(given[1], 2))
    monkeypatch.undo()
    assert {entry.name for entry in tmp_path.iterdir()} == {"v0-1", "v1-1"}
    path = publish(publisher, 2, stepped(given[1], 2))
    assert is_whole(path)
    publisher.delete(2, 1)  # as one that could not be announced
    assert is_whole(publish(publisher, 3, stepped(given[1], 3)))


def test_what_a_kept_version_was_written_against_is_kept(tmp_path: Path) -> None:
    """Also by a publisher that writes whole versions, and has never seen these."""
    paths, given = run_of(DeltaPublisher(tmp_path, most=2), 6)  # 0 ← 1 ← 2, 3 ← 4 ← 5
    for keep, left in (({(1, 1), (5, 1)}, {0, 1, 3, 4, 5}), ({(4, 1)}, {3, 4})):
        OrbaxPublisher(tmp_path).prune(keep, lineage=1)
        assert {entry.name for entry in tmp_path.iterdir()} == {f"v{version}-1" for version in left}
        for version in left:
            assert_same(read_version(paths[version]), given[version])
    OrbaxPublisher(tmp_path).prune((), lineage=1)
    assert not list(tmp_path.iterdir())


def test_each_version_goes_before_those_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dies on the way leaves none that cannot be read."""
    run_of(DeltaPublisher(tmp_path, most=8), 11)
    publisher, gone = OrbaxPublisher(tmp_path), list[int]()
    monkeypatch.setattr(publisher, "delete", lambda version, _: gone.append(version))
    publisher.prune((), lineage=1)
    assert gone == list(range(10, -1, -1))


KILLED = """
import os, signal, sys
from pathlib import Path
import ml_dtypes, numpy as np
from rljax.weights.deltas import DeltaPublisher
publisher = DeltaPublisher(Path(sys.argv[1]), 8)
tensors = {"a": np.ones((64, 64), ml_dtypes.bfloat16)}
for version in range(2):
    tensors = {"a": tensors["a"].copy()}
    tensors["a"][version] = version
    publisher.publish(version, 1, tensors, model="", dtype="bf16")
tensors["a"][5] = 5
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "after the changes":
    os.fsync = die  # of the manifest
elif sys.argv[2] == "before the rename":
    Path.rename = die
publisher.publish(2, 1, tensors, model="", dtype="bf16")
die()
"""


@pytest.mark.parametrize("moment", ["after the changes", "before the rename", "before it is announced"])
def test_a_learner_killed_before_it_announces_leaves_what_was_announced(tmp_path: Path, moment: str) -> None:
    end = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], timeout=HANGS)
    assert end.returncode == -signal.SIGKILL
    again = DeltaPublisher(tmp_path, 8)
    assert again.published() == [(0, 1), (1, 1), (2, 1)][: 3 if moment == "before it is announced" else 2]
    tensors = {name: np.array(array) for name, array in read_version(tmp_path / "v1-1").tensors.items()}
    path = again.publish(1, 2, tensors, model="", dtype="bf16")  # as a restart from step 1
    assert is_whole(path)
    again.prune({(0, 1), (1, 1), (1, 2)}, lineage=2)  # the ledger names no version 2
    assert {entry.name for entry in tmp_path.iterdir()} == {"v0-1", "v1-1", "v1-2"}
    again.prune({(1, 1), (1, 2)}, lineage=2)
    assert {entry.name for entry in tmp_path.iterdir()} == {"v0-1", "v1-1", "v1-2"}, "version 1 needs 0"
    assert receive(str(tmp_path / "v1-1")).tensors["a"][:2].tolist() == [[0.0] * 64, [1.0] * 64]
