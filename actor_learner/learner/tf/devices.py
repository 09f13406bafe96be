"""The device and the threads that TensorFlow computes on, and the rule by which the update is compiled."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import keras
import tensorflow as tf

from actor_learner.config.pool_checks import DEVICES, TF32_CAPABILITY
from actor_learner.learner.cost import is_small
from actor_learner.networks.contract import convolves
from actor_learner.networks.memory import Memories
from actor_learner.system.fields import check_choice
from actor_learner.system.installation import install_command
from actor_learner.system.machine import TENSORFLOW_THREADS, unused_gpu, warn_of_unused_gpu
from actor_learner.system.memory import tells_of_no_memory

NAME, THREADS = "TensorFlow", TENSORFLOW_THREADS
_CUDA = NAME, "cuda", 12

_logger = logging.getLogger(__name__)


def resolve_device(device: str, devices: int | None = None) -> str:
    """Return TensorFlow's name of the device that "auto", "cpu" or "gpu" stands for.

    Raises ValueError for any other name, for "gpu" where TensorFlow sees none, and for several devices.
    """
    check_choice("device", device, DEVICES)
    if devices not in (None, 1):
        raise ValueError(
            f"`devices` must be 1: only JAX shares an update (--backend jax). Received: devices={devices!r}"
        )
    gpus = tf.config.get_visible_devices("GPU") if device != "cpu" else []
    hidden = not gpus and bool(tf.config.list_physical_devices("GPU"))  # by `use_only`
    if device == "gpu" and not gpus:
        reason = unused_gpu(*_CUDA, hidden=hidden) or install_command("actor-learner[cuda]")
        raise ValueError(f"`device='gpu'` needs a GPU that TensorFlow sees ({reason}). Received: none")
    if device == "auto" and not gpus:
        warn_of_unused_gpu(*_CUDA, hidden=hidden)
    _let_memory_grow()
    if gpus:  # Actors compute in full float32; the learner must agree with their log-probabilities.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return "/GPU:0" if gpus else "/CPU:0"


def prepare_devices(device: str) -> Any:
    """Set what TensorFlow must be told of GPUs before it makes a weight. Returns a context in which to make weights."""
    _let_memory_grow()
    return tf.device(resolve_device(device))


def _let_memory_grow() -> None:
    for gpu in tf.config.get_visible_devices("GPU"):
        with contextlib.suppress(RuntimeError):  # TensorFlow has started already, with the caller's own settings.
            tf.config.experimental.set_memory_growth(gpu, True)


def use_only(device: str) -> None:
    """Hide the GPUs from this process where the device is "cpu", unless TensorFlow has started."""
    if device == "cpu":
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")


def gpu_names() -> list[str]:
    """Return the names of the GPUs that TensorFlow sees."""
    details = tf.config.experimental.get_device_details
    return [details(gpu).get("device_name", gpu.name) for gpu in tf.config.get_visible_devices("GPU")]


def has_tf32(device: str) -> bool:
    """Return whether "auto", "cpu" or "gpu" stands for a GPU that multiplies in TF32."""
    if "GPU" not in resolve_device(device):
        return False
    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
    return bool(details.get("compute_capability", (0,))[0] >= TF32_CAPABILITY)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether TensorFlow raised this error because a device had too little memory."""
    return isinstance(error, tf.errors.ResourceExhaustedError) or (
        isinstance(error, (tf.errors.InternalError, tf.errors.UnknownError)) and tells_of_no_memory(str(error))
    )


def place(network: keras.Model, device: str) -> None:
    """Raise ValueError for a built network that isn't on the learner's device: TensorFlow can't move its variables.

    device: A resolved name.
    """
    found = {weight.value.device for weight in network.weights if weight.dtype == "float32"}
    if elsewhere := sorted(name.rpartition("device:")[2] for name in found if not name.endswith(device[1:])):
        raise ValueError(
            f"The network must be on the learner's device: build it under `tf.device({device!r})`. "
            f"Received: device={device!r}, weights on {elsewhere[0]}"
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
        _logger.info("XLA compiles for the GPU anew in each run: TensorFlow's programs are kept for CPUs alone")
        return True
    return not convolves(network) and (is_small(minibatch_flops) or bool(Memories(network)))
