"""Runs the modes of the command line."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rljax.config.fields import ConfigError, named_explorer
from rljax.config.schema import Config
from sidecar.errors import printable
from sidecar.garbage import uncollected_imports

if TYPE_CHECKING:
    from rljax.learner.hosts import Hosts


def train(config: Config) -> int:
    """Runs modes both and train: trains to the end, or to SIGTERM, after which the same command resumes."""
    from rljax.pipeline.assemble.hosts import joined
    from rljax.pipeline.follow import follow

    with joined(config) as hosts:
        if hosts is None or hosts.leads:
            return _lead(config, hosts)
        _on_signals(hosts.ask_to_stop)
        follow(config, hosts)
        print(f"{hosts.names[hosts.rank]}: the run has ended here too")
        return 0


def _lead(config: Config, hosts: Hosts | None) -> int:
    from rljax.pipeline.assemble.hosts import own_output_of_libraries
    from rljax.run import FINISHED, Run

    with Run(config, _progress, hosts) as run:
        if hosts is not None:
            own_output_of_libraries(run.run_dir.root, hosts.rank)
        if run.finished:
            print(f"{run.run_dir.root}: {FINISHED}")
            return 0
        _on_signals(run.interrupt)
        if hosts is not None:
            hosts.watch_for_stop(lambda name: _say_and_stop(name, run.interrupt))
        for _ in run:
            pass
        if run.interrupted:
            print(f"stopped after a checkpoint; the same command resumes {run.run_dir.root}")
            return 0
    return _closing_lines(run.run_dir.root)


def explore(config: Config) -> int:
    """Runs mode explore: generates until the run ends or SIGTERM comes."""
    from rljax.run import Run

    with Run(config, _progress) as run:
        if run.finished:
            print(f"{run.run_dir.root}: this run is finished")
            return 0
        run.explore(_on_signals)
    print(f"{named_explorer(config.explorer.name)}: left; its open claims are handed back")
    return 0


def evaluate(config: Config) -> int:
    """Runs mode evaluate: scores checkpoints on the validation tasksets."""
    from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
    from rljax.pipeline.assemble.checks import check_mode
    from rljax.pipeline.assemble.compile_cache import keep_compiled
    from rljax.pipeline.assemble.run import open_model
    from rljax.pipeline.assemble.tasksets import Tasksets
    from rljax.pipeline.evaluate import evaluate as evaluated
    from rljax.pipeline.run_dir import RunDir

    tasksets = Tasksets(config)
    check_mode(config, tasksets)
    keep_compiled(config)
    scores: dict[str, float] = {}
    rows: list[list[str]] = []
    with RunDir.of_checkpoint(config) as run:
        model = open_model(config, run, _progress)
        with contextlib.closing(ENGINE_LAUNCHERS[config.launcher](config)) as engine_launcher:
            for steps, metrics in evaluated(config, run, model, engine_launcher, tasksets):
                scores = {name: value for name, value in metrics.items() if name.endswith("/score")}
                shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
                print(f"checkpoint {steps}: {shown}", flush=True)
                rows.append([str(steps), *(f"{value:.4f}" for value in scores.values())])
    if len(rows) > 1:
        print("\n".join(_table([["checkpoint", *scores], *rows])))
    print(f"written to {run.root / 'evaluation.json'}")
    return 0


def export(config: Config) -> int:
    """Runs mode export: writes checkpoints as Hugging Face directories."""
    from rljax.pipeline.assemble.checks import check_mode
    from rljax.pipeline.assemble.run import open_model
    from rljax.pipeline.evaluate import export as exported
    from rljax.pipeline.run_dir import RunDir

    check_mode(config)
    with RunDir.of_checkpoint(config) as run:
        for path in exported(config, run, open_model(config, run, _progress)):
            print(f"written to {path}")
    return 0


def play(config: Config) -> int:
    """Runs mode play: a person, a scripted or random player, or a checkpoint plays an environment."""
    from rljax.pipeline.play import play_with_model, play_without_model

    if config.play.agent != "model":
        play_without_model(config, _show, lambda: input("> "))
        return 0
    from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
    from rljax.pipeline.assemble.checks import check_mode
    from rljax.pipeline.assemble.compile_cache import keep_compiled
    from rljax.pipeline.assemble.run import open_model
    from rljax.pipeline.run_dir import RunDir

    check_mode(config)
    keep_compiled(config)
    with RunDir.of_checkpoint(config) as run:
        model = open_model(config, run, _progress)
        with contextlib.closing(ENGINE_LAUNCHERS[config.launcher](config)) as engine_launcher:
            play_with_model(config, run, model, engine_launcher, _show)
    return 0


def serve(config: Config) -> int:
    """Runs mode serve: answers HTTP requests until Ctrl-C or SIGTERM."""
    from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
    from rljax.pipeline.assemble.checks import check_mode
    from rljax.pipeline.assemble.compile_cache import keep_compiled
    from rljax.pipeline.assemble.run import open_model
    from rljax.pipeline.run_dir import RunDir, removed_if_refused
    from rljax.pipeline.serve.key import open_key
    from rljax.pipeline.serve.service import serve as served

    check_mode(config)
    keep_compiled(config)
    of_run = config.serve.published
    with contextlib.nullcontext(RunDir.existing(config)) if of_run else RunDir.of_checkpoint(config) as run:
        folder = run.root / "serve"
        with removed_if_refused(folder / "key", folder):
            key = open_key(config, folder)  # before a process is started that would inherit it
            model = open_model(config, run, _progress)
        with contextlib.closing(ENGINE_LAUNCHERS[config.launcher](config)) as engine_launcher:
            asyncio.run(served(config, run, model, engine_launcher, key, _show, _on_signals))
    return 0


def plan(config: Config) -> int:
    """Runs mode plan: says what the run will take on a target, and exits 1 where it does not fit."""
    from rljax.pipeline.assemble.compile_cache import keep_compiled
    from rljax.pipeline.plan.plan import plan as planned

    keep_compiled(dataclasses.replace(config, compile_cache="off"))  # seconds to compile are what it is asked for
    fits = False
    for line in planned(config):
        if isinstance(line, bool):
            fits = line
        else:
            print(printable(line), flush=True)
    return 0 if fits else 1


def replay(config: Config) -> int:
    """Runs mode replay: trains the recorded batches again and compares with the checkpoints that the run left."""
    from rljax.pipeline.assemble.checks import check_mode
    from rljax.pipeline.assemble.compile_cache import keep_compiled
    from rljax.pipeline.assemble.run import open_ledger, open_model
    from rljax.pipeline.replay import replay as replayed
    from rljax.pipeline.run_dir import RunDir

    check_mode(config)
    keep_compiled(config)
    run = RunDir.existing(config)
    for change in run.changes(config):
        if not change.startswith(("mode ", "checkpoint ", "observe.", "compile_cache ", "plan.", "report.", "serve.")):
            print(f"not as the run was trained: {change}")
    different = 0
    for done in replayed(config, run, open_ledger(config, run), open_model(config, run, _progress)):
        if done.differing is not None:
            verdict = "bit for bit the same" if not done.differing else f"{done.differing} parameters differ"
            print(f"replayed to step {done.step}: {verdict}", flush=True)
            different += done.differing
    return 1 if different else 0


def audit(config: Config) -> int:
    """Runs mode audit: prints the audit of the ledger."""
    from rljax.ledger.audit import audit as audited
    from rljax.ledger.backend import backend_of
    from rljax.ledger.database import Database
    from rljax.observe.atomic_write import write_atomic
    from rljax.pipeline.run_dir import RunDir

    run = RunDir.existing(config)
    report = audited(Database(backend_of(config, run.root), None))
    run.root.mkdir(parents=True, exist_ok=True)
    write_atomic(run.root / "audit.json", json.dumps(report, indent=1) + "\n")
    print(_audit_line(report))
    for problem in report["problems"]:
        print(printable(f"rljax: audit: {problem}"), file=sys.stderr)
    return 0 if report["balanced"] else 1


def report(config: Config) -> int:
    """Runs mode report: writes the report of run directories; exits 1 where one has none, or is damaged."""
    from rljax.pipeline.report import report as reported

    path, problems = reported(config)
    for problem in problems:
        print(printable(f"rljax: report: {problem}"), file=sys.stderr)
    if path is not None:
        print(f"report: {path}")
    return 1 if problems else 0


def watch(arguments: Sequence[str]) -> int:
    """Follows a run until it is over: ``watch RUN [--browser[=PORT]]``, RUN being its directory, or its name in runs/.

    Ctrl-C ends the view and leaves the run alone.

    Raises:
        ConfigError: the arguments are wrong, or there is no such run.
    """
    from rljax.observe.progress import Progress
    from rljax.observe.report.read import NoRun, find_runs, run_directory
    from rljax.pipeline.watch import Watcher
    from rljax.pipeline.watch import watch as watched
    from rljax.pipeline.watch_page import page

    named = [argument for argument in arguments if not argument.startswith("--")]
    browser = [argument for argument in arguments if argument.partition("=")[0] == "--browser"]
    port = browser[-1].partition("=")[2] if browser else ""
    if len(named) != 1 or len(named) + len(browser) != len(arguments) or not (port or "0").isdecimal():
        raise ConfigError(
            "watch: takes one run, and --browser or --browser=PORT, as in: watch runs/quickstart --browser"
        )
    if (root := run_directory(named[0])) is None:
        beside = "" if Path(named[0]).is_absolute() else f", nor {Path('runs') / named[0]}"
        raise ConfigError(f"watch {named[0]}: no such directory{beside}; name that of a run")
    with contextlib.suppress(NoRun):  # it may be yet to begin
        if root not in (below := find_runs(root)):
            raise ConfigError(f"watch {named[0]}: holds runs, and is none; name one of {', '.join(map(str, below))}")
    with contextlib.ExitStack() as parts:
        progress = parts.enter_context(Progress("auto", f"{root.resolve().name} · watched"))
        watcher = parts.enter_context(contextlib.closing(Watcher(root)))
        if browser:
            of_page = parts.enter_context(contextlib.closing(Watcher(root)))
            progress.message(f"open {parts.enter_context(page(of_page, int(port or 0)))} (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            return 1 if watched(watcher, progress, stays=bool(browser)).failed else 0
    return 0


COMMANDS: dict[str, Callable[[Config], int]] = {
    "both": train,
    "train": train,
    "explore": explore,
    "evaluate": evaluate,
    "export": export,
    "replay": replay,
    "audit": audit,
    "report": report,
    "play": play,
    "plan": plan,
    "serve": serve,
}


def import_modules(mode: str) -> None:
    """Imports what a mode that trains or generates needs in any case, each of which imports many more."""
    if mode in ("both", "train", "explore", "evaluate", "replay", "serve"):
        with uncollected_imports():
            import rljax.run  # noqa: F401
            from rljax.models.tokenizer import import_transformers

            import_transformers()


def _on_signals(stop: Callable[[], None]) -> None:
    """Has SIGTERM and Ctrl-C call ``stop``; a second Ctrl-C ends the process."""

    def handle(number: int, _frame: object) -> None:
        print(
            f"\nrljax: {signal.Signals(number).name}: stopping; what is under way comes to its end first",
            file=sys.stderr,
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _say_and_stop(name: str, stop: Callable[[], None]) -> None:
    print(f"\nrljax: {name} was asked to stop; what is under way is saved first", file=sys.stderr)
    stop()


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table, its columns as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _show(text: str) -> None:
    print(printable(text), flush=True)


def _progress(label: str, fraction: float) -> None:
    print(f"\r{printable(label)}: {fraction:4.0%}", end="" if 0 < fraction < 1 else "\n", file=sys.stderr, flush=True)


def _audit_line(report: dict[str, object]) -> str:
    dropped, filtered = report["dropped"], report["filtered"]
    assert isinstance(dropped, dict)
    assert isinstance(filtered, dict)
    shown = f"{report['demonstrations']} demonstrations; " if report["demonstrations"] else ""
    shown += f"{report['retired']} retired by restarts; " if report["retired"] else ""
    return (
        f"audit: {'balanced' if report['balanced'] else 'DOES NOT BALANCE'}: {report['claimed']} groups claimed = "
        f"{report['trained']} trained + {report['open']} open + {sum(dropped.values())} dropped + "
        f"{sum(filtered.values())} filtered; {shown}trained_twice {report['trained_twice']}; "
        f"max_staleness {report['max_staleness']} (bound {report['staleness_bound']})"
    )


def _closing_lines(root: Path) -> int:
    from rljax.observe.metrics import read_metrics

    report = json.loads((root / "audit.json").read_text())
    scores: dict[str, list[float]] = {}
    for row in read_metrics(root):
        for name, value in row.items():
            if name.startswith("val/") and name.endswith("/score") and value is not None:
                scores.setdefault(name, []).append(value)
    for name, values in scores.items():
        trend = f"{values[0]:.3f} -> {values[-1]:.3f} (best {max(values):.3f})" if values[1:] else f"{values[0]:.3f}"
        print(f"{name}: {trend}")
    print(_audit_line(report))
    print(f"report: {root / 'report.html'}")
    return 0 if report["balanced"] else 1
