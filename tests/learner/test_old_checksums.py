"""Checkpoints of earlier programs, whose checksums were CRC-32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljax.learner import checkpoints as saving
from rljax.learner import checksums
from rljax.learner.checkpoints import Checkpoints, DamagedCheckpointError
from sidecar.checksum import checksum
from tests.learner.states import abstract, assert_same, make_state
from tests.learner.test_checkpoints import flip, holding


def test_they_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(1, size=512)
    with monkeypatch.context() as earlier:
        earlier.setattr(checksums, "checksum", lambda array, like="crc32": checksum(array, like))
        of_metadata = checksums.checksum_of_metadata
        earlier.setattr(saving, "checksum_of_metadata", lambda metadata: of_metadata(metadata, "crc32"))
        checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(1, state, {})
        checkpoints.wait()
    written = (tmp_path / "1" / "_CHECKPOINT_METADATA").read_text()
    assert "crc32:" in written
    assert "xxh3:" not in written
    assert_same(checkpoints.restore(1, abstract(state)), state)
    file, start = holding(tmp_path / "1", np.asarray(state.params["embedding"]))
    flip(file, start)
    with pytest.raises(DamagedCheckpointError, match=r"its checksum is crc32:\w{8}, and crc32:\w{8} was saved"):
        checkpoints.restore(1, abstract(state))
