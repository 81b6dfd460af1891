"""The endpoint with the embedded engine, asked by OpenAI's own client; all tests share one server."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from rljax.pipeline.serve import streams
from rljax.rollout.engine_slot import MAX_RESTARTS
from sidecar.protocol import EngineError, PauseMode
from tests.pipeline.serve.answers import IDS, goes_on_with_the_new_version, ids_of, long_answer, side_by_side, unending
from tests.pipeline.serve.lab import CONTEXT, SLOTS, Served, serving
from tests.waiting import HANGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("serve") / "run") as made:
        yield made


def test_who_has_no_key_sees_health_alone(served: Served) -> None:
    url = f"http://{served.host}:{served.port}"
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    for path in ("/v1/models", "/metrics", "/v1/completions", "/nothing"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": served.key}):
            reply = httpx.get(url + path, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), path
    with pytest.raises(openai.AuthenticationError, match="wrong API key"):
        served.client(api_key=served.key + "x").models.list()


def test_models_and_metrics_name_the_version(served: Served) -> None:
    (model,) = served.client().models.list().data
    assert (model.id, model.object, model.model_dump()["version"]) == ("tiny", "model", 0)
    assert served.client().models.retrieve("tiny").id == "tiny"
    made = served.client().completions.create(model="tiny", prompt="ab", max_tokens=3, n=2)
    headers = {"Authorization": f"Bearer {served.key}"}
    lines = httpx.get(f"http://{served.host}:{served.port}/metrics", headers=headers).text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert found["rljax_version"] == "0.0"
    assert found["rljax_engine_slots"] == f"{SLOTS:.1f}"
    assert found["rljax_answers_in_flight"] == found["rljax_engine_running"] == found["rljax_engine_waiting"] == "0.0"
    assert found['rljax_requests_total{endpoint="/v1/completions",status="200"}'] == "1.0"
    assert found["rljax_prompt_tokens_total"] == "2.0"
    assert found["rljax_generated_tokens_total"] == f"{made.usage.completion_tokens:.1f}"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_completion_are_the_learners(served: Served, stream: bool) -> None:
    asked = {"model": "tiny", "prompt": "What is 12 + 30?", "max_tokens": 40, "seed": 5, "logprobs": 0, "n": 2}
    made = served.client().completions.create(**asked, stream=stream, extra_body=IDS)
    tokens: dict[int, list[int]] = {0: [], 1: []}
    logprobs: dict[int, list[float]] = {0: [], 1: []}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    names: dict[int, list[str]] = {0: [], 1: []}
    for part in made if stream else [made]:
        for choice in part.choices:
            if choice.logprobs:
                tokens[choice.index] += choice.token_ids
                logprobs[choice.index] += choice.logprobs.token_logprobs
                offsets[choice.index] += choice.logprobs.text_offset
                names[choice.index] += choice.logprobs.tokens
    assert tokens[0] != tokens[1]
    prompt = ids_of(served, asked["prompt"])
    for index in (0, 1):
        assert len(tokens[index]) == len(logprobs[index]) > 1
        np.testing.assert_allclose(logprobs[index], served.run.scores(prompt, tokens[index]), atol=1e-4)
        assert names[index] == [served.run.model.tokenizer.decode([token]) for token in tokens[index]]
        assert offsets[index] == [len("".join(names[index][:place])) for place in range(len(names[index]))]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_are_the_learners_and_its_prompt_the_models_template(served: Served, stream: bool) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    asked = {"model": "tiny", "messages": messages, "max_completion_tokens": 30, "seed": 1, "logprobs": True}
    made = served.client().chat.completions.create(**asked, stream=stream, extra_body=IDS)
    prompt = ids_of(served, "<|system|>Be short.<|end|><|user|>Hi<|end|><|assistant|>")
    tokens, logprobs = [], []
    for part in made if stream else [made]:
        for choice in part.choices:
            if choice.logprobs:
                assert choice.prompt_token_ids == prompt
                tokens += choice.token_ids
                logprobs += [one.logprob for one in choice.logprobs.content]
                assert all(bytes(one.bytes).decode() == one.token for one in choice.logprobs.content)
    assert len(tokens) > 1
    np.testing.assert_allclose(logprobs, served.run.scores(prompt, tokens), atol=1e-4)


def test_a_stream_says_what_a_whole_reply_says(served: Served) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "count"}], "seed": 3, "n": 3, "max_tokens": 60}
    whole = served.client().chat.completions.create(**asked)
    texts, reasons, roles, usage, fingerprints = ["", "", ""], ["", "", ""], [], None, set()
    with served.client().chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as made:
        for part in made:
            usage = part.usage or usage
            fingerprints |= {part.system_fingerprint} - {None}
            for choice in part.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                roles += [choice.delta.role] if choice.delta.role else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == ["assistant"] * 3
    assert usage == whole.usage
    assert fingerprints == {whole.system_fingerprint} == {"version-0"}
    assert len(set(texts)) == 3
    again = served.client().chat.completions.create(**asked)
    assert [choice.message.content for choice in again.choices] == texts


def test_a_stop_string_ends_the_text_before_it(served: Served) -> None:
    asked = {"model": "tiny", "prompt": "0123", "max_tokens": 60, "seed": unending(served)}
    text = served.client().completions.create(**asked).choices[0].text
    stop = text[20:23]
    at = text.index(stop)
    whole = served.client().completions.create(**asked, stop=[stop, text]).choices[0]
    assert (whole.text, whole.finish_reason) == (text[:at], "stop")
    parts = list(served.client().completions.create(**asked, stop=stop, stream=True))
    assert "".join(part.choices[0].text for part in parts) == text[:at]
    assert parts[-1].choices[0].finish_reason == "stop"


def test_greedy_is_the_most_likely_token_of_each_place(served: Served) -> None:
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 12, "logprobs": 0}
    greedy = served.client().completions.create(**asked, temperature=0, extra_body=IDS).choices[0]
    one = served.client().completions.create(**asked, seed=9, extra_body={**IDS, "top_k": 1}).choices[0]
    assert greedy.token_ids == one.token_ids
    np.testing.assert_allclose(one.logprobs.token_logprobs, 0, atol=1e-5)  # renormalised over one candidate
    scores = served.run.scores(ids_of(served, "abc"), greedy.token_ids)
    np.testing.assert_allclose(greedy.logprobs.token_logprobs, scores, atol=1e-4)


def test_prompts_of_token_ids_and_several_at_once(served: Served) -> None:
    asked = {"model": "tiny", "max_tokens": 5, "temperature": 0}
    texts = [
        choice.text
        for prompt in ("abc", "12 ", [ids_of(served, "abc"), ids_of(served, "12 ")], ["abc", "12 "])
        for choice in served.client().completions.create(**asked, prompt=prompt).choices
    ]
    assert texts[0:2] == texts[2:4] == texts[4:6]
    assert texts[0] != texts[1]


def test_200_requests_side_by_side(served: Served) -> None:
    texts = [made.text for made in side_by_side(served)]
    assert len(set(texts)) > 190
    for number in (0, 1, 198, 199):  # alone they say the same
        alone = served.client().completions.create(model="tiny", prompt=f"{number} is", max_tokens=24, seed=number)
        assert alone.choices[0].text == texts[number]
    served.until(lambda: served.busy() == 0, "free slots")


def test_who_asks_for_more_answers_than_there_may_ever_be_is_refused_and_others_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(openai.BadRequestError, match=r"n: 1100 answers at once; serve\.max_requests is 1024; ask for"):
        served.client().completions.create(model="tiny", prompt=["a"] * 100, n=11, max_tokens=2)
    with served.client().completions.create(**long_answer(served), stream=True) as stream:
        next(iter(stream))
        served.do(served.engine.pause(PauseMode.KEEP))
        monkeypatch.setattr("rljax.pipeline.serve.parameters.tokenized", None)  # room is looked for before
        with pytest.raises(openai.RateLimitError, match="1 answers are under way, and 1024 may be; ask again later"):
            served.client().completions.create(model="tiny", prompt=["a"] * 128, n=8, max_tokens=2)
        served.do(served.engine.resume())
    served.until(lambda: served.service.endpoint.in_flight == 0, "its request to end")


def test_a_client_that_keeps_its_stream_and_reads_nothing_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALLED_SECONDS", 0.2)
    (listening,) = served.service._site._server.sockets
    usual = listening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts has as little
    body = json.dumps(long_answer(served, n=8, logprobs=0, stream=True) | {"prompt": "0" * 90, **IDS})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((served.host, served.port))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, usual // 2)
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        served.until(lambda: served.service.endpoint.in_flight == 8, "its request")
        served.until(lambda: served.service.endpoint.in_flight == 0, "its places")
        assert b"[DONE]" not in b"".join(iter(lambda: client.recv(2**16), b""))
    served.until(lambda: served.busy() == 0, "its slots")


def test_a_body_of_100_mb_is_refused_unread(served: Served) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
    with socket.create_connection((served.host, served.port), HANGS) as announced:
        announced.sendall((head + "Content-Length: 100000000\r\n\r\n").encode())  # and nothing of it
        assert announced.recv(12) == b"HTTP/1.1 413"
    sent = 0
    with socket.create_connection((served.host, served.port), HANGS) as chunked:
        chunked.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        try:
            for _ in range(100):
                chunked.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
                sent += 1
        except ConnectionError:
            pass
    assert sent < 50  # megabytes, most of them in buffers of the system
    with pytest.raises(openai.APIStatusError) as error:
        served.client().completions.create(model="tiny", prompt="x" * 100_000_000)
    assert error.value.status_code == 413
    assert error.value.body["message"] == f"a body of more than {2**20} bytes"


def test_a_client_that_leaves_a_stream_frees_its_slots(served: Served) -> None:
    request = long_answer(served, n=3)
    with served.client().completions.create(**request, stream=True) as stream:
        next(iter(stream))
        served.do(served.engine.pause(PauseMode.KEEP))
        assert served.busy() in (1, 2, 3)  # the first answer does not end by itself, the others may have
    served.until(lambda: served.busy() == 0, "the slots of a client that left")
    served.do(served.engine.resume())
    served.until(lambda: served.service.endpoint.in_flight == 0, "its requests to end")


def test_a_client_that_leaves_before_its_reply_frees_its_slot(served: Served) -> None:
    request = long_answer(served, max_tokens=9)
    served.do(served.engine.pause(PauseMode.KEEP))
    leaving = http.client.HTTPConnection(served.host, served.port, timeout=HANGS)
    headers = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json"}
    leaving.request("POST", "/v1/completions", json.dumps(request), headers)
    served.until(lambda: served.busy() == 1, "the request")
    leaving.close()
    served.until(lambda: served.busy() == 0, "the slot of a client that left")
    served.do(served.engine.resume())


def test_a_request_in_flight_at_an_update_goes_on_with_the_new_version(served: Served) -> None:
    goes_on_with_the_new_version(served)


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("completions", {"max_tokens": CONTEXT}, "max_tokens", "600 behind a prompt of 2 tokens"),
        ("completions", {"prompt": "x" * CONTEXT}, "prompt", "600 tokens, and the context has 600"),
        ("completions", {"n": 0}, "n", "write an integer from 1 to 128"),
        ("completions", {"topk": 3}, "topk", "unknown field; did you mean top_k?"),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content", "write a text"),
        ("chat/completions", {"tools": [{"type": "function"}]}, "tools", "tool calls are not supported"),
    ],
)
def test_what_is_refused_comes_in_openais_format(
    served: Served, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    good = {"prompt": "ab"} if path == "completions" else {"messages": [{"role": "user", "content": "ab"}]}
    headers = {"Authorization": f"Bearer {served.key}"}
    reply = httpx.post(f"{served.service.url}/{path}", headers=headers, json={"model": "tiny"} | good | body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert error["message"].startswith(f"{field}: {message}")


def test_other_paths_methods_and_models_are_not_there(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.key}"}
    url = served.service.url
    assert httpx.get(f"{url}/embeddings", headers=headers).json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{url}/completions", headers=headers).status_code == 405
    with pytest.raises(openai.NotFoundError, match="'other' is not served here; write 'tiny'"):
        served.client().completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="the body is no JSON"):
        served.client().post("/completions", cast_to=object, content=b"{")


def test_answers_that_do_not_end_in_time_are_cut_off_at_the_end(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = long_answer(served)
    with (
        serving(tmp_path / "run", **{"serve.drain_timeout": 0.05}) as ending,
        ending.client().completions.create(**request, stream=True) as stream,
    ):
        next(iter(stream))
        ending.do(ending.engine.pause(PauseMode.KEEP))
        stop = asyncio.Event()
        stop.set()
        ending.do(ending.service.until(stop))
        assert "1 answers were cut off after 0.05 s" in caplog.text
        with pytest.raises(openai.APIConnectionError):
            ending.client().models.list()
        ending.do(ending.service.close())
        with pytest.raises((openai.APIConnectionError, httpx.HTTPError)):
            list(stream)


def test_engines_that_die_while_nobody_asks_are_replaced_with_weights_that_the_run_has_deleted_and_the_last_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: int) -> Any:
        raise EngineError("it does not start")

    with serving(tmp_path / "run", **{"serve.follow": False, "serve.version": "newest"}) as served:
        first = served.engine
        (published,) = served.run.run.weights.glob("v0-*")
        shutil.rmtree(published)
        served.do(first.close())
        served.until(lambda: served.engine is not first, "a successor")
        asked = {"model": "tiny", "prompt": "ab", "max_tokens": 9, "seed": 1, "logprobs": 0}
        (made,) = served.client().completions.create(**asked, extra_body=IDS).choices
        scores = served.run.scores(ids_of(served, "ab"), made.token_ids)
        np.testing.assert_allclose(made.logprobs.token_logprobs, scores, atol=1e-4)
        for _ in range(MAX_RESTARTS + 1):  # more often than an engine may die without an answer between
            served.do(served.engine.close())
            served.client().completions.create(model="tiny", prompt="ab", max_tokens=2)
        monkeypatch.setattr(served.service.pool, "_factory", fails)
        served.do(served.engine.close())
        with pytest.raises(EngineError, match="it does not start"):
            served.do(served.service.until(asyncio.Event()))
        assert httpx.get(f"http://{served.host}:{served.port}/health").status_code == 503


def test_where_no_engine_is_left_the_server_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: int) -> Any:
        raise EngineError("it does not start")

    monkeypatch.setattr(served.service.pool, "_factory", fails)
    served.do(served.engine.close())
    with pytest.raises(openai.InternalServerError, match=r"no engine is left: .*it does not start") as error:
        served.client().completions.create(model="tiny", prompt="a")
    assert error.value.status_code == 503
    assert httpx.get(f"http://{served.host}:{served.port}/health").status_code == 503
    with pytest.raises(EngineError, match="it does not start"):
        served.do(served.service.until(asyncio.Event()))
