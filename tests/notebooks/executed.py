"""Executes a notebook as its reader does: in an empty folder with the wheel, which the notebook's first cell installs.

    python -m tests.notebooks.executed [NAME ...]

executes notebooks of `notebooks/` at full size, and keeps what they print in them. Each has an environment of its own,
in which rljax is not installed; what rljax depends on is that of this Python, and pip is kept from the network.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.wheel import build_wheel

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KERNEL = "notebook-with-wheel"
WHERE = "import rljax; print(rljax.__file__)"
"""The last cell of an execution, which the notebook does not have."""
SIZES = ("RLJAX_NOTEBOOK_STEPS", "RLJAX_NOTEBOOK_SEEDS")
"""Environment variables that make a notebook's runs shorter and fewer."""


def execute(path: Path, wheel: Path, folder: Path, variables: Mapping[str, str], limit: float | None) -> NotebookNode:
    """Executes a notebook in an empty folder, and holds it to the wheel: the checkout is not what it imports.

    Args:
        path: of the notebook.
        wheel: what lies in its folder.
        folder: an empty one, for the notebook's folder and its environment.
        variables: environment variables besides those of this process.
        limit: seconds of a cell; None: as long as it takes.

    Returns:
        The notebook with its outputs.
    """
    there, environment, kernel = folder / "empty", folder / "environment", folder / "jupyter" / "kernels" / KERNEL
    there.mkdir()
    shutil.copy(wheel, there)
    python = bare_environment(environment)
    kernel.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": KERNEL, "language": "python"}))
    away = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", *SIZES)}
    given = {**away, "JUPYTER_PATH": str(folder / "jupyter"), "PIP_NO_INDEX": "1", "JAX_PLATFORMS": "cpu"}
    notebook = nbformat.read(path, as_version=4)
    named = dict(notebook.metadata.get("kernelspec", {}))
    notebook.cells.append(nbformat.v4.new_code_cell(WHERE))
    with _environ({**given, "PATH": os.pathsep.join((str(python.parent), os.defpath)), **variables}):
        NotebookClient(
            notebook,
            timeout=limit,
            kernel_name=KERNEL,
            record_timing=False,
            resources={"metadata": {"path": str(there)}},
        ).execute()
    imported = Path(notebook.cells.pop().outputs[0].text.strip())
    assert imported.is_relative_to(environment), f"{path.name} imported {imported}"
    notebook.metadata["kernelspec"] = named
    return notebook


def bare_environment(folder: Path) -> Path:
    """An environment that sees the packages of this Python and no checkout: a ``.pth`` file of theirs is not read."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "beneath.pth").write_text("".join(f"{sysconfig.get_path(name)}\n" for name in ("purelib", "platlib")))
    return python


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as built:
        wheel = build_wheel(Path(built))
        for path in NOTEBOOKS:
            if names and path.stem not in names:
                continue
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                executed = execute(path, wheel, Path(folder), {}, None)
            nbformat.write(executed, path)
            print(f"{path.stem}: {(time.perf_counter() - begin) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
