"""Main program of the process of one engine, started by `sidecar.hosting.local`."""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.diagnosis import one_line, read_from, size_of
from sidecar.errors import first_line
from sidecar.failpoints import failpoint
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import Engine, EngineError, RequestError, WeightUpdateError
from sidecar.spans import SpanFile
from sidecar.workers.child_process import serve
from sidecar.workers.lifeline import end_group_with_process


class EngineHost:
    """Dispatches calls to an engine, which the first of them describes."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._spans: SpanFile | None = None

    async def handle(self, method: str, *arguments: Any) -> Any:
        """Returns the result of the engine's method.

        Raises:
            EngineError, RequestError, WeightUpdateError: the protocol's errors; any other becomes an EngineError.
        """
        if method == "open":
            return await self._open(*arguments)
        failpoint(f"engine_{method}")
        try:
            return await getattr(self._engine, method)(*arguments)
        except (RequestError, WeightUpdateError, EngineError):
            raise
        except Exception as error:
            raise EngineError(f"{type(error).__name__}: {first_line(error)}") from None
        finally:
            if method == "close" and self._spans is not None:
                self._spans.close()

    async def _open(self, spec: EngineSpec) -> None:
        printed, self._spans = size_of(spec.log), spec.spans()
        try:
            self._engine = await asyncio.to_thread(spec.open, self._spans)
        except Exception as error:
            raise EngineError(one_line(spec.name, error, read_from(spec.log, printed))) from None


if __name__ == "__main__":
    end_group_with_process()  # vLLM's core and workers do not guard against its death
    serve(EngineHost().handle)
