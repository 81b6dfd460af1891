"""Live view of a run: a panel on a terminal or in a notebook, lines in a pipe, or nothing.

Callers only change a state in memory; a thread of its own draws it. A terminal that hangs or a pipe that closes costs
the view, never a step.
"""

from __future__ import annotations

import io
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live

from rljax.observe.metrics import Row
from rljax.observe.panel import State, draw, line
from rljax.observe.warn_once import WarnOnce
from sidecar.errors import printable

log = logging.getLogger(__name__)

MODES = ("auto", "live", "lines", "off")
CLOSE_SECONDS = 3.0
"""Seconds that closing waits for the last drawing."""

FIRST_WAIT_LINE, LONGEST_WAIT_LINE = 5.0, 60.0
"""Seconds of waiting before a line says so where there is no live view, doubling up to the longest."""


class Surface(Protocol):
    """Output that a state is drawn to; called from one thread only."""

    period: float

    def draw(self, state: State, messages: list[str]) -> None:
        """Draws the state, and prints the messages that came since the last time."""

    def close(self) -> None:
        """Ends the view and leaves the last state visible."""


class Progress:
    """Shows the progress of a run. Use as a context manager; every method may be called from any thread."""

    def __init__(
        self,
        mode: str,
        title: str,
        total_steps: int | None = None,
        logging_steps: int = 1,
        console: Console | None = None,
    ) -> None:
        """Creates the view: ``mode`` as of `config.observe.progress`; ``logging_steps``: steps between lines
        where there is no live view.

        Raises:
            ValueError: an unknown mode.
        """
        if mode not in MODES:
            raise ValueError(f"progress mode {mode!r}: use one of {', '.join(MODES)}")
        self._state = State(printable(title), total_steps)
        self._logging_steps = max(logging_steps, 1)
        self._lock = threading.Lock()
        self._messages: deque[str] = deque(maxlen=1000)
        self._next_wait_line = FIRST_WAIT_LINE
        self._reported_news = False
        self._surface = _surface(mode, console)
        self._lines = isinstance(self._surface, _Lines)
        self._warn = WarnOnce(log, "the live view ends, the run goes on")
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self._surface is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._surface,), name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def update(self, **fields: float | str | None) -> None:
        """Sets what is shown: ``ready`` and ``needed`` groups, ``bound`` (of staleness), or anything by name."""
        with self._lock:
            for name, value in fields.items():
                if value is None:
                    self._state.fields.pop(name, None)
                else:
                    self._state.fields[name] = printable(value) if isinstance(value, str) else value

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Records a completed step: ``step`` batches completed, with these metrics (names as in metrics.jsonl)."""
        with self._lock:
            state = self._state
            state.add(step, metrics)
            if self._lines and (step % self._logging_steps == 0 or step == state.total_steps):
                self._messages.append(line(state))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Adds metrics of an earlier step that came late, such as a validation's."""
        with self._lock:
            self._state.metrics.update({k: v for k, v in values.items() if math.isfinite(v)})
            if self._lines:
                scores = [_score(name, values) for name in values if name.endswith("/score")]
                self._messages.extend([f"version {step}: " + ", ".join(scores)] if scores else [])

    def follow(self, rows: Sequence[Row], total_steps: int | None, began: float, warning: str | None) -> None:
        """Shows the run that the rows of a ``metrics.jsonl`` describe, in place of what was shown of it; ``began``: the
        monotonic seconds at which it did. A step that was not among the rows before has a line where there is no live
        view; of the first rows the last one has, and a warning once.
        """
        with self._lock:
            before = self._state
            self._state = state = State(before.title, total_steps, fields=before.fields, began=began, warning=warning)
            state.waiting, state.waiting_since = before.waiting, before.waiting_since
            shown = before.step or (rows[-1]["step"] - 1 if rows else 0)
            for row in rows:
                if row["step"] == 0:  # it describes the initial weights
                    state.metrics |= {name: score for name, score in row.items() if name.startswith("val/")}
                    continue
                state.add(row["step"], row)
                if self._lines and row["step"] > shown:
                    self._messages.append(line(state))
            if self._lines and warning and not before.warning:
                self._messages.append(warning)

    def waiting(self, reason: str | None, news: bool = False) -> None:
        """Sets what is waited for; None when the wait is over. The seconds count from the first reason after None.

        ``news``: the reason says more than how far the wait is. Once in a wait it is printed as a line as soon as it is
        known, where the next would come up to `LONGEST_WAIT_LINE` later.
        """
        with self._lock:
            if self._state.waiting is None:
                self._state.waiting_since = time.monotonic()
                self._next_wait_line, self._reported_news = FIRST_WAIT_LINE, False
            if news and not self._reported_news:
                elapsed = time.monotonic() - self._state.waiting_since
                self._next_wait_line = min(self._next_wait_line, max(FIRST_WAIT_LINE, elapsed))
                self._reported_news = True
            self._state.waiting = None if reason is None else printable(reason)

    def message(self, text: str) -> None:
        """Prints a line for the reader, above the live view."""
        self._messages.append(printable(text))
        if self._surface is None:
            log.info("%s", text)

    def close(self) -> None:
        """Draws the last state and ends, within `CLOSE_SECONDS`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                self._warn(f"the terminal took no output for {CLOSE_SECONDS:g} s")

    def _run(self, surface: Surface) -> None:
        closing = False
        try:
            while not closing:
                closing = self._closing.wait(surface.period)
                self._print_waiting()
                messages = [self._messages.popleft() for _ in range(len(self._messages))]
                surface.draw(self._snapshot(), messages)
        except Exception as error:
            self._warn(error)
        finally:
            _close_quietly(surface)

    def _snapshot(self) -> State:
        with self._lock:
            s = self._state
            copies = {"metrics": dict(s.metrics), "fields": dict(s.fields)}
            return State(**(vars(s) | copies | {"trend": deque(s.trend), "recent": deque(s.recent)}))

    def _print_waiting(self) -> None:
        with self._lock:
            state = self._state
            seconds = time.monotonic() - state.waiting_since
            if self._lines and state.waiting is not None and seconds >= self._next_wait_line:
                self._next_wait_line = seconds + min(self._next_wait_line, LONGEST_WAIT_LINE)
                self._messages.append(f"waiting for {state.waiting} · {seconds:.0f} s")


def _score(name: str, values: Mapping[str, float]) -> str:
    failed, tasks = (values.get(name.removesuffix("score") + other, 0) for other in ("failed", "tasks"))
    return f"{name} {values[name]:.3g}" + (f" ({failed:.0f} of {tasks:.0f} attempts failed)" if failed else "")


def _close_quietly(surface: Surface) -> None:
    try:
        surface.close()
    except Exception as error:  # drawing has failed before, and was logged
        log.debug("closing the live view: %s", error)


def _surface(mode: str, console: Console | None) -> Surface | None:
    if mode == "off":
        return None
    if mode in ("auto", "live"):
        if console is None and _in_notebook():
            return _Notebook()
        chosen = console or Console()
        if chosen.is_terminal and not chosen.is_dumb_terminal:
            return _Terminal(chosen)
    return _Lines(console or Console(soft_wrap=True))


def _in_notebook() -> bool:
    """Returns whether this is a Jupyter kernel, also Colab's; IPython is asked only if it runs."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ in ("ZMQInteractiveShell", "Shell")


