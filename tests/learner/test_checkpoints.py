import contextlib
import dataclasses
import gc
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from xxhash import xxh3_64_hexdigest

from rljax.learner.checkpoints import CheckpointError, Checkpoints, DamagedCheckpointError
from rljax.learner.checksums import DamagedArrayError, verify_arrays
from tests.learner.states import abstract, assert_same, make_state

pytestmark = pytest.mark.slow


def test_what_is_restored_is_what_was_saved_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.committed() == []
    state = make_state(3)
    state.params["layers"]["up"] = state.params["layers"]["up"].at[0, :3].set([jnp.inf, -0.0, 1e-42])
    checkpoints.save(3, state, {"lineage": 7, "digest": "abc"})
    checkpoints.wait()
    assert checkpoints.committed() == [3]
    assert checkpoints.metadata(3) == {"lineage": 7, "digest": "abc"}
    assert_same(checkpoints.restore(3, abstract(state)), state)
    assert Checkpoints(tmp_path / "checkpoints", keep=2).committed() == [3]


def test_without_a_bound_all_are_kept_but_those_of_a_lost_history(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=None)
    state = make_state(1)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state, {"lineage": 1})
        checkpoints.wait()
    assert checkpoints.committed() == [1, 2, 3, 4]
    checkpoints.save(2, state, {"lineage": 1})
    checkpoints.wait()
    assert checkpoints.committed() == [1, 2]


def test_one_that_is_never_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P12."""
    freed = threading.Event()
    monkeypatch.setattr(Checkpoints, "_commit", lambda *_: freed.wait())
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, make_state(3), {})
    try:
        with pytest.raises(CheckpointError, match=r"checkpoint of step 3 in .*: it was not written within 0\.01 s; "):
            checkpoints.wait(0.01)
    finally:
        freed.set()


def test_a_relative_directory_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(Path("runs/mine/checkpoints"), keep=2)
    checkpoints.save(3, make_state(3), {})
    checkpoints.wait()
    assert Checkpoints(tmp_path / "runs/mine/checkpoints", keep=2).committed() == [3]


def test_a_save_is_not_corrupted_by_the_training_that_donates_its_state(tmp_path: Path) -> None:
    """Orbax writes in the background while the buffers that it writes from are donated again and again."""
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 1.5 + 1, tree), donate_argnums=0)
    for trial in range(3):
        checkpoints = Checkpoints(tmp_path / str(trial), keep=1)
        state = make_state(trial, size=1500)
        expected = jax.tree.map(np.array, state)
        shapes = abstract(state)
        checkpoints.save(trial, state, {})
        params = state.params
        for _ in range(20):
            params = overwrite(params)
        jax.block_until_ready(params)
        checkpoints.wait()
        assert_same(checkpoints.restore(trial, shapes), expected)


_DIES_WHILE_SAVING = """
import os, sys
from pathlib import Path
from rljax.learner.checkpoints import Checkpoints
from tests.learner.states import make_state
checkpoints = Checkpoints(Path(sys.argv[1]), keep=3)
checkpoints.save(1, make_state(1), {})
checkpoints.save(2, make_state(2, size=4000), {})
os._exit(9)
"""


def test_only_committed_checkpoints_count(tmp_path: Path) -> None:
    run = [sys.executable, "-c", _DIES_WHILE_SAVING, str(tmp_path)]
    assert subprocess.run(run, cwd=Path(__file__).parents[2], timeout=300).returncode == 9
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 2, f"the second save left something behind: {left}"
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.committed() == [1]
    with pytest.raises(CheckpointError, match=r"no committed checkpoint of step 2 in .*; committed there: 1"):
        checkpoints.restore(2, abstract(make_state(2)))
    assert_same(checkpoints.restore(1, abstract(make_state(1))), make_state(1))
    # what the crash left behind is gone with the next save, and its step can be saved again
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_a_save_under_way_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, make_state(1, size=3000), {})
    during = checkpoints.committed()
    checkpoints.wait()
    assert (during, checkpoints.committed()) == ([], [1])


def test_old_checkpoints_go_once_a_newer_one_is_committed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (5, 10, 15, 20):
        checkpoints.save(step, make_state(step), {"step": step})
        assert len(checkpoints.committed()) >= min(step // 5 - 1, 2)
    checkpoints.wait()
    assert checkpoints.committed() == [15, 20]
    assert sorted(os.listdir(tmp_path)) == ["15", "20"]


def test_what_a_lost_history_left_goes_and_does_not_count(tmp_path: Path) -> None:
    """A learner that goes on from step 2 has nothing of the checkpoint of step 10."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (2, 10, 3, 4):
        checkpoints.save(step, make_state(step), {})
    checkpoints.wait()
    assert checkpoints.committed() == [3, 4]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for seed in (1, 2):
        checkpoints.save(5, make_state(seed), {"seed": seed})
    checkpoints.wait()
    assert checkpoints.metadata(5) == {"seed": 2}
    assert_same(checkpoints.restore(5, abstract(make_state(2))), make_state(2))


