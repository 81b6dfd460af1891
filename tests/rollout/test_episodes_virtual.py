"""Episodes of many turns while the run goes on around them, under a virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rljax.config import GeneratingConfig
from rljax.config_environments import built_in
from rljax.ledger import audit, validations
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.rollout.environments.hosts import LoopHost
from rljax.rollout.multi_turn import MultiTurn
from rljax.tasks.environments import environment_tasksets
from sidecar.protocol import GenerateRequest
from tests.rollout.house import SPEC, build, learn
from tests.virtual_clock import ModelledEngine, run_virtual

TURNS = 4


def test_validation_holds_episodes_between_and_within_turns_and_they_go_on(tmp_path: Path) -> None:
    """P8 with environments: what is in flight keeps its tokens, and no turn of training begins meanwhile."""
    save_tiny_tokenizer(tmp_path / "tokenizer")
    environments = built_in()
    environments["FrozenLake"] = replace(environments["FrozenLake"], max_turns=TURNS, max_tokens_per_turn=4)
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
        workflow = MultiTurn(
            load_tokenizer(tmp_path / "tokenizer"),
            {"loop": LoopHost()},
            environments,
            GeneratingConfig(),
            sequence_length=2000,
            max_response_tokens=4,
            stop_token_ids=(),
        )
        train, held = (environment_tasksets({"FrozenLake": 8}, environments, 0, r) for r in ("train", "validation"))
        house = build(
            tmp_path,
            loop,
            spec=replace(SPEC, alpha=3.0, staleness_bound=4),
            engines=[engine],
            workflow=workflow,
            tasksets=train,
            held=held["FrozenLake"],
            timeout=1e4,
        )
        exploring = asyncio.ensure_future(house.explorer.run())
        batches = await learn(house.db, 1.0, frozenset({2}))
        await exploring
        return batches, audit.audit(house.db), validations.results(house.db)

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
