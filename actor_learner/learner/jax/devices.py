"""The device and the threads that JAX computes on."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax
import keras
import numpy as np
from jax._src import xla_bridge

from actor_learner.config.pool_checks import DEVICES, TF32_CAPABILITY
from actor_learner.system.fields import check_choice
from actor_learner.system.files import one_line
from actor_learner.system.installation import install_command
from actor_learner.system.machine import JAX_THREADS, unused_gpu, warn_of_unused_gpu
from actor_learner.system.memory import tells_of_no_memory

NAME, THREADS = "JAX", JAX_THREADS
_CUDA = NAME, "jax-cuda", 13


def resolve_device(device: str, devices: int | None = None) -> str:
    """Return the name, in TensorFlow's form, of the device that "auto", "cpu" or "gpu" stands for.

    devices: How many share an update; None for one that shares none. Raises ValueError for any other name, for "gpu"
    where JAX sees none, for more devices than it sees, and where `jax.distributed` joins several processes.
    """
    check_choice("device", device, DEVICES)
    has_gpu = device != "cpu" and any(found.platform == "gpu" for found in _devices())
    hidden = bool(jax.config.jax_platforms) and not os.environ.get("JAX_PLATFORMS")  # by `use_only`
    if device == "gpu" and not has_gpu:
        reason = unused_gpu(*_CUDA, hidden=hidden) or install_command("actor-learner[jax-cuda]")
        received = f"JAX on {jax.config.jax_platforms}" if jax.config.jax_platforms else "none"
        raise ValueError(f"`device='gpu'` needs a GPU that JAX sees ({reason}). Received: {received}")
    if device == "auto" and not has_gpu and not os.environ.get("JAX_PLATFORMS"):
        warn_of_unused_gpu(*_CUDA, hidden=hidden)
    if has_gpu:  # Actors compute in full float32; the learner must agree with their log-probabilities.
        jax.config.update("jax_default_matmul_precision", "highest")
    seen = len(_devices("gpu" if has_gpu else "cpu"))
    if (processes := jax.process_count()) > 1:
        raise ValueError(
            "`jax.distributed` must not join processes: a learner runs in one, whose devices share its updates "
            f"(devices=N), and `ray_address` lets other machines act. Received: {processes} processes"
        )
    if devices is not None and devices > seen:
        more = "" if has_gpu else f" (XLA_FLAGS=--xla_force_host_platform_device_count={devices} splits the CPU)"
        raise ValueError(
            f"`devices` must be at most {seen}, the {'GPUs' if has_gpu else 'CPU devices'} that JAX sees{more}. "
            f"Received: devices={devices!r}"
        )
    return "/GPU:0" if has_gpu else "/CPU:0"


def _devices(kind: str | None = None) -> list[jax.Device]:
    """Return JAX's devices. Raises ValueError where `JAX_PLATFORMS` names none that is there."""
    _let_memory_grow()
    try:
        found: list[jax.Device] = jax.devices(kind)
    except (RuntimeError, AssertionError) as error:  # without a GPU, "cuda" alone is an assertion without a word
        reason = f" ({one_line(error)})" if str(error) else ""
        raise ValueError(
            f"JAX finds no device{reason}: unset JAX_PLATFORMS, or set it to what this machine has, such as cpu. "
            f"Received: JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        ) from error
    return found


def prepare_devices(device: str) -> Any:
    """Set what JAX must be told of GPUs before it starts. Returns a context in which to make weights.

    `place` moves them later: a look at the devices would start JAX, and with it as many threads as there are cores.
    """
    _let_memory_grow()
    return contextlib.nullcontext()


def _let_memory_grow() -> None:
    """Let JAX take memory of GPUs as it needs it, not three quarters at once, unless the environment says otherwise."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def use_only(device: str) -> None:
    """Let JAX start on the CPU alone where the device is "cpu", unless it has started or was told its platforms."""
    if device == "cpu" and not jax.config.jax_platforms and not xla_bridge.backends_are_initialized():
        jax.config.update("jax_platforms", "cpu")


def gpu_names() -> list[str]:
    """Return the names of the GPUs that JAX sees."""
    return [device.device_kind for device in _devices() if device.platform == "gpu"]


def has_tf32(device: str) -> bool:
    """Return whether "auto", "cpu" or "gpu" stands for a GPU that multiplies in TF32."""
    if "GPU" not in resolve_device(device):
        return False
    major = str(getattr(_devices("gpu")[0], "compute_capability", "")).partition(".")[0]  # of AMD's it is a name
    return major.isdecimal() and int(major) >= TF32_CAPABILITY


def is_out_of_memory(error: Exception) -> bool:
    """Return whether JAX raised this error because a device had too little memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and tells_of_no_memory(str(error))


def place(network: keras.Model, device: str) -> None:
    """Move a built network's variables to the learner's device. device: A resolved name."""
    with jax.default_device(there := _local_device(device)):
        for variable in network.variables:
            if variable.value.devices() != {there}:
                variable.assign(np.asarray(variable.value))


def _local_device(name: str) -> jax.Device:
    """Return the device that a resolved name stands for."""
    kind, _, index = name[1:].lower().partition(":")
    found: jax.Device = jax.devices(kind)[int(index)]
    return found


def set_threads(count: int) -> None:
    """Let JAX compute on `count` cores of the CPU. Raises RuntimeError where it has started."""
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has started")
    os.environ[THREADS] = str(count)


def threads() -> int:
    """Return the configured number of threads; 0: one for each core."""
    return int(os.environ.get(THREADS) or 0)


def use_xla(network: keras.Model, device: str, minibatch_flops: float) -> bool:
    """Return True: XLA compiles all of JAX."""
    return True


def fuse(optimizer: keras.Optimizer) -> None:
    """Do nothing: XLA fuses an optimizer's step."""
