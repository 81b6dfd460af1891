"""Reads requests for answers: what OpenAI's fields ask of an engine, and what no engine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError

from rljax.models.common.architecture import Architecture
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.serve.errors import BadRequest
from rljax.pipeline.serve.fields import Fields, proper_text
from rljax.tasks.templates import render_messages, tokenized
from sidecar.protocol import SamplingParams

MOST_CHOICES = 128
MOST_STOPS = 4
COMPLETION_TOKENS = 16
"""Budget of a completion that names none, as OpenAI's; a chat has what the context leaves."""
LEAST_TEMPERATURE = 0.01
"""Below this vLLM samples at it; 0 is greedy."""
LARGEST_SEED = 2**63 - 1
_TOOLS = "tool calls are not supported"
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Asked:
    """A request for answers.

    Attributes:
        prompts: int32 ``[prompt]`` each.
        sampling: of every answer, but for its seed.
        n: answers to each prompt.
        seed: of the request; None: one is drawn.
        stream: send tokens as they are sampled.
        usage: end a stream with the number of tokens.
        logprobs: say the log-probability of each token.
        token_ids: say the ids of the tokens of prompt and answer.
        echo: answer with the prompt, whose log-probabilities are computed, and sample nothing.
    """

    prompts: tuple[np.ndarray, ...]
    sampling: SamplingParams
    n: int
    seed: int | None
    stream: bool
    usage: bool
    logprobs: bool
    token_ids: bool
    echo: bool = False


@dataclass(frozen=True)
class Reader:
    """Reads the requests for one model.

    Attributes:
        model: which is served.
        name: what requests call it.
        context: tokens of prompt and answer together, at most.
    """

    model: Model
    name: str
    context: int

    def completion(self, body: Mapping[str, Any]) -> Asked:
        """Reads a request to continue prompts.

        Raises:
            BadRequest: a field that is missing, wrong or unknown.
        """
        fields = Fields(body)
        self._check_model(fields)
        prompts = self._prompts(fields.take("prompt"))
        n = fields.integer("n", 1, MOST_CHOICES) or 1
        fields.only("best_of", n)
        fields.only("suffix", "")
        echo = fields.flag("echo")
        why = "the engines know the log-probability of the sampled token alone, which 0 asks for"
        wanted = fields.take("logprobs")
        if wanted is not None and (isinstance(wanted, bool) or wanted != 0):
            raise BadRequest(f"{why}; write 0", "logprobs")
        budget = fields.integer("max_tokens", 0 if echo else 1, self.context)
        if not echo:
            return self._asked(fields, prompts, n, "max_tokens", budget, wanted is not None, COMPLETION_TOKENS)
        if budget != 0 or wanted is None or n != 1:
            raise BadRequest("a prompt is scored alone; write max_tokens=0, logprobs=0 and n=1", "echo")
        neutral: dict[str, tuple[Any, ...]] = {
            "temperature": (0, 1),
            "top_p": (1,),
            "top_k": (-1, 0),
            "stop": ([],),
            "stream": (False,),
        }
        for name in ("seed", "stream_options", *neutral):
            fields.only(name, *neutral.get(name, ()), why="nothing is sampled")
        asked = self._asked(fields, prompts, n, "max_tokens", None, True, COMPLETION_TOKENS)
        return replace(asked, echo=True)

    def chat(self, body: Mapping[str, Any]) -> Asked:
        """Reads a request to continue a dialogue.

        Raises:
            BadRequest: a field that is missing, wrong or unknown.
        """
        fields = Fields(body)
        self._check_model(fields)
        for name in ("tools", "functions"):
            fields.only(name, [], why=_TOOLS)
        for name in ("tool_choice", "function_call"):
            fields.only(name, "none", "auto", why=_TOOLS)
        fields.only("parallel_tool_calls", True, False, why=_TOOLS)
        fields.only("response_format", {"type": "text"})
        fields.only("modalities", ["text"])
        prompt = self._dialogue(fields.take("messages"))
        n = fields.integer("n", 1, MOST_CHOICES) or 1
        logprobs = fields.flag("logprobs")
        fields.only("top_logprobs", 0, why="the engines know the log-probability of the sampled token alone")
        budget = fields.integer("max_completion_tokens", 1, self.context)
        older = fields.integer("max_tokens", 1, self.context)
        if budget is not None and older not in (None, budget):
            raise BadRequest("differs from max_completion_tokens; write one of them", "max_tokens")
        name = "max_tokens" if budget is None else "max_completion_tokens"
        return self._asked(fields, (prompt,), n, name, budget or older, logprobs, self.context)

    def _asked(
        self,
        fields: Fields,
        prompts: tuple[np.ndarray, ...],
        n: int,
        budget_name: str,
        budget: int | None,
        logprobs: bool,
        default_budget: int,
    ) -> Asked:
        room = self.context - max(map(len, prompts))
        if budget is not None and budget > room:
            raise BadRequest(
                f"{budget} behind a prompt of {self.context - room} tokens; the context has {self.context} (write at "
                f"most {room})",
                budget_name,
            )
        temperature = fields.number("temperature", 1.0, 0.0, 2.0)
        if 0 < temperature < LEAST_TEMPERATURE:
            raise BadRequest(f"write 0, which is greedy, or at least {LEAST_TEMPERATURE}", "temperature")
        top_p = fields.number("top_p", 1.0, 0.0, 1.0)
        if top_p == 0:
            raise BadRequest("write a number above 0, at most 1", "top_p")
        top_k = fields.integer("top_k", -1, self.model.architecture.vocab_size) or 0
        seed = fields.integer("seed", -LARGEST_SEED - 1, LARGEST_SEED)
        stop = _stops(fields.take("stop"))
        stream, options = fields.flag("stream"), fields.take("stream_options")
        usage = _usage(options, stream)
        token_ids = fields.flag("return_token_ids")
        for name in ("presence_penalty", "frequency_penalty", "min_p"):
            fields.only(name, 0)
        fields.only("repetition_penalty", 1)
        fields.only("logit_bias", {})
        fields.only("store", False)
        fields.only("service_tier", "auto", "default")
        fields.text("user")  # says who asks, and changes no answer
        fields.end()
        sampling = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=max(top_k, 0),
            max_new_tokens=min(default_budget, room) if budget is None else budget,
            stop_token_ids=self.model.stop_token_ids,
            stop_strings=stop,
        )
        return Asked(prompts, sampling, n, seed, stream, usage, logprobs, token_ids)

    def _check_model(self, fields: Fields) -> None:
        wanted = fields.text("model")
        if wanted is None:
            raise BadRequest(f"missing; write {self.name!r}", "model")
        if wanted != self.name:
            raise BadRequest(
                f"{wanted[:64]!r} is not served here; write {self.name!r}", "model", status=404, code="model_not_found"
            )

    def _prompts(self, given: Any) -> tuple[np.ndarray, ...]:
        if given is None:
            raise BadRequest("missing; write a text, token ids, or a list of these", "prompt")
        one = isinstance(given, str) or (isinstance(given, list) and given and all(map(_is_id, given)))
        many = [given] if one else given
        if not isinstance(many, list) or not 0 < len(many) <= MOST_CHOICES:
            raise BadRequest(f"write a text, token ids, or a list of up to {MOST_CHOICES} of these", "prompt")
        return tuple(self._fitting(self._prompt(one), "prompt") for one in many)

    def _prompt(self, given: Any) -> np.ndarray:
        if isinstance(given, list) and given and all(map(_is_id, given)):
            architecture: Architecture = self.model.architecture
            if not 0 <= min(given) <= max(given) < architecture.vocab_size:
                raise BadRequest(f"the model has token ids from 0 to {architecture.vocab_size - 1}", "prompt")
            return np.asarray(given, np.int32)
        return tokenized(self.model.tokenizer, proper_text(given, "prompt"), special=True)

    def _dialogue(self, given: Any) -> np.ndarray:
        if not isinstance(given, list) or not given:
            raise BadRequest("write a list of messages, each with role and content", "messages")
        messages = [_message(one, f"messages[{place}]") for place, one in enumerate(given)]
        try:
            return self._fitting(render_messages(self.model.tokenizer, messages), "messages")
        except TemplateError as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise BadRequest(f"the model's chat template refuses them: {reason}", "messages") from None

    def _fitting(self, prompt: np.ndarray, field: str) -> np.ndarray:
        if not 0 < len(prompt) < self.context:
            what = f"{len(prompt)} tokens, and the context has {self.context}" if len(prompt) else "no tokens"
            raise BadRequest(f"{what}; write a {'shorter' if len(prompt) else 'longer'} one", field)
        return prompt


