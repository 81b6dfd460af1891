"""The page that shows a run in a browser of this machine: its state, and its report, made anew when it is asked for."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rljax.config.fields import ConfigError
from rljax.observe.report.read import read_run
from rljax.observe.report.write import page as report_page
from rljax.pipeline.watch import Look, Watcher

HOST = "127.0.0.1"
_POLICY = "default-src 'self' 'unsafe-inline' data: blob:"
"""Nothing from outside: all that the report needs is in it."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>rljax watch</title>
<link rel="icon" href="data:,">
<style>
html, body {{ margin: 0; height: 100%; color-scheme: light dark; }}
body {{ display: flex; flex-direction: column; font: 14px system-ui, sans-serif; }}
#state {{ padding: 8px 16px; border-bottom: 1px solid #8888; }}
iframe {{ flex: 1; border: 0; }}
</style>
<div id="state" role="status">…</div>
<iframe id="report" title="report" src="report"></iframe>
<script>
let shown, at = Date.now();
async function look() {{
  const state = document.getElementById("state");
  try {{
    const now = await (await fetch("state")).json();
    state.textContent = document.title = now.text;
    const settled = shown === undefined || now.over || Date.now() - at > {reload};
    if (now.step !== shown && settled) {{
      if (shown !== undefined) document.getElementById("report").contentWindow.location.reload();
      shown = now.step; at = Date.now();
    }}
  }} catch {{ state.textContent = "rljax watch has ended; this page stays as it is"; return; }}
  setTimeout(look, 2000);
}}
look();
</script>
</html>
"""
RELOAD_MS = 15_000
"""Milliseconds that a report stays while steps go on."""


@contextmanager
def page(watcher: Watcher, port: int) -> Iterator[str]:
    """Serves the page on loopback, and yields its address, which holds a key that is made now; ``port`` 0: any.

    Raises:
        ConfigError: the port cannot be listened at.
    """
    key, lock = secrets.token_urlsafe(16), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            before, _, what = self.path.removeprefix("/").partition("/")
            if not secrets.compare_digest(before.encode(), key.encode()):
                self.send_error(404)
                return
            if what == "":
                self._answer(_PAGE.format(reload=RELOAD_MS), "text/html")
            elif what == "report":
                self._answer(report_page(read_run(watcher.root)), "text/html")
            elif what == "state":
                with lock:
                    self._answer(json.dumps(_state(watcher.root.name, watcher.look())), "application/json")
            else:
                self.send_error(404)

        def _answer(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Content-Security-Policy", _POLICY),
                ("Referrer-Policy", "no-referrer"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the terminal for the live view."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--browser={port}: cannot be listened at ({error}); choose another port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="watch page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/{key}/"
    finally:
        server.shutdown()
        server.server_close()


def _state(name: str, look: Look) -> dict[str, object]:
    of = "" if look.spec is None else f" of {look.spec.max_steps}"
    said = look.over or (f"waiting for {look.waits}" if look.waits else "training")
    parts = [name, f"step {look.step}{of}", said, *([] if look.warning is None else [look.warning])]
    return {"text": " · ".join(parts), "step": look.step, "over": look.over is not None}
