"""Episodes of many turns while the run goes on around them, under a virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rljax.config.environments import built_in
from rljax.config.schema import GeneratingConfig
from rljax.ledger import audit, validations
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.environments.hosts import LoopHost
from rljax.rollout.workflows.multi_turn import MultiTurn
from rljax.rollout.workflows.tools import Tools
from rljax.tasks.environments import environment_tasksets
from rljax.tasks.rewards import RewardRunner
from sidecar.protocol import GenerateRequest
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, Simulation, build, learn

TURNS = 4


def simulated_episodes(tmp_path: Path, loop: asyncio.AbstractEventLoop, engine: ModelledEngine) -> Simulation:
    """A run over frozen lakes, of `TURNS` turns an episode."""
    save_tiny_tokenizer(tmp_path / "tokenizer")
    environments = built_in()
    environments["FrozenLake"] = replace(environments["FrozenLake"], max_turns=TURNS, max_tokens_per_turn=4)
    workflow = MultiTurn(
        Tools(
            tokenizer=load_tokenizer(tmp_path / "tokenizer"),
            rewards=RewardRunner([], timeout=1.0, workers=1),
            generating=GeneratingConfig(),
            stop_token_ids=(),
            max_prompt_tokens=2000,
            max_response_tokens=4,
            sequence_length=2000,
            hosts={"loop": LoopHost()},
            environments=environments,
        )
    )
    train, held = (environment_tasksets({"FrozenLake": 8}, environments, 0, r) for r in ("train", "validation"))
    return build(
        tmp_path,
        loop,
        spec=replace(SPEC, alpha=3.0, staleness_bound=4),
        engines=[engine],
        workflow=workflow,
        tasksets=train,
        held=held["FrozenLake"],
        timeout=1e4,
    )


def openings(tmp_path: Path, salt: int) -> tuple[dict[int, dict[str, bytes]], set[bytes]]:
    """Plays a run with two validations; returns what each episode of validation was shown first, by version, and what
    those of training were.
    """
    held_out: dict[int, dict[str, bytes]] = {}
    trained: set[bytes] = set()

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        def latency(request: GenerateRequest) -> float:
            name, shown = request.id.partition("#")[0], request.prompt_ids.tobytes()
            index, turn = name.split("/")[2], name.removesuffix("/val").split("/")[-1]
            if turn == "0" and not request.resumed_tokens:
                if name.endswith("/val"):
                    held_out.setdefault(request.min_version, {})[index] = shown
                else:
                    trained.add(shown)
            return 1.0 + int(request.sampling.seed) * salt % 9

        simulation = simulated_episodes(tmp_path, loop, ModelledEngine(latency))
        exploring = asyncio.ensure_future(simulation.explorer.run())
        await learn(simulation.db, 1.0, frozenset({1, 4}))
        await exploring

    run_virtual(main)
    return held_out, trained


def test_validation_plays_the_same_maps_each_time_and_none_of_training(tmp_path: Path) -> None:
    """In two runs that differ in who was fast, and at two evaluations of each."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, trained = openings(tmp_path / "one", 1)
    other, _ = openings(tmp_path / "other", 5)
    assert set(one) == {1, 4}
    assert len(one[1]) == 8
    assert len(set(one[1].values())) == 8
    assert one[1] == one[4] == other[1] == other[4]
    assert len(trained) >= 12
    assert not trained & set(one[1].values())


def test_validation_holds_episodes_between_and_within_turns_and_they_go_on(tmp_path: Path) -> None:
    """P8 with environments: what is in flight keeps its tokens, and no turn of training begins meanwhile."""
    seen: list[tuple[float, str, int]] = []

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        engine = ModelledEngine(lambda r: 3.0 + int(r.sampling.seed) % 9)
        generate = engine.generate

        async def watched(request: GenerateRequest) -> Any:
            kind = "val" if "/val" in request.id else "train"
            seen.append((loop.time(), f"{kind} starts", len(request.prompt_ids)))
            done = await generate(request)
            seen.append((loop.time(), f"{kind} {done.finish_reason}", len(done.token_ids)))
            return done

        engine.generate = watched  # type: ignore[method-assign]
        simulation = simulated_episodes(tmp_path, loop, engine)
        exploring = asyncio.ensure_future(simulation.explorer.run())
        batches = await learn(simulation.db, 1.0, frozenset({2}))
        await exploring
        return batches, audit.audit(simulation.db), validations.results(simulation.db)

    batches, report, results = run_virtual(main)
    assert report["balanced"], report["problems"]
    assert [version for version, _ in results] == [2]
    begin = min(at for at, what, _ in seen if what == "val starts")
    end = max(at for at, what, _ in seen if what == "val length")
    assert {what for at, what, _ in seen if begin < at < end} <= {"val starts", "val length"}
    assert any(what == "train abort" and kept > 0 for _, what, kept in seen), "a turn was cut by the validation"
    episodes = [t for b in batches for g in b.groups for t in g.trajectories]
    for episode in episodes:
        assert len(episode.turns) == TURNS
        assert np.diff(episode.turns, axis=1).tolist() == [[4]] * TURNS, "no token was lost, none sampled twice"
    assert any(len(set(t.versions[t.loss_mask].tolist())) > 1 for t in episodes)
