"""First weights that NumPy computes on JAX: those of Keras's initializers, from JAX's random bits."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from actor_learner.networks.layers import Orthogonal, VarianceScaling

jax = pytest.importorskip("jax", reason="needs jax")

SEED = 2**32 - 5


@pytest.fixture(autouse=True)
def _on_jax(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")


@pytest.fixture(scope="module")
def key():
    """The key that Keras makes of a seed."""
    return np.array([SEED, 0], np.uint32)


def test_orthogonal_kernels_are_those_of_jax(key):
    q, r = jax.numpy.linalg.qr(jax.random.normal(key, (6, 4)))
    tall = 0.5 * np.asarray(q * jax.numpy.sign(jax.numpy.diag(r)))
    for shape, expected in (((6, 4), tall), ((2, 3, 4), tall.reshape(2, 3, 4)), ((4, 6), tall.T)):
        kernel = keras.ops.convert_to_numpy(Orthogonal(0.5, seed=SEED)(shape, "float32"))
        np.testing.assert_allclose(kernel, expected, atol=1e-6)


@pytest.mark.parametrize(("mode", "fan"), [("fan_in", 6), ("fan_out", 8), ("fan_avg", 7)])
def test_uniform_kernels_are_those_of_jax(mode, fan, key):
    limit = (3 * 0.3 / fan) ** 0.5
    expected = jax.random.uniform(key, (2, 3, 4), minval=-limit, maxval=limit)
    kernel = keras.ops.convert_to_numpy(VarianceScaling(0.3, mode, "uniform", seed=SEED)((2, 3, 4), "float32"))
    np.testing.assert_allclose(kernel, expected, atol=1e-6)
