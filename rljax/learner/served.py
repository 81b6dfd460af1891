"""Teachers that others serve: their log-probabilities are asked for at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from rljax.config.distill import TEACHERS, TeacherConfig
from rljax.config.secrets import without_passwords
from rljax.learner.teachers import Ask, TokenValues
from rljax.observe.atomic_write import atomic_path
from rljax.observe.parts import ASK, part
from rljax.tasks.endpoint import asked, bearer
from rljax.trajectory import Trajectory

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Sequences that are asked about side by side."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
_FIRST_TRY = 300.0  # a connection that has died unseen answers never; each further try has twice as long


class TeacherError(RuntimeError):
    """A served teacher cannot be asked. One line: which, why, what to do."""


class TeacherAway(TeacherError):
    """It did not answer in time: asking later may help."""


class Endpoint:
    """A served teacher: completions that echo their prompt with its log-probabilities, and sample nothing.

    vLLM and ``mode=serve`` answer them: they are OpenAI's ``echo``, with ``max_tokens`` and ``logprobs`` of 0.

    Attributes:
        where: names it in errors.
    """

    def __init__(self, name: str, settings: TeacherConfig, seconds: float, limit: str = " (wait_timeout)") -> None:
        """Takes the keys of the teacher ``name``, the seconds in which a sequence has to be answered, all tries
        together, and what errors say behind them.
        """
        self.where = f"{TEACHERS}.{name}: {settings.model} at {without_passwords(str(settings.url))}"
        self._part = f"{ASK} {name}"
        self._address = f"{str(settings.url).rstrip('/')}/completions"
        self._settings = settings
        self._seconds, self._limit, self._longest_try = seconds, limit, _FIRST_TRY
        self._away = ""

    def logprobs(self, trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> TokenValues:
        """Implements `Ask`: log-probabilities in nats at temperature 1, 0 where nothing is trained or the weight is 0.
        Every sequence is one request.

        Raises:
            TeacherError: it cannot be asked, or gives none.
        """
        found = [np.zeros(len(t.token_ids), np.float32) for t in trajectories]
        spans = []
        for place, (trajectory, weight) in enumerate(zip(trajectories, weights, strict=True)):
            for begin, end in trajectory.row_spans:
                trained = np.flatnonzero((trajectory.loss_mask & (weight > 0))[begin:end])
                if not len(trained):
                    continue
                if trajectory.temperature != 1:
                    raise TeacherError(
                        f"{self.where}: a token was sampled at temperature {trajectory.temperature:g}, and endpoints "
                        "say log-probabilities at 1; write sidecar.generating_args.temperature=1 for the explorers"
                    )
                spans.append((place, begin, begin + int(trained[-1]) + 1))
        if not spans:
            return found
        with part(self._part):
            scored = self.scores([trajectories[place].token_ids[begin:end] for place, begin, end in spans])
        for (place, begin, end), logprobs in zip(spans, scored, strict=True):
            found[place][begin + 1 : end] = np.where(trajectories[place].loss_mask[begin + 1 : end], logprobs, 0)
        return found

    def scores(self, sequences: Sequence[Int[np.ndarray, " time"]]) -> list[Float[np.ndarray, " time-1"]]:
        """Returns the log-probabilities of the tokens of each sequence but its first.

        Raises:
            TeacherError: it cannot be asked, or gives none.
        """
        answers = self._answers(sequences) if sequences else []
        return [self._parsed(answer, len(ids)) for answer, ids in zip(answers, sequences, strict=True)]

    def texts(self, token_ids: Int[np.ndarray, " time"]) -> list[str]:
        """Returns what the teacher's tokenizer makes of each token.

        Raises:
            TeacherError: it cannot be asked, or gives none.
        """
        (answer,) = self._answers([token_ids])
        self._parsed(answer, len(token_ids))
        texts = answer["choices"][0]["logprobs"].get("tokens")
        return [str(text) for text in texts[: len(token_ids)]] if isinstance(texts, list) else []

    def _answers(self, sequences: Sequence[np.ndarray]) -> list[Any]:
        self._away = ""
        # A thread of its own: that of a notebook has an event loop running already. None waits for it at an interrupt.
        made: Future[list[Any]] = Future()

        def work() -> None:
            try:
                made.set_result(asyncio.run(self._ask_all(sequences)))
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=work, name="teacher", daemon=True).start()
        return made.result()

    async def _ask_all(self, sequences: Sequence[np.ndarray]) -> list[Any]:
        import httpx

        room, headers = asyncio.Semaphore(AT_ONCE), bearer(self._settings.key_variable, TeacherError)
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=AT_ONCE)) as client:

            async def one(ids: np.ndarray) -> Any:
                async with room:
                    return await self._ask(client, headers, ids)

            return await asyncio.gather(*map(one, sequences))

    async def _ask(self, client: httpx.AsyncClient, headers: dict[str, str], ids: np.ndarray) -> Any:
        body = {"model": self._settings.model, "prompt": [int(token) for token in ids], "max_tokens": 0}
        body |= {"echo": True, "logprobs": 0}
        deadline, wait = time.monotonic() + self._seconds, _FIRST_WAIT
        while True:
            begun = time.monotonic()
            left = min(max(deadline - begun, 0.001), self._longest_try)
            answer, reason = await asked(client, self._address, body, headers, left, self.where, TeacherError)
            if answer is not None:
                return answer
            if time.monotonic() + wait > deadline:
                raise TeacherAway(f"{self.where}: {reason}, for {self._seconds:g} s{self._limit}; start it again")
            if time.monotonic() - begun >= left:
                self._longest_try = max(self._longest_try, 2 * left)
            if not self._away:  # said once a batch
                self._away = reason
                log.warning("%s: %s; it is asked again for %g s", self.where, reason, self._seconds)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # so that not all come back at once
            wait = min(_LONGEST_WAIT, 2 * wait)

    def _parsed(self, answer: Any, count: int) -> Float[np.ndarray, " time-1"]:
        try:
            given = answer["choices"][0]["logprobs"]["token_logprobs"][1:count]  # a server may sample one behind them
            found = np.array([float(one) for one in given], np.float32)
        except (LookupError, TypeError, ValueError):
            found = np.zeros(0, np.float32)
        if len(found) != count - 1 or not np.isfinite(found).all():
            raise TeacherError(
                f"{self.where}: its answer has no log-probability for each of {count} tokens of a prompt; it has to "
                "answer completions with echo, as vLLM and mode=serve do"
            )
        return found


class Recorded:
    """Keeps what a teacher has answered, for as long as the batch may be trained again: after a crash, and in a replay,
    the same question has the same answer, bit for bit (P13). Implements `Ask`.
    """

    def __init__(self, ask: Ask, directory: Path, oldest: Callable[[], int]) -> None:
        """Takes where the answers lie, and what says the oldest step that may be trained again."""
        self._ask, self._directory, self._oldest = ask, directory, oldest

    def __call__(self, trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> TokenValues:
        """See `Ask`.

        Raises:
            TeacherError: as ``ask``.
            OSError: an answer cannot be written.
        """
        question = hashlib.blake2b(digest_size=16)
        for trajectory, weight in zip(trajectories, weights, strict=True):
            for array in (trajectory.token_ids, trajectory.loss_mask, weight):
                question.update(np.ascontiguousarray(array).data)
            question.update(repr(trajectory.row_spans).encode())
        path = self._directory / f"step-{step:06d}-{question.hexdigest()}.npy"
        ends = np.cumsum([0, *(len(t.token_ids) for t in trajectories)])
        found = _read(path, int(ends[-1]))
        if found is None:
            found = np.concatenate([np.zeros(0, np.float32), *self._ask(trajectories, weights, step)])
            self._keep(path, found)
        return np.split(found, ends[1:-1])

    def _keep(self, path: Path, answer: np.ndarray) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as draft, draft.open("wb") as file:
            np.save(file, answer)
        oldest = self._oldest()
        for other in self._directory.glob("step-*.npy"):
            if int(other.name.split("-")[1]) < oldest:
                other.unlink(missing_ok=True)


def _read(path: Path, count: int) -> Float[np.ndarray, " count"] | None:
    """Returns a kept answer; None where there is none, or not the whole of it."""
    try:
        found: np.ndarray = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (count,) and found.dtype == np.float32 else None
