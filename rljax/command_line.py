"""The command line: parses, checks, dispatches on the mode, and exits with an honest status.

    rljax --config=quickstart --config.max_steps=50     # a config that comes along, by its name
    rljax --config=FILE.py:ARGUMENT                     # one of your own
    rljax configs                                       # lists those that come along
    rljax configs quickstart > mine.py                  # prints one, to be changed
    rljax --config=quickstart --dry-run                 # what a config becomes, what it lacks here, where things go
    rljax --config=FILE.yaml --dry-run                  # the same of a file of ROLL's or Trinity-RFT's, beside its keys
    rljax --config=FILE.yaml --dry-run=FILE.py          # and that as a config file of one's own
    rljax --config=quickstart --config.seed=0,1,2       # a sweep: three runs, one after another
    rljax --help staleness                              # the keys that have a word in name, meaning, type or choices
    rljax watch RUN [--browser]                         # follows a run from another shell, or on a page
    rljax --version

Exit codes: 0 done (or asked to stop), 1 the run failed or the audit does not balance, 2 the config is refused.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rljax
from rljax.config import bundled
from rljax.config.arguments import read_arguments
from rljax.config.extras import missing
from rljax.config.importers.page import config_file, side_by_side
from rljax.config.importers.translation import Translation, told
from rljax.config.load import Source, as_plain, key_help, without_password
from rljax.config.load import load as load_source
from rljax.config.refusals import Refusals, RefusedConfig, collected, joined, refused_by, table
from rljax.config.schema import MODES, Config
from rljax.config.search import found_lines, matching, nothing_found
from rljax.config.sweep import Point, is_sweep, points
from rljax.config.validate import ConfigError
from rljax.interrupts import REFUSED, raise_on_interrupt
from sidecar.errors import printable
from sidecar.garbage import collect_seldom, uncollected_imports
from sidecar.workers import pulse

FAILED = 1
_READ = ("plan", "audit", "report")
"""Modes that say something and are over, whose reader may have seen enough."""
_USAGE = f"""usage: rljax --config=NAME|FILE.py[:arg] [--config.KEY=VALUE ...]
  --config.mode={"|".join(MODES)}
  --help lists every key with its default and meaning; --help WORD those that have the word
  rljax configs lists the configs that come along, by NAME; rljax configs NAME prints one
  rljax watch RUN follows the run in that directory"""


def main(given: Sequence[str]) -> int:
    """Runs the command line with these arguments; returns the exit code."""
    if not given:
        print(_USAGE, file=sys.stderr)
        return REFUSED
    for index, argument in enumerate(given):
        name, _, first = argument.partition("=")
        if name in ("-h", "--help"):
            words = [word for word in (first, *given[index + 1 :]) if word and not word.startswith("-")]
            return _while_read(partial(_help, words))
    if "--version" in given:
        print(f"rljax {rljax.__version__}")
        return 0
    if given[0] == "configs":
        return _while_read(partial(_show_configs, given[1:]))
    if given[0] == "watch":
        return _while_read(partial(_watch, given[1:]))

    dry = [argument for argument in given if argument.partition("=")[0] == "--dry-run"]
    if dry:
        rest = [argument for argument in given if argument not in dry]
        return _while_read(partial(_dry_run, rest, dry[-1].partition("=")[2]))

    path, overrides, refused = read_arguments(given)
    if not path:
        return _say(joined(refused), REFUSED)
    if is_sweep(overrides):
        return _sweep(path, overrides, refused)

    translation: Translation | None = None

    def seen(source: Source) -> Refusals:
        if overrides.get("mode") == "plan":
            _show_translation(source, overrides)
        yield from ()

    def load() -> Config:
        nonlocal translation
        config, translation = load_source(path, overrides, refused, (_early_refusals,), seen)
        _hide_password(config.ledger)
        return config

    return run(load, lambda error: told(error, translation, overrides))


def _show_translation(source: Source, overrides: Mapping[str, Any]) -> None:
    """Prints what a file of ROLL's or Trinity-RFT's becomes, if it is one."""
    if isinstance(source, Translation):
        print("\n".join(map(printable, side_by_side(source, overrides))), flush=True)


def _early_refusals(config: Config) -> Refusals:
    """Yields what a run would be refused whose config is refused already."""
    with uncollected_imports():
        from rljax.pipeline.assemble.checks import early_refusals

        if config.mode != "plan":
            return early_refusals(config)
        from rljax.pipeline.plan.plan import room_refusals
    return collected(config, early_refusals, room_refusals)


def run(load: Callable[[], Config], told: Callable[[ConfigError], ConfigError] = lambda error: error) -> int:
    """Runs the mode that a config names; returns the exit code. One line on stderr says what failed and what to do.

    Args:
        load: returns the config.
        told: returns what is refused once it has loaded, in the words of its file.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if not os.environ.get("RLJAX_TRACEBACK"):
        for library in ("absl", "asyncio"):
            logging.getLogger(library).addFilter(without_orbax_traceback)
    for library in ("huggingface_hub", "datasets"):
        logging.getLogger(library).propagate = False  # it has a handler of its own: each line would come twice
    try:
        config = load()
        _check_extras(config)  # before a library is imported that takes seconds
    except ConfigError as error:
        return _say(told(error), REFUSED)
    except BrokenPipeError:
        return _unread()
    except Exception as error:  # what the config names, a loss for one, cannot be imported
        return _say(error, FAILED)
    if config.has_hosts and pulse.current() is None:
        return _supervise(config)
    with uncollected_imports():
        from rljax import commands
        from rljax.pipeline.assemble.devices import share_gpu_memory
        from rljax.tasks.task import BadRow

    try:
        commands.import_modules(config.mode)
        collect_seldom()
        share_gpu_memory(config)
        raise_on_interrupt()  # from here on there is something to close
        code = commands.COMMANDS[config.mode](config)
        if config.mode in _READ:
            sys.stdout.flush()
        return code
    except ConfigError as error:
        return _say(told(error), REFUSED)
    except BadRow as error:
        return _say(told(ConfigError(str(error))), REFUSED)
    except KeyboardInterrupt:
        return _say("interrupted; the same command resumes", 128 + signal.SIGINT)
    except BrokenPipeError as error:
        return _unread() if config.mode in _READ else _say(error, FAILED)
    except Exception as error:
        return _say(error, getattr(error, "exit_code", FAILED))


