"""Acting: `policy` runs an exported network without TensorFlow; `export` makes it from a Keras one."""

from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import Policy, load_policy

__all__ = ["ExportedPolicy", "Policy", "load_policy"]
