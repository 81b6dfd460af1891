"""The program serves: a model directory, then the run that trains beside it; and ends when it is told to."""

from __future__ import annotations

import re
import signal
import stat
from pathlib import Path

import psutil
from openai import OpenAI
from program import LIMIT, Started, run

SERVE = ("mode=serve", "serve.port=0", "sidecar.max_model_len=1500", "serve.model_name=tiny")
LONG = 1400


def client_of(server: Started, run_dir: Path) -> OpenAI:
    server.until(lambda: "key: in " in server.printed, "the server to listen")
    (url,) = re.findall(
        r"^serving tiny at (http://127\.0\.0\.1:\d+/v1), weights after 0 batches$", server.printed, re.M
    )
    file = run_dir / "serve" / "key"
    assert f"key: in {file}\n" in server.printed
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = file.read_text().strip()
    mine = psutil.Process(server.process.pid)
    assert key not in server.printed + "".join(
        " ".join(one.cmdline()) for one in (mine, *mine.children(recursive=True))
    )
    others = [path for path in run_dir.rglob("*") if path.is_file() and path != file]
    assert [path for path in others if key.encode() in path.read_bytes()] == []
    return OpenAI(base_url=url, api_key=key, max_retries=0, timeout=LIMIT)


def test_a_model_directory_is_served_without_a_run_and_the_last_answer_ends(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    server = Started(run_dir, cache, *SERVE, "checkpoint=initial")
    client = client_of(server, run_dir)
    with client.completions.create(model="tiny", prompt="12", max_tokens=LONG, temperature=0, stream=True) as stream:
        parts = iter(stream)
        next(parts)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: "SIGTERM: stopping" in server.printed, "the signal to be heard")
        *_, last = parts
    assert last.choices[0].finish_reason in ("length", "stop")
    assert server.end() == 0, server.printed
    assert sorted(path.name for path in (run_dir / "serve").iterdir()) == ["key"]


def test_a_server_follows_the_run_that_trains_beside_it(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    done = run(run_dir, cache, *SERVE, "serve.follow=true")
    assert (done.returncode, done.stderr.count("no run here; train first")) == (2, 1)
    trainer = Started(run_dir, cache, "mode=train")
    trainer.until(lambda: list((run_dir / "weights").glob("v0-*")) != [], "version 0")
    server = Started(run_dir, cache, *SERVE, "serve.follow=true")
    client = client_of(server, run_dir)
    assert run(run_dir, cache, "mode=explore").returncode == 0
    assert trainer.end() == 0, trainer.printed
    server.until(lambda: client.models.list().data[0].model_dump()["version"] == 6, "the last version to be served")
    reply = client.completions.create(model="tiny", prompt="12", max_tokens=2)
    assert reply.system_fingerprint == "version-6"
    port = client.base_url.port
    taken = run(run_dir, cache, *SERVE[:1], f"serve.port={port}")
    assert (taken.returncode, taken.stderr.count("cannot be listened at")) == (2, 1)
    assert server.end(signal.SIGINT) == 0, server.printed