def _supervise(config: Config) -> int:
    """Has other processes be the hosts of a learner, and watches over them: this one imports nothing that may hang."""
    from rljax.launch.gang import supervise

    try:
        return supervise(config)
    except Exception as error:
        return _say(error, REFUSED if isinstance(error, ConfigError) else FAILED)


def _check_extras(config: Config) -> None:
    """Refuses a config whose packages are not all installed here, and says what else of it is not here.

    Raises:
        ConfigError: all that is refused of them.
    """
    if missing(config):
        from rljax.pipeline.assemble.names import lookup_refusals

        looks = config.launcher == "local"  # with Ray a library would be imported to look for devices
        raise joined((_early_refusals if looks else lookup_refusals)(config))


def _while_read(show: Callable[[], int]) -> int:
    """Shows something, which trains nothing, and says in a line why it cannot; ends without a word where its reader has
    seen enough, as ``head`` has.
    """
    try:
        code = _or_why(show)
        sys.stdout.flush()
    except BrokenPipeError:
        return _unread()
    return code


def _unread() -> int:
    """Returns the exit code of a command whose reader has gone, and lets nothing more be written to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left at its end
    return 128 + signal.SIGPIPE


def _or_why(show: Callable[[], int]) -> int:
    try:
        return show()
    except BrokenPipeError:
        raise
    except ConfigError as error:
        return _say(error, REFUSED)
    except Exception as error:  # as in `run`
        return _say(error, FAILED)


def _help(words: Sequence[str]) -> int:
    """Lists the keys in which the words are; without words all, below what a command line may be."""
    if not words:
        print(__doc__)
        print("\n".join(f"  --config.{path}={default}\n      {meaning}" for path, default, meaning in key_help()))
        return 0
    if found := matching(words):
        print("\n".join(found_lines(words, found)))
        return 0
    return _say(nothing_found(words), REFUSED)


def _show_configs(names: Sequence[str]) -> int:
    """Lists the configs that come along, a line each, or prints those that are named."""
    print("\n".join(map(bundled.source, names) if names else bundled.listed()))
    return 0


def _watch(given: Sequence[str]) -> int:
    """Follows a run of another process."""
    from rljax import commands

    raise_on_interrupt()  # it ends the view alone
    return commands.watch(given)


def _sweep(path: str, overrides: Mapping[str, Any], refused: Sequence[ConfigError]) -> int:
    """Trains the runs of a sweep, each in a process of its own."""
    from rljax.pipeline.run_dir import RunDir
    from rljax.sweep import device_refusals, sweep

    swept: list[Point] = []
    try:
        swept = points(path, overrides, refused, (_early_refusals,))
        new = [point for point in swept if not RunDir.at(point.config).config.exists()]
        wrong = [error for point in swept for error in _point_refusals(point.config, begins=point in new)]
        wrong += device_refusals(new) if new else []
        if wrong:
            raise told(joined(wrong), swept[0].translation, overrides)
    except ConfigError as error:
        return _say(error, REFUSED)
    except Exception as error:  # as in `run`
        return _say(error, FAILED)
    _hide_password(swept[0].config.ledger)
    return sweep(swept)


def _point_refusals(config: Config, *, begins: bool) -> Refusals:
    """Yields what is refused of a run of a sweep before any begins, but for its devices."""
    from rljax.pipeline.assemble.names import lookup_refusals

    if begins or missing(config):
        yield from lookup_refusals(config)


def _dry_run(given: Sequence[str], target: str) -> int:
    """Shows what a config becomes, what is not installed for it, and where a run of it puts things. What a file of
    ROLL's or Trinity-RFT's becomes is written, without passwords and keys, to ``target`` if it names a file.
    """
    from rljax import dry_run
    from rljax.pipeline.assemble.names import lookup_refusals

    code = 0

    def say(lines: Iterable[str]) -> None:
        nonlocal code
        try:
            print("\n".join(map(printable, lines)), flush=True)
        except BrokenPipeError:
            code = _unread()  # and the file is written all the same

    def seen(source: Source) -> Refusals:
        if isinstance(source, Translation):
            say(side_by_side(source, overrides))
        wrong = f"--dry-run={target}: what"
        if target and isinstance(source, dict):
            yield ConfigError(f"{wrong} a YAML file becomes is written there; leave ={target} out")
        elif target and is_sweep(overrides):
            yield ConfigError(f"{wrong} is written is one config, and no sweep; name one value of each key")
        elif Path(target).suffix in (".yaml", ".yml", ".json"):
            yield ConfigError(f"{wrong} is written is Python; write --dry-run={Path(target).with_suffix('.py')}")
        elif target and Path(target).exists():
            yield ConfigError(f"--dry-run={target}: there is such a file; write another")
        elif target and not Path(target).parent.is_dir():
            yield ConfigError(f"--dry-run={target}: there is no such folder; make it, or write another")

    path, overrides, refused = read_arguments(given)
    if not path:
        return _say(joined(refused), REFUSED)
    asked = path, overrides, refused, (lookup_refusals, dry_run.processor_refusals), seen
    swept = points(*asked) if is_sweep(overrides) else []
    config, translation = (swept[0].config, swept[0].translation) if swept else load_source(*asked)
    _hide_password(config.ledger)
    if swept:
        say(dry_run.sweep_lines(swept))
    if translation is None:
        say(dry_run.resolved_lines(config))
    say(dry_run.place_lines(config))
    say(dry_run.untried_lines(config))
    every = [point.config for point in swept] or [config]
    if wrong := [error for one in every for error in refused_by(dry_run.check_names, one)]:
        raise told(joined(wrong), translation, overrides)
    if target and translation is not None:
        _write(target, config_file(translation, as_plain(config)))
        say([f"written to {Path(target)}"])
    return code


def _write(target: str, text: str) -> None:
    try:
        with open(target, "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"--dry-run={target}: there is such a file; write another") from None
    except OSError as error:
        raise ConfigError(f"--dry-run={target}: cannot be written ({error.strerror})") from error


def without_orbax_traceback(record: logging.LogRecord) -> bool:
    """Removes the traceback of what Orbax's threads and tasks raised: whoever waits for them reports it too."""
    raised = record.exc_info[2] if record.exc_info else None
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(raised)]
    if any(module.partition(".")[0] == "orbax" for module in modules):
        record.exc_info = record.exc_text = None
    return True


