"""The speed of engines, as far as their answers tell it, and where an answer is to be expected first."""

from __future__ import annotations

import math
from collections.abc import Sequence

BESIDE = 8
"""With n requests an engine is taken to need time for a token of each as n + `BESIDE`. Where it does not, what it
answers with the load that it is given says so.
"""
ANSWERS = 64
"""The last answers, about, that the speed is measured by."""
CHANCE = 4.0
"""Engines count as equally fast up to a factor of 1 + `CHANCE` / √answers, 1.5 at the most answers."""
PATIENCE = 16
"""An engine without requests is tried again after so many times what its last answer would have taken it alone."""


class EngineSpeed:
    """Measures how long an engine takes for a token, prompts and the wait for a slot of it included.

    All times are in seconds of one clock.

    Attributes:
        answers: what the measure is of, of late ones in full and of earlier ones ever less.
    """

    def __init__(self) -> None:
        self.answers = 0.0
        self._spent, self._tokens = 0.0, 0.0  # by these answers, in `_work`
        self._work, self._at = 0.0, 0.0  # the seconds, each over `BESIDE` and the requests in it, until when
        self._began: dict[str, float] = {}  # `_work` when each request began
        self._alone = 0.0

    @property
    def running(self) -> int:
        """The requests that it has."""
        return len(self._began)

    @property
    def cost(self) -> float | None:
        """Seconds for a token, over `BESIDE` and the requests at work; None where no answer tells."""
        return self._spent / self._tokens if self._tokens else None

    def begin(self, request_id: str, now: float) -> None:
        """Records that the engine is given a request. Of one that is tried again, answers from before count half."""
        if self.due(now):
            self._fade(0.5)
        self._advance(now)
        self._began[request_id] = self._work

    def answered(self, request_id: str, tokens: int, now: float) -> None:
        """Records so many tokens that a request has brought."""
        self._advance(now)
        self._fade(1 - 1 / ANSWERS)
        spent = self._work - self._began[request_id]
        self.answers, self._spent, self._tokens = self.answers + 1, self._spent + spent, self._tokens + tokens
        self._alone = spent * (BESIDE + 1)

    def end(self, request_id: str, now: float) -> None:
        """Records that the engine has a request no more."""
        self._advance(now)
        del self._began[request_id]

    def forget(self) -> None:
        """Forgets all answers: another engine is to come."""
        self._fade(0.0)

    def due(self, now: float) -> bool:
        """Returns whether it has had no request for so long that it is to be tried again."""
        return not self._began and now - self._at > PATIENCE * self._alone

    def _fade(self, share: float) -> None:
        self.answers, self._spent, self._tokens = self.answers * share, self._spent * share, self._tokens * share

    def _advance(self, now: float) -> None:
        self._work += (now - self._at) / (BESIDE + len(self._began))
        self._at = now


def loads(speeds: Sequence[EngineSpeed], now: float) -> list[float]:
    """Returns for each engine the requests that the fastest of these would have, if a token of the next request took as
    long there. For engines that are about as fast, not known, or to be tried again: those that they have.
    """
    fastest = min(speeds, key=lambda speed: math.inf if speed.cost is None else speed.cost)
    found = []
    for speed in speeds:
        slower = speed.cost / fastest.cost if speed.cost and fastest.cost and not speed.due(now) else 1.0
        chance = 1 + CHANCE / math.sqrt(min(speed.answers, fastest.answers) or 1.0)
        beside = BESIDE + 1  # the next one counts, too
        found.append((speed.running + beside) * (slower if slower > chance else 1.0) - beside)
    return found
