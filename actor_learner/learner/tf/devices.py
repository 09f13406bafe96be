"""The device and the threads that TensorFlow computes on, and the rule by which the update is compiled."""

from __future__ import annotations

import contextlib
import math
import os
import warnings

import keras
import tensorflow as tf

from actor_learner.networks.contract import all_layers
from actor_learner.system.fields import check_choice
from actor_learner.system.machine import THREADS, available_cores

XLA_MAXIMUM_FLOPS = 6e7
"""On a CPU, a minibatch that costs more runs without XLA: arithmetic dominates, where oneDNN is ahead."""


def resolve_device(device: str) -> str:
    """Return TensorFlow's name of the device that "auto", "cpu" or "gpu" stands for.

    Raises ValueError for any other name, and for "gpu" where TensorFlow sees none.
    """
    check_choice("device", device, ("auto", "cpu", "gpu"))
    gpus = tf.config.list_physical_devices("GPU") if device != "cpu" else []
    if device == "gpu" and not gpus:
        raise ValueError(
            "`device='gpu'` needs a GPU that TensorFlow sees (pip install 'actor-learner[cuda]'). Received: none"
        )
    for gpu in gpus:
        with contextlib.suppress(RuntimeError):  # TensorFlow has started already, with the caller's own settings.
            tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:  # Actors compute in full float32; the learner must agree with their log-probabilities.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return "/GPU:0" if gpus else "/CPU:0"


def check_placement(network: keras.Model, device: str) -> None:
    """Raise ValueError for a network on a GPU whose learner is to compute on the CPU. device: A resolved name."""
    if "CPU" in device and any("GPU" in weight.value.device for weight in network.weights):
        raise ValueError(
            "`device='cpu'` needs a network on the CPU; build it under `tf.device('CPU')`. Received: weights on a GPU"
        )


def use_threads(count: int | None) -> None:
    """Let TensorFlow compute on `count` cores; None changes nothing.

    Warns where TensorFlow has started with another count.
    """
    if count is None:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(count)
    except RuntimeError:
        if (threads := _threads()) != count:
            warnings.warn(
                f"TensorFlow has started already, with {threads or 'all'} threads, which can't be changed any more. "
                f"Received: learner_threads={count}",
                UserWarning,
                stacklevel=2,
            )


def _threads() -> int:
    """Return the configured number of threads; 0: one for each core."""
    return int(tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get(THREADS) or 0)


def warn_of_threads(free_cores: int) -> None:
    """Warn if TensorFlow would compute on more cores than the actors leave free."""
    threads = _threads()
    if (threads or available_cores()) > free_cores:
        warnings.warn(
            "TensorFlow's threads and the actors want the same cores, which slows both; before TensorFlow is "
            f"imported, set {THREADS}={free_cores}. Received: {threads or 'all'} threads, {available_cores()} cores",
            UserWarning,
            stacklevel=2,
        )


def use_xla(network: keras.Model, device: str, minibatch_flops: float) -> bool:
    """Return whether XLA compiles the update: on GPUs always; on CPUs where dispatch outweighs arithmetic.

    XLA's CPU convolution gradients are many times slower than TensorFlow's, and for large minibatches oneDNN's
    products are faster. The choice is a rule rather than a timing: the two differ in the last bits, and a run must
    repeat.
    """
    if "GPU" in device:
        return True
    convolves = any("Conv" in type(layer).__name__ for layer in all_layers(network))
    return not convolves and is_small(minibatch_flops)


def is_small(minibatch_flops: float) -> bool:
    """Return whether dispatch outweighs arithmetic in a minibatch of dense layers: then one core is enough, too."""
    return minibatch_flops <= XLA_MAXIMUM_FLOPS


def multiplications(network: keras.Model) -> int:
    """Return the multiplications of one row's forward pass, taken as the number of matrix elements."""
    return sum(math.prod(weight.shape) for weight in network.weights if len(weight.shape) >= 2)
