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
    from actor_learner.learner.tf.compiled import *  # noqa: F403
    from actor_learner.learner.tf.devices import *  # noqa: F403
    from actor_learner.learner.tf.devices import NAME, THREADS, set_threads, threads
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
