"""Estimates what a run takes, by arithmetic on shapes and sharding rules: memory of a device, traffic, operations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from rljax.algorithms.registry import policy_losses, token_advantages
from rljax.config.schema import Config, MeshConfig
from rljax.learner.packing import RowShape, packed_shape, row_shapes
from rljax.learner.sharding import AXES, parameter_rules, parameter_shardings
from rljax.learner.state import make_optimizer
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import ACTIVATIONS, spec
from rljax.models.common.transformer import abstract_params
from rljax.models.common.value_head import critic_params

BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Estimate:
    """The arithmetic for one mesh.

    Attributes:
        config, architecture: of the run.
        mesh: of the learner.
    """

    config: Config
    architecture: Architecture
    mesh: MeshConfig

    @property
    def layout(self) -> Any:
        """The mesh without devices."""
        return AbstractMesh(tuple(getattr(self.mesh, axis) for axis in AXES), AXES)

    @property
    def width(self) -> int:
        """Bytes of a number that is computed."""
        return BYTES[self.config.model.dtype]

    @property
    def gradient_width(self) -> int:
        """Bytes of a number of a microbatch's gradient, which devices add up."""
        return 4 if self.config.learner.reduce_dtype == "fp32" else self.width

    @property
    def row(self) -> RowShape:
        """The shape that responses as long as they may be are packed into."""
        config, learner = self.config, self.config.learner
        size = config.algorithm.minibatch_size or config.rollout_batch_size
        shapes = row_shapes(config.row_tokens, learner.rows_per_microbatch, size, learner.time_shards)
        prompt, response = config.longest_parts
        return packed_shape(prompt, np.full(size, response), shapes)[0]

    @property
    def parameters(self) -> int:
        """Number of the policy's parameters."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(self.architecture)))

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
        algorithm, params = self.config.algorithm, abstract_params(self.architecture)
        moments = jax.eval_shape(make_optimizer(self.config.learner.optimizer, 1).init, params)
        found = {
            "masters": self.sharded(params),
            "moments": self.sharded(moments),
            "gradients": self.sharded(params) + self.sharded(params, self.gradient_width),
            "copies": self.sharded(params, self.width) if self.gradient_width < 4 else 0.0,
            "activations": self.activations(),
        }
        needs = policy_losses.needs(algorithm.pg_variant, algorithm.loss)
        if algorithm.kl.where != "none" or "reference" in needs:
            found["reference"] = self.sharded(params, self.width)
        if "values" in token_advantages.needs(algorithm.adv_estimator, algorithm.advantage):
            critic = jax.eval_shape(critic_params, params)
            optimizer = make_optimizer(algorithm.critic.optimizer, 1)
            found["critic"] = self.sharded(critic) + self.sharded(jax.eval_shape(optimizer.init, critic))
        return found

    def activations(self) -> float:
        """Returns the bytes of what a microbatch keeps for its backward pass, of the layer that is computed with its
        weights gathered, and of the logits that exist at once.
        """
        a, width = self.architecture, self.width
        places = self.row.rows * self.row.length / (self.mesh.data * self.mesh.fsdp * self.mesh.sequence)
        heads = (2 * a.num_heads + 2 * a.num_kv_heads) * a.head_dim
        stream = a.hidden_size * self.mesh.sequence / self.config.learner.time_shards
        inside = places * (4 * stream + (heads + 3 * a.intermediate_size) / self.mesh.tensor) * width
        kept = {"full": places * stream * width, "dots": 0.75 * inside, "none": inside}[self.config.model.remat]
        chunk = min(self.config.model.logprob_chunk, self.row.rows * self.row.length)
        logits = 3 * 4 * chunk * a.vocab_size / self.mesh.size
        gathered = (self.parameters - a.vocab_size * a.hidden_size) / a.num_layers * width / self.mesh.tensor
        head = a.vocab_size * a.hidden_size * width / self.mesh.tensor
        inside += places * 2 * (a.hidden_size - stream) * width  # inputs of products, gathered
        return a.num_layers * kept + inside + logits + gathered * (self.mesh.fsdp > 1) + head

    def engine(self) -> dict[str, float]:
        """Returns the bytes of one embedded engine, by kind; none for other engines."""
        a, sidecar, width = self.architecture, self.config.sidecar, BYTES[self.config.engine_dtype]
        if sidecar.engine != "embedded":
            return {}
        token = 2 * a.num_layers * a.num_kv_heads * a.head_dim * width
        return {
            "weights": float(self.parameters * width),
            "KV": float(sidecar.max_concurrency * self.config.context * token),
        }

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
        """Returns tokens, microbatches and operations of a step whose responses are as long as they may be."""
        config, a = self.config, self.architecture
        tokens = config.rollout_batch_size * config.longest * config.algorithm.ppo_epochs
        microbatches = math.ceil(tokens / (self.row.rows * self.row.length))
        passes = 8 if config.model.remat == "full" else 6
        attention = passes * a.num_layers * config.longest * a.num_heads * a.head_dim
        return {
            "tokens": float(tokens),
            "microbatches": float(microbatches),
            "operations": float(tokens) * (passes * self.parameters + attention),
        }

    def traffic(self) -> dict[str, float]:
        """Returns the bytes that a device receives in a microbatch, by collective; none with one device."""
        mesh, a, params = self.mesh, self.architecture, abstract_params(self.architecture)
        places = self.row.rows * self.row.length / (mesh.data * mesh.fsdp * mesh.sequence)
        whole = self.parameters * self.width / mesh.tensor
        passes, wider = 3 if self.config.model.remat == "full" else 2, self.gradient_width / self.width
        reducing = "reduce-scatter and all-gather" if self.config.learner.sequence_parallel else "all-reduce"
        found = {
            "all-gather of weights (fsdp)": passes * whole * (mesh.fsdp - 1) / mesh.fsdp,
            "reduce-scatter of gradients (fsdp)": whole * wider * (mesh.fsdp - 1) / mesh.fsdp,
            "all-reduce of gradients (data)": 2
            * self.sharded(params, self.gradient_width)
            * (mesh.data - 1)
            / mesh.data,
            f"{reducing} of activations (tensor)": 2
            * (passes + 1)
            * a.num_layers
            * places
            * a.hidden_size
            * self.width
            * (mesh.tensor - 1)
            / mesh.tensor,
            "all-gather of keys and values (sequence)": passes
            * a.num_layers
            * 2
            * places
            * (mesh.sequence - 1)
            * a.num_kv_heads
            * a.head_dim
            * self.width,
        }
        return {name: size for name, size in found.items() if size}