def wanted_choices(body: Mapping[str, Any]) -> int:
    """Returns how many answers a request asks for, by its form alone; what `Reader` will refuse counts as one."""
    n, prompts = body.get("n", 1), body.get("prompt")
    many = len(prompts) if isinstance(prompts, list) and prompts and not _is_id(prompts[0]) else 1
    return (many if many <= MOST_CHOICES else 1) * (n if _is_id(n) and 0 < n <= MOST_CHOICES else 1)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _message(given: Any, path: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise BadRequest("write an object with role and content", path)
    fields = Fields(given, f"{path}.")
    role = fields.text("role")
    for name in ("tool_calls", "function_call", "tool_call_id"):
        fields.only(name, [], why=_TOOLS)
    if role not in _ROLES:
        why = _TOOLS if role in ("tool", "function") else "unknown"
        raise BadRequest(f"{why}; write {', '.join(_ROLES)}", f"{path}.role")
    content = fields.take("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{path}.content[{place}]") for place, part in enumerate(content))
    fields.end()
    return {"role": role, "content": proper_text(content, f"{path}.content")}


def _part(given: Any, path: str) -> str:
    if not isinstance(given, dict) or given.get("type") != "text":
        raise BadRequest('only texts can be read; write {"type": "text", "text": …}', path)
    return proper_text(given.get("text"), path)


def _stops(given: Any) -> tuple[str, ...]:
    stops: Any = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise BadRequest(f"write a text, or a list of up to {MOST_STOPS}", "stop")
    found = tuple(proper_text(one, "stop") for one in stops)
    if "" in found:
        raise BadRequest("one is empty; leave it out", "stop")
    return found


def _usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise BadRequest("there is no stream; write stream=true, or leave it out", "stream_options")
    if not isinstance(options, dict):
        raise BadRequest('write {"include_usage": true}', "stream_options")
    fields = Fields(options, "stream_options.")
    usage = fields.flag("include_usage")
    fields.end()
    return usage
