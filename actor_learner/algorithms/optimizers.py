"""The optimizers that a hyperparameter can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import keras

Optimizer = Literal["adam", "rmsprop"] | None | Any
"""A name; None, the algorithm's own; or a Keras optimizer, which is cloned."""


def adam(learning_rate: float, max_grad_norm: float | None) -> keras.Optimizer:
    """Return Adam with epsilon 1e-5, clipped by the global norm.

    Keras adds epsilon to the root of the *uncorrected* second moment, torch to the corrected one.
    """
    import keras

    return keras.optimizers.Adam(learning_rate, epsilon=1e-5, global_clipnorm=max_grad_norm)


def rmsprop(learning_rate: float, max_grad_norm: float | None) -> keras.Optimizer:
    """Return torch's RMSprop with alpha .99 and epsilon 1e-5 outside the root, which is Keras's 1e-10 inside it."""
    import keras

    return keras.optimizers.RMSprop(learning_rate, rho=0.99, epsilon=1e-10, global_clipnorm=max_grad_norm)


BY_NAME = {"adam": adam, "rmsprop": rmsprop}
