"""What a program that JAX compiles says of its products."""

from __future__ import annotations

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax")

from actor_learner.learner.jax import compiled  # noqa: E402
from actor_learner.learner.jax.compiled import Compiled  # noqa: E402


@pytest.mark.parametrize("tf32", [False, True])
def test_products_are_full_float32_unless_tf32_is_asked_for(tf32):
    """XLA computes products of "HIGH" precision in TF32 on a GPU, and those of "HIGHEST" in float32."""

    def loss(images, kernel, matrix):
        filtered = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (filtered.reshape(2, -1) @ matrix).sum()

    arrays = [np.ones(shape, np.float32) for shape in ((2, 4, 4, 3), (3, 3, 3, 2), (32, 5))]
    with jax.default_matmul_precision("highest"):  # as a learner on a GPU sets it for the whole process
        text = Compiled(jax.grad(loss, (0, 1, 2)), (), with_xla=True, tf32=tf32).trace(*arrays).as_text()
    found = re.findall(r"stablehlo\.(dot_general|convolution)[^\n]*?\b(HIGH|HIGHEST|DEFAULT)\b", text)
    assert {operation for operation, _ in found} == {"dot_general", "convolution"}
    assert {precision for _, precision in found} == {"HIGH" if tf32 else "HIGHEST"}


def test_a_loss_of_frozen_weights_has_no_gradients():
    assert compiled.gradients(lambda: (jax.numpy.ones(()), {"loss": 1.0}), [], []) == ([], {"loss": 1.0})


def test_triton_multiplies_no_matrices_on_a_gpu_unless_asked_to(monkeypatch):
    """XLA's search for its kernels may not end."""
    monkeypatch.setattr(compiled, "_on_cpu", lambda: False)
    options = compiled._compiler_options()
    assert options == {"xla_gpu_enable_triton_gemm": False}
    assert jax.jit(lambda x: x + 1).lower(1.0).compile(options)(1.0) == 2.0  # XLA knows the name
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert compiled._compiler_options() == {}
