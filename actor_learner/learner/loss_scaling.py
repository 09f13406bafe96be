"""Loss scaling: in float16 small gradients would be 0, so those of a larger loss are computed (arXiv:1710.03740)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
from keras import ops

from actor_learner.networks.contract import all_layers
from actor_learner.system.files import one_line
from actor_learner.system.types import Tensor

MAX_SCALE = 2.0**127
"""The largest power of two in float32. Keras would double it to infinity, which no halving brings back."""

SKIPPED = "skipped_steps"


def computes_in(network: keras.Model, *dtypes: str) -> bool:
    """Return whether some layer computes in one of these dtypes."""
    return any(layer.compute_dtype in dtypes for layer in (network, *all_layers(network)))


def with_loss_scaling(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Return the optimizer for float16: in a LossScaleOptimizer, as Keras's `compile` does, or itself if it scales.

    Raises ValueError for an optimizer that can't be wrapped.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    try:
        if optimizer.loss_scale_factor is not None:
            return optimizer
        return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    except Exception as error:  # a class of the user's
        raise ValueError(
            "A network that computes in float16 needs a keras.optimizers.LossScaleOptimizer around its optimizer, and "
            f"this one refuses it ({one_line(error)}); take another optimizer, or mixed_bfloat16. "
            f"Received: optimizer={type(optimizer).__name__}"
        ) from error


class LossScaling:
    """The factor on the loss that an optimizer wants: none, its `loss_scale_factor`, or that of a LossScaleOptimizer.

    A LossScaleOptimizer changes its scale: it skips a step whose gradients aren't finite and halves the scale, which it
    doubles after `dynamic_growth_steps` others. A skipped step is no error, unless the loss itself isn't finite, or the
    scale has come down to 1, which can't be the cause.
    """

    def __init__(self, optimizer: keras.Optimizer) -> None:
        self._optimizer = optimizer
        self._changes = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.step_metrics = (SKIPPED,) if self._changes else ()
        """The names of further metrics of a step."""

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return self._optimizer.scale_loss(loss)

    def unscaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the loss itself. The optimizer takes those of the scaled one."""
        scale = self._optimizer.scale_loss(1.0)
        is_one = isinstance(scale, float) and scale == 1.0
        return list(gradients) if is_one else [ops.divide(gradient, scale) for gradient in gradients]

    def without_skipped(self, metrics: dict[str, Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return a step's metrics, with a gradient norm of 0 if the optimizer skips the step because of its scale."""
        if not self._changes:
            return metrics
        because_of_scale = ops.logical_and(ops.isfinite(metrics["loss"]), self._optimizer.dynamic_scale > 1.0)
        skipped = ops.logical_and(because_of_scale, ops.logical_not(self._optimizer.check_finite(gradients)))
        norm = ops.where(skipped, 0.0, metrics["gradient_norm"])
        return {**metrics, "gradient_norm": norm, SKIPPED: ops.cast(skipped, "float32")}

    def bound(self) -> None:
        """Keep the scale finite, after a step."""
        if self._changes:
            scale = self._optimizer.dynamic_scale
            scale.assign(ops.minimum(scale, MAX_SCALE))

    def report(self, means: dict[str, Tensor], steps: Tensor) -> dict[str, Tensor]:
        """Return metrics of an update, where NaN stands for no value; takes its share of the `means` over steps."""
        if not self._changes:
            return {}
        skipped = ops.round(means.pop(SKIPPED) * steps)
        return {SKIPPED: ops.where(skipped > 0.0, skipped, math.nan), "loss_scale": self._optimizer.dynamic_scale.value}
