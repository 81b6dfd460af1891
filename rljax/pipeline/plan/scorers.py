"""Places of judges and reward models among a target's devices, by the run's own rules, and what they take of them."""

from __future__ import annotations

import math

import jax

from rljax.config.engines import ENGINES
from rljax.config.schema import Config, MeshConfig
from rljax.learner.sharding import named_devices, select_devices
from rljax.models.common.architecture import Architecture
from rljax.models.transformer import abstract_params
from rljax.pipeline.assemble.devices import JAX_MEMORY_SHARE, device_name, named_names
from rljax.pipeline.assemble.engines import Before
from rljax.pipeline.assemble.judges import judge_config
from rljax.pipeline.assemble.reward_models import longest_row, place_reward_models
from rljax.pipeline.plan.estimate import BYTES, NEXT, Estimate
from rljax.pipeline.plan.experts import sorted_width
from rljax.pipeline.plan.placement import Placement, Scorer, engine_room, learner_names, place_engines
from rljax.pipeline.plan.targets import Target


def place_scorers(estimate: Estimate, target: Target, placement: Placement) -> tuple[Scorer, ...]:
    """Returns where the judges and reward models of a run compute, and what they take.

    Args:
        estimate: of the run.
        target: the devices.
        placement: of the policy's engines.

    Raises:
        ConfigError: the run would refuse them on such devices.
    """
    judges = _judges(estimate, target, placement)
    return (*judges, *_reward_models(estimate, target, placement, judges))


def _judges(estimate: Estimate, target: Target, placement: Placement) -> list[Scorer]:
    config, found = estimate.config, list[Scorer]()
    engines = _accelerators(placement)
    named = [config.learner.devices, *(judge.devices for judge in config.judges.values())]
    named += [model.devices for model in config.reward_models.values()]
    # Of what Ray places nothing but the learner's is named, and those are before all others.
    taken = engines.union(*map(named_names, named)) if config.launcher == "local" else engines
    before = Before(config.sidecar.num_engines, taken, engines)
    for name in config.judges:
        judged, architecture = judge_config(config, name), estimate.scorers[f"judges.{name}"]
        sidecar = judged.sidecar
        placed = place_engines(judged, target, before)
        before = Before(before.engines + sidecar.num_engines, before.taken | _accelerators(placed), engines)
        own = not ENGINES[sidecar.engine].in_process or config.launcher == "ray"
        room = engine_room(judged, target) if own else _shared_room(config, target)
        fills = room if not ENGINES[sidecar.engine].in_process and placed.platform == "gpu" else None
        kinds = Estimate(judged, architecture, judged.learner.mesh, estimate.platform).engine(
            fills, on_host=placed.platform == "cpu"
        )
        kinds.pop(NEXT, None)  # its weights are fixed
        count = f"{sidecar.num_engines} × {sidecar.engine}"
        asked = f"{sidecar.max_concurrency} requests of up to {judged.context} tokens"
        found.append(Scorer(f"judges.{name}", placed, kinds, room, "" if own else _home(config), count, asked))
    return found


def _reward_models(estimate: Estimate, target: Target, placement: Placement, judges: list[Scorer]) -> list[Scorer]:
    config, found = estimate.config, list[Scorer]()
    engines = _accelerators(placement)
    others = engines.union(*(_accelerators(judge.placement) for judge in judges))
    if _home(config) == "learner":
        shared = select_devices(config.learner.devices, config.learner.mesh.size, target.present)
    else:
        others |= {*learner_names(config, target)}
        there = named_devices("sidecar.devices", config.sidecar.devices, target.present)
        in_process = ENGINES[config.sidecar.engine].in_process and config.launcher == "local"
        shared = [d for d in there if in_process and device_name(d.platform, d.id) in placement.names]
    for name, devices in place_reward_models(config, shared, others, target.present).items():
        model, architecture = config.reward_models[name], estimate.scorers[f"reward_models.{name}"]
        longest = longest_row(config, name, architecture.max_position_embeddings)
        names = tuple(device_name(device.platform, device.id) for device in devices)
        on_learner = not set(names).isdisjoint(learner_names(config, target))
        placed = Placement((names,), devices[0].platform, on_learner, False)
        kinds = _scored(architecture, model.rows_per_batch * longest, BYTES[model.dtype], placed)
        asked = f"{model.rows_per_batch} rows of up to {longest} tokens at once"
        room = _shared_room(config, target)
        found.append(Scorer(f"reward_models.{name}", placed, kinds, room, _home(config), "scored", asked))
    return found


def _scored(architecture: Architecture, tokens: float, width: int, placed: Placement) -> dict[str, float]:
    """Returns the bytes that a reward model takes of each of its devices, which share weights and rows: the decoder,
    and the widest moment of a forward pass, which is that of a layer: its stream, and its projections or its MLP.
    """
    a, shares = architecture, len(placed.names)
    products = 4 if placed.platform == "cpu" else width  # XLA for a CPU has no others
    heads = 2 * (a.num_heads + a.num_kv_heads) * a.head_dim
    layer = tokens * (4 * a.hidden_size + max(heads, 3 * a.mlp_width + sorted_width(a, MeshConfig()))) * products
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(a)))
    return {"weights": parameters * width / shares, "activations": layer / shares}


def _accelerators(placement: Placement) -> frozenset[str]:
    return frozenset(placement.names if placement.platform != "cpu" else ())


def _home(config: Config) -> str:
    return "explorer" if config.explorer.own_process else "learner"


def _shared_room(config: Config, target: Target) -> float:
    """Returns the bytes of a device that JAX takes in the explorer's process."""
    if _home(config) == "learner" or target.hardware.platform != "gpu":
        return target.memory * target.share
    return target.memory * JAX_MEMORY_SHARE
