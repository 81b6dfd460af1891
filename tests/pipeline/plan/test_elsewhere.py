"""A plan that is made for this machine, of a run that is for a larger one: it names the target to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.command_line import main
from tests.config.importer_files import ROLL, SEEDS, nested

SMALLEST = f"--config={Path(__file__).parents[2] / 'e2e' / 'smallest.py'}"
PLAN = ("--config.mode=plan", "--config.model.path=tiny")


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main([*PLAN, *arguments]) == 1
    return capsys.readouterr().out.splitlines()


def test_a_file_of_eight_gpus_is_told_to_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four are the learner's and four the engines'; this machine, of tests, has processors alone."""
    file = tmp_path / "mine.yaml"
    file.write_text(ROLL)
    *_, refused, last = planned(capsys, f"--config={file}")
    assert refused.startswith("does not fit: learner.mesh multiplies to 4 devices, here has ")
    assert last.startswith("plan.target=here is this machine, with ")
    assert last.endswith(": write --config.plan.target=h100:8")


def test_without_the_model_it_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    file = tmp_path / "mine.yaml"
    file.write_text(ROLL)
    assert main([f"--config={file}", "--config.mode=plan"]) == 2
    _, room, model = capsys.readouterr().err.splitlines()
    assert room.endswith(": write --config.plan.target=h100:8")
    assert model.split()[0] == "pretrain"
    assert "model.path=Qwen/Qwen2.5-0.5B-Instruct: its config.json is not here and cannot be fetched (" in model


def test_beside_another_mistake_it_is_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(ROLL)
    assert main([*PLAN, f"--config={file}", "--config.max_steps=-3"]) == 2
    _, steps, room = capsys.readouterr().err.splitlines()
    assert steps.split()[0] == "--config.max_steps"
    assert "learner.mesh multiplies to 4 devices, here has " in room
    assert room.endswith(": write --config.plan.target=h100:8")


def test_a_mesh_that_no_target_helps_is_not_sent_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    *_, last = planned(capsys, SMALLEST, "--config.plan.target=h100:1", "--config.learner.mesh.data=2")
    assert "plan.target=" not in last


def test_an_explorer_that_takes_a_whole_machine_is_told_where_its_learner_may_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The learner of its plan is on the first GPU, and so is the first of its 8 engines."""
    arguments = (f"--config={SEEDS / 'explorer_new.yaml'}", "--config.plan.target=h100:8x8")
    *_, last = planned(capsys, *arguments)
    assert last.startswith("does not fit: sidecar.devices='gpu:0-7': the learner has [0]; ")
    assert last.endswith(
        "; launcher=local starts engines on the learner's machine alone: for others write launcher=ray"
    )
    assert main([*PLAN, *arguments, "--config.launcher=ray", "--config.sidecar.devices=gpu"]) == 0
    assert "engines  8 × vllm_async on gpu:1 to gpu:8" in capsys.readouterr().out
    *_, last = planned(capsys, *arguments, "--config.learner.devices=gpu:8")
    assert last == "does not fit: learner.devices='gpu:8': a machine of h100:8x8 has 8, counted from 0; write such"
    *_, last = planned(capsys, *arguments[:1], "--config.plan.target=h100:8")
    assert "launcher=ray" not in last


def test_a_plan_that_is_refused_shows_what_the_file_becomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(nested(ROLL, "pretrian", "x"))
    assert main([f"--config={file}", *PLAN]) == 2
    said = capsys.readouterr()
    assert "adv_estimator = 'grpo'" in said.out
    assert "pretrian" in said.err


def test_more_gpus_than_a_machine_has_are_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 of a learner on two nodes, and 4 of its engines, which Ray looks for."""
    file = tmp_path / "mine.yaml"
    text = nested(ROLL, "actor_train.device_mapping", list(range(16)))
    file.write_text(nested(text, "actor_infer.device_mapping", list(range(16, 20))))
    *_, last = planned(capsys, f"--config={file}")
    assert last.endswith(": write --config.plan.target=h100:3x8")


@pytest.mark.parametrize(("by_hand", "devices"), [(False, 4), (True, 1)])
def test_processors_are_as_many_as_the_command_makes_for_its_hosts(by_hand: bool, devices: int) -> None:
    """In a process in which JAX has not started yet. Who starts hosts by hand says it of each."""
    changes = {"learner.mesh.fsdp": "4", "learner.hosts.number": "2"}
    changes |= {"learner.hosts.rank": "0", "learner.hosts.coordinator": "first:8476"} if by_hand else {}
    program = f"""
from rljax.config.load import load_config
from rljax.pipeline.plan.targets import find_target
print(find_target(load_config("quickstart", {changes!r})).devices)
"""
    ours = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    env = {name: value for name, value in os.environ.items() if name not in ours} | {"JAX_PLATFORMS": "cpu"}
    finished = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True, check=True)
    assert finished.stdout == f"{devices}\n"


def test_hosts_that_one_command_starts_need_no_machine_each(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--config=quickstart", "--config.learner.hosts.number=2", "--config.learner.mesh.fsdp=4")
    said = "needs    2 processes, 2 devices each, all started here by one command: learner.hosts.number=2"
    main([*PLAN, *given])
    assert said in capsys.readouterr().out.splitlines()
