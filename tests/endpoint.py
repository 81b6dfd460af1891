"""An endpoint over HTTP that answers what a test has written, whatever it is asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answering:
    """An endpoint that gives these answers, one after the other, the last again and again.

    A text is the reply of a chat; a pair is a status and a body; ``hang`` and ``drip`` never come to an end.
    """

    url: str = ""
    answers: list[Any] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def next(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextlib.contextmanager
def answering() -> Iterator[Answering]:
    """Serves one on this machine."""
    state = Answering()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            state.keys.append(self.headers["Authorization"])
            state.paths.append(self.path)
            answer = state.next()
            if answer == "hang":
                state.release.wait(30)
            if answer == "drip":
                with contextlib.suppress(OSError):  # who asked has left
                    self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 9999\r\n\r\n")
                    while not state.release.wait(0.05):
                        self.wfile.write(b" ")
                return
            status, body = answer if isinstance(answer, tuple) else (200, answer)
            if isinstance(body, str):
                body = {"choices": [{"message": {"content": body}}]}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield state
        state.release.set()
        server.shutdown()
