"""A learner of two processes against one of as many devices: every loss, and what a step may read beside it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.program import free_port
from tests.learner.eight_devices import ENVIRONMENT, ROOT
from tests.learner.hosts_worker import LEARNING_RATE, LOSSES, METRIC, OBJECTIVES

pytestmark = pytest.mark.slow


def test_two_hosts_train_what_one_process_does_by_every_loss(tmp_path: Path) -> None:
    port, one, two = str(free_port()), tmp_path / "one.npz", tmp_path / "two.npz"
    command = [sys.executable, "-m", "tests.learner.hosts_worker"]
    given = [[str(one)], [str(two), "0", port], [str(two), "1", port]]
    workers = [subprocess.Popen([*command, *each], cwd=ROOT, env={**os.environ, **ENVIRONMENT}) for each in given]
    try:
        assert all(worker.wait() == 0 for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    expected, found = np.load(one), np.load(two)
    assert set(found.files) == set(expected.files)
    begun = {name.partition(": ")[0] for name in found.files}
    assert begun == set(OBJECTIVES)
    assert {name.split(": ")[1] for name in found.files if name.startswith("losses")} == set(LOSSES)
    for name in found.files:
        relative = 1e-4 if METRIC in name else 0.0  # of sums over all tokens, some of them of differences
        np.testing.assert_allclose(found[name], expected[name], rtol=relative, atol=1e-6, err_msg=name)
    for objective in begun:
        steps = list(dict.fromkeys(name.split(": ")[1] for name in found.files if name.startswith(f"{objective}: ")))
        query = "['query']['lora_b']" if objective == "adapter" else "['query']"
        weights = [found[f"{objective}: {step}: [0]['layers']{query}"] for step in steps]
        moved = [np.abs(after - before).max() for before, after in itertools.pairwise(weights)]
        assert min(moved) > LEARNING_RATE / 10, f"{objective}: a step that changes nothing shows nothing"
