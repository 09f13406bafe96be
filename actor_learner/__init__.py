"""The actor-learner for Keras 3.

Actor processes step Gymnasium vector environments and write trajectories into shared memory; one learner turns each
batch into an update of any Keras model and publishes new weights. Read `actor_learner/train.py` first.

Names are imported on first use, so that `import actor_learner` costs nothing and actors never load TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actor_learner import algorithms, callbacks
    from actor_learner.actors.pool import ActorPool
    from actor_learner.actors.processes.restarts import ActorError
    from actor_learner.algorithms.a2c import A2C
    from actor_learner.algorithms.impala import Impala
    from actor_learner.algorithms.ppo import PPO
    from actor_learner.config.config import TrainConfig
    from actor_learner.config.file import load_config
    from actor_learner.config.presets import preset
    from actor_learner.evaluate import Evaluation, evaluate
    from actor_learner.export import export
    from actor_learner.learner.learner import Learner
    from actor_learner.networks.default import default_network
    from actor_learner.networks.layers import ActionDistribution, LogStd, ObservationNormalization
    from actor_learner.networks.saving import load_network
    from actor_learner.policy.policy import Policy, load_policy
    from actor_learner.spaces.structure import parameter_size
    from actor_learner.spaces.trajectory import Trajectory, load_trajectory
    from actor_learner.train import Result, train

from actor_learner.system.version import __version__

# public name -> the module of this package that holds it
_HOME = {
    "A2C": "algorithms",
    "ActionDistribution": "networks.layers",
    "ActorError": "actors.processes.restarts",
    "ActorPool": "actors.pool",
    "Evaluation": "evaluate",
    "Impala": "algorithms",
    "Learner": "learner.learner",
    "LogStd": "networks.layers",
    "ObservationNormalization": "networks.layers",
    "PPO": "algorithms",
    "Policy": "policy.policy",
    "Result": "train",
    "TrainConfig": "config.config",
    "Trajectory": "spaces.trajectory",
    "default_network": "networks.default",
    "evaluate": "evaluate",
    "export": "export",
    "load_config": "config.file",
    "load_network": "networks.saving",
    "load_policy": "policy.policy",
    "load_trajectory": "spaces.trajectory",
    "parameter_size": "spaces.structure",
    "preset": "config.presets",
    "train": "train",
}
_WITH_KERAS = ("learner.learner", "networks.layers", "networks.default")
_MODULES = ("algorithms", "callbacks")

__all__ = [
    "A2C",
    "PPO",
    "ActionDistribution",
    "ActorError",
    "ActorPool",
    "Evaluation",
    "Impala",
    "Learner",
    "LogStd",
    "ObservationNormalization",
    "Policy",
    "Result",
    "TrainConfig",
    "Trajectory",
    "__version__",
    "algorithms",
    "callbacks",
    "default_network",
    "evaluate",
    "export",
    "load_config",
    "load_network",
    "load_policy",
    "load_trajectory",
    "parameter_size",
    "preset",
    "train",
]


class _Package(types.ModuleType):
    """Where a function is named like the module that it lives in, the package's attribute is the function.

    The import system binds each submodule that it loads to the package; without this, `al.train` would be a function
    or a module, depending on what was imported first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOME[name] in _WITH_KERAS:
        importlib.import_module(f"{__name__}.system.keras_import").import_keras()
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
