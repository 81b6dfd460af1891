"""One part in a process of its own: ``python -m bench.accelerator.worker PART ARGUMENTS ROWS``.

Every row is written to the file ROWS, a line of JSON, as soon as it is there: a part that is ended keeps what it has.
What is missing on this machine is a row too. Nothing heavy is imported before the part needs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.accelerator import NoDeviceError
from bench.accelerator.shapes import Shape

Row = dict[str, Any]


def device() -> Iterator[Row]:
    """Yields what JAX computes on."""
    import jax

    first = jax.devices()[0]
    memory = (first.memory_stats() or {}).get("bytes_limit")
    yield {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count(), "memory_bytes": memory}


def kernels(**arguments: Any) -> Iterator[Row]:
    """Yields the kernels' errors and times."""
    from bench.accelerator.kernels import measure

    return measure(**arguments)


def agreement(shape: Row, platform: str) -> Iterator[Row]:
    """Yields how far the two learners' gradients lie apart."""
    from bench.accelerator.agreement import measure

    return measure(Shape(**shape), platform)


def learner(shape: Row, attempt: int | None, spawned: float) -> Iterator[Row]:
    """Yields rljax's row of a shape."""
    from bench.accelerator.learner import measure

    return measure(Shape(**shape), attempt, spawned)


def torch_learner(shape: Row, attempt: int | None, platform: str, spawned: float) -> Iterator[Row]:
    """Yields torch's row of a shape."""
    from bench.accelerator.torch_learner import measure

    return measure(Shape(**shape), attempt, platform, spawned)


def engine(**arguments: Any) -> Iterator[Row]:
    """Yields the embedded engine's rows."""
    from bench.accelerator.engines import measure_ours

    return measure_ours(**arguments)


def torch_engine(**arguments: Any) -> Iterator[Row]:
    """Yields the rows of `generate`."""
    from bench.accelerator.engines import measure_torch

    return measure_torch(**arguments)


def quickstart(**arguments: Any) -> Iterator[Row]:
    """Yields the rows of the quickstart."""
    from bench.accelerator.quickstart import measure

    return measure(**arguments)


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    part.__name__: part
    for part in (device, kernels, agreement, learner, torch_learner, engine, torch_engine, quickstart)
}


def main() -> None:
    part, arguments, path = sys.argv[1:]
    with open(path, "a", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        try:
            for row in PARTS[part](**json.loads(arguments)):
                write(row)
        except ModuleNotFoundError as error:
            write({"skipped": f"the package {error.name} is not installed"})
        except NoDeviceError as error:
            write({"skipped": str(error)})


if __name__ == "__main__":
    main()
