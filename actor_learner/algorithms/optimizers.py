"""The optimizers that a hyperparameter can name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import keras

Optimizer = Literal["adam", "rmsprop"] | None | Any
"""A name; None, the algorithm's own; or a Keras optimizer, which is cloned."""


def adam(
    learning_rate: float, max_grad_norm: float | None, epsilon: float = 1e-5, beta_1: float = 0.9
) -> keras.Optimizer:
    """Return Adam, clipped by the global norm.

    Keras adds epsilon to the root of the *uncorrected* second moment, torch to the corrected one.
    """
    import keras

    clipnorm = _finite(max_grad_norm)
    return keras.optimizers.Adam(learning_rate, beta_1=beta_1, epsilon=epsilon, global_clipnorm=clipnorm)


def rmsprop(learning_rate: float, max_grad_norm: float | None) -> keras.Optimizer:
    """Return torch's RMSprop with alpha 0.99 and epsilon 1e-5 outside the root, which is Keras's 1e-10 inside it."""
    import keras

    return keras.optimizers.RMSprop(learning_rate, rho=0.99, epsilon=1e-10, global_clipnorm=_finite(max_grad_norm))


def clone(optimizer: Any) -> Any:
    """Return a new optimizer with the config of another, and the variables that it excludes from weight decay."""
    made = type(optimizer).from_config(optimizer.get_config())
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):  # which no config holds
        if hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
    return made


def check_excluded(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise ValueError for variables that an optimizer excludes from weight decay, of which it trains none."""
    excluded = getattr(optimizer, "_exclude_from_weight_decay", ())
    if excluded and not any(optimizer._var_key(variable) in excluded for variable in variables):
        expected = (
            "`var_list` of exclude_from_weight_decay must be of the network that learns, not of one built like it"
        )
        raise ValueError(f"{expected}; take var_names=[...]. Received: {len(excluded)} variables of another network")


def build(optimizer: Any, variables: Sequence[Any], *, own: bool = False) -> Any:
    """Build an optimizer for variables, and return it. A policy's `log_std` isn't pulled to 0 by weight decay.

    own: The variables are an algorithm's own numbers, such as a temperature's logarithm, whose 0 means nothing: they
    don't decay, aren't replaced by averages, and Adam takes the place of optimizers whose steps grow with the variable.
    """
    if own and type(optimizer).__name__ in _RELATIVE:
        import keras

        optimizer = keras.optimizers.Adam.from_config({"learning_rate": optimizer.get_config()["learning_rate"]})
    if own:
        optimizer.ema_overwrite_frequency = None
    kept = [optimizer._var_key(variable) for variable in variables if own or variable.name == "log_std"]
    if kept:
        optimizer._exclude_from_weight_decay = {*getattr(optimizer, "_exclude_from_weight_decay", ()), *kept}
    optimizer.build(variables)
    return optimizer


def _finite(max_grad_norm: float | None) -> float | None:
    """Return None for an infinite norm, by which Keras would divide."""
    return None if max_grad_norm == math.inf else max_grad_norm


NAMES = ("adam", "rmsprop")
_RELATIVE = ("Adafactor", "Lamb")
"""Keras's optimizers whose steps are in proportion to the size of a variable."""
