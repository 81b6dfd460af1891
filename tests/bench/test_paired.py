"""The process of one side of a comparison."""

import functools
import sys

import pytest

from bench.paired import Side


def test_a_side_that_died_says_so_however_its_pipe_breaks() -> None:
    side = Side("dead", functools.partial(sys.exit, 1))
    side._process.join(60)
    try:
        with pytest.raises(RuntimeError, match="dead: died over"):
            side.ask(anything=1)
    finally:
        side.close()
