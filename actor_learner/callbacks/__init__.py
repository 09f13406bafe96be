"""Callbacks: Keras's own work as they are; `Callback` adds the run's actors, learner and config."""

from actor_learner.callbacks.base import Callback, StopOnReturn, WandB
from actor_learner.callbacks.evaluate import Evaluate
from actor_learner.callbacks.memory_limit import MemoryLimit

__all__ = ["Callback", "Evaluate", "MemoryLimit", "StopOnReturn", "WandB"]
