"""A run is iterated once more, from Python; or another trainer has taken it over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import traceback
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import psutil
import pytest

from rljax import command_line, commands
from rljax.command_line import main
from rljax.config.load import load_config
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    JudgeConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    RowsConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config.validate import ConfigError
from rljax.launch.launchers import LAUNCHERS
from rljax.ledger import leases, processes, versions
from rljax.ledger.database import Database, RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.models.resolve import ModelNotFound
from rljax.pipeline.assemble import tasksets
from rljax.pipeline.observers import LearnerObservers
from rljax.pipeline.run_dir import RunDir
from rljax.run import Run
from rljax.tasks.rewards import registry
from rljax.tasks.task import Task, Taskset
from tests.models.hf_models import random_model, save

CONFIG = Config(
    rollout_batch_size=16,
    group_size=8,
    max_steps=1,
    total_epochs=2,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


IMITATES: dict[str, Any] = {
    "algorithm": AlgorithmConfig(pg_variant="mix", expert_data_ratio=0.5),
    "tasks": replace(CONFIG.tasks, expert=RowsConfig(source="nowhere.jsonl")),
}


@pytest.mark.parametrize(
    ("taskset", "message"),
    [
        (TasksetConfig(source="reverse_digits", rewards=("digit",)), "'digit': no such reward"),
        (TasksetConfig(source="nowhere.jsonl"), r"source='nowhere.jsonl': cannot be read"),
    ],
)
@pytest.mark.parametrize("section", ["train", "validation"])
@pytest.mark.parametrize("mode", ["both", "explore"])
def test_of_a_run_that_is_refused_nothing_is_left(
    tmp_path: Path, mode: str, section: str, taskset: TasksetConfig, message: str
) -> None:
    tasks = {"train": CONFIG.tasks.train, "validation": {}} | {section: {"mine": taskset}}
    with pytest.raises(ConfigError, match=message):
        Run(replace(CONFIG, mode=mode, run_dir=str(tmp_path / "run"), compile_cache="off", tasks=TasksConfig(**tasks)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["both", "explore"])
def test_of_a_run_whose_reward_fails_when_it_is_tried_nothing_is_left(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(task: Task, response: str) -> float:
        return float(task.metadata["tests"] == response)

    async def in_a_notebook() -> None:
        Run(replace(CONFIG, mode=mode, run_dir=str(tmp_path / "run"), compile_cache="off", tasks=tasks))

    monkeypatch.setattr(registry, "_registered", {})
    registry.register_reward("failing")(failing)
    tasks = replace(CONFIG.tasks, validation={"mine": TasksetConfig(source="reverse_digits", rewards=("failing",))})
    with pytest.raises(ConfigError, match=r"tasks.validation.mine.rewards='failing': fails when it is tried"):
        asyncio.run(in_a_notebook())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "changes", "message"),
    [
        ("train", {"learner": LearnerConfig(devices="cpu:70")}, r"learner.devices='cpu:70': this machine has"),
        ("both", {"learner": LearnerConfig(mesh=MeshConfig(data=70), rows_per_microbatch=70)}, "multiplies to 70 dev"),
        ("both", {"learner": LearnerConfig(mesh=MeshConfig(tensor=3))}, r"tensor=3: must divide the model's 4 heads"),
        ("both", {"sidecar": SidecarConfig(devices="cpu:70")}, r"sidecar.devices='cpu:70': this machine has"),
        ("explore", {"sidecar": SidecarConfig(engine="vllm", devices="gpu:0")}, "this machine has 0 GPUs"),
        ("explore", {"sidecar": SidecarConfig(engine="vllm", colocate=True)}, "has no GPU that could be shared"),
        ("explore", {"judges": {"it": JudgeConfig(path="tiny", devices="cpu:70")}}, r"^judges.it: .*this machine has"),
        ("both", {"model": ModelConfig(enable_thinking=True)}, "the chat template does not read it"),
        (
            "both",
            {"model": ModelConfig(chat_template="nowhere.jinja")},
            r"chat_template='nowhere.jinja': cannot be read",
        ),
        ("train", IMITATES, r"tasks.expert.source='nowhere.jsonl': cannot be read"),
    ],
)
def test_of_a_run_that_does_not_fit_machine_or_model_nothing_is_left(
    tmp_path: Path, mode: str, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = [SimpleNamespace(platform="cpu", id=index, process_index=0) for index in range(3)]
    monkeypatch.setattr(jax, "devices", lambda platform=None: cpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=message):
        Run(replace(CONFIG, mode=mode, run_dir=str(tmp_path / "run"), compile_cache="off", **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_tokenizer_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As transformers' `save_pretrained` of a model alone leaves one."""
    directory = save(random_model("llama", 0), tmp_path / "model")
    model = ModelConfig(path=str(directory), max_prompt_tokens=8, max_response_tokens=8)
    config = replace(CONFIG, run_dir=str(tmp_path / "run"), compile_cache="off", model=model)
    capsys.readouterr()
    assert command_line.run(lambda: config) == 2
    assert capsys.readouterr().err == (
        f"rljax: model.path={directory}: {directory} has no tokenizer.json; save the model with a fast tokenizer\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_mode_does_is_done_with_a_collector_that_goes_through_everything_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()
    monkeypatch.setattr(command_line, "collect_seldom", lambda: done.append("seldom"))
    monkeypatch.setitem(commands.COMMANDS, "both", lambda config: done.append(config.mode) or 0)
    assert command_line.run(lambda: CONFIG) == 0
    assert done == ["seldom", "both"]


def written(root: Path) -> dict[Path, bytes]:
    """The files below it; of a ledger's, which is opened, its name alone."""
    return {file: b"" if file.suffix == ".db" else file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": TasksConfig(train={"mine": TasksetConfig(source="nowhere.jsonl")})}, "cannot be read"),
        ({"learner": LearnerConfig(devices="cpu:70")}, r"learner.devices='cpu:70': this machine has"),
    ],
)
def test_of_a_run_that_is_refused_as_it_goes_on_all_stays(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = replace(CONFIG, run_dir=str(tmp_path / "run"), compile_cache="off")
    with Run(config) as run:
        leases.begin_lineage(run._db, 0)
    (tmp_path / "run" / "report.html").write_text("of the run")
    before = written(tmp_path)
    with Run(replace(config, max_steps=4, **changes)) as run:
        with pytest.raises(ConfigError, match=message):
            next(iter(run))
        assert versions.lineage(run._db) == 1
    assert written(tmp_path) == before


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("learner_placement", ConfigError("learner.devices='gpu:0': on this cluster Ray sets gpu:1 aside")),
        ("learner_placement", RuntimeError("the node has too few")),
        ("resume_learner", ConfigError("the launcher has no room")),
    ],
)
def test_of_a_run_that_a_cluster_refuses_as_it_goes_on_audit_and_report_stay(
    tmp_path: Path, step: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    config = replace(CONFIG, mode="train", run_dir=str(tmp_path / "run"), compile_cache="off")
    with Run(config) as run:
        leases.begin_lineage(run._db, 0)
    left = [tmp_path / "run" / name for name in ("audit.json", "report.html")]
    for file in left:
        file.write_text("of the run")
    monkeypatch.setattr(f"rljax.run.{step}", refuse)
    with Run(replace(config, max_steps=4)) as run, pytest.raises(type(error), match=str(error)[:20]):
        next(iter(run))
    assert [file.read_text() for file in left] == ["of the run"] * 2


@pytest.mark.slow
def test_tasksets_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = tasksets.load_tasksets

    def counted(*args: Any, role: Any, **kwargs: Any) -> dict[str, Taskset]:
        opened.append(role)
        return load(*args, role=role, **kwargs)

    def launched(*parts: Any, needed: bool) -> None:
        given = next(part for part in parts if isinstance(part, tasksets.Tasksets))
        assert list(given.training) == list(given.held_out) == ["digits"]
        raise TimeoutError("launched")

    monkeypatch.setattr(tasksets, "load_tasksets", counted)
    monkeypatch.setitem(LAUNCHERS, "local", launched)
    validated = TasksConfig(train=CONFIG.tasks.train, validation=CONFIG.tasks.train)
    config = replace(CONFIG, mode="explore", run_dir=str(tmp_path), compile_cache="off", tasks=validated)
    with Run(config) as run:
        assert opened == ["train", "validation"]
        for counts in (1, 2):  # a later loop looks at the files of then
            with pytest.raises(TimeoutError, match="launched"):
                run.explore()
            assert opened == ["train", "validation"] * counts


@pytest.mark.parametrize("mode", ["both", "train", "explore"])
def test_of_a_run_whose_model_is_not_there_nothing_is_left(tmp_path: Path, mode: str) -> None:
    model = ModelConfig(path=str(tmp_path / "nowhere"))
    with pytest.raises(ModelNotFound, match="nowhere"):
        Run(replace(CONFIG, mode=mode, run_dir=str(tmp_path / "run"), compile_cache="off", model=model))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["evaluate", "export", "serve", "play"])
