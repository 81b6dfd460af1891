"""States of a learner as checkpoints hold them, of no learner."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.learner.state import TrainState


def make_state(seed: int, size: int = 64) -> TrainState:
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "embedding": jax.random.normal(keys[0], (size, size)),
        "layers": {"up": jax.random.normal(keys[1], (2, size))},
    }
    return TrainState(params, ({"mu": jax.random.normal(keys[2], (size,))}, jnp.int32(seed)), step=seed)


def abstract(state: TrainState) -> TrainState:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else 0, state
    )


def assert_same(got: TrainState, expected: TrainState) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(e))
        assert np.asarray(g).dtype == np.asarray(e).dtype
