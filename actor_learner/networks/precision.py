"""The precision that layers compute in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from actor_learner.networks.contract import all_layers


@contextlib.contextmanager
def building_in(precision: str | None) -> Iterator[None]:
    """Lets layers that are made meanwhile compute in a precision, over weights in float32; None changes nothing."""
    before = keras.config.dtype_policy()
    if precision is not None:
        keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def computing_in_float32(network: keras.Model) -> Iterator[None]:
    """Make all layers compute in float32 while they are traced; weights keep their dtype."""
    found = (layer for layer in (network, *all_layers(network)) if layer.compute_dtype != "float32")
    changed = [(layer, layer._dtype_policy) for layer in found]
    try:
        for layer, _ in changed:
            policy = keras.DTypePolicy("float32")
            # Without it, layers with weights of another dtype wouldn't cast them before use.
            policy._variable_dtype = layer.variable_dtype
            layer._dtype_policy = policy
        yield
    finally:
        for layer, policy in changed:
            layer._dtype_policy = policy
