"""Callbacks: Keras's own work as they are; `Callback` adds the run's actors, learner and config."""

from actor_learner.callbacks.base import Callback
from actor_learner.callbacks.evaluate import Evaluate
from actor_learner.callbacks.memory_limit import MemoryLimit
from actor_learner.callbacks.stop_on_return import StopOnReturn
from actor_learner.callbacks.wandb import WandB

__all__ = ["Callback", "Evaluate", "MemoryLimit", "StopOnReturn", "WandB"]
