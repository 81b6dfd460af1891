from __future__ import annotations

import numpy as np
import pytest

from sidecar.protocol import GenerateRequest, SamplingParams
from sidecar.stepping.jobs import Job, end_of_text


class Bytes:
    """Decodes a token as a byte; text may be incomplete in the middle of a character."""

    def decode(self, token_ids, **options):
        return bytes(token_ids).decode(errors="replace")


@pytest.mark.parametrize("old", range(9))
def test_the_end_does_not_depend_on_how_many_tokens_come_at_once(old):
    tokens = list(b"one, two, three")
    assert end_of_text(tokens, old, ("four", "two,"), Bytes()) == 9


def test_the_first_of_several_ends_it():
    tokens = list(b"abcdefgh")
    assert end_of_text(tokens, 0, ("fg", "de"), Bytes()) == 5
    assert end_of_text(tokens, 0, ("x", "a"), Bytes()) == 1
    assert end_of_text(tokens, 0, ("xyz",), Bytes()) is None


def test_characters_of_several_tokens():
    tokens = list("naïve 🙂 end".encode())
    assert end_of_text(tokens, 5, ("🙂",), Bytes()) == len("naïve 🙂".encode())


def test_completion():
    job = Job(GenerateRequest("a", np.asarray([7, 8]), SamplingParams(max_new_tokens=5)), 0, None, None)
    assert job.completion("abort").versions.shape == (0,)
    job.extend([1, 2], [-0.5, -1.0], 3)
    job.extend([4], [-2.0], 5)
    assert job.sequence().tolist() == [7, 8, 1, 2, 4]
    assert (job.length, job.budget) == (5, 2)
    completion = job.completion("length")
    assert completion.token_ids.tolist() == [1, 2, 4]
    assert completion.logprobs.tolist() == [-0.5, -1.0, -2.0]
    assert completion.versions.tolist() == [3, 3, 5]
    assert completion.versions.dtype == np.int32


def test_experts_are_of_the_pass_that_samples():
    """The prompt is read before an update and after it; then a token is sampled, and all is read a third time."""
    job = Job(GenerateRequest("a", np.asarray([7, 8]), SamplingParams(max_new_tokens=5)), 0, None, None)
    experts = np.array([0, 1, 2, 3, 4], np.int16)[:, None, None]
    job.extend_routes(experts[:1], 0)
    job.extend_routes(experts[1:2], 0)
    job.extend_routes(experts[2:3], 1)
    job.extend([1], [-0.5], 3)
    job.extend_routes(experts[[0, 0, 4]], 0)
    job.extend([1], [-0.5], 4)
    assert job.completion("stop").routes.ravel().tolist() == [1, 2, 4, -1]


def test_a_job_keeps_its_own_experts_and_not_those_of_all_that_are_sampled_with_it():
    """Eight passes give eight tokens of one request of a batch of 64."""
    job = Job(GenerateRequest("a", np.asarray([7]), SamplingParams(max_new_tokens=8)), 0, None, None)
    for step in range(8):
        job.extend_routes(np.zeros((1, 64, 2, 3), np.int16)[:, 5], step)
        job.extend([1], [-0.5], 3)
    held = {id(array): array.nbytes for part in job.routes for array in (part, part.base) if array is not None}
    assert sum(held.values()) == 8 * 2 * 3 * 2


def test_the_experts_of_a_token_are_added_without_reading_those_before():
    """Else a long answer takes its square."""

    class Unread(list):
        def __iter__(self):
            raise AssertionError("what is known is read again")

    job = Job(GenerateRequest("a", np.asarray([7]), SamplingParams(max_new_tokens=9)), 0, None, None)
    job.routes = Unread()
    for token in range(5):
        job.extend_routes(np.full((1, 1, 1), token, np.int16), token)
        job.extend([1], [-0.5], 3)
    job.routes = job.routes[:]  # a plain list: a completion reads all of it
    assert job.completion("stop").routes.ravel().tolist() == [0, 1, 2, 3, 4, -1]
