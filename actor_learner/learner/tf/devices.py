"""The device and the threads that TensorFlow computes on, and the rule by which the update is compiled."""

from __future__ import annotations

import contextlib
import os

import keras
import tensorflow as tf

from actor_learner.config.pool_checks import DEVICES
from actor_learner.learner.cost import is_small
from actor_learner.networks.contract import all_layers
from actor_learner.networks.memory import Memories
from actor_learner.system.fields import check_choice
from actor_learner.system.installation import install_command
from actor_learner.system.machine import TENSORFLOW_THREADS

NAME, THREADS = "TensorFlow", TENSORFLOW_THREADS


def resolve_device(device: str, devices: int | None = None) -> str:
    """Return TensorFlow's name of the device that "auto", "cpu" or "gpu" stands for.

    Raises ValueError for any other name, for "gpu" where TensorFlow sees none, and for several devices.
    """
    check_choice("device", device, DEVICES)
    if devices not in (None, 1):
        raise ValueError(
            f"`devices` must be 1: only JAX shares an update (--backend jax). Received: devices={devices!r}"
        )
    gpus = tf.config.list_physical_devices("GPU") if device != "cpu" else []
    if device == "gpu" and not gpus:
        install = install_command("actor-learner[cuda]")
        raise ValueError(f"`device='gpu'` needs a GPU that TensorFlow sees ({install}). Received: none")
    for gpu in gpus:
        with contextlib.suppress(RuntimeError):  # TensorFlow has started already, with the caller's own settings.
            tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:  # Actors compute in full float32; the learner must agree with their log-probabilities.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return "/GPU:0" if gpus else "/CPU:0"


def prepare_devices() -> None:
    """Set what TensorFlow must be told of GPUs before it makes a weight."""
    resolve_device("auto")


def gpu_names() -> list[str]:
    """Return the names of the GPUs that TensorFlow sees."""
    details = tf.config.experimental.get_device_details
    return [details(gpu).get("device_name", gpu.name) for gpu in tf.config.list_physical_devices("GPU")]


def is_out_of_memory(error: Exception) -> bool:
    """Return whether TensorFlow raised this error because a device had too little memory."""
    return isinstance(error, tf.errors.ResourceExhaustedError)


def check_placement(network: keras.Model, device: str) -> None:
    """Raise ValueError for a network on a GPU whose learner is to compute on the CPU. device: A resolved name."""
    if "CPU" in device and any("GPU" in weight.value.device for weight in network.weights):
        raise ValueError(
            "`device='cpu'` needs a network on the CPU; build it under `tf.device('CPU')`. Received: weights on a GPU"
        )


def set_threads(count: int) -> None:
    """Let TensorFlow compute on `count` cores. Raises RuntimeError where it has started."""
    tf.config.threading.set_intra_op_parallelism_threads(count)


def threads() -> int:
    """Return the configured number of threads; 0: one for each core."""
    return int(tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get(THREADS) or 0)


def use_xla(network: keras.Model, device: str, minibatch_flops: float) -> bool:
    """Return whether XLA compiles the update: on GPUs always; on CPUs where dispatch outweighs arithmetic.

    XLA's CPU convolution gradients are many times slower than TensorFlow's, and for large minibatches oneDNN's
    products are faster; but memory takes many small ones, one after another. The choice is a rule rather than a
    timing: the two differ in the last bits, and a run must repeat.
    """
    if "GPU" in device:
        return True
    convolves = any("Conv" in type(layer).__name__ for layer in all_layers(network))
    return not convolves and (is_small(minibatch_flops) or bool(Memories(network)))
