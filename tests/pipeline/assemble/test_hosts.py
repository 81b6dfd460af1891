"""What tells the hosts of one run from those of another."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import envs
import rljax
import sidecar
from rljax.config.schema import AlgorithmConfig, Config, HostsConfig, LearnerConfig, MeshConfig
from rljax.pipeline.assemble import hosts
from rljax.pipeline.assemble.hosts import identity
from tests.e2e.program import free_port


def config(**hosts: object) -> Config:
    learner = LearnerConfig(mesh=MeshConfig(fsdp=4), hosts=HostsConfig(number=2, **hosts))
    return Config(mode="evaluate", learner=learner)


def test_hosts_differ_in_who_they_are_alone() -> None:
    first, second = config(rank=0, coordinator="here:1"), config(rank=1, coordinator="there:1")
    assert identity(first) == identity(second)
    other = identity(dataclasses.replace(second, seed=7))
    assert [name for name, value in identity(first).items() if other[name] != value] == ["config.seed"]


def test_another_mesh_has_the_keys_in_which_it_is_another() -> None:
    mine = config(rank=0, coordinator="here:1")
    mesh = dataclasses.replace(mine.learner, mesh=MeshConfig(fsdp=2, data=2))
    other = identity(dataclasses.replace(mine, learner=mesh))
    differing = [name for name, value in identity(mine).items() if other[name] != value]
    assert differing == ["config.learner.mesh.data", "config.learner.mesh.fsdp"]


@pytest.mark.parametrize("package", [rljax, sidecar, envs])
def test_another_program_is_one_whose_sources_differ_in_a_letter(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = identity(config())
    copy = tmp_path / "copy"
    shutil.copytree(Path(str(package.__file__)).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(package, "__file__", str(copy / "__init__.py"))
    assert identity(config()) == mine, "wherever it lies"
    changed = max(copy.rglob("*.py"))
    changed.write_text(changed.read_text() + "#")
    assert [name for name, value in identity(config()).items() if mine[name] != value] == ["program (rljax)"]


OWN = """
from helper_of_mine import second

def first(batch, logp, *, alpha: float = 0.1): ...
def other(groups): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with functions of a user's own, which can be imported."""
    (tmp_path / "mine_of_hosts.py").write_text(OWN)
    (tmp_path / "helper_of_mine.py").write_text("def second(values, mask): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("mine_of_hosts", "helper_of_mine"):
        sys.modules.pop(name, None)


def differing(mine: dict[str, str], other: dict[str, str]) -> list[str]:
    assert mine.keys() == other.keys()
    return [name for name, value in mine.items() if other[name] != value]


def test_a_function_of_ones_own_is_another_where_its_file_differs_in_a_letter(own: Path) -> None:
    """The functions may be of one file; and one may be written elsewhere than where it is found."""
    named = {
        "adv_estimator": "mine_of_hosts:other",
        "aggregation": "mine_of_hosts:second",
        "filters": "mine_of_hosts:other",
        "pg_variant": "mine_of_hosts:first",
    }
    objective = AlgorithmConfig(**{**named, "filters": (named["filters"],)})
    with_own = dataclasses.replace(config(), algorithm=objective)
    mine, files = identity(with_own), {key: f"file of algorithm.{key}={name}" for key, name in named.items()}
    assert [name for name in sorted(mine) if name.startswith("file of")] == [*files.values()]

    (own / "helper_of_mine.py").write_text("def second(values, mask): ...  # here\n")
    assert differing(mine, identity(with_own)) == [files["aggregation"]]
    (own / "mine_of_hosts.py").write_text(OWN + "#")
    assert sorted(differing(mine, identity(with_own))) == [*files.values()]


def test_functions_of_the_program_have_no_file_of_their_own() -> None:
    assert not [name for name in identity(config()) if name.startswith("file of")]


@pytest.mark.parametrize("library", ["jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"])
def test_another_version_of_a_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = identity(config())
    monkeypatch.setattr(hosts, "version", lambda name: "0.0.1" if name == library else metadata.version(name))
    assert differing(mine, identity(config())) == [f"version of {library}"]


PRINTS = """
import os, sys
from pathlib import Path
from rljax.pipeline.assemble.hosts import own_output_of_libraries
for _ in range(2):  # a run that is gone on with in one process
    own_output_of_libraries(Path(sys.argv[1]), 3)
print("of Python")
os.write(1, b"of a library\\n")
os.write(2, b"an error of one\\n")
"""


def test_what_libraries_print_goes_to_a_log_and_all_else_where_it_went(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PRINTS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stdout == "of Python\n"
    assert "an error of one\n" in ended.stderr
    assert (tmp_path / "logs" / "host-3-libraries.log").read_text() == "of a library\n"


UNREACHED = """
from rljax.config.schema import Config, HostsConfig, LearnerConfig, MeshConfig
from rljax.learner.hosts import HostLost
from rljax.pipeline.assemble.hosts import initialise
hosts = HostsConfig(number=2, rank=1, coordinator="first:8476")
learner = LearnerConfig(mesh=MeshConfig(fsdp=4), hosts=hosts)
try:
    initialise(Config(mode="evaluate", learner=learner, wait_timeout=1), {!r})
except HostLost as lost:
    print(lost, flush=True)
import os
os._exit(0)  # JAX has more to say
"""


@pytest.mark.slow
def test_a_host_that_is_let_in_and_does_not_reach_jax_names_its_port() -> None:
    service = f"127.0.0.1:{free_port()}"
    done = subprocess.run([sys.executable, "-c", UNREACHED.format(service)], capture_output=True, text=True, check=True)
    said = "learner.hosts.coordinator=first:8476: host 1 of 2 did not meet the others within 1 s, though its supervisor"
    assert done.stdout.startswith(f"{said} has met host 0's; start all, and let all reach JAX's service {service}, ")
