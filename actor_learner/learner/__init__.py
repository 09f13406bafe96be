"""From a trajectory batch to an update of a Keras network.

The only package that depends on Keras's backend (gradients, compilation, devices).
"""

from actor_learner.learner.devices import resolve_device, use_threads, use_xla, warn_of_threads
from actor_learner.learner.learner import Learner

__all__ = ["Learner", "resolve_device", "use_threads", "use_xla", "warn_of_threads"]
