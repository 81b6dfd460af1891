"""Reward by a judge: a language model, on our own engine or behind a URL, rates the response."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljax.config.judges import ASKS_JUDGES
from rljax.config.secrets import without_passwords
from rljax.tasks.endpoint import asked, bearer
from rljax.tasks.rewards.own_models import is_tried, own_model
from rljax.tasks.rewards.reward import JudgeUnavailable, Reward
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.seeds import stable_hash
from rljax.tasks.task import Task
from rljax.timeouts import timeout

if TYPE_CHECKING:
    import httpx

TEMPLATE = """Judge the response below. Consider whether it is correct, complete and to the point.

[Question]
{question}

[Reference answer, where there is one]
{answer}

[Response]
{response}
[End of the response]

Explain in a few sentences, then write your rating from 0 to 10 in double brackets, such as [[5]]."""

_PLACES = re.compile(r"\{(question|answer|response)\}")
_LONGEST_WAIT = 8.0
_SHOWN = 200
_POOLS = 16  # of connections: one looks at all its connections and all that wait, at the end of each request
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Iterator[httpx.AsyncClient]] = (
    weakref.WeakKeyDictionary()
)


class Judge(Protocol):
    """A model on engines of the run's own, from the section ``judges`` of the config.

    Attributes:
        template: message to it; None: the reward's own.
        temperature: of its replies, where nobody says otherwise.
        at_once: questions that its engines answer side by side; further ones would wait for them.
    """

    template: str | None
    temperature: float
    at_once: int

    async def ask(self, prompt: str, *, seed: int, temperature: float | None, max_tokens: int | None) -> str:
        """Returns the reply to a user message; what is None is as the config of the judge says.

        Raises:
            JudgeUnavailable: it will never answer this, or no engine is left.
        """
        ...


def own_judge(name: str) -> Judge:
    """Returns the judge of that name, for an async reward.

    Raises:
        JudgeUnavailable: this process has none of that name.
    """
    judge: Judge = own_model("judges", name, JudgeUnavailable)
    return judge


@built_in(ASKS_JUDGES, Place.AWAITED, reads_answer=False, asks="judges", asked="judge")
async def llm_judge(
    task: Task,
    response: str,
    *,
    judge: str | None = None,
    url: str | None = None,
    model: str = "",
    template: str | None = None,
    pattern: str = r"\[\[\s*(-?\d+(?:\.\d+)?)\s*\]\]",
    low: float = 0.0,
    high: float = 10.0,
    key_variable: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    retries: int = 4,
    first_wait: float = 0.5,
    seconds: float = 20.0,
) -> Reward:
    """Returns the judge's rating, scaled from [low, high] to [0, 1].

    Args:
        task: its last message is the question.
        response: text to judge.
        judge: name in the section ``judges`` of the config; None: ``url`` says where it is.
        url: of an OpenAI-compatible endpoint up to its version, such as ``http://127.0.0.1:8000/v1``.
        model: name of the judge there.
        template: message to the judge; {question}, {answer} and {response} are replaced. None: `judges` says it, else
            `TEMPLATE`.
        pattern: regular expression whose first group, in its last match, is the rating: a number, or ``yes`` (high) or
            ``no`` (low).
        low, high: of a rating; one beyond is none.
        key_variable: environment variable that holds the endpoint's key; None: it needs none.
        temperature, max_tokens: of the judge's reply. None: `judges` says it; behind a URL 0, and 512.
        retries: further tries where the judge cannot be reached, is busy, fails, or gives no rating.
        first_wait: seconds before the first of them; each next wait is twice as long, up to 8 s.
        seconds: for one try; `rollout.reward_timeout` is that for all of them. For a judge of `judges` neither runs
            before its engines have room for the question.

    Raises:
        JudgeUnavailable: all tries failed, or asking again is vain; the reason is that of the last.
    """
    if judge is not None:
        question = _to_own(judge, task, response, template, temperature, max_tokens, seconds)
    else:
        body = {"model": model, "temperature": temperature or 0.0, "max_tokens": max_tokens or 512}
        question = _to_endpoint(str(url), body, filled(template or TEMPLATE, task, response), key_variable, seconds)
    for attempt in range(retries + 1):
        if attempt:
            wait = min(_LONGEST_WAIT, first_wait * 2 ** (attempt - 1))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # so that not all come back at once
        reply, reason = await question.ask(attempt)
        if reply is None:
            continue
        rating = parsed_rating(reply, pattern, low, high)
        if rating is not None and low <= rating <= high:
            return Reward((rating - low) / (high - low), {"rating": rating})
        reason = f"no rating from {low:g} to {high:g} in {reply[-_SHOWN:]!r}"
        if question.greedy or is_tried():  # before a run it is known soon enough
            break
    raise JudgeUnavailable(f"{question.where}: {reason} ({attempt + 1} tries)")


def filled(template: str, task: Task, response: str) -> str:
    """Returns the message to the judge; what is filled in is not searched for further places."""
    question = task.messages[-1]["content"] if task.messages else ""
    values = {"question": question, "answer": task.answer, "response": response}
    return _PLACES.sub(lambda place: values[place[1]], template)


def parsed_rating(reply: str, pattern: str, low: float = 0.0, high: float = 1.0) -> float | None:
    """Returns the number in the first group of the last match, of ``yes`` and ``no`` ``high`` and ``low``; None where
    there is none.
    """
    matches = list(re.finditer(pattern, reply))
    try:
        rating = matches[-1][1] if matches else None
        words = {"yes": high, "no": low}
        return words[word] if (word := str(rating).lower()) in words else float(str(rating))
    except (IndexError, ValueError):
        return None


@dataclass(frozen=True)
class _Question:
    """A question to a judge.

    Attributes:
        where: names the judge in messages.
        ask: by the number of the try, from 0: the reply, or None and why there is none; raises JudgeUnavailable where
            asking again is vain.
        greedy: whether each try gives the same reply.
    """

    where: str
    ask: Callable[[int], Awaitable[tuple[str | None, str]]]
    greedy: bool = False


def _to_own(
    name: str,
    task: Task,
    response: str,
    template: str | None,
    temperature: float | None,
    max_tokens: int | None,
    seconds: float,
) -> _Question:
    judge = own_judge(name)
    prompt = filled(template or judge.template or TEMPLATE, task, response)
    place = (task.id.taskset, task.id.epoch, task.id.index)

    async def ask(attempt: int) -> tuple[str | None, str]:
        seed = stable_hash("judge", name, *place, response, attempt)
        try:
            async with timeout(seconds):
                return await judge.ask(prompt, seed=seed, temperature=temperature, max_tokens=max_tokens), ""
        except TimeoutError:
            return None, f"no answer within {seconds:g} s"

    return _Question(f"judge {name}", ask, (judge.temperature if temperature is None else temperature) == 0)


def _to_endpoint(
    url: str, settings: dict[str, object], prompt: str, key_variable: str | None, seconds: float
) -> _Question:
    body = {**settings, "messages": [{"role": "user", "content": prompt}]}
    where = f"judge {body['model']} at {without_passwords(url)}"
    headers, address = bearer(key_variable, JudgeUnavailable), f"{url.rstrip('/')}/chat/completions"

    async def ask(attempt: int) -> tuple[str | None, str]:
        answer, reason = await asked(_client(), address, body, headers, seconds, where, JudgeUnavailable)
        if answer is None:
            return None, reason
        try:
            return str(answer["choices"][0]["message"]["content"] or ""), ""
        except (LookupError, TypeError):
            return None, f"no completion in {str(answer)[:_SHOWN]!r}"

    return _Question(where, ask)


def _client() -> httpx.AsyncClient:
    """Returns a pool of connections of this event loop, which its calls share; the pools take turns."""
    import httpx

    loop = asyncio.get_running_loop()
    if loop not in _clients:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        context = httpx.create_ssl_context()
        _clients[loop] = itertools.cycle([httpx.AsyncClient(limits=limits, verify=context) for _ in range(_POOLS)])
    return next(_clients[loop])
