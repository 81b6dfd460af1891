"""What a mode needs here is told before a model is opened, all of it at once, and nothing that it does not need."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.command_line import main
from rljax.config import extras
from rljax.config.load import load_config
from rljax.learner.checkpoints import Checkpoints
from rljax.ledger import leases
from rljax.ledger.database import Database, RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.tasks.rewards import register_reward, registry
from rljax.tasks.task import Task
from tests.pipeline.assemble.laptop import without_gpu

CONFIG = """
def get_config():
    rows = {{"source": {rows!r}, "rewards": ("numeric",)}}
    return {{
        "tasks": {{"train": {{"a": rows}}, "validation": {{"v": rows}}}},
        "model": {{"path": "tiny"}},
        "learner": {{"devices": "gpu:0"}},
        "sidecar": {{"devices": "gpu:1", "engine": "embedded"}},
    }}
"""
LEARNER, ENGINES = "learner.devices='gpu:0'", "sidecar.devices='gpu:1'"
NO_RUN, LIMIT = "run_dir=runs/mine", "max_steps=-1"


@pytest.fixture(autouse=True)
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, in an empty directory, with one config of a machine that has two."""
    without_gpu(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    (tmp_path / "mine.py").write_text(CONFIG.format(rows="rows.jsonl"))


def told(capsys: pytest.CaptureFixture[str], *given: str) -> list[str]:
    """The key of each line that is refused."""
    assert main(["--config=mine.py", *(f"--config.{one}" for one in given)]) == 2
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("rljax:").strip().partition(": ")[0] for line in (lines[1:] if lines[1:] else lines)]


@pytest.mark.parametrize(
    ("mode", "needed"),
    [
        ("both", [LEARNER, ENGINES]),
        ("train", [LEARNER]),
        ("explore", [ENGINES]),
        ("evaluate", [ENGINES, NO_RUN]),
        ("serve", [ENGINES, NO_RUN]),
        ("export", [NO_RUN]),
        ("replay", [LEARNER, NO_RUN]),
        ("audit", []),
    ],
)
def test_beside_a_mistake_a_mode_is_told_what_it_needs(
    mode: str, needed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"mode={mode}", LIMIT
    assert told(capsys, *given) == [LIMIT, *needed]


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        (("mode=evaluate",), [ENGINES, NO_RUN]),
        (("mode=evaluate", "checkpoint=initial"), [ENGINES]),
        (("mode=serve", "serve.follow=true"), [ENGINES, NO_RUN]),
        (("mode=serve", "checkpoint=initial"), [ENGINES]),
        (("mode=export",), [NO_RUN]),
        (("mode=replay", "checkpoint=initial"), [LEARNER, NO_RUN]),
    ],
)
def test_without_one_it_is_told_the_same_at_once(
    given: tuple[str, ...], needed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"model.path={tmp_path / 'none'}"
    assert told(capsys, *given, model) == [model, *needed]
    assert not (tmp_path / "runs").exists()


def test_a_column_and_engines_of_an_evaluation_are_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "mode=evaluate", "checkpoint=initial", "tasks.validation.v.prompt_key=quesiton", "model.path=nobody/none"
    assert told(capsys, *given) == ["tasks.validation.v.prompt_key='quesiton'", ENGINES]
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_of_nothing_is_told_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace(', "validation": {"v": rows}', ""))
    given = "mode=evaluate", "checkpoint=initial", "model.path=nobody/none", "sidecar.devices=cpu"
    assert told(capsys, *given) == ["tasks.validation and rollout.val_env_manager.tags"]


@pytest.mark.parametrize(("name", "needed"), [("bench", [ENGINES, NO_RUN]), ("colocate", [LEARNER, ENGINES])])
def test_another_program_s_mode_is_judged_as_what_it_means(
    name: str, needed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, f"mode={name}", LIMIT) == [f"mode='{name}'", LIMIT, *needed]


@pytest.mark.parametrize(("mode", "needed"), [("both", [LEARNER]), ("train", [LEARNER]), ("evaluate", [NO_RUN])])
def test_on_ray_a_learner_s_devices_are_looked_for_before_there_is_a_directory(
    mode: str, needed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of engines are the cluster's."""
    monkeypatch.setattr(extras, "is_installed", lambda package: True)
    given = f"mode={mode}", "launcher=ray"
    assert told(capsys, *given) == needed
    assert told(capsys, *given, LIMIT) == [LIMIT, *needed]
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run with checkpoints after 2 and after 4 batches."""
    root = tmp_path / "runs" / "mine"
    root.mkdir(parents=True)
    db = Database(SqliteFile(root / "ledger.db"), RunSpec.of(load_config("mine.py")))
    leases.begin_lineage(db, 0)
    db.close()
    monkeypatch.setattr(Checkpoints, "committed", lambda _: [2, 4])
    return root


@pytest.mark.parametrize(
    ("mode", "checkpoint", "needed"),
    [
        ("evaluate", "3", [ENGINES, "checkpoint=3"]),
        ("serve", "3", [ENGINES, "checkpoint=3"]),
        ("export", "3", ["checkpoint=3"]),
        ("replay", "3", [LEARNER, "checkpoint=3"]),
        ("replay", "4", [LEARNER, "checkpoint=4"]),  # of which nothing was trained after
        ("export", "all", ["runs/mine/export/step_2", "runs/mine/export/step_4"]),
        ("export", "latest", ["runs/mine/export/step_4"]),
        ("export", "initial", []),
        ("evaluate", "4", [ENGINES]),
        ("replay", "2", [LEARNER]),
    ],
)
def test_a_checkpoint_that_cannot_be_taken_is_told_before_a_model_is_looked_for(
    mode: str, checkpoint: str, needed: list[str], begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (2, 4):
        (begun / "export" / f"step_{steps}").mkdir(parents=True)
    assert told(capsys, f"mode={mode}", f"checkpoint={checkpoint}", LIMIT) == [LIMIT, *needed]
    model = f"model.path={begun / 'none'}"
    assert told(capsys, f"mode={mode}", f"checkpoint={checkpoint}", model) == [model, *needed]


def test_tasks_and_rewards_of_an_evaluation_are_tried_before_a_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of training it does not open."""
    monkeypatch.setattr(registry, "_registered", {})

    @register_reward("fails")
    def fails(task: Task, response: str) -> float:
        raise KeyError("tests")

    (tmp_path / "second.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "2 + 2"}\n')
    held_out = "tasks.validation.v.rewards=fails", "tasks.validation.w.source=second.jsonl"
    given = "mode=evaluate", "checkpoint=initial", "tasks.train.a.source=gone.jsonl", "model.path=nobody/none"
    assert told(capsys, *given, *held_out) == [
        ENGINES,
        "second.jsonl:2",
        "tasks.validation.v.rewards='fails'",
    ]
    assert not (tmp_path / "runs").exists()
