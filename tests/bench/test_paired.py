"""The process of one side of a comparison."""

import functools
import sys

import pytest

from bench.paired import Side
from tests.waiting import HANGS


def test_a_side_that_died_says_so_however_its_pipe_breaks() -> None:
    side = Side("dead", functools.partial(sys.exit, 1))
    side._process.join(HANGS)
    try:
        with pytest.raises(RuntimeError, match="dead: died over"):
            side.ask(anything=1)
    finally:
        side.close()
