"""A judge on engines of its own: a model with fixed weights that answers questions about responses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from rljax.config.judges import JudgeConfig
from rljax.ledger.versions import Announced
from rljax.rollout.async_utils import in_background
from rljax.rollout.engine_pool import EnginePool
from rljax.tasks.rewards.reward import JudgeUnavailable
from rljax.tasks.templates import render_messages, response_text, special_tokens
from sidecar.protocol import EngineError, GenerateRequest, RequestError, SamplingParams


class EngineJudge:
    """Asks a model of its own. Implements `rljax.tasks.rewards.judge.Judge`.

    Its engines are supervised as those of the policy are: one that dies, or does not answer when it is asked to end a
    request, is replaced. It begins anew to count the deaths of an engine with each reply of that engine.
    """

    def __init__(
        self, name: str, settings: JudgeConfig, pool: EnginePool, tokenizer: Any, stop_token_ids: tuple[int, ...]
    ) -> None:
        """Creates the judge; `start` starts its engines."""
        self.template = settings.template
        self.temperature = settings.generating_args.temperature
        self.at_once = settings.num_engines * settings.max_concurrency
        self._name = name
        self._settings = settings
        self._pool = pool
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer)
        self._stop_token_ids = stop_token_ids
        self._numbers = itertools.count()

    async def start(self, publish: Callable[[], Announced]) -> None:
        """Starts the engines on this event loop, with the weights that ``publish`` writes, on another thread. Where
        this is cancelled nobody waits for them to be written.

        Raises:
            EngineError: an engine did not start in time.
            WeightUpdateError: none takes the weights.
        """
        self._loop = asyncio.get_running_loop()
        self._weights, _ = await asyncio.gather(in_background(publish), self._pool.start())
        await self._pool.load(self._weights)

    async def close(self) -> None:
        """Ends the engines."""
        await self._pool.close()

    async def ask(self, prompt: str, *, seed: int, temperature: float | None, max_tokens: int | None) -> str:
        """See `Judge.ask`. May be called from any event loop."""
        asked = self._ask(prompt, seed, temperature, max_tokens)
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the loop of the engines has ended
            asked.close()
            raise JudgeUnavailable(f"judge {self._name}: it was closed") from None
        return await asyncio.wrap_future(future)

    async def _ask(self, prompt: str, seed: int, temperature: float | None, max_tokens: int | None) -> str:
        settings = self._settings
        ids = render_messages(self._tokenizer, self._messages(prompt))
        if not 0 < len(ids) <= settings.max_prompt_tokens:
            most = f"judges.{self._name}.max_prompt_tokens is {settings.max_prompt_tokens}"
            raise JudgeUnavailable(f"judge {self._name}: a question of {len(ids)} tokens; {most}")
        generating, most_tokens = settings.generating_args, settings.max_response_tokens
        sampling = SamplingParams(
            temperature=self.temperature if temperature is None else temperature,
            top_p=generating.top_p,
            top_k=generating.top_k,
            min_p=generating.min_p,
            repetition_penalty=generating.repetition_penalty,
            max_new_tokens=min(max_tokens or generating.max_new_tokens or most_tokens, most_tokens),
            stop_token_ids=self._stop_token_ids,
            stop_strings=generating.stop,
            seed=seed,
        )
        request = GenerateRequest(f"judge-{self._name}-{next(self._numbers)}", ids, sampling)
        try:
            reply = await self._pool.generate(request, self._weights.lineage)
        except RequestError as error:
            raise JudgeUnavailable(f"judge {self._name}: {error}") from None
        except EngineError as error:
            raise JudgeUnavailable(f"judge {self._name} is lost: {error}") from None
        self._pool.forgive()
        return response_text(self._tokenizer, reply.token_ids, self._stop_token_ids)

    def _messages(self, prompt: str) -> list[dict[str, str]]:
        for token in self._special:  # a response must not end its own turn and begin the judge's
            prompt = prompt.replace(token, " ")
        system = self._settings.system_prompt
        before = [] if system is None else [{"role": "system", "content": system}]
        return [*before, {"role": "user", "content": prompt}]
