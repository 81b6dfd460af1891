"""A file of others is shown beside its config, and written as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config import extras
from rljax.config.importers.page import config_file
from rljax.config.load import as_plain, load_config
from rljax.config.load import load as load_both
from rljax.config.schema import Config
from tests.config.importer_files import ROLL, SEEDS


@pytest.mark.parametrize("name", ["explorer.yaml,{}/trainer.yaml", "agent_val_frozen_lake_async.yaml"])
def test_what_is_written_is_the_same_config(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = f"{SEEDS}/{name.format(SEEDS)}", tmp_path / "mine.py"
    assert main([f"--config={path}", "--config.max_steps=9", f"--dry-run={target}"]) == 0
    said = capsys.readouterr().out
    assert "->" in said
    assert f"written to {target}" in said
    config = load_config(path, {"max_steps": "9"})
    assert as_plain(load_config(str(target))) == as_plain(config)
    assert as_plain(load_config(str(target), {"group_size": "4"})) == as_plain(config) | {"group_size": 4}
    assert main([f"--config={path}", f"--dry-run={target}"]) == 2
    assert "there is such a file" in capsys.readouterr().err


def test_a_dry_run_shows_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--config={SEEDS / 'rlvr_config_async.yaml'}", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "max_steps = 1000" in said.out
    assert "\nunnecessary\n" in said.out
    assert ["there is no sglang engine" in text for text in (said.out, said.err)] == [False, True]  # once


def test_a_dry_run_names_a_key_that_is_left_out(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(ROLL.replace("pretrain: Qwen/Qwen2.5-0.5B-Instruct\n", ""))
    assert main([f"--config={path}", "--config.model.path=tiny", "--dry-run"]) == 0
    assert "pretrain, left out  the file names no model" in " ".join(capsys.readouterr().out.split("   "))


def groups(text: str) -> dict[str, list[str]]:
    """The lines below each title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("  "):
            found[line] = []
        else:
            found[list(found)[-1]].append(line.strip())
    return found


def test_a_config_of_ours_is_shown_with_what_differs_and_where_things_go(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        "--config.learner.optimizer.beta1=0.8",
        "--config.compile_cache=kept",
        "--config.algorithm.loss.clip_low=0.1",
    ]
    assert main(["--config=quickstart", "--dry-run", *given]) == 0
    said = groups(capsys.readouterr().out)
    resolved, changed, lacking, absent, places, _ = said.values()
    assert next(iter(said)) == "resolved config"
    assert {"algorithm.loss.clip_low = 0.1", "algorithm.kl.where = 'none'", "sync_interval = 1"} <= set(resolved)
    assert "learner.optimizer.beta1 = 0.8  (default 0.9)" in changed
    assert "algorithm.loss.clip_low = 0.1  (default 0.2)" in changed
    assert "run_dir = 'runs/quickstart'  (default None)" in changed
    assert not [line for line in changed if line.startswith(("algorithm.critic", "custom_envs", "seed"))]
    assert (lacking, absent) == (["nothing"], ["nothing"])
    assert [" ".join(line.split()) for line in places] == [
        f"run directory {tmp_path}/runs/quickstart",
        f"ledger {tmp_path}/runs/quickstart/ledger.db",
        f"checkpoints {tmp_path}/runs/quickstart/checkpoints",
        f"weights {tmp_path}/runs/quickstart/weights",
        f"compile cache {tmp_path}/kept",
    ]
    assert list(tmp_path.iterdir()) == []  # nothing is made


def test_a_dry_run_shows_no_password_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--config.ledger=postgresql://u:S3CRET@h/db", "--config.launcher=ray", "--config.sync_method=memory"]
    installed = extras.is_installed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extras, "is_installed", lambda package: package != "ray" and installed(package))
        assert main(["--config=quickstart", "--dry-run", *given]) == 0
    said = capsys.readouterr()
    assert "S3CRET" not in said.out + said.err
    assert any(
        line.startswith("ray, for launcher=ray: ") for line in groups(said.out)["not installed here, and needed"]
    )
    places = "\n".join(groups(said.out)["where things go"])
    assert "postgresql://u:***@h/db, schema quickstart" in places
    assert "memory, and no file" in places


