"""Callbacks: Keras's own work as they are; `Callback` adds the run's actors, learner and config."""

from actor_learner.system.keras_import import import_keras

import_keras()  # quietly, before the modules below do

from actor_learner.callbacks.base import Callback, StopOnReturn, WandB  # noqa: E402
from actor_learner.callbacks.evaluate import Evaluate  # noqa: E402
from actor_learner.callbacks.memory_limit import MemoryLimit  # noqa: E402

__all__ = ["Callback", "Evaluate", "MemoryLimit", "StopOnReturn", "WandB"]
