"""The process of one side of a comparison."""

import functools
import os

import pytest

from bench.paired import Side
from tests.waiting import HANGS


def test_a_side_that_died_says_so_however_its_pipe_breaks() -> None:
    # Not sys.exit: wandb leaves its own there after a run, and that cannot be pickled.
    side = Side("dead", functools.partial(os._exit, 1))
    side._process.join(HANGS)
    try:
        with pytest.raises(RuntimeError, match="dead: died over"):
            side.ask(anything=1)
    finally:
        side.close()