def test_of_what_needs_no_run_and_has_no_model_nothing_is_left(tmp_path: Path, mode: str, capsys: Any) -> None:
    smallest = Path(__file__).parents[1] / "e2e" / f"smallest{'_agentic' if mode == 'play' else ''}.py"
    keys = (f"mode={mode}", "checkpoint=initial", "play.agent=model", "compile_cache=off")
    where = (f"run_dir={tmp_path / 'new' / 'run'}", f"model.path={tmp_path / 'nowhere'}")
    assert main([f"--config={smallest}", *(f"--config.{key}" for key in (*keys, *where))]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new" / "run").mkdir(parents=True)
    assert main([f"--config={smallest}", *(f"--config.{key}" for key in (*keys, *where))]) == 2
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "run"], "what was there stays"


def test_a_run_whose_model_cannot_be_opened_closes_its_ledger(tmp_path: Path) -> None:
    config = replace(CONFIG, run_dir=str(tmp_path), compile_cache="off")
    db = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(config))
    leases.begin_lineage(db, 0)
    db.close()
    with pytest.raises(ModelNotFound, match="nowhere"):
        Run(replace(config, model=ModelConfig(path=str(tmp_path / "nowhere"))))
    assert [file.path for file in psutil.Process().open_files() if str(tmp_path) in file.path] == []