class _Terminal:
    period = 0.2

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = console.encoding.startswith("utf")
        self._live: Live | None = None

    def draw(self, state: State, messages: list[str]) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        for message in messages:
            self._console.print(message, markup=False, highlight=False)
        self._live.update(draw(state, self._unicode), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class _Lines:
    period = 0.1

    def __init__(self, console: Console) -> None:
        self._console = console

    def draw(self, state: State, messages: list[str]) -> None:
        for message in messages:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._console.file.flush()


class _Notebook:
    """Replaces one output of the cell; needs no widgets."""

    period = 0.5
    _FORMAT = '<pre style="line-height:1.25;font-family:Menlo,Consolas,monospace">{code}</pre>'

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._shown = ""
        self._messages: deque[str] = deque(maxlen=20)

    def draw(self, state: State, messages: list[str]) -> None:
        from IPython.display import HTML

        self._messages.extend(messages)
        console = Console(
            record=True,
            file=io.StringIO(),
            width=96,
            force_terminal=True,
            force_jupyter=False,
            color_system="truecolor",
        )
        for message in self._messages:
            console.print(message, markup=False, highlight=False)
        console.print(draw(state))
        html = console.export_html(inline_styles=True, code_format=self._FORMAT)
        if not self._shown:
            self._handle.display(HTML(html))
        elif html != self._shown:
            self._handle.update(HTML(html))
        self._shown = html

    def close(self) -> None:
        """Leaves the last output as it is."""
