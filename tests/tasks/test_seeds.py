import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.tasks.seeds import SEED_BITS, environment_seed, stable_hash
from rljax.trajectory import TaskId

PLAIN = st.one_of(st.integers(), st.text(), st.none(), st.floats(allow_nan=False))


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        # printf '%s' '["reverse_digits",0,3]' | b2sum -l 64
        (stable_hash("reverse_digits", 0, 3), 0xE637CC3FB74C8AE1),
        # printf '%s' '[7,"gsm8k",2,41]' | b2sum -l 64
        (environment_seed(7, TaskId("gsm8k", 2, 41)), 0xB932D7432A9E0866),
    ],
)
def test_seeds_are_those_that_coreutils_computes(seed: int, digest: int) -> None:
    assert seed == digest >> 1


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_seeds_are_the_same_in_every_process(hash_seed: str) -> None:
    code = "from rljax.tasks.seeds import stable_hash; print(stable_hash('ä', 1, None, 0.5))"
    process = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    assert int(process.stdout) == stable_hash("ä", 1, None, 0.5)


@given(st.lists(PLAIN), st.lists(PLAIN))
def test_different_parts_give_different_seeds(left: list[object], right: list[object]) -> None:
    same = [(type(v), v) for v in left] == [(type(v), v) for v in right] and str(left) == str(right)
    assert (stable_hash(*left) == stable_hash(*right)) == same


def test_text_and_number_differ_and_borders_count() -> None:
    assert (
        len({stable_hash("1", 2), stable_hash(1, "2"), stable_hash("12"), stable_hash("1", "2"), stable_hash(12)}) == 5
    )


@given(st.lists(PLAIN))
def test_a_seed_fits_into_63_bits(parts: list[object]) -> None:
    assert 0 <= stable_hash(*parts) < 2**SEED_BITS


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError):
        stable_hash(b"bytes")
