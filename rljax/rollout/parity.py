"""Parity checks: compares an explorer's engines with the learner on a fixed probe (promise
P7), and records their faults.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljax.ledger import processes, versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import RunFailedError
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.engine_slot import Scored, scored
from sidecar.protocol import Engine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probe:
    """The probe that parity is measured on: int32 ``[probe]`` token ids, the largest gap allowed, in nats, and the
    experts that learner and engines send the tokens to, int16 ``[probe, layers, picked]``; None: each to its own.
    """

    token_ids: np.ndarray
    bound: float
    routes: np.ndarray | None = None


class EngineChecks:
    """Compares engines with the learner and records the gap. Implements `rljax.rollout.engine_events.EngineEvents`."""

    def __init__(self, ledger: AsyncDatabase, name: str, probe: Probe | None) -> None:
        """Creates the checks of the explorer ``name``; without a ``probe`` nothing is compared."""
        self._ledger = ledger
        self._name = name
        self._probe = probe

    def fault(self, kind: str, message: str) -> None:
        """Implements `EngineEvents.fault`: logs the fault and records it in the ledger."""
        log.warning("%s: %s", kind, message)
        self._ledger.post(processes.note, self._name, kind, message)

    async def loaded(self, successor: Engine, serving: versions.Announced) -> None:
        """Implements `EngineEvents.loaded`: compares the successor on the probe, like the
        engines that `check` compares.

        Raises:
            RunFailedError: see `check`.
        """
        if self._probe is not None and serving.probe is not None:
            found = await scored(successor, self._probe.token_ids, self._probe.routes)
            await self._compare(serving, self._probe, [found])

    async def check(self, pool: EnginePool, newest: versions.Announced) -> None:
        """Compares all engines of a pool that has loaded a version.

        Raises:
            RunFailedError: they differ from the learner by more than the bound.
            EngineError: no engine is left.
        """
        if self._probe is not None and newest.probe is not None:
            await self._compare(newest, self._probe, await pool.score(self._probe.token_ids, self._probe.routes))

    async def _compare(self, newest: versions.Announced, probe: Probe, scores: Sequence[Scored]) -> None:
        assert newest.probe is not None
        # An earlier try of this run may have had other limits, and with them a longer or shorter probe.
        shared = min(len(newest.probe), len(scores[0].logprobs))
        gaps = np.abs([score.logprobs[:shared] - newest.probe[:shared] for score in scores])
        gap, mean = float(gaps.max()), float(gaps.mean())
        await self._ledger.call(versions.report_gap, newest.version, newest.lineage, gap, mean)
        if not gap <= probe.bound:
            theirs = scores[int(np.argmax(gaps.max(axis=1)))].version
            message = (
                f"parity: learner at version {newest.version} and engine at version {theirs} differ by "
                f"{gap:.3g} nats on the probe, more than {probe.bound:g}; look at the dtypes, or set parity_bound"
            )
            await self._ledger.call(processes.fail_run, self._name, message)
            raise RunFailedError(message)
