"""The reward of `docs/your_data.md` that asks a server: it asks what its page says, and gives what the server says."""

from __future__ import annotations

import asyncio
import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from rljax.tasks.task import Task
from rljax.trajectory import TaskId
from tests.docs.pages import write_files


class Grader(BaseHTTPRequestHandler):
    """Grades a short answer to the one question with 0.5, and is at a loss with any other."""

    def do_POST(self) -> None:  # the name that http.server calls
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = (self.path, asked) == ("/grade", {"question": "12+30", "response": "42"})
        self.send_response(200 if known else 500)
        self.end_headers()
        self.wfile.write(json.dumps({"grade": 0.5}).encode())

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Grader) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_a_reward_that_asks_a_server_gives_its_grade(tmp_path: Path, address: str) -> None:
    write_files("docs/your_data.md", tmp_path)
    page = runpy.run_path(str(tmp_path / "graders.py"))
    page["grader"].base_url = address
    task = Task(TaskId("sums", 0, 0), ({"role": "user", "content": "12+30"},), answer="42")

    async def graded() -> float:
        given = await page["graded"](task, "42")
        with pytest.raises(httpx.HTTPStatusError):
            await page["graded"](task, "forty-two")
        return float(given)

    assert asyncio.run(graded()) == 0.5
