"""Plants plausible bugs, one at a time, and sees whether the tests catch each.

    python -m tests.mutations.run [--only losses] [--list] [--jobs 1]

Reads ``tests/mutations/*.toml``, entries ``[[mutation]]`` with

* ``file``: what is changed, from the root of the repository;
* ``before``, ``after``: text that occurs there exactly once, and what takes its place;
* ``tests``: pytest's arguments, separated by spaces, that must fail then; ``why``: which bug it is.

The tree itself is never touched: tests run in a copy of its files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
COPIED = ("rljax", "sidecar", "envs", "tests", "pyproject.toml")
TESTS_FAILED = 1  # pytest's exit status; others say that the tests could not run


@dataclass(frozen=True)
class Mutation:
    """One bug; see this module's docstring."""

    file: str
    before: str
    after: str
    tests: str
    why: str

    def apply(self, tree: Path) -> str:
        """Plants the bug and returns what was there."""
        path = tree / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise SystemExit(f"{self.file}: {self.before!r} occurs {text.count(self.before)} times, not once")
        path.write_text(text.replace(self.before, self.after))
        return text

    def verdict(self, tree: Path) -> str:
        """ "caught" or "SURVIVED", or the last line of tests that did not run."""
        original = self.apply(tree)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests.split()]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        finally:
            (tree / self.file).write_text(original)
        if done.returncode in (0, TESTS_FAILED):
            return "caught" if done.returncode else "SURVIVED"
        return f"BROKEN: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


def read(only: str | None) -> list[Mutation]:
    """The mutations of one list, or of all."""
    files = sorted(Path(__file__).parent.glob(f"{only or '*'}.toml"))
    if not files:
        raise SystemExit(f"there is no tests/mutations/{only}.toml")
    return [Mutation(**entry) for file in files for entry in tomllib.loads(file.read_text())["mutation"]]


def copy_tree(to: Path) -> Path:
    """Copies what tests need, and not the rest."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    return to


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
    with tempfile.TemporaryDirectory() as room:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            trees.put(copy_tree(Path(room) / str(job)))

        def verdict(mutation: Mutation) -> str:
            tree = trees.get()
            try:
                return mutation.verdict(tree)
            finally:
                trees.put(tree)

        missed = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for number, (mutation, said) in enumerate(zip(mutations, pool.map(verdict, mutations), strict=True), 1):
                missed += said != "caught"
                print(f"[{number}/{len(mutations)}] {said}: {mutation.file}: {mutation.why}", flush=True)
    print(f"{len(mutations) - missed} of {len(mutations)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
