"""Adam's step as one TensorFlow kernel, for updates that XLA doesn't compile."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from actor_learner.system.types import Tensor


def fuse(optimizer: keras.Optimizer) -> None:
    """Let `keras.optimizers.Adam` read and write weights and moments once a step; leave other optimizers as they are.

    Keras's own step is a dozen operations over all weights: a twentieth of a Nature CNN's whole update. The kernel
    computes the same (Kingma and Ba, arXiv:1412.6980, the order of computation at the end of section 2).
    """
    if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
        optimizer.update_step = functools.partial(_step, optimizer)


def _step(optimizer: keras.optimizers.Adam, gradient: Tensor, variable: tf.Variable, learning_rate: Tensor) -> None:
    """Replace `keras.optimizers.Adam.update_step`."""
    index = optimizer._get_variable_index(variable)
    dtype = tf.as_dtype(variable.dtype)
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)  # no variable where gradients accumulate
    betas = [tf.cast(beta, dtype) for beta in (optimizer.beta_1, optimizer.beta_2)]
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=tf.pow(betas[0], step),
        beta2_power=tf.pow(betas[1], step),
        lr=tf.cast(learning_rate, dtype),
        beta1=betas[0],
        beta2=betas[1],
        epsilon=tf.cast(optimizer.epsilon, dtype),
        grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
    )
