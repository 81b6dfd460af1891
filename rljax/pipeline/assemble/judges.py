"""Builds the judges that a config asks for: their models, engines and weights."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.config.validate_judges import judge_config as judge_config
from rljax.ledger.versions import Announced
from rljax.models.files import stored_tensors
from rljax.observe.trace import NullTrace
from rljax.pipeline.assemble.devices import named_names
from rljax.pipeline.assemble.engines import Before, make_pool, pool_devices
from rljax.pipeline.assemble.run import Model, open_model_at
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.async_utils import in_background
from rljax.rollout.judge import EngineJudge
from rljax.weights.draft import scratch
from rljax.weights.gathering import DTYPES
from rljax.weights.publisher import OrbaxPublisher
from sidecar.hosting.spec import EngineLauncher
from sidecar.protocol import Engine

_LOG = logging.getLogger(__name__)

OnFault = Callable[[str, str], None]
"""Called with the kind of a fault that is survived, and a message."""


def log_fault(kind: str, message: str) -> None:
    """Logs a fault."""
    _LOG.warning("%s: %s", kind, message)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a judge's engines.

    Attributes:
        before: what stands before them: engines of the policy and of the judges before, and devices named for others.
        devices: names of the devices that they will compute on.
    """

    before: Before
    devices: frozenset[str]


def places_of_judges(config: Config) -> dict[str, Place]:
    """Returns the place of each judge that is asked, by name.

    Raises:
        ConfigError: devices are not there.
    """
    if not config.asked_judges:
        return {}
    engines = pool_devices(config)
    named = [config.learner.devices, *(judge.devices for judge in config.asked_judges.values())]
    named += [model.devices for model in config.asked_reward_models.values()]
    before = Before(config.sidecar.num_engines, engines.union(*map(named_names, named)), engines)
    places = {}
    for name, judge in config.asked_judges.items():
        with _naming(name):
            places[name] = Place(before, pool_devices(judge_config(config, name), before))
        before = Before(before.engines + judge.num_engines, before.taken | places[name].devices, engines)
    return places


@contextlib.contextmanager
def _naming(judge: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"judges.{judge}: {error}") from None


class Judges(contextlib.AsyncExitStack):
    """The judges of one process. Leaving the context ends them."""

    def __init__(self, config: Config, run: RunDir, engine_launcher: EngineLauncher) -> None:
        """Takes the run and ``engine_launcher``, which starts engines in processes of their own."""
        super().__init__()
        self._config = config
        self._run = run
        self._engine_launcher = engine_launcher

    async def open(self, places: Mapping[str, Place], on_fault: OnFault = log_fault) -> Mapping[str, EngineJudge]:
        """Starts the judges that have a place, see `places_of_judges`, one after the other; returns them by name.

        Raises:
            ModelNotFound: a judge's model is not here and cannot be fetched.
            ConfigError: its devices are not there.
            EngineError: its engines do not start.
        """
        opened = {}
        for name, place in places.items():
            with _naming(name):
                opened[name] = await self._open_one(name, place.before, on_fault)
        return opened

    async def _open_one(self, name: str, before: Before, on_fault: OnFault) -> EngineJudge:
        config = judge_config(self._config, name)
        draft = scratch(self._run.root / "judges", config.explorer.name)
        self.callback(draft.delete)
        directory = draft.path
        # it may be a download: meanwhile heartbeats go on, and who leaves does not wait for its end
        model = await in_background(functools.partial(open_model_at, config, directory))
        events = _JudgeEvents(name, on_fault)
        pool = make_pool(config, self._run, model, NullTrace(), events, self._engine_launcher, before)
        judge = EngineJudge(name, self._config.judges[name], pool, model.tokenizer, model.stop_token_ids)
        self.push_async_callback(judge.close)
        await judge.start(lambda: _published(config, self._run, model, directory))
        return judge


def _published(config: Config, run: RunDir, model: Model, directory: Path) -> Announced:
    dtype = config.model.dtype
    tensors = {name: tensor.astype(DTYPES[dtype]) for name, tensor in stored_tensors(model.directory).items()}
    path = OrbaxPublisher(directory).publish(0, 0, tensors, model=config.model.path, dtype=dtype)
    return Announced(0, 0, run.announced_path(path))


class _JudgeEvents:
    """Reports faults of a judge's engines. Implements `rljax.rollout.engine_events.EngineEvents`."""

    def __init__(self, name: str, on_fault: OnFault) -> None:
        self._name = name
        self._on_fault = on_fault

    def fault(self, kind: str, message: str) -> None:
        """Implements `EngineEvents.fault`."""
        self._on_fault(f"judge_{kind}", f"judge {self._name}: {message}")

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """Implements `EngineEvents.loaded`: there is no learner to compare a judge with."""
