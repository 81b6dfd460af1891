"""Teachers that others serve: their log-probabilities are asked for at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from rljax.config.distill import TEACHERS, TeacherConfig
from rljax.config.secrets import without_passwords
from rljax.tasks.endpoint import asked, bearer
from rljax.trajectory import Trajectory

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Sequences that are asked about side by side."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0


class TeacherError(RuntimeError):
    """A served teacher cannot be asked. One line: which, why, what to do."""


class Endpoint:
    """A served teacher: completions that echo their prompt with its log-probabilities, and sample nothing.

    vLLM, SGLang and ``mode=serve`` answer them: they are OpenAI's ``echo``, with ``max_tokens`` and ``logprobs`` of 0.

    Attributes:
        where: names it in errors.
    """

    def __init__(self, name: str, settings: TeacherConfig, seconds: float) -> None:
        """Takes the keys of the teacher ``name``, and the seconds in which a sequence has to be answered, all tries
        together.

        Raises:
            TeacherError: the variable of its key is not set.
        """
        self.where = f"{TEACHERS}.{name}: {settings.model} at {without_passwords(str(settings.url))}"
        self._address = f"{str(settings.url).rstrip('/')}/completions"
        self._settings = settings
        self._seconds = seconds
        self._headers = bearer(settings.key_variable, TeacherError)

    def logprobs(
        self, trajectories: Sequence[Trajectory], weights: Sequence[Float[np.ndarray, " time"]]
    ) -> list[Float[np.ndarray, " time"]]:
        """Returns the log-probability of each trained token of trajectories, in nats at temperature 1; 0 of all others,
        and where its weight is 0. Every sequence is one request.

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
        scored = self.scores([trajectories[place].token_ids[begin:end] for place, begin, end in spans])
        for (place, begin, end), logprobs in zip(spans, scored, strict=True):
            found[place][begin + 1 : end] = logprobs
            found[place][begin:end] *= trajectories[place].loss_mask[begin:end]
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
        # A thread of its own: that of a notebook has an event loop running already.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, self._ask_all(sequences)).result()

    async def _ask_all(self, sequences: Sequence[np.ndarray]) -> list[Any]:
        import httpx

        room = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=AT_ONCE)) as client:

            async def one(ids: np.ndarray) -> Any:
                async with room:
                    return await self._ask(client, ids)

            return await asyncio.gather(*map(one, sequences))

    async def _ask(self, client: httpx.AsyncClient, ids: np.ndarray) -> Any:
        body = {"model": self._settings.model, "prompt": [int(token) for token in ids], "max_tokens": 0}
        body |= {"echo": True, "logprobs": 0, "temperature": 1.0}
        deadline, wait = time.monotonic() + self._seconds, _FIRST_WAIT
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            answer, reason = await asked(client, self._address, body, self._headers, left, self.where, TeacherError)
            if answer is not None:
                return answer
            if time.monotonic() + wait > deadline:
                raise TeacherError(f"{self.where}: {reason}, for {self._seconds:g} s (wait_timeout); start it again")
            log.warning("%s: %s; it is asked again", self.where, reason)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # so that not all come back at once
            wait = min(_LONGEST_WAIT, 2 * wait)

    def _parsed(self, answer: Any, count: int) -> Float[np.ndarray, " time-1"]:
        try:
            given = answer["choices"][0]["logprobs"]["token_logprobs"][1:count]  # a server may sample one behind them
            found = np.array([float(one) for one in given], np.float32)
        except (LookupError, TypeError, ValueError):
            found = np.zeros(0, np.float32)
        if len(found) != count - 1 or any(math.isnan(one) for one in found):
            raise TeacherError(
                f"{self.where}: its answer has no log-probability for each of {count} tokens of a prompt; it has to "
                "answer completions with echo, as vLLM, SGLang and mode=serve do"
            )
        return found
