"""Recorded experts through interrupted requests, turns and rows: numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rljax.rollout.listener import join
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import BrokenContract
from sidecar.protocol import Completion


def completion(tokens: int, routes: list[int] | None, reason: str = "stop") -> Completion:
    """Some tokens; of the experts one layer, one expert."""
    made = None if routes is None else np.array(routes, np.int16)[:, None, None]
    return Completion(
        np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), np.zeros(tokens, np.int32), reason, made
    )


def test_an_interrupted_request_keeps_the_experts_of_the_pass_that_sampled() -> None:
    """A prompt of 2; the second engine reads all again."""
    whole = join([completion(2, [1, 2, 3, -1], "abort"), completion(2, [7, 7, 7, 4, 5, -1])])
    assert whole.routes is not None
    assert whole.routes.ravel().tolist() == [1, 2, 3, 4, 5, -1]


def test_what_a_part_without_experts_sampled_from_stays_unknown() -> None:
    """A prompt of 2. The part that records reads all of it again: it sampled from the last token before it alone."""
    first = join([completion(2, [1, 2, 3, -1], "abort"), completion(2, None)])
    assert first.routes is not None
    assert first.routes.ravel().tolist() == [1, 2, 3, -1, -1, -1]
    last = join([completion(2, None, "abort"), completion(2, [1, 2, 3, 4, 5, -1])])
    assert last.routes is not None
    assert last.routes.ravel().tolist() == [-1, -1, -1, 4, 5, -1]
    parts = [completion(1, [1, 2, -1], "abort"), completion(2, None, "abort"), completion(1, [7, 7, 7, 7, 5, -1])]
    middle = join(parts)
    assert middle.routes is not None
    assert middle.routes.ravel().tolist() == [1, 2, -1, -1, 5, -1]
    assert join([completion(2, None, "abort"), completion(1, None)]).routes is None


def test_a_part_that_sampled_nothing_is_no_pass() -> None:
    for aborted in (completion(0, None, "abort"), completion(0, [7, -1], "abort")):
        whole = join([aborted, completion(2, [1, 2, 3, -1])])
        assert whole.routes is not None
        assert whole.routes.ravel().tolist() == [1, 2, 3, -1]
    whole = join([completion(2, [1, 2, 3, -1], "abort"), completion(0, None)])
    assert whole.routes is not None
    assert whole.routes.ravel().tolist() == [1, 2, 3, -1]


def test_experts_that_a_part_did_not_record_are_not_taken_of_a_later_one() -> None:
    whole = join([completion(2, [1, -1, 3, -1], "abort"), completion(1, [7, 7, 7, 4, -1])])
    assert whole.routes is not None
    assert whole.routes.ravel().tolist() == [1, -1, 3, 4, -1]


def test_turns_of_a_row_go_on_from_one_another() -> None:
    """The last token of a turn is read by the next one; what that one reads again is not taken."""
    transcript = Transcript()
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(2, [1, 2, -1]))
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(1, [7, 7, 3, 4, -1]))
    assert transcript.columns()["routes"].ravel().tolist() == [1, 2, 3, 4, -1]


@pytest.mark.parametrize("known", [[1, 2], [1, 2, 3, -1]])
def test_a_reply_to_another_prompt_than_the_row_is_refused(known: list[int]) -> None:
    transcript = Transcript()
    transcript.add_text(np.zeros(1, np.int32))
    with pytest.raises(
        BrokenContract, match=f"experts of {len(known)} tokens, and the row that it ends has 3: ask for it"
    ):
        transcript.add_reply(completion(2, known))


def test_a_turn_without_experts_stays_unknown_when_the_next_one_reads_it() -> None:
    transcript = Transcript()
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(2, [1, 2, -1]))
    transcript.add_text(np.zeros(1, np.int32))
    transcript.add_reply(completion(1, None))
    transcript.add_reply(completion(1, [7, 7, 7, 7, 5, -1]))
    assert transcript.columns()["routes"].ravel().tolist() == [1, 2, -1, -1, 5, -1]


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
