"""Runs an explorer in a thread of this process, beside the learner."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Mapping

from rljax.config.fields import named_explorer
from rljax.config.schema import Config
from rljax.launch.protocol import Launched
from rljax.launch.shutdown import SHUTDOWN
from rljax.ledger.database import Database, RunFailedError
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import Workflows
from rljax.pipeline.explore import make_explorer, run_to_end
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.explorer import Explorer
from rljax.tasks.task import BadRow
from sidecar.hosting.spec import EngineLauncher


def explorer_thread(
    config: Config,
    run: RunDir,
    db: Database,
    model: Model,
    tasksets: Tasksets,
    trace: Trace | NullTrace,
    engine_launcher: EngineLauncher,
    *,
    needed: bool,
) -> ExplorerThread:
    """Builds an explorer in a thread of this process. ``engine_launcher`` starts its engines and is closed with it."""
    with contextlib.ExitStack() as parts:
        parts.callback(engine_launcher.close)
        workflows = Workflows(config, run, model, engine_launcher)
        parts.callback(workflows.discard)
        explorer = make_explorer(config, run, db, model, tasksets, workflows, trace, engine_launcher)
        parts.pop_all()
    return ExplorerThread(db, config.explorer.name, explorer, workflows, engine_launcher, needed)


class ExplorerThread(Launched):
    """Runs an explorer on an event loop in a thread of its own."""

    def __init__(
        self,
        db: Database,
        name: str,
        explorer: Explorer,
        workflows: Workflows,
        engine_launcher: EngineLauncher,
        needed: bool,
    ) -> None:
        super().__init__(db, name, needed)
        self._explorer = explorer
        self._workflows = workflows
        self._engine_launcher = engine_launcher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._gauges: Mapping[str, float] = {}

    def gauges(self) -> Mapping[str, float]:
        """See `Launched`: as of now; the last known ones while the explorer starts or ends."""
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            question = self._explorer.gauges()
            try:
                asked = asyncio.run_coroutine_threadsafe(question, loop)
            except RuntimeError:  # the loop has just been closed
                question.close()
                return self._gauges
            try:
                self._gauges = asked.result(timeout=1.0)
            except (TimeoutError, concurrent.futures.CancelledError, RuntimeError):
                try:
                    loop.call_soon_threadsafe(asked.cancel)  # from here it would meet a loop that closes meanwhile
                except RuntimeError:
                    question.close()
        return self._gauges

    @property
    def waiting_for(self) -> str:
        """See `Launched`."""
        return self._explorer.waiting_for

    def stop(self) -> None:
        """See `Launched`."""
        self._stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # a closed loop: it has ended by itself
                self._loop.call_soon_threadsafe(self._explorer.stop)

    def close(self) -> None:
        """See `Launched`."""
        self.stop()
        if self._thread.ident is None:
            with contextlib.closing(self._engine_launcher):
                self._workflows.discard()
            return
        self._thread.join(SHUTDOWN)
        if self._thread.is_alive():
            waiting = self._explorer.waiting_for
            raise TimeoutError(
                f"{named_explorer(self._name)}: did not end within {SHUTDOWN:g} s; waiting for {waiting}"
            )

    def _run(self) -> None:
        try:
            run_to_end(self._explorer, self._workflows, self._started)
        except RunFailedError as error:
            self.error = error
        except BaseException as error:
            self.error = error
            message = f"{named_explorer(self._name)} ended: {type(error).__name__}: {error}"
            self._end.ended(message, fatal=isinstance(error, BadRow))
        finally:
            self._loop = None  # closing the engines may take a while, and the loop answers no calls meanwhile
            self._engine_launcher.close()

    def _started(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._stopping:
            self._explorer.stop()
