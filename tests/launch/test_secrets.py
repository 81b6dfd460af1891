"""A password in the ledger's URL, a judge's or Ray's: no file, no list of processes and no log repeats it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljax.command_line import main
from rljax.config.load import as_plain, load_config, publishable
from rljax.config.schema import Config, ExplorerConfig, RayConfig
from rljax.config.secrets import blanked, without_passwords
from rljax.launch.local import LocalProcess
from rljax.pipeline.run_dir import RunDir
from rljax.tasks.rewards.judge import llm_judge
from rljax.tasks.rewards.reward import JudgeUnavailable
from rljax.tasks.task import Task
from rljax.trajectory import TaskId
from tests.config.importer_files import ROLL, SEEDS
from tests.config.making import make

ROOT = Path(__file__).parents[2]
SMALLEST = ROOT / "tests" / "e2e" / "smallest.py"
PASSWORD = "s3cret"
TASK = Task(TaskId("mine", 0, 0), ({"role": "user", "content": "q"},), "a")


@pytest.fixture
def database() -> Iterator[socket.socket]:
    """A server that lets a client connect, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(120)
        yield listening


def url(database: socket.socket) -> str:
    return f"postgresql://user:{PASSWORD}@127.0.0.1:{database.getsockname()[1]}/runs"


def assert_nowhere(process: psutil.Process, directory: Path) -> None:
    family = [process, *process.children(recursive=True)]
    assert [p.cmdline() for p in family if PASSWORD in " ".join(p.cmdline())] == []
    assert all(p.cmdline() for p in family)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_an_explorer_in_a_process_of_its_own_is_told_the_password_and_nobody_else(
    database: socket.socket, tmp_path: Path
) -> None:
    config: Config = make(
        ledger=url(database), run_dir=str(tmp_path / "run"), explorer=ExplorerConfig(own_process=True)
    )
    child = LocalProcess(config, RunDir.create(config))
    child.start()
    process = psutil.Process(child.pid)
    try:
        client, _ = database.accept()  # it knows where to connect to, so it has read its config
        with client:
            assert_nowhere(process, tmp_path)
    finally:
        child.kill()
        assert "SIGKILL" in child.wait()


