"""The learner's backend, the one that Keras runs on: the one module that names the folders that implement it.

The learner is `keras.ops` over these functions. A folder beside `tf/` and `jax/` with the same functions is another
backend. `state` lists the variables that a function may assign: TensorFlow finds them itself, but a backend whose
programs are pure functions can't.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras

from actor_learner.system.machine import available_cores

if TYPE_CHECKING or keras.backend.backend() == "tensorflow":
    from actor_learner.learner.tf.compiled import (
        Compiled as Compiled,
        Variables as Variables,
        choose as choose,
        cond as cond,
        device as device,
        device_count as device_count,
        device_dtype as device_dtype,
        eagerly as eagerly,
        flatten as flatten,
        from_bytes as from_bytes,
        fused as fused,
        gather as gather,
        global_norm as global_norm,
        gradients as gradients,
        half_square_sum as half_square_sum,
        map_chunks as map_chunks,
        repeat as repeat,
        scan as scan,
        to_device as to_device,
        to_numpy as to_numpy,
        trace_once as trace_once,
        unflatten as unflatten,
        values_of as values_of,
        vector_reader as vector_reader,
        while_loop as while_loop,
    )
    from actor_learner.learner.tf.devices import (
        NAME as NAME,
        THREADS as THREADS,
        gpu_names as gpu_names,
        has_tf32 as has_tf32,
        is_out_of_memory as is_out_of_memory,
        place as place,
        prepare_devices as prepare_devices,
        resolve_device as resolve_device,
        set_threads as set_threads,
        threads as threads,
        use_only as use_only,
        use_xla as use_xla,
    )
    from actor_learner.learner.tf.fused_adam import fuse as fuse
else:
    from actor_learner.learner.jax.compiled import *  # noqa: F403
    from actor_learner.learner.jax.devices import *  # noqa: F403


def use_threads(count: int | None) -> None:
    """Let the backend compute on `count` cores; None changes nothing.

    Warns where it has started with another count.
    """
    if count is None:
        return
    try:
        set_threads(count)
    except RuntimeError:
        if (found := threads()) != count:
            warnings.warn(
                f"{NAME} has started already, with {found or 'all'} threads, which can't be changed any "
                f"more. Received: learner_threads={count}",
                stacklevel=2,
            )


def warn_of_threads(free_cores: int) -> None:
    """Warn if the backend would compute on more cores than the actors leave free."""
    found = threads()
    if (found or available_cores()) > free_cores:
        warnings.warn(
            f"{NAME}'s threads and the actors want the same cores, which slows both; before {NAME} is "
            f"imported, set {THREADS}={free_cores}. Received: {found or 'all'} threads, {available_cores()} "
            "cores",
            stacklevel=2,
        )
