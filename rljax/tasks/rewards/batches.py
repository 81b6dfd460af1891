"""Batches of what is waiting: what is asked side by side, gathered and answered on a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rljax.tasks.rewards.reward import RewardError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Question(Generic[Item, Answer]):
    """An item that somebody waits for; ``kind`` is set once it is taken up."""

    item: Item
    kind: Hashable = None
    future: Future[Answer] = field(default_factory=Future)


class Batches(Generic[Item, Answer]):
    """Thread that answers in batches, started at the first question: what comes while it computes one makes up the
    next ones. Nothing waits for company.

    Safe to use from any thread.

    Args:
        name: of the thread.
        most: items of a batch.
        answer: computes a batch: an answer for each item, in order. What it raises is raised to all who asked.
        kind: computed on the thread, once of each item; all of a batch have the same. What it raises is raised to who
            asked.
        closed: message to who asks after the end, or still waits then.
    """

    def __init__(
        self,
        name: str,
        most: int,
        answer: Callable[[list[Item]], Sequence[Answer]],
        *,
        kind: Callable[[Item], Hashable] = lambda _: None,
        closed: str,
    ) -> None:
        self._most = most
        self._answer = answer
        self._kind = kind
        self._said = closed
        self._asked: queue.SimpleQueue[_Question[Item, Answer] | None] = queue.SimpleQueue()
        self._waiting: list[_Question[Item, Answer]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def waiting(self) -> int:
        """Items that are in no batch yet."""
        return self._asked.qsize() + len(self._waiting)

    def ask(self, item: Item) -> Future[Answer]:
        """Returns the answer to come; cancelling it before its batch begins leaves the item out.

        Raises:
            RewardError: this was closed.
        """
        question: _Question[Item, Answer] = _Question(item)
        with self._lock:
            if self._closed:
                raise RewardError(self._said)
            self._asked.put(question)
            if self._thread.ident is None:
                self._thread.start()
        return question.future

    def close(self, seconds: float) -> None:
        """Fails what waits, once the batch under way is answered, and waits so long for that. May be repeated."""
        with self._lock:
            self._closed = True
            self._asked.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while self._gather():
            waiting = [one for one in self._waiting if not one.future.cancelled()]
            batch = [one for one in waiting if one.kind == waiting[0].kind][: self._most]
            self._waiting = [one for one in waiting if one not in batch]
            if begun := [one for one in batch if one.future.set_running_or_notify_cancel()]:
                self._answered(begun)

    def _gather(self) -> bool:
        """Adds what is asked by now, waiting for it where there is nothing to do; False once it is closed."""
        while True:
            try:
                question = self._asked.get(block=not self._waiting)
            except queue.Empty:
                return True
            if question is None:
                for one in self._waiting:
                    _fail(one, RewardError(self._said))
                return False
            if question.future.cancelled():
                continue
            try:
                question.kind = self._kind(question.item)
            except BaseException as error:  # a library may call sys.exit; who asked must not wait for ever
                _fail(question, error)
            else:
                self._waiting.append(question)

    def _answered(self, batch: list[_Question[Item, Answer]]) -> None:
        try:
            answered = list(zip(batch, self._answer([one.item for one in batch]), strict=True))
        except BaseException as error:
            for one in batch:
                one.future.set_exception(error)
            return
        for one, answer in answered:
            one.future.set_result(answer)


def _fail(question: _Question[Item, Answer], error: BaseException) -> None:
    if question.future.set_running_or_notify_cancel():
        question.future.set_exception(error)
