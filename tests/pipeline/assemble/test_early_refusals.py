"""What a machine does not have is told in the same table as what is wrong of the config, by the keys of its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.command_line import main
from rljax.config import extras
from rljax.config.load import load_config
from tests.config.importer_files import ROLL, SEEDS, changed
from tests.pipeline.assemble.laptop import without_gpu

LAKE = str(SEEDS / "agent_val_frozen_lake_async.yaml")
MAPPING, STRATEGY = "actor_train.device_mapping", "actor_train.strategy_args.strategy_config"
TENSOR = f"{STRATEGY}.tensor_model_parallel_size"
ON_CPU, WIDE, MISSPELT = "--config.learner.devices=cpu", "--config.learner.mesh.fsdp=8", "--config.max_stesp=3"
NEAR = "max_stesp: unknown key; did you mean max_steps?"
TOO_FEW = (
    "learner.mesh: multiplies to 8 devices, learner.devices='cpu' gives 1 (cpu:0); write a mesh of as many, or set "
    "JAX_NUM_CPU_DEVICES=8 in the environment"
)
NO_GPU = (
    "actor_infer.device_mapping "
    "sidecar.devices='gpu:4-7': this machine has 0 GPUs, counted from 0; correct it, or write cpu"
)
HANGS = 120


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one processor of JAX's, and no GPU."""
    without_gpu(monkeypatch)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns what a command line is refused for, without the title of a table."""

    def said(*arguments: str) -> list[str]:
        assert main(arguments) == 2
        first, *table = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
        return table or [first.removeprefix("rljax: ")]

    return said


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--config.seed=0,1",)])
def test_a_misspelt_key_hides_no_mesh_that_is_too_large(more: tuple[str, ...], refused: Any) -> None:
    assert refused("--config=quickstart", ON_CPU, WIDE, MISSPELT, *more) == [NEAR, TOO_FEW]


def test_devices_of_a_sweep_are_one_line_before_a_run_begins_and_another_process_looks_for_them(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("a process that has seen a GPU keeps memory of it"))
    runs = "--config.learner.mesh.fsdp=8,16", "--config.seed=0,1", f"--config.run_dir={tmp_path / 'few'}"
    assert refused(QUICK, ON_CPU, *runs) == [TOO_FEW, TOO_FEW.replace(" 8 ", " 16 ").replace("=8 ", "=16 ")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_mesh_beside_processors_is_one_line(more: tuple[str, ...], refused: Any) -> None:
    """The file's rows, devices and mesh are no part of it: `learner.devices=cpu` says them itself."""
    keys = "--config.learner.devices, --config.learner.mesh.fsdp"
    assert refused(f"--config={LAKE}", ON_CPU, WIDE, *more) == [f"{TOO_FEW} (ROLL: {keys})"]
    both = [f"--config.max_stesp {NEAR}", f"{keys} {TOO_FEW}"]
    assert refused(f"--config={LAKE}", ON_CPU, WIDE, MISSPELT, *more) == both


@pytest.mark.parametrize(("mesh", "rows"), [({}, 1), ({"fsdp": 8}, 8), ({"data": "2", "fsdp": "3", "tensor": "2"}, 6)])
def test_rows_on_processors_are_as_many_as_the_mesh_cuts(mesh: dict[str, Any], rows: int) -> None:
    axes = {f"learner.mesh.{axis}": size for axis, size in mesh.items()}
    config = load_config(LAKE, {"learner.devices": "cpu", **axes})
    assert config.learner.rows_per_microbatch == rows


@pytest.mark.parametrize("size", ["0", "-2", "eight"])
def test_a_mesh_that_is_none_is_one_line(size: str, refused: Any) -> None:
    (line,) = refused(f"--config={LAKE}", ON_CPU, f"--config.learner.mesh.fsdp={size}")
    assert line.startswith(f"learner.mesh.fsdp={size}: ")


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (
            "cpu:0-63",
            "names 64 devices, learner.mesh multiplies to 4; write as many in both; this machine has 1 (cpu:0), "
            "learner.mesh multiplies to 4; write others, or auto, and a mesh of as many",
        ),
        ("cpu:0", "names 1 devices, learner.mesh multiplies to 4; write as many in both"),
    ],
)
def test_devices_beside_a_file_name_what_gives_its_mesh(devices: str, said: str, refused: Any) -> None:
    line = f"--config.learner.devices, {MAPPING}, {TENSOR} learner.devices='{devices}': {said}"
    assert refused(f"--config={LAKE}", f"--config.learner.devices={devices}") == [line, NO_GPU]


def test_devices_that_are_not_there_name_all_that_give_the_mesh(tmp_path: Path, refused: Any) -> None:
    file, context = tmp_path / "mine.yaml", f"{STRATEGY}.context_parallel_size"
    file.write_text(changed(ROLL, {TENSOR: 2, context: 2}))
    learner, engines = refused(f"--config={file}")
    keys, _, said = learner.partition(" learner.devices=")
    assert set(keys.split(", ")) == {MAPPING, TENSOR, context}
    wanted = "this machine has no gpu (none), learner.mesh multiplies to 4; write cpu, and a mesh of as many"
    assert said == f"'gpu:0-3': {wanted}"
    assert engines == NO_GPU


def test_a_package_that_is_missing_hides_no_device(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda package: package != "wandb")
    package, devices = refused("--config=quickstart", ON_CPU, WIDE, "--config.observe.wandb=here")
    assert package.startswith("observe.wandb='here': wandb is not installed; ")
    assert devices == TOO_FEW


QUICK = "--config=quickstart"


@pytest.mark.parametrize(
    "arguments",
    [[QUICK], [QUICK, "--config.mode=plan"], [f"--config={LAKE}", ON_CPU], [f"--config={LAKE}", ON_CPU, MISSPELT]],
)
def test_a_platform_that_jax_does_not_know_is_one_line(arguments: list[str]) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "tpuu"}
    program = f"from rljax.command_line import main; raise SystemExit(main({arguments!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert ran.returncode == 2, ran.stderr
    (line,) = (line for line in ran.stderr.splitlines() if "JAX" in line or "devices=" in line)
    said = line.removeprefix("rljax: ").strip()
    assert said.startswith(
        "JAX_PLATFORMS=tpuu: JAX does not start with it on this machine (Unable to initialize backend 'tpuu': "
    )
    assert said.endswith("); unset it, or name what is here")


def test_devices_of_other_hosts_are_not_missed_here(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ("--config.learner.hosts.number=2", "--config.learner.hosts.coordinator=localhost")
    assert main(["--config=quickstart", "--config.learner.mesh.fsdp=2", *hosts, "--config.learner.hosts.rank=0"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "learner.hosts.coordinator='localhost': write HOST:PORT of host 0" in line
