"""Which command lines are sweeps, and of which runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config import extras
from rljax.config.fields import ConfigError
from rljax.config.refusals import RefusedConfig
from rljax.config.sweep import is_sweep, points
from tests.config.importer_files import ROLL, TRINITY, changed


@pytest.mark.parametrize(
    ("key", "value", "swept"),
    [
        ("seed", "0,1,2", True),
        ("seed", "0", False),
        ("learner.optimizer.learning_rate", "1e-4,3e-4", True),
        ("eval_steps", "5,None", True),
        ("fill_interval", "true,false", True),
        ("algorithm.loss.clip_low", "0.1,0.2", True),
        ("tasks.train.reverse_digits.weight", "1,2", True),
        ("algorithm.filters", "a,b", False),  # several names
        ("algorithm.pg_variant", "ppo,gspo", True),  # one of several names
        ("algorithm.aggregation", "token-mean,mine:average", True),
        ("model.dtype", "fp32,bf16", True),
        ("algorithm.norm_std", "none,group", True),
        ("algorithm.loss.ratio_level", "token,sequence", True),
        ("model.path", "tiny,smollm2-135m", False),  # a text, which may have commas
        ("tasks.train.digits.source", "a.csv,b.csv", False),
        ("wandb", "a,b", False),
        ("learner.devices", "gpu:0,gpu:1", False),
        ("sede", "0,1", False),  # unknown: refused as everywhere
        ("rollout.train_env_manager.tags", "A,B", False),
        ("rollout.workflow_args.depth", "1,2", False),
    ],
)
def test_a_key_that_takes_one_number_may_have_several(key: str, value: str, swept: bool) -> None:
    assert is_sweep({key: value}) == swept


def test_each_combination_is_a_run_in_a_directory_of_its_own() -> None:
    overrides = {"seed": "0, 1", "learner.optimizer.learning_rate": "1e-4,3e-4", "max_steps": "5"}
    found = points("configs/quickstart.py", overrides)
    assert [(p.config.run_dir, p.config.seed, p.config.learner.optimizer.learning_rate) for p in found] == [
        ("runs/quickstart-sweep/seed=0,learner.optimizer.learning_rate=0.0001", 0, 1e-4),
        ("runs/quickstart-sweep/seed=0,learner.optimizer.learning_rate=0.0003", 0, 3e-4),
        ("runs/quickstart-sweep/seed=1,learner.optimizer.learning_rate=0.0001", 1, 1e-4),
        ("runs/quickstart-sweep/seed=1,learner.optimizer.learning_rate=0.0003", 1, 3e-4),
    ]
    assert {p.config.max_steps for p in found} == {5}
    assert found[0].name == "seed=0,learner.optimizer.learning_rate=0.0001"
    found = points("configs/quickstart.py", {"algorithm.pg_variant": "ppo,gspo", "model.dtype": "fp32, bf16"})
    assert [(p.name, p.config.algorithm.pg_variant, p.config.model.dtype) for p in found] == [
        ("algorithm.pg_variant=ppo,model.dtype=fp32", "ppo", "fp32"),
        ("algorithm.pg_variant=ppo,model.dtype=bf16", "ppo", "bf16"),
        ("algorithm.pg_variant=gspo,model.dtype=fp32", "gspo", "fp32"),
        ("algorithm.pg_variant=gspo,model.dtype=bf16", "gspo", "bf16"),
    ]
    (first, *_) = points("configs/quickstart.py", {"seed": "0,1", "run_dir": "/data/mine"})
    assert first.config.run_dir == "/data/mine-sweep/seed=0"


def test_in_postgresql_each_has_a_schema_of_its_own() -> None:
    ledger = "postgresql://somebody@host/database"
    found = points("configs/quickstart.py", {"seed": "0,1", "ledger": ledger})
    assert [p.config.ledger_schema for p in found] == ["quickstart-seed-0", "quickstart-seed-1"]
    (first, _) = points("configs/quickstart.py", {"seed": "0,1", "ledger": ledger, "ledger_schema": "mine"})
    assert first.config.ledger_schema == "mine-seed-0"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"seed": "0,x"}, "seed=x: expected an integer"),
        ({"seed": "0,"}, "seed=: expected an integer"),
        ({"model.dtype": "fp32,bf1"}, "model.dtype='bf1': not one of fp32, bf16; did you mean bf16?"),
        ({"algorithm.pg_variant": "ppo,gpso"}, "algorithm.pg_variant='gpso': there is no such one; closest: gspo"),
        ({"model.dtype": "fp32,fp32"}, "model.dtype='fp32,fp32': a value is there twice; write each once"),
        ({"mode": "both,audit"}, "mode=audit: a sweep trains, with mode=both; name one value of mode"),
        ({"seed": "0,00"}, "seed='0,00': a value is there twice; write each once"),
        ({"seed": "0,-1"}, "seed=-1: "),
        ({"seed": "0,1", "mode": "evaluate"}, "mode=evaluate: a sweep trains, with mode=both; name one value of seed"),
        ({"seed": "0,1", "ledger": "sqlite:///x.db"}, "have ledgers of their own; leave ledger out"),
        ({"seed": "0,1", "max_stpes": "4"}, "max_stpes: unknown key"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        points("configs/quickstart.py", overrides)
    assert said in str(raised.value)


def test_a_value_that_is_none_is_told_with_the_rest() -> None:
    with pytest.raises(RefusedConfig) as refused:
        points("quickstart", {"seed": "0,x", "max_steps": "1,1", "group_size": "16,32", "launcher": "no"})
    assert [line.partition(": ")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "seed=x",
        "max_steps='1,1'",
        "launcher='no'",
    ]


def test_what_is_wrong_of_any_of_the_runs_is_told_at_once() -> None:
    with pytest.raises(RefusedConfig) as refused:
        points("quickstart", {"max_steps": "2,-1", "group_size": "16,0"})
    assert [line.partition(": ")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "group_size=0",
        "max_steps=-1",
    ]


def test_a_column_that_is_not_there_is_told_once_and_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    rows = "{'source': 'rows.jsonl', 'rewards': ('numeric',), 'prompt_key': 'quesiton'}"
    tasks = f"{{'tasks': {{'train': {{'a': {rows}}}}}, 'model': {{'path': 'tiny'}}}}"
    (tmp_path / "mine.py").write_text(f"def get_config():\n    return {tasks}\n")
    devices = "--config.learner.devices=cpu", "--config.sidecar.devices=cpu", "--config.sidecar.engine=embedded"
    assert main(["--config=mine.py", "--config.seed=0,1", *devices]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("tasks.train.a.prompt_key='quesiton': no such column")) == ("", 1)
    assert not (tmp_path / "runs").exists()


def test_what_is_refused_of_a_file_of_others_is_said_by_its_keys(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    rows = "buffer.explorer_input.taskset"
    columns = {f"{rows}.format.prompt_key": "quesiton", f"{rows}.format.response_key": "anser"}
    path = write(changed(TRINITY, {f"{rows}.path": str(tmp_path / "rows.jsonl"), **columns}))
    installed = extras.is_installed
    monkeypatch.setattr(extras, "is_installed", lambda package: package != "vllm" and installed(package))

    def said(*given: str) -> list[str]:
        assert main([f"--config={path}", *given]) == 2
        return [line.split()[0] for line in capsys.readouterr().err.splitlines()[1:]]

    assert said("--dry-run") == said("--config.seed=0,1", "--dry-run") == list(columns)
    swept = said("--config.seed=0,1")
    assert {"explorer.rollout_model.engine_type,", *columns} <= set(swept)  # and the devices that are not here
    assert said() == swept


def test_a_sweep_is_not_written_as_a_config(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.py"
    assert main([f"--config={write(ROLL)}", "--config.seed=0,1", f"--dry-run={target}"]) == 2
    assert "what is written is one config, and no sweep; name one value of each key" in capsys.readouterr().err
    assert not target.exists()


def test_a_dry_run_of_a_sweep_looks_up_the_names_of_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=configs/quickstart.py", "--config.rollout.workflow=by_task,nosuch:Mine", "--dry-run"]) == 2
    assert "rollout.workflow='nosuch:Mine'" in capsys.readouterr().err
