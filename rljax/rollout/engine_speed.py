"""The speed of engines, as far as their answers tell it, and whose answer is to be expected first."""

from __future__ import annotations

from collections.abc import Sequence

BESIDE = 8
"""With n requests an engine is taken to need time for a token of each as n + `BESIDE`. Where it does not, what it
answers with the load that it is given says so.
"""
ANSWERS = 16
"""The last answers, about, that the speed is measured by."""
NOTICED = 1.5
"""Engines count as equally fast up to this factor: so much may be chance."""
PATIENCE = 16
"""An engine without requests is tried again after so many times what its last answer took."""


class EngineSpeed:
    """Measures how long an engine takes for a token, prompts and the wait for a slot of it included.

    All times are in seconds of one clock.
    """

    def __init__(self) -> None:
        self._work, self._at = 0.0, 0.0  # the seconds, each over `BESIDE` and the requests in it, until when
        self._began: dict[str, tuple[float, float]] = {}  # of each request, `_work` and the time when it began
        self._took = 0.0
        self._spent, self._tokens = 0.0, 0.0

    @property
    def running(self) -> int:
        """The requests that it has."""
        return len(self._began)

    @property
    def cost(self) -> float | None:
        """Seconds for a token, over `BESIDE` and the requests beside it; None where no answer tells."""
        return self._spent / self._tokens if self._tokens else None

    def begin(self, request_id: str, now: float) -> None:
        """Records that the engine is given a request. Of one that is tried again, answers from before count half."""
        if self.due(now):
            self._spent, self._tokens = self._spent / 2, self._tokens / 2
        self._advance(now)
        self._began[request_id] = self._work, now

    def answered(self, request_id: str, tokens: int, now: float) -> None:
        """Records so many tokens that a request has brought."""
        self._advance(now)
        work, began = self._began[request_id]
        kept = 1 - 1 / ANSWERS
        self._spent, self._tokens = self._spent * kept + self._work - work, self._tokens * kept + tokens
        self._took = now - began

    def end(self, request_id: str, now: float) -> None:
        """Records that the engine has a request no more."""
        self._advance(now)
        del self._began[request_id]

    def forget(self) -> None:
        """Forgets all answers: another engine is to come."""
        self._spent, self._tokens = 0.0, 0.0

    def due(self, now: float) -> bool:
        """Returns whether it has had no request for so long that it is to be tried again."""
        return not self._began and now - self._at > PATIENCE * self._took

    def _advance(self, now: float) -> None:
        self._work += (now - self._at) / (BESIDE + len(self._began))
        self._at = now


def loads(speeds: Sequence[EngineSpeed], now: float) -> list[float]:
    """Returns for each engine the requests that one as fast as the fastest of these would have, if a token of the next
    request took as long there. For engines that are about as fast, not known, or to be tried: those that they have.
    """
    least = min((speed.cost for speed in speeds if speed.cost is not None), default=0.0)
    found = []
    for speed in speeds:
        slower = speed.cost / least if speed.cost and least and not speed.due(now) else 1.0
        beside = BESIDE + 1  # the next one counts, too
        found.append((speed.running + beside) * (slower if slower > NOTICED else 1.0) - beside)
    return found
