"""The group runner: one claim, from task to settled group, its members run concurrently with
limits and retries of their own.

There is no barrier between members, nor between groups. A member that fails is tried again from the start with a seed
of its own; when its retries are used up the group is dropped with the reason, and its credit lets another task in. A
group may begin with more members than it needs: the last ones to end are cancelled, and as many may fail.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from rljax.algorithms.credit_assignment import GREEDY_REWARD
from rljax.config.fields import named_explorer
from rljax.ledger import claims, processes
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.claims import Claim
from rljax.ledger.database import RunFailedError, StaleWriterError
from rljax.observe.trace import NullTrace, Trace
from rljax.rollout.async_utils import all_or_none, first_of
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.environments.session import EnvironmentLost
from rljax.rollout.workflows.workflow import Attempt, BrokenContract, Workflow, judged_together
from rljax.tasks.task import BadRow, Task
from rljax.trajectory import Group, Trajectory
from sidecar.errors import describe, printable, worth_a_line
from sidecar.failpoints import failpoint
from sidecar.protocol import EngineError, PinnedVersionError

log = logging.getLogger(__name__)


DROPS_IN_A_ROW = 100
"""Groups that an explorer may drop one after the other, each when all that were claimed before it had ended. After so
many without a whole one among them no other would come to more: the explorer says so instead of going on for ever.
"""
BAD_ROWS_IN_A_ROW = 10_000
"""Bad rows, with no good one between them, after which skipping ends, where a pass over the tasksets is not shorter."""

LOST_LIMIT = 16
"""Attempts that a member may lose by the fault of others, before the next counts as its own failure."""


class MemberFailed(Exception):
    """Raised when a member has used up its retries; the message is the reason that the group is dropped for."""

    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(reason)
        self.error = error


class NothingButDrops(RuntimeError):
    """Raised after `DROPS_IN_A_ROW` dropped groups, or too many bad rows, in a row: one line, with the last failure."""


class GroupRunner:
    """Runs the groups of claimed tasks and settles their claims."""

    def __init__(
        self,
        ledger: AsyncDatabase,
        name: str,
        workflow: Workflow,
        pool: EnginePool,
        deadlines: PausableDeadlines,
        *,
        group_size: int,
        redundancy: int = 0,
        capacity: int,
        max_retries: int,
        trajectory_timeout: float,
        filters: Sequence[tuple[str, Callable[[Group], str | None]]],
        bad_rows_in_a_row: int,
        trace: Trace | NullTrace,
        baseline: Workflow | None = None,
    ) -> None:
        """Creates the runner: ``name`` is the explorer's, ``redundancy`` the members of a group beyond
        ``group_size``, ``capacity`` the most members to have under way, ``trajectory_timeout`` in seconds,
        ``filters`` by name: each gives the reason not to train a group, or None. ``bad_rows_in_a_row`` are one too
        many; 0: the first fails the run. ``baseline`` attempts each task once more, for the `GREEDY_REWARD` of its
        group; what it samples is not trained.
        """
        self._ledger = ledger
        self._name = name
        self._workflow = workflow
        self._pool = pool
        self._deadlines = deadlines
        self._group_size = group_size
        self._members = group_size + redundancy
        self._baseline = baseline
        self._max_retries = max_retries
        self._timeout = trajectory_timeout
        self._filters = filters
        self._bad_rows_in_a_row = bad_rows_in_a_row
        self._trace = trace
        self._capacity = capacity
        self._under_way: set[tuple[int, int]] = set()
        self._drops = 0
        self._bad_rows = 0
        self._noted: Counter[str] = Counter()

    @property
    def free_groups(self) -> int:
        """Number of groups that still fit into ``capacity``."""
        return max(0, (self._capacity - len(self._under_way)) // self._members)

    async def settle(self, claim: Claim, task: Task) -> None:
        """Runs the group and stores, filters or drops it. A claim that has expired meanwhile is abandoned.

        Raises:
            EngineError: no engine can be kept alive.
            NothingButDrops: this is the last of too many in a row.
        """
        try:
            group = await self._run(claim, task)
            self._drops = self._bad_rows = 0
            reason = self._filtered(group)
            failpoint("store")
            if reason is not None:
                await self._ledger.call(claims.settle, claim, "filtered", reason)
            else:
                await self._ledger.call_together(claims.store, (claim, group))
        except MemberFailed as failure:
            await self._settle_quietly(claim, str(failure))
            self._count_drop(claim, failure.error)
        except BadRow as error:
            await self.bad_row(claim, error)
            if task.environment:  # for rows, which are read one by one, the config says what a bad one costs
                self._count_drop(claim, error)
        except StaleWriterError as error:
            log.warning("%s; its tokens are lost and the task is open again", error)

    def _filtered(self, group: Group) -> str | None:
        """Returns the first filter that drops the group, and why.

        Raises:
            TypeError: a filter returned neither text nor None.
            ValueError: a filter raised.
        """
        for name, drops in self._filters:
            try:
                why = drops(group)
            except Exception as error:
                raise ValueError(f"algorithm.filters={name}: {describe(error)}") from error
            if not (why is None or isinstance(why, str)):
                raise TypeError(
                    f"algorithm.filters={name}: returned {why!r}; write the reason to drop a group, as text, or None"
                )
            if why:
                return f"{name}: {why}"
        return None

    async def bad_row(self, claim: Claim, error: BadRow) -> None:
        """Drops a claim whose row is bad, or fails the run, as configured.

        Raises:
            RunFailedError: bad rows are to fail the run.
            NothingButDrops: this is the last of too many in a row.
        """
        await self.note_failure(error, str(claim.task))
        await self._settle_quietly(claim, "bad_row")
        if self._overtakes(claim):
            return
        self._bad_rows += 1
        if self._bad_rows >= self._bad_rows_in_a_row:
            raise NothingButDrops(
                f"{named_explorer(self._name)}: {self._bad_rows} bad rows in a row and no other; the last: {error}"
            ) from error

    async def note_failure(self, error: Exception, where: str) -> str:
        """Records the failure of an attempt, in training or in validation; returns the word for it.

        Raises:
            RunFailedError: it is a bad row, and these are to fail the run.
        """
        if not isinstance(error, BadRow):
            kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
            self._note(kind, f"{where}: {str(error) or kind}")
            return kind
        self._note("bad_row", error)
        if not self._bad_rows_in_a_row:
            message = f"{error}; mend the row, or set tasks.on_bad_row=skip"
            await self._ledger.call(processes.fail_run, self._name, message)
            raise RunFailedError(message) from error
        return "bad_row"

    def _count_drop(self, claim: Claim, error: Exception) -> None:
        if self._overtakes(claim):
            return
        self._drops += 1
        if self._drops >= DROPS_IN_A_ROW:
            raise NothingButDrops(
                f"{named_explorer(self._name)}: {self._drops} groups in a row were dropped and none was whole; the "
                f"last for {type(error).__name__}: {error}"
            ) from error

    def _overtakes(self, claim: Claim) -> bool:
        """Returns whether an older claim is under way: quick failures overtake groups that are slow and good."""
        return any(number < claim.number for number, _ in self._under_way)

    async def _settle_quietly(self, claim: Claim, reason: str) -> None:
        try:
            await self._ledger.call(claims.settle, claim, "dropped", reason)
        except StaleWriterError as error:
            log.warning("%s; not dropped as %s", error, reason)

    async def _run(self, claim: Claim, task: Task) -> Group:
        mine = {(claim.number, member) for member in range(self._members)}
        self._under_way |= mine
        try:
            members = [self._finish_member(claim, task, member) for _, member in sorted(mine)]
            whole = first_of(members, self._group_size, MemberFailed)
            if self._baseline is None:
                return Group(claim.task, tuple(await self._judged_together(claim, task, await whole)), task.answer)
            baseline = self._member(claim, task, self._members, self._baseline)
            trajectories, (compared,) = await all_or_none([whole, _as_list(baseline)])
            return Group(claim.task, tuple(with_baseline(t, compared.reward) for t in trajectories), task.answer)
        finally:
            self._leave(mine)

    async def _judged_together(self, claim: Claim, task: Task, members: list[Trajectory]) -> list[Trajectory]:
        """Adds the rewards that take a whole group, which are asked again where they fail.

        Raises:
            MemberFailed: they fail as often as a member may.
            BrokenContract: a workflow of one's own returned what none may.
        """
        retry = 0
        while True:
            try:
                async with self._deadlines.limit(self._timeout):
                    return await judged_together(self._workflow, task, members)
            except BrokenContract:
                raise
            except Exception as error:
                reason = await self.note_failure(error, f"{claim.task}, its whole group, attempt {retry}")
                if retry >= self._max_retries:
                    raise MemberFailed(reason, error) from error
                retry += 1

    async def _finish_member(self, claim: Claim, task: Task, member: int) -> Trajectory:
        trajectory = await self._member(claim, task, member, self._workflow)
        self._leave({(claim.number, member)})
        return trajectory

    def _leave(self, members: set[tuple[int, int]]) -> None:
        room = self.free_groups
        self._under_way -= members
        if not room and self.free_groups:
            self._ledger.notifier.notify()

    async def _member(self, claim: Claim, task: Task, member: int, workflow: Workflow) -> Trajectory:
        retry = lost = 0
        while True:
            begin = self._ledger.clock()
            try:
                failpoint("generate")
                async with self._deadlines.limit(self._timeout):
                    attempt = await self._attempt(claim, member, retry)
                    trajectory = await workflow.run(task, attempt, self._pool)
            except (EngineError, StaleWriterError, BadRow, BrokenContract):
                raise
            except Exception as error:
                reason = await self.note_failure(error, f"{claim.task} member {member}, attempt {retry}")
                by_others = isinstance(error, EnvironmentLost | PinnedVersionError)
                if (lost >= LOST_LIMIT) if by_others else (retry >= self._max_retries):
                    raise MemberFailed(reason, error) from error
                retry, lost = retry + (not by_others), lost + by_others
            else:
                said = {"tokens": int(trajectory.loss_mask.sum()), "turns": len(trajectory.turns)}
                track, end = f"{self._name} · attempts", self._ledger.clock()
                self._trace.in_flight(track, str(claim.task), begin, end, reward=trajectory.reward, **said)
                return trajectory

    async def _attempt(self, claim: Claim, member: int, retry: int) -> Attempt:
        """Returns an attempt; pinned, where engines hold several versions, to the newest that serves as it begins."""
        pins = self._pool.pins
        version = await self._pool.version_from(claim.version, claim.lineage) if pins else claim.version
        identity = (self._ledger.spec.seed, member, retry, version, claim.lineage)
        return Attempt(*identity, group=claim.group_id, pinned=pins)

    def _note(self, kind: str, message: object) -> None:
        self._noted[kind] += 1
        if worth_a_line(count := self._noted[kind]):
            so_far = f" ({count} so far; the ledger keeps each)" if count > 1 else ""
            log.warning("%s: %s%s", kind, printable(str(message)), so_far)
        self._ledger.post(processes.note, self._name, kind, str(message))


async def _as_list(trajectory: Coroutine[Any, Any, Trajectory]) -> list[Trajectory]:
    return [await trajectory]


def with_baseline(trajectory: Trajectory, reward: float) -> Trajectory:
    """Returns the trajectory with the reward of its group's baseline added to its metrics."""
    return replace(trajectory, metrics={**trajectory.metrics, GREEDY_REWARD: reward})
