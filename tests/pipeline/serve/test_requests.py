"""What a request may say, before any engine is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.pipeline.assemble.run import Model, open_model
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.serve.errors import BadRequest
from rljax.pipeline.serve.fields import json_object
from rljax.pipeline.serve.parameters import Asked, Reader
from rljax.pipeline.serve.texts import AnswerText

SMALLEST = Path(__file__).parents[2] / "e2e" / "smallest.py"
CONTEXT = 40
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    keys = {"mode": "serve", "model.tiny.characters": None, "run_dir": str(tmp_path_factory.mktemp("run"))}
    config = rljax.load_config(str(SMALLEST), **keys)
    return open_model(config, RunDir.create(config))


@pytest.fixture(scope="module")
def reader(model: Model) -> Reader:
    return Reader(model, "tiny", CONTEXT)


def completion(reader: Reader, **fields: Any) -> Asked:
    return reader.completion({"model": "tiny", "prompt": "ab", **fields})


def chat(reader: Reader, **fields: Any) -> Asked:
    return reader.chat({"model": "tiny", **HI, **fields})


def test_what_is_left_out_is_openais_default(reader: Reader) -> None:
    asked = completion(reader)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (1, 1, 0, 16)
    assert (asked.n, asked.seed, asked.stream, asked.logprobs) == (1, None, False, False)
    assert sampling.stop_token_ids == reader.model.stop_token_ids != ()
    assert completion(reader, prompt="x" * 30).sampling.max_new_tokens == 10  # what the context leaves
    assert chat(reader).sampling.max_new_tokens == CONTEXT - len("?hi??")  # three tokens are the template's
    assert chat(reader, max_tokens=7).sampling.max_new_tokens == 7


def test_every_option_reaches_the_engine(reader: Reader) -> None:
    asked = completion(
        reader, temperature=0.5, top_p=0.9, top_k=3, max_tokens=4, stop=["x", "yz"], seed=-5, n=2, logprobs=0,
        stream=True, stream_options={"include_usage": True}, user="me", return_token_ids=True,
    )  # fmt: skip
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (0.5, 0.9, 3, 4)
    assert sampling.stop_strings == ("x", "yz")
    assert (asked.n, asked.seed) == (2, -5)
    assert asked.stream
    assert asked.usage
    assert asked.logprobs
    assert asked.token_ids
    assert completion(reader, top_k=-1).sampling.top_k == 0
    assert chat(reader, logprobs=True, top_logprobs=0).logprobs


def test_what_changes_nothing_is_taken(reader: Reader) -> None:
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "min_p": 0}
    completion(reader, **neutral, echo=False, suffix="", best_of=1)
    alone = {"temperature": 0, "top_p": 1, "top_k": -1, "stop": [], "stream": False}
    completion(reader, **alone, echo=True, max_tokens=0, logprobs=0)
    chat(reader, **neutral, tools=[], tool_choice="none", response_format={"type": "text"})


BAD = [
    ("completion", {"model": None}, "model", "missing; write 'tiny'"),
    ("completion", {"prompt": None}, "prompt", "missing"),
    ("completion", {"prompt": ""}, "prompt", "no tokens"),
    ("completion", {"prompt": []}, "prompt", "write a text, token ids"),
    ("completion", {"prompt": [True]}, "prompt", "write a text"),
    ("completion", {"prompt": [0, 10**6]}, "prompt", "the model has token ids from 0 to"),
    ("completion", {"prompt": [-1]}, "prompt", "the model has token ids from 0 to"),
    ("completion", {"prompt": ["a"] * 129}, "prompt", "write a text, token ids, or a list of up to 128"),
    ("completion", {"prompt": "\ud800"}, "prompt", "no proper text"),
    ("completion", {"prompt": "x" * 40}, "prompt", "40 tokens, and the context has 40; write a shorter one"),
    ("completion", {"max_tokens": 0}, "max_tokens", "write an integer from 1 to 40"),
    ("completion", {"max_tokens": 2.5}, "max_tokens", "write an integer"),
    ("completion", {"max_tokens": True}, "max_tokens", "write an integer"),
    ("completion", {"max_tokens": 39}, "max_tokens", "39 behind a prompt of 2 tokens; the context has 40"),
    ("completion", {"temperature": -1}, "temperature", "write a number from 0 to 2"),
    ("completion", {"temperature": float("nan")}, "temperature", "write a number"),
    ("completion", {"temperature": "hot"}, "temperature", "write a number"),
    ("completion", {"temperature": 0.001}, "temperature", "write 0, which is greedy, or at least 0.01"),
    ("completion", {"top_p": 0}, "top_p", "write a number above 0"),
    ("completion", {"top_k": -2}, "top_k", "write an integer from -1"),
    ("completion", {"n": 129}, "n", "write an integer from 1 to 128"),
    ("completion", {"seed": 2**63}, "seed", "write an integer"),
    ("completion", {"stop": ""}, "stop", "one is empty"),
    ("completion", {"stop": ["a"] * 5}, "stop", "write a text, or a list of up to 4"),
    ("completion", {"stop": 3}, "stop", "write a text"),
    ("completion", {"stop": {}}, "stop", "write a text"),
    ("completion", {"prompt": [[]]}, "prompt", "write a text"),
    ("completion", {"logprobs": 1}, "logprobs", "the engines know the log-probability of the sampled token alone"),
    ("completion", {"echo": True}, "echo", "a prompt is scored alone; write max_tokens=0, logprobs=0 and n=1"),
    ("completion", {"echo": True, "logprobs": 0, "max_tokens": 5}, "echo", "a prompt is scored alone"),
    ("completion", {"echo": True, "logprobs": 0, "max_tokens": 0, "n": 2}, "echo", "a prompt is scored alone"),
    (
        "completion",
        {"echo": True, "logprobs": 0, "max_tokens": 0, "stream": True},
        "stream",
        "nothing is sampled; leave it out",
    ),
    (
        "completion",
        {"echo": True, "logprobs": 0, "max_tokens": 0, "top_p": 0.9},
        "top_p",
        "nothing is sampled; leave it",
    ),
    ("completion", {"echo": 1}, "echo", "write true or false"),
    ("completion", {"best_of": 3}, "best_of", "not supported; leave it out or write 1"),
    ("completion", {"presence_penalty": 0.5}, "presence_penalty", "not supported; leave it out or write 0"),
    ("completion", {"presence_penalty": False}, "presence_penalty", "not supported"),
    ("completion", {"logit_bias": {"5": 100}}, "logit_bias", "not supported"),
    ("completion", {"stream": 1}, "stream", "write true or false"),
    ("completion", {"stream_options": {"include_usage": True}}, "stream_options", "there is no stream"),
    ("completion", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    ("completion", {"temprature": 0}, "temprature", "unknown field; did you mean temperature?"),
    ("completion", {"guided_json": {}}, "guided_json", "unknown field; leave it out"),
    ("chat", {"messages": []}, "messages", "write a list of messages"),
    ("chat", {"messages": "hi"}, "messages", "write a list of messages"),
    ("chat", {"messages": ["hi"]}, "messages[0]", "write an object"),
    ("chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool calls are not supported"),
    ("chat", {"messages": [{"role": "me", "content": "x"}]}, "messages[0].role", "unknown; write system, user, assist"),
    (
        "chat",
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        "tool calls are not supported",
    ),
    ("chat", {"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name", "unknown field"),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0]",
        "only texts can be read",
    ),
    ("chat", {"messages": [{"role": "user", "content": "x" * 40}]}, "messages", "43 tokens, and the context has 40"),
    ("chat", {"max_completion_tokens": 40}, "max_completion_tokens", "40 behind a prompt of 5 tokens"),
    ("chat", {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differs from max_completion_tokens"),
    ("chat", {"top_logprobs": 2, "logprobs": True}, "top_logprobs", "the engines know the log-probability of the"),
    ("chat", {"tool_choice": "required"}, "tool_choice", "tool calls are not supported"),
    ("chat", {"functions": [{}]}, "functions", "tool calls are not supported"),
    ("chat", {"response_format": {"type": "json_object"}}, "response_format", "not supported"),
    ("chat", {"reasoning_effort": "high"}, "reasoning_effort", "unknown field"),
]


@pytest.mark.parametrize(("kind", "fields", "path", "message"), BAD, ids=[f"{kind}-{path}" for kind, _, path, _ in BAD])
def test_what_is_wrong_is_refused_by_the_fields_name(
    reader: Reader, kind: str, fields: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        (completion if kind == "completion" else chat)(reader, **fields)
    error = refused.value.body["error"]
    assert error == {**error, "type": "invalid_request_error", "param": path}
    assert error["message"].startswith(f"{path}: {message}")
    assert "\n" not in error["message"]
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body is no JSON"):
        json_object(body)


class Bytes:
    """A tokenizer of bytes, as the byte-level ones of real models: a character may be several tokens."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(one) for one in ids]

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ((), "naïve 🦜 says aab aaab"),
        (("aaab",), "naïve 🦜 says aab "),
        (("aab",), "naïve 🦜 says "),
        (("zz", "ve 🦜"), "naï"),
        (("b!",), "naïve 🦜 says aab aaab"),
    ],
)
def test_a_text_in_pieces_is_the_text_at_once(step: int, stops: tuple[str, ...], expected: str) -> None:
    answer = AnswerText(Bytes(), [0], stops)
    ids = np.frombuffer("naïve 🦜 says aab aaab".encode() + b"\0", np.uint8)
    pieces = [answer.add(ids[at : at + step]) for at in range(0, len(ids), step)]
    assert "".join(pieces) + answer.end() == expected
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    answer = AnswerText(Bytes(), [], ())
    assert answer.add(np.frombuffer("aï".encode()[:2], np.uint8)) == ""
    assert answer.end() == "a\N{REPLACEMENT CHARACTER}"


def test_errors_are_json(reader: Reader) -> None:
    with pytest.raises(BadRequest) as refused:
        completion(reader, model="gpt-4")
    assert (refused.value.status, refused.value.body["error"]["code"]) == (404, "model_not_found")
    json.dumps(refused.value.body)
