"""Estimates what a run takes, by arithmetic on shapes and sharding rules: memory of a device, traffic, operations."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from rljax.algorithms.registry import policy_losses, token_advantages
from rljax.config.distill import TEACHERS
from rljax.config.engines import ENGINES
from rljax.config.schema import Config, MeshConfig
from rljax.config.sizes import (
    demonstration_parts,
    minibatches_per_step,
    sampled_parts,
    sequences_per_minibatch,
    sequences_per_step,
    trajectories_per_minibatch,
)
from rljax.config.validate_placement import versions_held
from rljax.learner.packing import abstract_batch
from rljax.learner.rows import PackedShape, RowShape, packed_shape, row_shapes
from rljax.learner.sharding import AXES, parameter_rules, parameter_shardings
from rljax.learner.sharing import expected_prompts, shares_prompts
from rljax.learner.state import copies_reference, make_optimizer
from rljax.models.adapter import abstract_trained, publishes_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import ACTIVATIONS, spec
from rljax.models.common.value_head import critic_params
from rljax.models.transformer import abstract_params
from rljax.pipeline.plan.experts import expert_parameters, idle_parameters, route_bytes, sorted_width
from rljax.pipeline.plan.models import read_at_once
from rljax.weights.gathering import GROUP_BYTES

NEXT = "the next version"
"""Kind of memory: of a version that an embedded engine places, with an array of a cache that is resized meanwhile."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Estimate:
    """The arithmetic for one mesh.

    Attributes:
        config, architecture: of the run.
        mesh: of the learner.
        platform: of its devices.
        scorers: architectures of judges, reward models and teachers, by the keys of their sections: ``judges.NAME``.
    """

    config: Config
    architecture: Architecture
    mesh: MeshConfig
    platform: str
    scorers: Mapping[str, Architecture] = field(default_factory=dict)

    @property
    def teachers(self) -> dict[str, Architecture]:
        """Architectures of the teachers that the learner holds, by name."""
        named = self.config.algorithm.distill.stored
        return {name: self.scorers[f"{TEACHERS}.{name}"] for name in named}

    @property
    def layout(self) -> Any:
        """The mesh without devices."""
        return AbstractMesh(tuple(getattr(self.mesh, axis) for axis in AXES), AXES)

    @property
    def width(self) -> int:
        """Bytes of a number that is computed."""
        return BYTES[self.config.model.dtype]

    @property
    def widened(self) -> bool:
        """True where products are of float32, though what is multiplied is narrower: XLA for a CPU has no others."""
        return self.platform == "cpu" and self.width < 4

    @property
    def gradient_width(self) -> int:
        """Bytes of a number of a microbatch's gradient, which devices add up."""
        return 4 if self.config.learner.reduce_dtype == "fp32" else self.width

    @property
    def shapes(self) -> tuple[RowShape, ...]:
        """Shapes that minibatches are packed into, longest row first."""
        config, learner = self.config, self.config.learner
        most = trajectories_per_minibatch(config)
        return row_shapes(config.row_tokens, learner.rows_per_microbatch, most, learner.time_shards)

    @functools.cached_property
    def packed(self) -> PackedShape:
        """Shape that a minibatch of responses that are as long as they may be is packed into."""
        counts = sequences_per_minibatch(self.config)
        prompts, responses = zip(sampled_parts(self.config), demonstration_parts(self.config), strict=True)
        lengths = np.repeat(prompts, counts), np.repeat(responses, counts)
        return packed_shape(*lengths, self.shapes, expected_prompts(self.config, self.shares))

    @property
    def shares(self) -> bool:
        """True where sequences of a row share a prompt."""
        return shares_prompts(self.config, self.architecture, self.platform)

    @property
    def row(self) -> RowShape:
        """The shape of that alone."""
        return self.packed.shape

    @property
    def places(self) -> float:
        """Tokens of a microbatch that a device computes."""
        return self.row.rows * self.row.length / (self.mesh.row_shards * self.mesh.sequence)

    @property
    def head(self) -> int:
        """Parameters of the output head, tied or not."""
        return self.architecture.vocab_size * self.architecture.hidden_size

    @property
    def used(self) -> int:
        """Parameters of all products: of an untied model all but the embedding, in which tokens are looked up."""
        return self.parameters - self.head * (not self.architecture.tie_embeddings)

    @property
    def parameters(self) -> int:
        """Number of the policy's parameters."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(self.architecture)))

    @property
    def trained(self) -> Any:
        """Shapes of what is trained: all parameters, or an adapter's."""
        return abstract_trained(self.architecture, self.config.model.lora)

    @property
    def adapter(self) -> int:
        """Number of an adapter's parameters; 0 where all parameters are trained."""
        return sum(x.size for x in jax.tree.leaves(self.trained)) if self.adapts else 0

    @property
    def adapts(self) -> bool:
        """True where an adapter is trained, and the parameters are frozen."""
        return self.config.model.lora.rank is not None

    @property
    def largest(self) -> int:
        """Parameters of the largest tensor; a layer's experts are placed as one."""
        layers = abstract_params(self.architecture)["layers"].values()
        return max(self.head, *(math.prod(leaf.shape[1:]) for leaf in layers))

    def sharded(self, tree: Any, width: int | None = None) -> float:
        """Returns the bytes that a device has of a tree of parameters; ``width`` bytes a number, or its dtype's."""
        total = 0.0
        leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(parameter_shardings(tree, self.layout)), strict=True)
        for leaf, sharding in leaves:
            shard = NamedSharding(self.layout, sharding.spec).shard_shape(leaf.shape)
            total += math.prod(shard) * (leaf.dtype.itemsize if width is None else width)
        return total

    def memory(self) -> dict[str, float]:
        """Returns the bytes of a learner's device, by kind."""
        params, trained = abstract_params(self.architecture), self.trained
        moments = jax.eval_shape(make_optimizer(self.config.learner.optimizer, 1).init, trained)
        found = {"frozen base": self.sharded(params, self.width)} if self.adapts else {}
        found |= {
            "masters": self.sharded(trained),
            "moments": self.sharded(moments),
            "gradients": self.sharded(trained),
            "copies": self.sharded(trained, self.width) if self.gradient_width < 4 else 0.0,
            "activations": self.activations(),
            "batch": self.batch,
        }
        if self.widened:  # of all layers at once, and of a head that is gathered
            found["copies in float32"] = self.sharded(params, 4) + 4 * self.words * self.architecture.hidden_size
        return found | self.standing()

    def standing(self) -> dict[str, float]:
        """Returns the bytes of a learner's device that stay taken whatever program runs, by kind: of the state what
        only some programs take, the other minibatches of a step, and versions that wait for engines in its memory,
        three while one is pushed.
        """
        found = {name: sum(self.sharded(*one) for one in trees) for name, trees in self._own.items()}
        for name, architecture in self.teachers.items():
            found[f"teacher {name}"] = self.sharded(abstract_params(architecture), self.width)
        if (others := minibatches_per_step(self.config) - 1) > 0:
            found["other minibatches"] = others * self.batch
        if self.config.sync_method == "memory" and not self._versions_on_host:
            held = self.trained if publishes_adapter(self.config) else abstract_params(self.architecture)
            version = self.sharded(held, BYTES[self.config.resolved_sync_dtype])
            found["published versions"] = 3 * version
        return found

    @property
    def batch(self) -> float:
        """Bytes that a device has of a minibatch."""
        shape, room, _ = self.packed
        rows = shape.slots * shape.rows
        whole = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_batch(shape, room, self.shares))
        )
        taught = len(self.config.algorithm.distill.teachers)  # each has a weight and a score of every token
        marked = self.config.demonstrations_per_batch > 0
        routed = self.config.algorithm.records_routes * route_bytes(self.architecture, stored=False)
        whole += rows * shape.length * (4 * (self._asks("values") + taught) + marked + routed)
        scores = self._asks("proximal") + self._asks("reference") + self._asks("values") + 2 * self._asks("sequences")
        whole += rows * room * 4 * (scores + taught)
        return whole / (self.mesh.row_shards * self.mesh.sequence)

    @property
    def _own(self) -> dict[str, list[tuple[Any, int | None]]]:
        """Trees of `TrainState.aux_state` as large as a model, by name, each with a number's bytes; None: its own."""
        algorithm, trained = self.config.algorithm, self.trained
        found: dict[str, list[tuple[Any, int | None]]] = {}
        if copies_reference(self.config):
            found["reference"] = [(trained, self.width)]
        if self._asks("values"):
            critic = critic_params(trained, self.architecture.hidden_size)
            optimizer = make_optimizer(algorithm.critic.optimizer, 1)
            found["critic"] = [(critic, None), (jax.eval_shape(optimizer.init, critic), None)]
        return found

    def _asks(self, what: str) -> bool:
        """True where the algorithm needs ``reference``, ``proximal``, ``sequences`` or ``values``."""
        algorithm = self.config.algorithm
        needs = policy_losses.needs(algorithm.pg_variant, algorithm.loss)
        needs |= token_advantages.needs(algorithm.adv_estimator, algorithm.advantage)
        return what in needs or (what == "reference" and algorithm.kl.where != "none")

    @property
    def _versions_on_host(self) -> bool:
        """True where ``sync_method=memory`` keeps versions in the host's memory."""
        return self.platform == "cpu" or self.config.launcher == "ray"

    def activations(self) -> float:
        """Returns the bytes of what a microbatch keeps for its backward pass, and the larger of what comes on top: at
        its middle the logits, the head, gathered, and its gradient; at its end a layer's products and the gradients of
        the widest, its weights and the next layer's, gathered, and the microbatch's gradient of all parameters.
        """
        a, width, mesh = self.architecture, 4 if self.widened else self.width, self.mesh
        heads = (2 * a.num_heads + 2 * a.num_kv_heads) * a.head_dim
        stream = (
            a.hidden_size * mesh.sequence / self.config.learner.time_shards
        )  # two of four are gathered for products
        # Of the four streams of a layer products gather two.
        inner = a.mlp_width * mesh.expert
        wide = 2 * stream + 2 * a.hidden_size + sorted_width(a, mesh) + (heads + 5 * inner) / mesh.tensor
        inside, inputs = self.places * wide * width, self.places * stream * width
        products = 3 * inputs + self.places * (heads + 2 * inner) / mesh.tensor * width
        attended = self.places * a.num_heads * a.head_dim / mesh.tensor * width
        kept = {"full": inputs, "dots": products - attended, "none": products}[self.config.model.remat]
        sharded = mesh.fsdp * mesh.expert > 1
        turned = 2 * self.width * (self.adapts and not a.tie_embeddings)  # else its gradient is larger
        of_head = max(turned, self.gradient_width * (not self.adapts) + width * sharded)
        middle = self.logits + self.words * a.hidden_size * of_head
        others = expert_parameters(a) * (1 - 1 / mesh.expert)  # what other devices along `expert` have of the layers
        layers = self.parameters - self.head * (1 if a.tie_embeddings else 2) - others
        gathered = 2 * layers / a.num_layers * width / mesh.tensor * sharded
        gathered += 2 * self.keys_and_values * mesh.sequence * (mesh.sequence > 1)
        return a.num_layers * kept + max(middle, inside + gathered + self.sharded(self.trained, self.gradient_width))

    @property
    def words(self) -> float:
        """Words of the vocabulary that a device has."""
        a, tensor = self.architecture, self.mesh.tensor
        return a.vocab_size / (1 if a.vocab_size % tensor else tensor)

    @property
    def logits(self) -> float:
        """Bytes of the logits, float32, that a device has at once: those of its trained places and its words, or as
        many as ``logprob_chunk`` tokens of the whole vocabulary have.
        """
        trained = self.places * self.packed.room / self.row.length
        return 4 * min(trained * self.words, self.config.model.logprob_chunk * self.architecture.vocab_size)

    @property
    def keys_and_values(self) -> float:
        """Bytes of the keys and values of a layer that a device computes; where more devices than there are key-value
        heads share them, each has copies.
        """
        a, tensor = self.architecture, self.mesh.tensor
        return 2 * self.places * math.lcm(a.num_kv_heads, tensor) / tensor * a.head_dim * self.width

    def engine(self, room: float | None = None, *, base: bool = True, on_host: bool = False) -> dict[str, float]:
        """Returns the bytes that one engine takes of each of its devices, by kind. The embedded one places the next
        version, tensor by tensor, while it serves from this one, and resizes its cache array by array; of an adapter's
        versions it has the frozen weights once. Adapters of versions that are held at once count as weights.

        Args:
            room: bytes of a device that vLLM may fill: what weights leave of them it takes for the cache, unless
                ``kv_cache_gib`` says how much; None: what the requests that it may have at once can fill.
            base: whether it has the frozen weights below its adapters; else it computes with the learner's.
            on_host: whether it computes on a CPU, where vLLM loads a version beside the one in use.
        """
        config, sidecar = self.config, self.config.sidecar
        width, held = BYTES[config.engine_dtype] / sidecar.tensor_parallel_size, versions_held(config)
        weights = float((base * self.parameters + held * self.adapter) * width)
        cache = sidecar.max_concurrency * config.context * self.token
        if ENGINES[sidecar.engine].in_process:
            moved = cache / (2 * self.architecture.num_layers)
            if publishes_adapter(config):
                factors = self.adapter * BYTES[config.engine_dtype]  # of the newest, beside those that are held
                return {"weights": weights + factors, NEXT: factors + moved, "KV": float(cache)}
            largest = self.largest * BYTES[config.resolved_sync_dtype]
            return {"weights": weights, NEXT: weights + largest + moved, "KV": float(cache)}
        if room is not None:
            fixed = sidecar.kv_cache_gib
            cache = max(room - weights, 0.0) if fixed is None else fixed * 2**30
        if on_host:  # vLLM keeps the head packed for products beside the matrix
            weights += self.architecture.vocab_size * self.architecture.hidden_size * width
        beside = on_host and sidecar.double_buffer and not held and self.architecture.experts is None
        return {"weights": weights, "KV": float(cache)} | ({NEXT: weights} if beside else {})

    @property
    def token(self) -> float:
        """Bytes of one token's keys and values on each device of an engine."""
        a, size = self.architecture, self.config.sidecar.tensor_parallel_size
        each = 2 * a.num_layers * a.head_dim * BYTES[self.config.engine_dtype]
        return each * math.ceil(a.num_kv_heads / size)

    def host(self, *stored: Mapping[str, int], devices: int | None = None) -> dict[str, float]:
        """Returns the bytes that a process of the learner has on the host at most, beside what stays there, by what it
        does: models are read tensor by tensor, a version is written from a whole copy beside the next step, or else
        gathered group by group while the one before is written (`bench/host_memory.py` measures both), and Orbax copies
        a checkpoint from accelerators before it writes.

        Args:
            stored: bytes of each tensor in the model's files, by name; then the same of each teacher.
            devices: that the process has, whose shards it writes; None: all.
        """
        config, trained = self.config, self.trained
        optimizer = make_optimizer(config.learner.optimizer, 1)
        whole = (self.adapter if publishes_adapter(config) else self.parameters) * BYTES[config.resolved_sync_dtype]
        groups = min(2 * max(GROUP_BYTES, self.largest * BYTES[config.resolved_sync_dtype]), whole)
        moments = jax.eval_shape(optimizer.init, trained)
        state = [(trained, None), (moments, None), *itertools.chain(*self._own.values())]
        saved = sum(x.size * (width or x.dtype.itemsize) for tree, width in state for x in jax.tree.leaves(tree))
        in_memory = config.sync_method == "memory" and self._versions_on_host
        alone = (devices or self.mesh.size) >= self.mesh.size
        beside = config.sync_overlap and config.sync_method == "checkpoint" and alone
        published = whole if in_memory or beside else 0.0 if config.sync_method == "memory" else float(groups)
        if config.sync_deltas:  # the version before stays, to compare with, and is let go as the next one comes
            published += whole
        found = {"to load the model": max(map(read_at_once, stored)), "to publish a version": published}
        shards = self.mesh.fsdp * self.mesh.expert * self.mesh.tensor
        own = min(1.0, (devices or shards) / shards)
        return found if self.platform == "cpu" else found | {"to save a checkpoint": saved * own}

    def dropped(self) -> Iterator[str]:
        """Yields the sharding rules whose mesh axes do not divide the dimension, so that every device has all of it."""
        a = self.architecture
        places, rules = (self.row.rows, self.row.length), parameter_rules()
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "hidden": (ACTIVATIONS["hidden"], (*places, a.hidden_size)),
            "heads": (ACTIVATIONS["heads"], (*places, a.num_heads, a.head_dim)),
            "key-value heads": (ACTIVATIONS["heads"], (*places, a.num_kv_heads, a.head_dim)),
            "logits": (ACTIVATIONS["logits"], (*places, a.vocab_size)),
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(a)):
            name = str(getattr(path[-1], "key", path[-1]))
            shapes[name] = (rules[name], leaf.shape)
        for name, (rule, shape) in shapes.items():
            for entry, held, size in zip(rule, spec(rule, shape, self.layout), shape, strict=True):
                if entry is not None and held is None:
                    yield f"{name}: {size} is not divided by {entry}"

    def steps(self) -> dict[str, float]:
        """Returns tokens, microbatches and operations of a step whose responses are as long as they may be, and whose
        episodes take all their turns, each longest too where it is a row. The head reads the trained places alone; a
        forward pass, of which the gradient's takes two more, or one more where the weights are frozen, precedes the
        updates for each of reference, proximal policy, critic and teacher, and each update for sums of log-ratios.
        """
        config, epochs = self.config, self.config.algorithm.ppo_epochs
        (sampled, shown), parts = sequences_per_step(config), (sampled_parts(config), demonstration_parts(config))
        tokens, trained = sampled * sum(parts[0]) + shown * sum(parts[1]), sampled * parts[0][1] + shown * parts[1][1]
        microbatches = math.ceil(self.packed.rows / self.row.rows) * minibatches_per_step(config) * epochs
        backbone, head = float(tokens * self._inside), 2.0 * trained * self.head
        passes, again = 2 if self.adapts else 3, config.model.remat == "full"
        update = (passes + again) * backbone + 6.0 * tokens * self.adapter
        asked = {what: self._asks(what) for what in ("reference", "proximal", "sequences", "values")}
        scored = asked["reference"] + asked["proximal"] + epochs * asked["sequences"]
        operations = epochs * (update + passes * head) + scored * (backbone + head)
        operations += asked["values"] * (epochs * update + backbone)
        for architecture in self.teachers.values():
            its = dataclasses.replace(self, architecture=architecture)
            operations += tokens * its._inside + 2.0 * trained * its.head
        return {"tokens": float(tokens * epochs), "microbatches": float(microbatches), "operations": operations}

    @property
    def _inside(self) -> float:
        """Operations of a forward pass for a token of the longest row, up to the head."""
        a = self.architecture
        scores = 4 * a.keys_seen(self.config.longest) * a.num_heads * a.head_dim
        return 2 * (self.used - idle_parameters(a) - self.head) + scores