def without_closed_loops(raised: sys.UnraisableHookArgs) -> None:
    """Prints what nobody can catch, but for what TensorStore's threads could not deliver to an event loop that has been
    closed: who closed it has reported why.
    """
    if os.environ.get("RLJAX_TRACEBACK") or str(raised.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(raised)


class _Printable(logging.Formatter):
    """Formats records with the control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _hide_password(ledger: str | None) -> None:
    """Hides the password of a ledger's URL from the command line of this process in the list of processes."""
    if ledger is None or not any(ledger in argument for argument in sys.orig_argv):
        return
    hidden = without_password(ledger)
    if hidden != ledger:
        from setproctitle import setproctitle

        setproctitle(shlex.join(argument.replace(ledger, hidden) for argument in sys.orig_argv))


def _say(error: Exception | str, code: int) -> int:
    """Prints the one line, or with ``RLJAX_TRACEBACK`` where the error came from; returns ``code``."""
    if isinstance(error, Exception) and os.environ.get("RLJAX_TRACEBACK"):
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        return code
    if isinstance(error, ConfigError) and error.others:
        error = table("what is refused", [error, *error.others])
    if isinstance(error, RefusedConfig):  # a table
        print("\n".join(printable(line) for line in f"rljax: {error}".splitlines()), file=sys.stderr)
        return code
    line = " ".join(str(error).split()) or type(error).__name__
    kind = "" if isinstance(error, str | ConfigError) or not _is_foreign(error) else f"{type(error).__name__}: "
    hint = "" if not kind else " (RLJAX_TRACEBACK=1 shows where)"
    print(printable(f"rljax: {kind}{line}{hint}"), file=sys.stderr)
    return code


def _is_foreign(error: Exception) -> bool:
    return not type(error).__module__.startswith(("rljax", "sidecar")) and not isinstance(error, TimeoutError)
