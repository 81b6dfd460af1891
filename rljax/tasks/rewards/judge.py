"""Reward by a judge: a language model behind an OpenAI-compatible endpoint reads the response and gives a score."""

from __future__ import annotations

import asyncio
import os
import random
import re
import weakref
from typing import TYPE_CHECKING

from rljax.tasks.rewards.reward import JudgeUnavailable, Reward
from rljax.tasks.task import Task

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
_AGAIN = {408, 409, 425, 429}  # and whatever is the server's own fault
_LONGEST_WAIT = 8.0
_SHOWN = 200
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = weakref.WeakKeyDictionary()


async def llm_judge(
    task: Task,
    response: str,
    *,
    url: str,
    model: str,
    template: str = TEMPLATE,
    pattern: str = r"\[\[\s*(-?\d+(?:\.\d+)?)\s*\]\]",
    low: float = 0.0,
    high: float = 10.0,
    key_variable: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 512,
    retries: int = 4,
    first_wait: float = 0.5,
    seconds: float = 20.0,
) -> Reward:
    """Returns the judge's rating, scaled from [low, high] to [0, 1].

    Args:
        task: its last message is the question.
        response: text to judge.
        url: of the endpoint up to its version, such as ``http://127.0.0.1:8000/v1``.
        model: name of the judge there.
        template: message to the judge; {question}, {answer} and {response} are replaced.
        pattern: regular expression whose first group, in its last match, is the rating.
        low, high: of a rating; one beyond is none.
        key_variable: environment variable that holds the endpoint's key; None: it needs none.
        temperature, max_tokens: of the judge's reply.
        retries: further tries where the judge cannot be reached, is busy, fails, or gives no rating.
        first_wait: seconds before the first of them; each next wait is twice as long, up to 8 s.
        seconds: for one try; `rollout.reward_timeout` is that for all of them.

    Raises:
        JudgeUnavailable: all tries failed, or the endpoint refuses; the reason is that of the last.
    """
    where = f"judge {model} at {url}"
    headers = {} if key_variable is None else {"Authorization": f"Bearer {_key(key_variable)}"}
    prompt = filled(template, task, response)
    body = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
    body["messages"] = [{"role": "user", "content": prompt}]
    for attempt in range(retries + 1):
        if attempt:
            wait = min(_LONGEST_WAIT, first_wait * 2 ** (attempt - 1))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # so that not all come back at once
        reply, reason = await _asked(f"{url.rstrip('/')}/chat/completions", headers, body, seconds, where)
        if reply is None:
            continue
        rating = parsed_rating(reply, pattern)
        if rating is not None and low <= rating <= high:
            return Reward((rating - low) / (high - low), {"rating": rating})
        reason = f"no rating from {low:g} to {high:g} in {reply[-_SHOWN:]!r}"
    raise JudgeUnavailable(f"{where}: {reason} ({retries + 1} tries)")


def filled(template: str, task: Task, response: str) -> str:
    """Returns the message to the judge; what is filled in is not searched for further places."""
    question = task.messages[-1]["content"] if task.messages else ""
    values = {"question": question, "answer": task.answer, "response": response}
    return _PLACES.sub(lambda place: values[place[1]], template)


def parsed_rating(reply: str, pattern: str) -> float | None:
    """Returns the number in the first group of the last match; None where there is none."""
    matches = list(re.finditer(pattern, reply))
    try:
        return float(matches[-1][1]) if matches else None
    except (IndexError, ValueError, TypeError):
        return None


async def _asked(
    address: str, headers: dict[str, str], body: dict[str, object], seconds: float, where: str
) -> tuple[str | None, str]:
    """Returns the judge's reply, or None and why there is none; raises JudgeUnavailable where asking again is vain."""
    import httpx

    try:
        answer = await _client().post(address, json=body, headers=headers, timeout=seconds)
    except httpx.InvalidURL as error:
        raise JudgeUnavailable(f"{where}: {error}") from error
    except httpx.UnsupportedProtocol as error:
        raise JudgeUnavailable(f"{where}: write http:// or https:// before it") from error
    except httpx.TimeoutException:
        return None, f"no answer within {seconds:g} s"
    except httpx.TransportError as error:
        return None, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if answer.status_code in _AGAIN or answer.status_code >= 500:
        return None, f"status {answer.status_code}: {' '.join(answer.text.split())[:_SHOWN]}"
    if answer.status_code != 200:
        raise JudgeUnavailable(f"{where}: status {answer.status_code}: {' '.join(answer.text.split())[:_SHOWN]}")
    try:
        return str(answer.json()["choices"][0]["message"]["content"] or ""), ""
    except (ValueError, LookupError, TypeError):
        return None, f"no completion in {answer.text[:_SHOWN]!r}"


def _client() -> httpx.AsyncClient:
    """Returns the connections of this event loop, which its calls share."""
    import httpx

    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=256))
    return _clients[loop]


def _key(variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key:
        raise JudgeUnavailable(f"the environment variable {variable} (key_variable) is not set")
    return key
