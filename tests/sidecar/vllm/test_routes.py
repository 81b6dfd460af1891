"""Which experts vLLM says that it chose: by hand, and of a real model by transformers' routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.forward_context import override_forward_context
from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.protocol import EngineError, GenerateRequest, SamplingParams
from sidecar.stepping.jobs import Job
from sidecar.vllm.batch import VllmBatch
from sidecar.vllm.routes import RouteRecorder
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.tokenizer import LazyTokenizer
from tests.models.hf_models import routes_of
from tests.sidecar.vllm.conftest import run_alone
from tests.sidecar.vllm.models import publish, random_model, tensors

BLOCK = 2


class Runner:
    """What a recorder reads of vLLM's model runner: blocks of two tokens, and which of them each request has."""

    def __init__(self) -> None:
        group = SimpleNamespace(layer_names=["attention"], kv_cache_spec=SimpleNamespace(block_size=BLOCK))
        self.kv_cache_config = SimpleNamespace(num_blocks=8, kv_cache_groups=[group])
        self.table = np.zeros((4, 4), np.int32)
        block_table = SimpleNamespace(block_size=BLOCK, get_numpy_array=lambda: self.table)
        self.input_batch = SimpleNamespace(block_table=[block_table], req_id_to_index={})

    def holds(self, rows: Mapping[str, Sequence[int]]) -> None:
        """The requests of a step, and their blocks."""
        self.input_batch.req_id_to_index = {name: row for row, name in enumerate(rows)}
        for row, blocks in enumerate(rows.values()):
            self.table[row, : len(blocks)] = blocks


def passes(recorder: RouteRecorder, experts: Mapping[int, int]) -> None:
    """A pass over tokens with these slots: in layer 1 they go to the expert after that of layer 0."""
    slots, chosen = torch.tensor([*experts]), torch.tensor([*experts.values()])[:, None]
    context: Any = SimpleNamespace(slot_mapping={"attention": slots, "another": slots * 0})
    with override_forward_context(context):
        recorder.capture(0, chosen)
        recorder.capture(1, chosen + 1)


def first_layer(routes: np.ndarray) -> list[int]:
    assert (routes.dtype, routes.shape[1:]) == (np.int16, (2, 1))
    np.testing.assert_array_equal(routes[:, 1], np.where(routes[:, 0] < 0, routes[:, 0], routes[:, 0] + 1))
    return routes[:, 0, 0].tolist()


def test_experts_are_those_of_the_pass_that_made_the_keys() -> None:
    runner = Runner()
    recorder = RouteRecorder(runner, layers=2, picked=1)
    runner.holds({"a": [3, 1], "b": [5]})
    passes(recorder, {6: 10, 7: 11, 2: 12, 10: 20, 11: 21, -1: 99})  # of a three tokens, of b two, and one of none
    assert first_layer(recorder.read("a", 0, 3)) == [10, 11, 12]
    assert first_layer(recorder.read("b", 0, 2)) == [20, 21]
    runner.holds({"b": [5, 4], "a": [3, 1]})
    passes(recorder, {8: 22, 3: 13})  # a's prompt goes on, b's first token is read
    assert first_layer(recorder.read("a", 0, 4)) == [10, 11, 12, 13]
    assert first_layer(recorder.read("b", 2, 3)) == [22]

    runner.holds({"c": [3, 6]})  # its first block is a's
    passes(recorder, {12: 32, 13: 33})
    assert first_layer(recorder.read("c", 0, 4)) == [10, 11, 32, 33]
    runner.holds({"d": [0, 6]})  # of a window that has left a's block behind
    assert first_layer(recorder.read("d", 1, 4)) == [-1, 32, 33]
    assert first_layer(recorder._experts[-1:].numpy()) == [-1]
    with override_forward_context(SimpleNamespace(slot_mapping={})):  # type: ignore[arg-type]
        recorder.capture(0, torch.tensor([[7]]))


def request(name: str) -> Job:
    loop: Any = None
    sampling = SamplingParams(max_new_tokens=4)
    return Job(GenerateRequest(name, np.array([50, 51, 52], np.int32), sampling), 0, loop, loop)


