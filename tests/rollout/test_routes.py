"""Recorded experts through interrupted requests, turns and rows: numbers made by hand."""

from __future__ import annotations

import numpy as np

from rljax.rollout.listener import join
from rljax.rollout.workflows.transcript import Transcript
from sidecar.protocol import Completion


def completion(tokens: int, routes: list[int] | None, reason: str = "stop") -> Completion:
    """Some tokens; of the experts one layer, one expert."""
    made = None if routes is None else np.array(routes, np.int16)[:, None, None]
    return Completion(
        np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), np.zeros(tokens, np.int32), reason, made
    )


def test_an_interrupted_request_keeps_the_experts_of_the_pass_that_sampled() -> None:
    """A prompt of 2; the second engine reads all again, and the third of what the first had not read."""
    whole = join([completion(2, [1, 2, 3, -1], "abort"), completion(2, [7, 7, 7, 4, 5, -1])])
    assert whole.routes is not None
    assert whole.routes.ravel().tolist() == [1, 2, 3, 4, 5, -1]


def test_a_part_without_experts_leaves_the_rest_known() -> None:
    first = join([completion(2, [1, 2, 3, -1], "abort"), completion(2, None)])
    assert first.routes is not None
    assert first.routes.ravel().tolist() == [1, 2, 3, -1, -1, -1]
    last = join([completion(2, None, "abort"), completion(2, [1, 2, 3, 4, 5, -1])])
    assert last.routes is not None
    assert last.routes.ravel().tolist() == [1, 2, 3, 4, 5, -1]
    assert join([completion(2, None, "abort"), completion(1, None)]).routes is None


def test_turns_of_a_row_go_on_from_one_another() -> None:
    """The last token of a turn is read by the next one; what that one reads again is not taken."""
    transcript = Transcript()
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(2, [1, 2, -1]))
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(1, [7, 7, 3, 4, -1]))
    assert transcript.columns()["routes"].ravel().tolist() == [1, 2, 3, 4, -1]


def test_rows_have_experts_of_their_own() -> None:
    transcript = Transcript()
    for expert in (1, 5):
        transcript.begin_row()
        transcript.add_text(np.zeros(1, np.int32))
        transcript.add_reply(completion(2, [expert, expert + 1, -1]))
    assert transcript.columns()["routes"].ravel().tolist() == [1, 2, -1, 5, 6, -1]


def test_without_recorded_experts_there_are_none() -> None:
    transcript = Transcript()
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(1, None))
    assert transcript.columns()["routes"] is None
