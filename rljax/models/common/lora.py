"""Low-rank adapters: a trained change of a frozen matrix, as one thing that stands where the matrix stood."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rljax.models.common.params import Params

A, B = "lora_a", "lora_b"
"""Names of the two factors of an adapter in the tree of what is trained."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    """The matrix ``base + scale · a @ b``, which is never made (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

    Attributes:
        base: the frozen matrix; of several layers their stack, or a tuple of one each, which `parted` takes out.
        a: from its rows to the rank.
        b: from the rank to its columns.
        key: of the inputs that `a` is not shown; None: it is shown all.
        scale: of the change.
        dropout: share of the inputs that `a` is not shown, where there is a key.
        parts: adapters that lie side by side in the rank; see `for_rows`.
        chosen: which parts of the rank count for each row of the inputs; None: all.
    """

    base: Float[Array, "*layers rows columns"]
    a: Float[Array, "*layers rows rank"]
    b: Float[Array, "*layers rank columns"]
    key: Any = None
    scale: float = field(default=1.0, metadata={"static": True})
    dropout: float = field(default=0.0, metadata={"static": True})
    parts: int = field(default=1, metadata={"static": True})
    chosen: Bool[Array, "rows 1 rank"] | None = None

    def __getitem__(self, index: Any) -> Adapted:
        """Returns one layer of stacked matrices, or with an ellipsis all that there is, as an array does."""
        return self if index is ... else jax.tree.map(lambda x: x[index], self)

    def astype(self, dtype: DTypeLike) -> Adapted:
        """Returns the same with all three matrices in that dtype."""
        return replace(self, **{name: getattr(self, name).astype(dtype) for name in ("base", "a", "b")})

    def shown(self, x: Float[Array, "... rows"]) -> Float[Array, "... rows"]:
        """Returns what `a` is shown of the inputs (Srivastava et al. 2014): what is left is larger by what is not."""
        if self.key is None:
            return x
        kept = jax.random.bernoulli(self.key, 1 - self.dropout, x.shape)
        return jnp.where(kept, x / (1 - self.dropout), 0).astype(x.dtype)

    def counted(self, narrow: Float[Array, "... rank"]) -> Float[Array, "... rank"]:
        """Returns what `a` makes of the inputs, without what does not count."""
        return narrow if self.chosen is None else jnp.where(self.chosen, narrow, 0)

    def for_rows(self, numbers: Int[Array, " rows"]) -> Adapted:
        """Returns the matrix that has, for each row of inputs, the adapter of that number alone, from 0, of those that
        lie side by side.
        """
        if self.parts == 1:
            return self
        rank = self.a.shape[-1]
        part = jnp.arange(rank) // (rank // self.parts)
        return replace(self, chosen=part == numbers[:, None, None])

    def merged(self) -> Float[Array, "*layers rows columns"]:
        """Makes the matrix after all, float32."""
        change = jnp.matmul(self.a.astype(jnp.float32), self.b.astype(jnp.float32), precision="highest")
        return self.base.astype(jnp.float32) + self.scale * change


def joined(base: Params, trained: Params, scale: float, dropout: float = 0.0, key: Any = None) -> Params:
    """Returns the parameters of a whole model: the base, what is trained beside it, and each adapter on its matrix.

    Args:
        base: frozen parameters of a model.
        trained: `A` and `B` of the adapted matrices under their names in ``layers``, and any others at the top.
        scale: of the adapters.
        dropout: see `Adapted`.
        key: of the dropout; None: there is none.
    """
    layers = dict(base["layers"])
    for number, (name, pair) in enumerate(sorted(trained["layers"].items())):
        keys = None if key is None else jax.random.split(jax.random.fold_in(key, number), len(pair[A]))
        layers[name] = Adapted(layers[name], pair[A], pair[B], keys, scale, dropout)
    return {**base, **trained, "layers": layers}


def parted(layers: Params) -> tuple[Params, dict[str, tuple[jax.Array, ...]]]:
    """Parts the weights of layers into those that are stacked, and those that are a tuple of one array a layer. The
    first have adapters without their base, where that is in the second.
    """
    stacked, apart = dict(layers), dict[str, tuple[jax.Array, ...]]()
    nothing: Any = None
    for key, w in layers.items():
        of_base = w.base if isinstance(w, Adapted) else w
        if isinstance(of_base, tuple):
            apart[key] = of_base
            stacked[key] = replace(w, base=nothing) if isinstance(w, Adapted) else None
    return stacked, apart


def whole_layer(stacked: Params, apart: Mapping[str, tuple[jax.Array, ...]], number: Int[Array, ""]) -> Params:
    """Returns the weights of a layer by its number: its slice of what is stacked, with what is not put where `parted`
    took it away. One layer's are copied at a time. Can be jitted.
    """
    if not apart:
        return stacked
    layers = zip(*apart.values(), strict=True)
    chosen = jax.lax.switch(number, [functools.partial(lambda layer: layer, layer) for layer in layers])
    put = dict(zip(apart, chosen, strict=True))
    return {
        key: replace(w, base=put[key]) if isinstance(w, Adapted) and key in put else put.get(key, w)
        for key, w in stacked.items()
    }


def merged_layer(layers: Params, number: Int[Array, ""]) -> Params:
    """Returns the weights of a layer by its number, with adapters merged into their matrices. Can be jitted."""
    stacked, apart = parted(layers)
    weights = whole_layer(jax.tree.map(lambda x: x[number], stacked), apart, number)
    return {name: w.merged() if isinstance(w, Adapted) else w for name, w in weights.items()}
