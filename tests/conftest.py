"""What tests of several rooms share: their markers, their places in a parallel session, compiled programs, a server."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from rljax.algorithms import registry
from rljax.config.registries import Registry
from rljax.tasks.rewards import registry as rewards
from sidecar.garbage import collect_seldom
from tests import libtpu, postgres
from tests.unoptimised import unoptimised

__all__ = ["unoptimised"]  # a fixture

TESTS = Path(__file__).parent
COMPILED = TESTS.parent / ".pytest_cache" / "compiled"
"""Programs that XLA has compiled for earlier sessions; safe to delete."""
FOLDERS = {"e2e": "e2e", "sidecar/vllm": "vllm"}
"""What each test of a folder is marked as."""
FIXTURES = {"server": "postgres", "cluster": "ray", "ray": "ray"}
"""What each test that asks for a fixture is marked as."""
ENGINES = ("vllm", "ray")
"""Each takes gigabytes, and a cluster its ports: of these tests one at a time."""
LONGEST = (*ENGINES, "e2e", "slow")
"""Files with such tests come first, in this order."""
NO_VLLM = f"no build of vLLM for CPUs is installed for Python {sys.version_info.major}.{sys.version_info.minor}"
NO_LIBTPU = f"there is no {libtpu.PYTHON} with libtpu (make try-tpu; {libtpu.VARIABLE} names another)"

if settings.get_current_profile_name() == "default":  # a list of planted bugs brings its own
    settings.register_profile("rljax", deadline=None)  # on a busy machine any example may take long
    settings.load_profile("rljax")


def pytest_configure() -> None:
    """Keeps what XLA compiles, for this process, those that it starts, and later sessions; puts the garbage collector
    off until all tests are imported.
    """
    gc.disable()
    kept = {
        "jax_compilation_cache_dir": str(COMPILED),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in kept.items():
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker, and before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks by folder and by what is asked for. The tests of a file are one group of a parallel session, those of
    engines, wherever they are, another. The longest files come first, so that none is begun when nothing else is left.
    """
    missing = {"vllm": NO_VLLM} if importlib.util.find_spec("vllm") is None else {}
    missing |= {} if libtpu.PYTHON.exists() else {"libtpu": NO_LIBTPU}
    rank: dict[Path, int] = {}
    for item in items:
        for name in sorted(kinds(item)):
            item.add_marker(name)
        marked = [item.get_closest_marker(name) is not None for name in LONGEST]
        engines = any(marked[: len(ENGINES)])
        item.add_marker(pytest.mark.xdist_group("engines" if engines else item.path.relative_to(TESTS).as_posix()))
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
        rank[item.path] = min(rank.get(item.path, len(LONGEST)), [*marked, True].index(True))
    items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish() -> None:
    """Spares the garbage collector what stays until the end: it would go through all modules again and again."""
    gc.freeze()
    collect_seldom()
    gc.enable()


def kinds(item: pytest.Item) -> set[str]:
    """The markers that follow from where a test is and what it asks for."""
    folder = item.path.parent.relative_to(TESTS).as_posix()
    found = {FOLDERS[folder]} if folder in FOLDERS else set()
    found |= {FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES}
    parameters = getattr(item, "callspec", None)
    if parameters is not None and parameters.params.get("dialect") == "postgresql":
        found.add("postgres")  # its fixture asks for the server while it runs
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Says at the end what was not there."""
    yield
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for reason in (NO_VLLM, NO_LIBTPU):
        if any(reason in said for said in skipped):
            terminalreporter.write_line(f"NOT TESTED: {reason}, the tests that need it were skipped", yellow=True)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server; it fails, and says what to install, where there is none."""
    with postgres.running() as started:
        yield started


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes out again what a test registers: others, of whatever file, ask what there is."""
    monkeypatch.setattr(rewards, "_registered", dict(rewards._registered))
    for slot in {one for one in vars(registry).values() if isinstance(one, Registry)}:
        monkeypatch.setattr(slot, "_user_defined", dict(slot._user_defined))
