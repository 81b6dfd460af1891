"""Registry of rewards: finds one by its name in the config, and determines where it must run."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

from rljax.config.fields import ConfigError
from rljax.config.refusals import joined, refused_by
from rljax.config.registries import by_name
from rljax.config.types import hidden
from rljax.tasks.cells import near, nearest
from rljax.tasks.rewards.prints import prints_to
from rljax.tasks.rewards.reward import RewardFunction
from rljax.tasks.rewards.scorer import BUILT_IN, Place, Scorer
from rljax.tasks.rewards.text import PatternFormat
from rljax.tasks.rows import Row
from rljax.tasks.task import RewardTerm

_FORMAT = "format:"
_NEAR = 0.8
"""Likeness of a module's name, of the many that Python has, to one that is mistyped."""
BATCH_SIZE = "batch_size"
"""The argument of a reward of batches that bounds them."""

_registered: dict[str, Scorer] = {}
_printed: dict[str, list[str]] = {}


@cache
def built_in() -> Mapping[str, Scorer]:
    """Returns the rewards of this package, by name: what its modules declare."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    return dict(sorted(BUILT_IN.items()))


def register_reward(name: str) -> Callable[[RewardFunction], RewardFunction]:
    """Registers a `RewardFunction` by a name for ``rewards``. A decorator.

    Its keyword-only parameters are the keys that ``reward_args`` may have.

    Meant for a notebook: the function stays in this process and runs on a thread, an ``async def`` on an event loop. A
    thread cannot be killed, so a reward that may hang is better placed in a file and named ``module:function``. A later
    one of the same name replaces it.

    Raises:
        ConfigError: the name is that of a built-in, is not plain, or the function takes other arguments.
    """

    def add(function: RewardFunction) -> RewardFunction:
        if name in built_in() or not re.fullmatch(r"\w+", name):
            raise ConfigError(f"register_reward({name!r}): built-in or not a plain name; choose another")
        _check_signature(function, f"register_reward({name!r})")
        _registered[name] = Scorer(name, name, function, _place(function, Place.THREAD))
        return function

    return add


def take_printed(scorer: Scorer) -> str:
    """Returns what the module of a reward printed when this process imported it, to who asks first; else nothing."""
    return "".join(_printed.pop(scorer.name.partition(":")[0], []))


def own_rewards() -> set[str]:
    """Returns the names that were registered in this process; no other knows them."""
    return set(_registered)


def resolve_reward(name: str, key: str) -> Scorer:
    """Looks up a reward.

    Args:
        name: a built-in, a registered one, ``format:REGEX`` or ``module:function``.
        key: config path, for messages.

    Raises:
        ConfigError: there is none of that name; the nearest is in the message.
    """
    if found := built_in().get(name) or _registered.get(name):
        return found
    if name.startswith(_FORMAT):
        try:
            pattern = PatternFormat(name.removeprefix(_FORMAT))
        except re.error as error:
            raise ConfigError(f"{key}={name!r}: not a regular expression ({error})") from error
        return Scorer(name, "format", pattern, Place.PROCESS, score_on_timeout=0.0, reads_answer=False)
    if ":" in name:
        function = _imported(name, key)
        return Scorer(name, name.rpartition(":")[2], function, _place(function, Place.PROCESS))
    hint = nearest(name, [*built_in(), *_registered], "there are")
    raise ConfigError(f"{key}={name!r}: no such reward; {hint}, or write module:function")


def may_read_answer(name: str) -> bool:
    """Returns whether a reward needs a reference answer, or that whose name it may be. Your own is taken to."""
    with suppress(ConfigError):
        return resolve_reward(name, "rewards").reads_answer
    known = {**built_in(), **_registered}
    meant = "format" if name.startswith(_FORMAT) else None if ":" in name else near(name, sorted(known))
    return meant is None or known[meant].reads_answer


def known_rewards(names: Sequence[str]) -> list[Scorer]:
    """Returns those of these rewards that there are."""
    known = []
    for name in names:
        with suppress(ConfigError):
            known.append(resolve_reward(name, "rewards"))
    return known


def reward_terms(
    names: Sequence[str],
    weights: Sequence[float] | None,
    key: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[RewardTerm, ...]:
    """Looks up the rewards of a taskset; two of the same short name are logged under their full names.

    Args:
        names: as the config has them.
        weights: of each; None: all 1.
        key: config path of the names; that of the arguments is ``reward_args`` beside it.
        args: keyword arguments by the short name of the reward.

    Raises:
        ConfigError: see `resolve_reward`, of each name; or one occurs twice; or arguments are not the function's.
    """
    if refused := [error for name in names for error in refused_by(resolve_reward, name, key)]:
        raise joined(refused)
    scorers = [resolve_reward(name, key) for name in names]
    if len(set(names)) != len(names):
        raise ConfigError(f"{key}={tuple(names)}: one of them stands there twice; give it a weight instead")
    short = [scorer.part for scorer in scorers]
    parts = [s.part if short.count(s.part) == 1 else s.name.replace(":", ".") for s in scorers]
    factors = [1.0] * len(names) if weights is None else weights
    given, path = args or {}, f"{key.rpartition('.')[0]}.reward_args"
    for unread in set(given) - set(short):
        raise ConfigError(f"{path}.{unread}: nothing reads it; add {unread} to {key}")
    built = [by_name(s.name, s.function).build(given.get(s.part, {}), f"{path}.{s.part}") for s in scorers]
    for scorer, arguments in zip(scorers, built, strict=True):
        if scorer.of_batches:
            _check_size(arguments.get(BATCH_SIZE), f"{path}.{scorer.part}.{BATCH_SIZE}")
    of_groups, of_batches = [s.of_groups for s in scorers], [s.of_batches for s in scorers]
    columns = zip(names, parts, factors, built, of_groups, of_batches, strict=True)
    return tuple(RewardTerm(*term) for term in columns)


def answer_checks(names: Sequence[str], key: str) -> tuple[Callable[[str], None], ...]:
    """Returns the rewards' checks of a reference answer, each a function that raises ValueError with the reason.

    Raises:
        ConfigError: see `resolve_reward`.
    """
    checks = (resolve_reward(name, key).check_answer for name in names)
    return tuple(check for check in checks if check is not None)


def row_checks(terms: Sequence[RewardTerm], key: str) -> tuple[tuple[Callable[[Row], None], ...], frozenset[str]]:
    """Returns the rewards' checks of a row, each a function that raises ValueError with the reward and the reason, and
    the columns that they read.

    Raises:
        ConfigError: see `resolve_reward`.
    """
    checked = [(term.args, scorer) for term in terms if (scorer := resolve_reward(term.name, key)).check_row]
    read = {args[name] for args, scorer in checked for name in scorer.columns if args[name]}
    rows = (partial(_check_row, s.check_row, args, f"{key}={s.name}") for args, s in checked if s.check_row)
    return tuple(rows), frozenset(read)


def _check_row(check: Callable[..., None], args: Mapping[str, Any], asked_by: str, row: Row) -> None:
    try:
        check(row, **args)
    except ValueError as error:
        raise ValueError(f"{asked_by}: {error}") from error


def answer_is_read(names: Sequence[str], key: str) -> bool:
    """Returns whether any of these rewards needs a reference answer; your own is taken to.

    Raises:
        ConfigError: see `resolve_reward`.
    """
    return any(resolve_reward(name, key).reads_answer for name in names)


def _place(function: RewardFunction, otherwise: Place) -> Place:
    called = (function, getattr(function, "__call__", None))  # noqa: B004 — an object may have an async one
    return Place.AWAITED if any(map(inspect.iscoroutinefunction, called)) else otherwise


def _imported(name: str, key: str) -> RewardFunction:
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name, f"{key}={name!r}")
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(
            f"{key}={name!r}: no function {attribute!r} there; {nearest(attribute, functions, 'there are')}"
        )
    _check_signature(function, f"{key}={name!r}")
    return function


def _import_module(name: str, what: str) -> ModuleType:
    if name == "__main__":
        raise ConfigError(f"{what}: a worker process has another __main__; decorate it with register_reward instead")
    try:
        with prints_to(_printed.setdefault(name, []).append):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name != missing and not name.startswith(f"{missing}."):
            raise ConfigError(f"{what}: importing it fails: {error}") from error
        parent = missing.rpartition(".")[0]
        path = importlib.import_module(parent).__path__ if parent else None
        public = [m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_")]
        siblings = [f"{parent}.{one}" if parent else one for one in public]
        raise ConfigError(f"{what}: no module {missing!r}{hidden(name) or _near(missing, siblings)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: importing it fails: {type(error).__name__}: {error}") from error


def _near(missing: str, siblings: Sequence[str]) -> str:
    """Returns what is added to the message on a module that is not there; the many that Python has are not listed."""
    if "." in missing:
        return f"; {nearest(missing, siblings, 'there are')}"
    near = difflib.get_close_matches(missing, siblings, 1, _NEAR)
    return f"; nearest: {near[0]}" if near else " in the folder of this command, nor on PYTHONPATH; name one that is"


def _check_size(size: object, path: str) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"{path}={size!r}: must be at least 1; it bounds a batch of responses")


def _check_signature(function: Callable[..., object], what: str) -> None:
    try:
        signature = inspect.signature(function)
        own = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        signature.bind("task", "response", **own)
    except TypeError as error:
        raise ConfigError(f"{what}: must take (task, response): {error}") from error
    except ValueError:
        return  # a function of C code may not tell its signature; the first call will