def test_an_update_in_the_middle_of_a_group_leaves_the_experts_of_what_was_sampled() -> None:
    """Two requests share a block. After a token each, new weights read all again, in other blocks, to other experts."""
    engine, runner = create_autospec(LLMEngine, instance=True), Runner()
    recorder = RouteRecorder(runner, layers=2, picked=1)
    engine.add_request.side_effect = lambda name, *_, **__: f"{name}-inside"
    batch = VllmBatch(engine, 2, LazyTokenizer("nowhere"), recorder=recorder)
    jobs = [request("a"), request("b")]
    batch.load({}, 0, 1)
    batch.admit(jobs)

    def step(rows: Sequence[Sequence[int]], experts: Mapping[int, int], finish: str | None = None) -> None:
        def stepped() -> list[Any]:
            runner.holds({f"{name}-inside": blocks for name, blocks in zip("12", rows, strict=True)})
            passes(recorder, experts)
            logprobs = SimpleNamespace(logprobs=[-1.0], start_indices=[0])
            sampled = SimpleNamespace(token_ids=[9], logprobs=logprobs, finish_reason=finish)
            return [SimpleNamespace(request_id=name, outputs=[sampled], finished=finish is not None) for name in "12"]

        engine.step.side_effect = stepped
        batch.step()

    step([[3, 1], [3, 2]], {6: 10, 7: 11, 2: 12, 4: 22})
    batch.load({}, 1, 1)
    step([[6, 1], [6, 2]], {12: 60, 13: 61, 2: 62, 3: 63, 4: 72, 5: 73})
    step([[6, 1, 3], [6, 2, 4]], {6: 64, 8: 74}, "length")
    assert first_layer(jobs[0].completion("length").routes) == [10, 11, 12, 63, 64, -1]
    assert first_layer(jobs[1].completion("length").routes) == [10, 11, 22, 73, 74, -1]
    assert jobs[0].completion("length").versions.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "brought", [{"kv_transfer_config": {"kv_connector": "OffloadingConnector"}}, {"kv_offloading_size": 1.0}]
)
@pytest.mark.parametrize(
    ("chosen", "missing"),
    [({"record_routes": True}, "without the experts"), ({"held": 2, "rank": 4}, "of another version")],
)
def test_keys_that_come_without_experts_or_of_another_version_are_refused(
    brought: dict[str, Any], chosen: dict[str, Any], missing: str
) -> None:
    settings = VllmSettings("nowhere", 8, 1, engine_args=brought, **chosen)
    with pytest.raises(EngineError, match=f"{next(iter(brought))} may bring keys and values {missing}"):
        settings.arguments(on_cpu=True)


def test_vllm_returns_them_itself_where_it_can() -> None:
    settings = VllmSettings("nowhere", 8, 1, record_routes=True)
    assert settings.arguments(on_cpu=False)["enable_return_routed_experts"]
    assert "enable_return_routed_experts" not in settings.arguments(on_cpu=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `tests.sidecar.vllm.recorded` leaves of requests to an engine with these models as versions 0 and 1."""
    directory = tmp_path_factory.mktemp("recorded")
    models = [random_model("qwen3_moe", seed) for seed in (0, 1)]
    models[0].save_pretrained(directory / "model")
    updates = [publish(directory / "weights", version, tensors(model)) for version, model in enumerate(models)]
    job = {"model": str(directory / "model"), "paths": [update.path for update in updates]}
    run_alone("recorded", directory, job, "out.npz")
    with np.load(directory / "out.npz") as made:
        return {"models": models, **made}


@pytest.mark.parametrize("kind", ["alone", "group", "crowd"])
def test_a_token_goes_where_transformers_routers_send_it(kind: str, found: dict[str, Any]) -> None:
    """Alone; with others that share most of the prompt; with more than the KV cache has room for."""
    names = sorted(name for name in found if name.startswith(kind) and name.endswith("tokens"))
    assert len(names) == {"alone": 3, "group": 4, "crowd": 6}[kind]
    for name in names:
        tokens, routes = found[name], found[name.replace("tokens", "routes")]
        expected = routes_of(found["models"][0], tokens)
        assert (routes.dtype, routes.shape) == (np.int16, expected.shape)
        np.testing.assert_array_equal(np.sort(routes[:-1]), expected[:-1])
        assert (routes[-1] == -1).all()
    if kind == "group":
        assert found["cached"] >= 3 * 64
    if kind == "crowd":
        assert found["preempted"] > 0


def test_an_update_in_flight_leaves_the_experts_of_what_was_sampled_before(found: dict[str, Any]) -> None:
    tokens, routes, versions = found["updated tokens"], found["updated routes"], found["updated versions"]
    before, after = (routes_of(model, tokens) for model in found["models"])
    old = len(tokens) - len(versions) - 1 + np.count_nonzero(versions == 0)
    assert len(tokens) - len(versions) < old < len(tokens) - 1
    np.testing.assert_array_equal(np.sort(routes[:old]), before[:old])
    assert (before[:old] != after[:old]).any()
    np.testing.assert_array_equal(np.sort(routes[old:-1]), after[old:-1])
