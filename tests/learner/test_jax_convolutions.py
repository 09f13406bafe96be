"""Convolutions and their gradients in the form that XLA computes fastest."""

from __future__ import annotations

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax")
from jax import lax  # noqa: E402

from actor_learner.learner.jax.convolutions import in_canonical_order, with_enough_channels  # noqa: E402

pytestmark = pytest.mark.thorough
NHWC = ("NHWC", "HWIO", "NHWC")


def gradients(images, kernel, options):
    """Gradients by images and kernel, computed in a loop, as a compiled program."""

    def loss(images, kernel):
        return lax.conv_general_dilated(images, kernel, dimension_numbers=NHWC, **options).var()

    def step(carry):
        index, images, kernel = carry
        return index + 1, *jax.grad(loss, (0, 1))(images, kernel)

    program = jax.jit(lambda *carry: lax.while_loop(lambda carry: carry[0] < 1, step, carry))
    return program.lower(0, images, kernel).compile()


@pytest.mark.parametrize(
    "options",
    [
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 3), "padding": "VALID"},
        {"window_strides": (2, 2), "padding": ((1, 2), (0, 3))},
        {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (2, 2)},
        {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2},
    ],
    ids=str,
)
def test_gradients_are_the_same_in_another_order(options):
    rng = np.random.default_rng(0)
    groups = options.get("feature_group_count", 1)
    images = jax.numpy.asarray(rng.normal(size=(3, 11, 13, 4)).astype(np.float32))
    kernel = jax.numpy.asarray(rng.normal(size=(4, 3, 4 // groups, 6)).astype(np.float32))
    usual = gradients(images, kernel, options)(0, images, kernel)
    with in_canonical_order():
        program = gradients(images, kernel, options)
    for expected, actual in zip(usual, program(0, images, kernel), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_xla_gets_no_other_order():
    rng = np.random.default_rng(0)
    images = jax.numpy.asarray(rng.normal(size=(8, 20, 20, 16)).astype(np.float32))
    kernel = jax.numpy.asarray(rng.normal(size=(4, 4, 16, 32)).astype(np.float32))
    options = {"window_strides": (2, 2), "padding": "VALID"}

    def orders(program):
        return set(re.findall(r"dim_labels=([\w>-]+)", program.as_text()))

    assert orders(gradients(images, kernel, options)) != {"b01f_01io->b01f"}
    with in_canonical_order():
        assert orders(gradients(images, kernel, options)) == {"b01f_01io->b01f"}


@pytest.mark.parametrize(
    ("window", "options", "strides"),
    [
        ((8, 8, 3, 5), {"window_strides": (4, 4), "padding": "VALID"}, (1, 1)),
        ((4, 4, 3, 5), {"window_strides": (2, 2), "padding": "SAME"}, (1, 1)),
        ((4, 6, 3, 5), {"window_strides": (2, 3), "padding": ((1, 2), (0, 3))}, (1, 1)),
        ((4, 3, 3, 5), {"window_strides": (2, 2), "padding": "VALID"}, (2, 2)),  # 2 doesn't divide 3
        ((4, 4, 3, 5), {"window_strides": (2, 2), "padding": "VALID", "rhs_dilation": (2, 1)}, (2, 2)),
        ((4, 4, 1, 6), {"window_strides": (2, 2), "padding": "VALID", "feature_group_count": 3}, (2, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [NHWC, ("NCHW", "OIHW", "NCHW")], ids=str)
def test_few_channels_are_convolved_without_strides(window, options, strides, order):
    rng = np.random.default_rng(0)

    def ordered(array, usual, wanted):
        return jax.numpy.asarray(np.transpose(array.astype(np.float32), [usual.index(axis) for axis in wanted]))

    images = ordered(rng.normal(size=(2, 19, 22, 3)), NHWC[0], order[0])
    kernel = ordered(rng.normal(size=window), NHWC[1], order[1])

    def convolve(images, kernel):
        return lax.conv_general_dilated(images, kernel, dimension_numbers=order, **options)

    def results():
        loss = jax.value_and_grad(lambda *both: jax.numpy.sin(convolve(*both)).sum(), (0, 1))
        return [convolve(images, kernel), *jax.tree.leaves(loss(images, kernel))]

    usual = results()
    with with_enough_channels():
        assert f"window_strides={strides}" in str(jax.make_jaxpr(convolve)(images, kernel))
        for expected, actual in zip(usual, results(), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_convolutions_of_eight_channels_keep_their_strides():
    images, kernel = jax.numpy.zeros((1, 8, 8, 8)), jax.numpy.zeros((4, 4, 8, 2))
    with with_enough_channels():
        graph = jax.make_jaxpr(lambda *both: lax.conv_general_dilated(*both, (2, 2), "VALID", dimension_numbers=NHWC))
        assert "window_strides=(2, 2)" in str(graph(images, kernel))