def test_another_models_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    with pytest.raises(
        CheckpointError, match=r"could not read the checkpoint of step 1 .*another model: \['embedding'\] is \(64, 64\)"
    ) as caught:
        checkpoints.restore(1, abstract(make_state(1, size=32)))
    assert "\n" not in str(caught.value)


def test_a_directory_that_cannot_be_written_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(CheckpointError, match=r"could not write the checkpoint of step 1 in .*file/checkpoints"):
        checkpoints.save(1, make_state(1), {})


def test_no_file_of_a_checkpoint_is_lost_unnoticed(tmp_path: Path) -> None:
    """What a power cut leaves of any: nothing, or zeros. It is called damaged, or it held nothing that is needed."""
    saved(tmp_path / "whole", 1)
    files = [path for path in (tmp_path / "whole" / "1").rglob("*") if path.is_file()]
    assert len(files) > 5
    for number, file in enumerate(files):
        for content in (b"", bytes(1000)):
            copied = tmp_path / f"{number}.{len(content)}"
            shutil.copytree(tmp_path / "whole", copied)
            (copied / file.relative_to(tmp_path / "whole")).write_bytes(content)
            checkpoints = Checkpoints(copied, keep=9)
            if checkpoints.committed():
                try:
                    restored = checkpoints.restore(1, abstract(make_state(1)))
                except DamagedCheckpointError:
                    continue
                assert_same(restored, make_state(1))
    gc.collect()  # of what Orbax began and could not end it is said when it goes: here, not in another test


def saved(directory: Path, *steps: int, size: int = 64) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=9)
    for step in steps:
        checkpoints.save(step, make_state(step, size), {"lineage": 1})
    checkpoints.wait()
    return checkpoints


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def holding(checkpoint: Path, array: Any) -> tuple[Path, int]:
    """The file that holds an array as it lies in memory, and where in it. A small one lies in an index instead,
    which has a checksum of its own.
    """
    content = np.asarray(array).tobytes()
    (found,) = [path for path in checkpoint.rglob("*") if path.is_file() and content in path.read_bytes()]
    return found, found.read_bytes().index(content)


def test_a_byte_that_flipped_in_an_array_is_noticed_wherever_it_is(tmp_path: Path, caplog: Any) -> None:
    state = make_state(2, size=512)
    embedding, up = np.asarray(state.params["embedding"]), np.asarray(state.params["layers"]["up"])
    checkpoints = saved(tmp_path, 1, 2, size=512)
    for name, array in {"params.embedding": embedding, "params.layers.up": up}.items():
        file, start = holding(tmp_path / "2", array)
        whole = file.read_bytes()
        for place in np.linspace(start, start + array.nbytes - 1, 13).astype(int):
            flip(file, place)
            with pytest.raises(DamagedCheckpointError) as caught:
                checkpoints.restore(2, abstract(state))
            assert re.fullmatch(
                rf"the checkpoint of step 2 in \S+ is damaged: {re.escape(name)} is corrupted: its checksum is "
                rf"xxh3:\w{{16}}, and xxh3:{xxh3_64_hexdigest(array.tobytes())} was saved; the one before is of step 1",
                str(caught.value),
            )
            with pytest.raises(DamagedCheckpointError, match=re.escape(name)):
                checkpoints.restore_params(2, abstract(state).params)
            file.write_bytes(whole)
    assert_same(checkpoints.restore(2, abstract(state)), state)
    assert not caplog.records, "the checkpoint is named in one line, and nothing else is said"


def test_weights_alone_are_read_though_the_optimizer_state_is_damaged(tmp_path: Path) -> None:
    checkpoints, state = saved(tmp_path, 1, size=512), make_state(1, size=512)
    flip(*holding(tmp_path / "1", state.opt_state[0]["mu"]))
    with pytest.raises(DamagedCheckpointError, match=r"opt_state\.0\.mu is corrupted.*; there is none before it"):
        checkpoints.restore(1, abstract(state))
    np.testing.assert_array_equal(
        checkpoints.restore_params(1, abstract(state).params)["embedding"], state.params["embedding"]
    )


def test_a_byte_that_flipped_in_the_metadata_gives_no_other_lineage_and_leaves_no_array_unchecked(
    tmp_path: Path, caplog: Any
) -> None:
    checkpoints, state = saved(tmp_path, 1), make_state(1)
    file = tmp_path / "1" / "_CHECKPOINT_METADATA"
    whole = file.read_bytes()
    noticed = set()
    for place in range(whole.index(b"custom_metadata"), len(whole)):
        flip(file, place)
        try:
            assert checkpoints.metadata(1)["lineage"] == 1, whole[place - 20 : place + 20]
        except DamagedCheckpointError:
            noticed.add(place)
        file.write_bytes(whole)
    for name in (b"custom_metadata", b"lineage", b'"checksums', b"params.embedding", b"xxh3:"):
        at = whole.index(name) + 3
        assert at in noticed, name
        flip(file, at)
        with pytest.raises(DamagedCheckpointError, match=r"_CHECKPOINT_METADATA is corrupted: it "):
            checkpoints.restore(1, abstract(state))
        file.write_bytes(whole)
    assert_same(checkpoints.restore(1, abstract(state)), state)
    assert not caplog.records