def test_a_setting_that_is_not_the_runs_own_is_a_config_refused(tmp_path: Path, capsys: Any) -> None:
    smallest = Path(__file__).parents[1] / "e2e" / "smallest.py"
    db = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(load_config(str(smallest))))
    leases.finish(db, leases.begin_lineage(db, 0))
    db.close()
    changed = (f"run_dir={tmp_path}", "fill_interval=true", "compile_cache=off")
    assert main([f"--config={smallest}", *(f"--config.{value}" for value in changed)]) == 2
    assert "this run has fill_interval=False, the config says True; use the run's own value" in capsys.readouterr().err


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every `Run` open a ledger alone, without a model."""

    def open_run(run: Run, config: Config) -> None:
        run.config, run.run_dir, run._steps, run._trainer = config, RunDir(tmp_path), None, None
        run._stop, run._interrupted, run._closed, run._checked = threading.Event(), False, False, True
        run._db = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(config))

    monkeypatch.setattr(Run, "__init__", open_run)


def test_that_there_is_nothing_left_to_train_is_said(tmp_path: Path, opened: None, caplog: Any) -> None:
    with Run(CONFIG) as run:
        leases.finish(run._db, leases.begin_lineage(run._db, 0))
        assert run.finished
        for _ in range(2):
            assert list(run) == []
    said = [record.getMessage() for record in caplog.records]
    assert (
        said
        == [f"{tmp_path}: this run is finished; raise max_steps (or total_epochs) to go on, or choose another run_dir"]
        * 2
    )


def test_a_loop_after_an_interrupt_goes_on(opened: None, monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    def train(run: Run) -> Generator[dict[str, float], None, None]:
        nonlocal done
        with contextlib.ExitStack() as parts:
            parts.callback(run._forget)
            while done < 5 and not run._stop.is_set():
                done += 1
                yield {"step": done}

    monkeypatch.setattr(Run, "_train", train)
    with Run(CONFIG) as run:
        for metrics in run:
            if metrics["step"] == 2:
                run.interrupt()
        assert run.interrupted
        assert [metrics["step"] for metrics in run] == [3, 4, 5]
        assert not run.interrupted


def test_what_a_step_raises_is_printed_escaped(opened: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a notebook, with the whole chain of what led to it."""

    def train(_run: Run) -> Generator[dict[str, float], None, None]:
        yield {}
        try:
            raise ExceptionGroup("several", [ValueError("room \x1b[2J")])
        except ExceptionGroup as error:
            raise RuntimeError("of an environment: \x1b]0;owned\x07", 3) from error

    monkeypatch.setattr(Run, "_train", train)
    with Run(CONFIG) as run, pytest.raises(RuntimeError) as raised:
        list(run)
    printed = "".join(traceback.format_exception(raised.value))
    assert r"of an environment: \x1b]0;owned\x07" in raised.value.args[0]
    assert all(line.isprintable() for line in printed.splitlines())
    assert "room" in printed


def test_a_run_that_is_closed_says_so(tmp_path: Path, opened: None) -> None:
    with Run(CONFIG) as run:
        pass
    with pytest.raises(RuntimeError, match="this run is closed; open it"):
        iter(run)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_trainer_that_was_replaced_before_its_lineage_began_leaves_audit_report_and_trace_alone(
    tmp_path: Path, opened: None, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    def train(run: Run) -> Generator[dict[str, float], None, None]:
        """What surrounds the trainer in a run, and a restore that fails."""
        token = processes.register(run._db, "trainer", "trainer")
        model: Any = SimpleNamespace(tokenizer=None)
        is_replaced = functools.partial(processes.is_replaced, run._db, token)
        with LearnerObservers(CONFIG, tmp_path, model, dict, is_replaced) as observers, contextlib.ExitStack() as parts:
            parts.push(functools.partial(run._report, observers))
            observers.span("restore", 1.0)
            processes.leave(run._db, "trainer", token)
            if replaced:
                processes.register(run._db, "trainer", "trainer")
            yield {}

    monkeypatch.setattr(Run, "_train", train)
    with Run(CONFIG) as run:
        assert list(run) == [{}]
    written = {"audit.json", "report.html", "trace.json"}
    assert {path.name for path in tmp_path.iterdir()} & written == (set() if replaced else written)
