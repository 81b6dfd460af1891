"""Plants plausible bugs, one at a time, and sees whether the tests catch each.

    python -m tests.mutations.run [--only losses] [--list] [--jobs 1]

Reads ``tests/mutations/*.toml``, entries ``[[mutation]]`` with

* ``file``: what is changed, from the root of the repository;
* ``before``, ``after``: text that occurs there exactly once, and what takes its place;
* ``tests``: pytest's arguments, as in a shell, that must fail then; ``why``: which bug it is.

The tree itself is never touched: tests run in a copy of its files. First they run without any bug: tests that fail
anyway would catch everything.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    *("rljax", "sidecar", "envs", "configs", "tests", "docs"),
    *("pyproject.toml", "setup.py", "README.md", "CONTRIBUTING.md", "LICENSE"),
)
CAUGHT, SURVIVED = "caught", "SURVIVED"
VERDICTS = {0: SURVIVED, 1: CAUGHT}  # by pytest's exit status; others say that the tests could not run


@dataclass(frozen=True)
class Mutation:
    """One bug; see this module's docstring."""

    file: str
    before: str
    after: str
    tests: str
    why: str

    def plant(self, tree: Path) -> None:
        """Writes the bug into a copy of the tree."""
        path = tree / self.file
        path.write_text(path.read_text().replace(self.before, self.after))


def read(only: str | None) -> list[Mutation]:
    """The mutations of one list, or of all, each of which says what there is to be changed."""
    files = sorted(Path(__file__).parent.glob(f"{only or '*'}.toml"))
    if not files:
        raise SystemExit(f"there is no tests/mutations/{only}.toml")
    mutations = [Mutation(**entry) for file in files for entry in tomllib.loads(file.read_text())["mutation"]]
    for mutation in mutations:
        times = (ROOT / mutation.file).read_text().count(mutation.before)
        if times != 1:
            raise SystemExit(f"{mutation.file}: {mutation.before!r} occurs {times} times, not once")
    return mutations


def verdict(mutation: Mutation) -> str:
    """What the tests say of a copy with the bug. Takes its process over: it is for one that ends afterwards."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # tests start processes
    with tempfile.TemporaryDirectory() as room:
        tree, output = Path(room) / "tree", Path(room) / "output"
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name)
            else:
                shutil.copy(ROOT / name, tree / name)
        mutation.plant(tree)
        os.chdir(tree)
        sys.path[:0] = [str(tree)]
        sys.dont_write_bytecode = True
        with output.open("w") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            status = pytest.main(["-x", "-q", *shlex.split(mutation.tests)])
        lines = output.read_text().strip().splitlines()
        os.chdir(ROOT)
    return VERDICTS.get(int(status), f"BROKEN ({lines[-1] if lines else status})")


def main() -> int:
    """Runs the list; 1 where a bug was not caught."""
    parser = argparse.ArgumentParser(description="plants bugs and sees whether tests catch them")
    parser.add_argument("--only", help="name of one list, such as losses")
    parser.add_argument("--list", action="store_true", help="print the bugs and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="bugs that are tried at a time")
    options = parser.parse_args()
    mutations = read(options.only)
    if options.list:
        print(*(f"{m.file}: {m.why}" for m in mutations), sep="\n")
        return 0
    importlib.import_module("jax")  # once, for all the processes that are forked below
    Phase, settings = hypothesis.Phase, hypothesis.settings
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("no shrinking", deadline=None, phases=phases, report_multiple_bugs=False)
    settings.load_profile("no shrinking")
    sound = list({m.tests: replace(m, after=m.before) for m in mutations}.values())
    missed = 0
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for mutation, said in zip(sound, pool.imap(verdict, sound, chunksize=1), strict=True):
            if said != SURVIVED:
                raise SystemExit(f"without any bug: {said}: {mutation.tests}")
        for number, said in enumerate(pool.imap(verdict, mutations, chunksize=1), 1):
            mutation = mutations[number - 1]
            missed += said != CAUGHT
            print(f"[{number}/{len(mutations)}] {said}: {mutation.file}: {mutation.why}", flush=True)
    print(f"{len(mutations) - missed} of {len(mutations)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