def test_a_dry_run_says_which_files_are_not_here_and_refuses_none(capsys: pytest.CaptureFixture[str]) -> None:
    """What is translated on one machine may run on another."""
    given = ["--config.model.path=/none/model", "--config.tasks.train.digits.source=none.jsonl"]
    assert main(["--config=quickstart", "--dry-run", *given]) == 0
    found = groups(capsys.readouterr().out)["not found here, and needed"]
    assert [line.partition("=")[0] for line in found] == ["tasks.train.digits.source", "model.path"]
    assert main(["--config=quickstart", "--dry-run"]) == 0
    assert groups(capsys.readouterr().out)["not found here, and needed"] == ["nothing"]


def test_a_dry_run_of_what_is_refused_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--config=quickstart", "--dry-run", "--config.max_step=3"]) == 2
    assert "did you mean max_steps?" in capsys.readouterr().err
    assert main(["--config=quickstart", f"--dry-run={tmp_path}/mine.py"]) == 2
    assert "what a YAML file becomes is written there" in capsys.readouterr().err


def test_a_dry_run_of_a_sweep_names_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=quickstart", "--dry-run", "--config.seed=0,1,2"]) == 0
    first, runs = next(iter(groups(capsys.readouterr().out).items()))
    assert first == "a sweep of 3 runs; what follows is of the first"
    assert [line.split()[0] for line in runs] == ["seed=0", "seed=1", "seed=2"]
    assert runs[1].endswith("runs/quickstart-sweep/seed=1")


def test_a_translation_is_said_beside_its_config(write: Any) -> None:
    config, translation = load_both(write(ROLL))
    assert isinstance(config, Config)
    assert translation is not None
    assert "in our words" in config_file(translation, as_plain(config))


def test_a_dry_run_looks_up_what_a_config_names_and_calls_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "looked_up.py").write_text("def fails(task, response):\n    raise ValueError\n")
    key = "tasks.train.reverse_digits.rewards"
    assert main(["--config=quickstart", "--dry-run", f"--config.{key}=looked_up:fails"]) == 0
    assert "rewards are looked up and not called" in capsys.readouterr().out
    wrong = [f"--config.{key}=looked_up:fials,nosuch", "--config.rollout.workflow=none_there:Mine"]
    assert main(["--config=quickstart", "--dry-run", *wrong]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "rljax",
        "  rollout.workflow='none_there",
        f"  {key}='looked_up",
        f"  {key}='nosuch'",
    ]


def test_a_dry_run_looks_up_environments_and_makes_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_envs.py").write_text(
        'import gymnasium\n\ngymnasium.register("dry_run/Guess-v2", entry_point="none_there:None")\n'
    )

    def dry_run(env_id: str, *given: str) -> tuple[int, str, str]:
        given = (f"--config.custom_envs.FrozenLake.id={env_id}", *given)
        code = main(["--config=frozen_lake", "--dry-run", *given])
        said = capsys.readouterr()
        return code, said.out, said.err

    for known in ("rljax/FrozenLake-v0", "my_envs:dry_run/Guess-v2", "my_envs:dry_run/Guess"):
        code, shown, _ = dry_run(known)
        assert (code, "environments are looked up and not made: FrozenLake" in shown) == (0, True)
    for env_id, failure in (
        ("rljax/FrozenLak-v0", "doesn't exist in namespace rljax. Did you mean: `FrozenLake`?"),
        ("my_envs:dry_run/Gues-v2", "doesn't exist in namespace dry_run. Did you mean: `Guess`?"),
        ("my_env:dry_run/Guess-v2", "ModuleNotFoundError: No module named 'my_env'"),
    ):
        code, _, said = dry_run(env_id)
        assert (code, len(said.splitlines())) == (2, 1)
        assert f"custom_envs.FrozenLake: {env_id}: cannot be made: " in said
        assert said.endswith(f"{failure}\n")
    assert dry_run("rljax/FrozenLak-v0", "--config.mode=train")[0] == 0
    assert dry_run("rljax/FrozenLak-v0", "--config.mode=play")[0] == 2
    code, shown, _ = dry_run("none:Here-v0", "--config.launcher=ray", "--config.rollout.env_place=ray")
    assert (code, "environments of place=ray are not looked up" in shown) == (0, True)