@contextlib.contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Leaves this process so many file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_whole_checkpoint_is_not_called_damaged_where_the_system_lacks_descriptors(tmp_path: Path) -> None:
    """Who calls it damaged sets it aside, goes on from an older one, and deletes it with the next save."""
    checkpoints, state = saved(tmp_path, 1), make_state(1)
    sums = checkpoints._checksums(tmp_path / "1")
    read: dict[str, Callable[[], Any]] = {
        "all": lambda: checkpoints.restore(1, abstract(state)),
        "the arrays": lambda: verify_arrays(tmp_path / "1", sums),
    }
    said = []
    for spare in (2, 4, 6, 8, 10):
        for what in read:
            with few_descriptors(spare):
                try:
                    read[what]()
                except (DamagedCheckpointError, DamagedArrayError) as error:
                    raise AssertionError(f"{what}, {spare} descriptors left: {error}") from error
                except (CheckpointError, OSError) as error:
                    said.append(str(error))
    assert len(said) >= 4
    assert any("could not read the checkpoint of step 1" in line for line in said)
    assert_same(checkpoints.restore(1, abstract(state)), state)


@pytest.mark.parametrize("file", ["state/_METADATA", "state/_sharding"])
def test_a_description_with_a_flipped_bit_is_damaged_or_does_no_harm(file: str, tmp_path: Path) -> None:
    """JSON still, much of it: Orbax reads none of these, and it is no passing trouble."""
    checkpoints, state = saved(tmp_path, 1), make_state(1)
    path = tmp_path / "1" / file
    whole = path.read_bytes()
    damaged = 0
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert_same(checkpoints.restore(1, abstract(state)), state)
        except DamagedCheckpointError:
            damaged += 1
    assert damaged >= 10


def test_a_path_that_reads_like_a_passing_trouble_hides_no_damage(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "run-ABORTED", 1)
    path = tmp_path / "run-ABORTED" / "1"
    sums = checkpoints._checksums(path)
    for file in (path / "state").rglob("d/*"):
        file.unlink()
    with pytest.raises(DamagedArrayError, match="cannot be read"):
        verify_arrays(path, sums)


def test_a_file_that_is_missing_makes_it_no_checkpoint_or_a_damaged_one(tmp_path: Path) -> None:
    checkpoints, state = saved(tmp_path / "some", 1, 2), make_state(2)
    path, copy = tmp_path / "some" / "2", tmp_path / "copy"
    shutil.copytree(path, copy)
    outcomes = set()
    for file in [file.relative_to(copy) for file in copy.rglob("*") if file.is_file()]:
        (path / file).unlink()
        if checkpoints.committed() == [1]:
            outcomes.add("none")
        else:
            try:
                assert_same(checkpoints.restore(2, abstract(state)), state)
                outcomes.add("whole")
            except DamagedCheckpointError:
                outcomes.add("damaged")
        shutil.copy(copy / file, path / file)
    assert outcomes == {"none", "damaged", "whole"}, "Orbax writes some files that nobody reads"


def test_an_empty_directory_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    (tmp_path / "2").mkdir()
    assert checkpoints.committed() == [1]
    checkpoints.save(3, make_state(3), {})
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["1", "3"]


def test_a_checkpoint_from_before_there_were_checksums_is_read_and_said_not_to_be_checked(
    tmp_path: Path, caplog: Any
) -> None:
    state = make_state(4)
    ocp.save(tmp_path / "4", state, custom_metadata={"lineage": 3})
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.committed() == [4]
    assert checkpoints.metadata(4) == {"lineage": 3}
    assert_same(checkpoints.restore(4, abstract(state)), state)
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("rljax")]
    assert said == f"{tmp_path / '4'} was saved without checksums, by an earlier rljax: its arrays are not checked"


def test_a_damaged_checkpoint_that_is_set_aside_counts_no_longer_and_goes_with_the_next_save(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    assert checkpoints.set_aside(2) == tmp_path / "2.damaged"
    assert (checkpoints.committed(), sorted(os.listdir(tmp_path))) == ([1], ["1", "2.damaged"])
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_a_checkpoint_of_an_earlier_rljax_is_read(tmp_path: Path) -> None:
    """It calls the auxiliary state companions."""
    state = dataclasses.replace(make_state(4), aux_state={"reference": jnp.arange(3.0)})
    fields = {"params": state.params, "opt_state": state.opt_state, "step": state.step}
    ocp.save(tmp_path / "4", {**fields, "companions": state.aux_state}, custom_metadata={"lineage": 1})
    assert_same(Checkpoints(tmp_path, keep=2).restore(4, abstract(state)), state)