@pytest.mark.slow
def test_a_password_on_the_command_line_leaves_the_list_of_processes(database: socket.socket, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rljax.main", f"--config={SMALLEST}", f"--config.run_dir={tmp_path / 'run'}"]
    with subprocess.Popen([*command, f"--config.ledger={url(database)}"], cwd=ROOT) as program:
        try:
            client, _ = database.accept()
            with client:
                assert_nowhere(psutil.Process(program.pid), tmp_path)
                assert "--config.ledger=postgresql://user:***@" in " ".join(psutil.Process(program.pid).cmdline())
        finally:
            program.kill()


def test_what_a_file_becomes_is_shown_and_written_without_passwords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, target = tmp_path / "theirs.yaml", tmp_path / "mine.py"
    judged = f"rewards: {{math: {{judge_api_key: {PASSWORD}}}}}\n"
    theirs.write_text(f"{ROLL}{judged}tracker_kwargs: {{project: p, api_key: {PASSWORD}}}\n")
    assert main([f"--config={theirs}", "--dry-run"]) == 2
    said = "".join(capsys.readouterr())
    assert PASSWORD not in said
    assert "tracker_kwargs = {'project': 'p', 'api_key': '***'}" in said
    assert said.count("rewards.math.judge_api_key = '***'") == 1  # as it is refused

    given = f"--config.ledger=postgresql://u:{PASSWORD}@h/db"
    assert main([f"--config={SEEDS / 'agent_val_frozen_lake_async.yaml'}", given, f"--dry-run={target}"]) == 0
    assert PASSWORD not in "".join(capsys.readouterr()) + target.read_text()
    assert "write --config.ledger=VALUE" in target.read_text()
    assert load_config(str(target)).ledger is None
    assert load_config(str(target), {"ledger": "postgresql://u:other@h/db"}).ledger == "postgresql://u:other@h/db"


def test_a_dry_run_hides_the_password_from_the_list_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("setproctitle.setproctitle", shown.append)
    monkeypatch.setattr(sys, "orig_argv", ["python", f"--config.ledger=postgresql://u:{PASSWORD}@h/db"])
    seeds = SEEDS / "agent_val_frozen_lake_async.yaml"
    assert main([f"--config={seeds}", f"--config.ledger=postgresql://u:{PASSWORD}@h/db", "--dry-run"]) == 0
    assert shown == ["python '--config.ledger=postgresql://u:***@h/db'"]


def test_what_people_share_has_neither_passwords_nor_keys() -> None:
    judge = {"url": f"http://u:{PASSWORD}@host/v1", "model": "m", "key_variable": "NAME"}
    tasks = make().tasks
    train = {
        name: dataclasses.replace(one, rewards=("mine:asked",), reward_args={"asked": judge})
        for name, one in tasks.train.items()
    }
    variables = {"HF_TOKEN": PASSWORD, "my_key": PASSWORD, "PROXY": f"http://u:{PASSWORD}@proxy", "OTHER": "1"}
    config = make(
        tasks=dataclasses.replace(tasks, train=train),
        ray=RayConfig(runtime_env={"env_vars": variables}),
        ledger=f"postgresql://u:{PASSWORD}@h/db",
    )
    shared = publishable(config)
    assert PASSWORD not in json.dumps(shared)
    assert shared["ray"]["runtime_env"]["env_vars"]["OTHER"] == "1"
    assert shared["ledger"] == "postgresql://u:***@h/db"
    (name,) = train
    assert shared["tasks"]["train"][name]["reward_args"]["asked"] == judge | {"url": "http://u:***@host/v1"}
    assert publishable(make()) == as_plain(make())  # the names of columns, say, are nobody's keys


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://{PASSWORD}@host/v1", "https://***@host/v1"),  # as package indexes and repositories take tokens
        (f"wss://{PASSWORD}@host/v1", "wss://***@host/v1"),
        (f"https://host/v1?api_key={PASSWORD}&n=1", "https://host/v1?api_key=***&n=1"),
        (f"https://host/v1?n=1&Access-Token={PASSWORD}#end", "https://host/v1?n=1&Access-Token=***"),
        (f"postgresql://user@host/database?password=a#{PASSWORD}", "postgresql://user@host/database?password=***"),
        (f"https://host/file?X-Amz-Signature={PASSWORD}&n=1", "https://host/file?X-Amz-Signature=***&n=1"),
        (f"https://host/file?se=1&sig={PASSWORD}", "https://host/file?se=1&sig=***"),  # as Azure signs links
        (f"https://host/#access_token={PASSWORD}", "https://host/#access_token=***"),
        ("postgresql://user@host/database?max_tokens=1", "postgresql://user@host/database?max_tokens=1"),
    ],
)
def test_a_key_within_a_url_is_blanked(url: str, shown: str) -> None:
    assert blanked({"index": url}) == {"index": shown}
    assert without_passwords(f"{url} is not there") == f"{shown} is not there"


@pytest.mark.parametrize(
    "name", ["Authorization", "credentials", "PASSPHRASE", "DB_PASS", "pwd", "Cookie", "set-cookie"]
)
def test_what_has_the_name_of_a_secret_is_blanked(name: str) -> None:
    assert blanked({"headers": {name: f"Bearer {PASSWORD}"}}) == {"headers": {name: "***"}}


def test_a_judge_that_cannot_be_asked_is_named_without_its_password() -> None:
    asked = llm_judge(TASK, "a", url=f"http://u:{PASSWORD}@127.0.0.1:1/v1", model="m", retries=0)
    with pytest.raises(JudgeUnavailable, match=r"judge m at http://u:\*\*\*@127") as caught:
        asyncio.run(asked)  # nothing listens there
    assert PASSWORD not in str(caught.value)