def test_a_dry_run_says_which_modes_call_no_reward(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=quickstart", "--dry-run", "--config.mode=train"]) == 0
    assert "rewards are not looked up, since mode=train calls none" in capsys.readouterr().out


def test_a_dry_run_checks_the_arguments_of_rewards(capsys: pytest.CaptureFixture[str]) -> None:
    """It calls none for that."""
    train = "--config.tasks.train.gsm8k"
    given = [f"{train}.rewards=('exact','format')", f"{train}.reward_args.format.hihg=2.0"]
    assert main(["--config=gsm8k", "--dry-run", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "rljax: tasks.train.gsm8k.reward_args.format.hihg: format has no such key; it has: low"


def test_what_is_written_is_called_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.yaml"
    path = f"--config={SEEDS}/agent_val_frozen_lake_async.yaml"
    assert main([path, f"--dry-run={target}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"--dry-run={target}: what is written is Python; write --dry-run={tmp_path}/mine.py")
    assert not target.exists()


def test_a_dry_run_counts_the_processors_of_a_learner(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX makes one of all of a machine's, or as many as it is told."""
    given = ["--config=quickstart", "--dry-run", "--config.learner.devices=cpu", "--config.learner.mesh.fsdp=8"]
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert main(given) == 2
    refused = "learner.mesh: multiplies to 8 devices, learner.devices='cpu' gives 1 (cpu:0); write a mesh of as many"
    assert capsys.readouterr().err == f"rljax: {refused}, or set JAX_NUM_CPU_DEVICES=8 in the environment\n"
    assert main([*given, "--config.mode=explore"]) == 0
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    assert main(given) == 0
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert main(given) == 0
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "-1")  # JAX's own default, which leaves it to the flag
    assert main(given) == 0
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")  # which JAX asks first
    assert main(given) == 2
    assert "gives 2 (cpu:0, cpu:1)" in capsys.readouterr().err


def test_a_dry_run_counts_the_processors_of_all_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one command starts them it says how many each has; by hand its environment does."""
    given = ["--config=quickstart", "--dry-run", "--config.learner.devices=cpu", "--config.learner.mesh.fsdp=8"]
    given.append("--config.learner.hosts.number=2")
    by_hand = ["--config.learner.hosts.rank=0", "--config.learner.hosts.coordinator=first:8476"]
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert main(given) == 0
    assert main([*given, *by_hand]) == 2
    assert "gives 2 (cpu:0, cpu:1); write a mesh of as many, or set JAX_NUM_CPU_DEVICES=4" in capsys.readouterr().err
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    assert main([*given, *by_hand]) == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("there.py", "there is such a file; write another"),
        ("none/mine.py", "there is no such folder; make it, or write another"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_with_the_rest(
    target: str, said: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there.py").write_text("")
    target = str(tmp_path / target)
    assert main([f"--config={write(ROLL)}", f"--dry-run={target}", "--config.max_steps=-3"]) == 2
    _, *lines = capsys.readouterr().err.splitlines()
    assert [line.strip().rpartition("  ")[2] for line in lines] == [
        f"--dry-run={target}: {said}",
        "max_steps=-3: must be at least 1",
    ]
