"""The command line: parses, checks, dispatches on the mode, and exits with an honest status (promise P10).

    python -m rljax.main --config=configs/quickstart.py --config.max_steps=50

Exit codes: 0 done (or asked to stop), 1 the run failed or the audit does not balance, 2 the config is refused.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from rljax.config.load import key_help, load_config, parse_arguments, without_password
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.interrupts import end_on_second_interrupt, end_process
from sidecar.errors import printable
from sidecar.imports import uncollected_imports

REFUSED, FAILED = 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        end_on_second_interrupt()
    if not given or {"-h", "--help"} & set(given):
        print(__doc__)
        print("\n".join(f"  --config.{path}={default}\n      {meaning}" for path, default, meaning in key_help()))
        return 0

    def load() -> Config:
        path, overrides = parse_arguments(given)
        config = load_config(path, overrides)
        if arguments is None and config.ledger is not None and "ledger" in overrides:
            _hide_password(config.ledger)
        return config

    return run(load)


def run(load: Callable[[], Config]) -> int:
    """Runs the mode that a config names; returns the exit code. One line on stderr says what failed and what to do."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if not os.environ.get("RLJAX_TRACEBACK"):
        logging.getLogger("absl").addFilter(_without_traceback)
    try:
        config = load()
    except ConfigError as error:
        return _say(error, REFUSED)
    except Exception as error:  # what the config names, a loss for one, cannot be imported
        return _say(error, FAILED)
    with uncollected_imports():
        from rljax import commands
        from rljax.pipeline.assemble.devices import share_gpu_memory
        from rljax.tasks.task import BadRow

    try:
        commands.import_modules(config.mode)
        share_gpu_memory(config)
        return commands.COMMANDS[config.mode](config)
    except (ConfigError, BadRow) as error:
        return _say(error, REFUSED)
    except KeyboardInterrupt:
        return _say("interrupted; the same command resumes", 128 + signal.SIGINT)
    except Exception as error:
        return _say(error, FAILED)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Removes the traceback: Orbax logs again what its threads have raised, and whoever waits for them reports that."""
    record.exc_info = record.exc_text = None
    return True


class _Printable(logging.Formatter):
    """Formats records with the control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _hide_password(ledger: str) -> None:
    """Hides the password of a ledger's URL from the command line of this process in the list of processes."""
    hidden = without_password(ledger)
    if hidden != ledger:
        from setproctitle import setproctitle

        setproctitle(shlex.join(argument.replace(ledger, hidden) for argument in sys.orig_argv))


def _say(error: Exception | str, code: int) -> int:
    """Prints the one line, or with ``RLJAX_TRACEBACK`` where the error came from; returns ``code``."""
    if isinstance(error, Exception) and os.environ.get("RLJAX_TRACEBACK"):
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        return code
    line = " ".join(str(error).split()) or type(error).__name__
    kind = "" if isinstance(error, str | ConfigError) or not _is_foreign(error) else f"{type(error).__name__}: "
    hint = "" if not kind else " (RLJAX_TRACEBACK=1 shows where)"
    print(printable(f"rljax: {kind}{line}{hint}"), file=sys.stderr)
    return code


def _is_foreign(error: Exception) -> bool:
    return not type(error).__module__.startswith(("rljax", "sidecar")) and not isinstance(error, TimeoutError)


if __name__ == "__main__":
    end_process(main())
