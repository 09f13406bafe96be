"""The actor-learner for Keras 3.

Actor processes step Gymnasium vector environments and write trajectories into shared memory; one learner turns each
batch into an update of a Keras model and publishes new weights. Read `actor_learner/train.py` first.

Names are imported on first use, so that `import actor_learner` costs nothing and actors never load TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from actor_learner.system import __version__ as __version__

_PUBLIC = {
    "actors.group": "ActorError",
    "actors.pool": "ActorPool",
    "arena": "Standings arena",
    "config.config": "TrainConfig",
    "config.file": "load_config",
    "config.presets": "preset",
    "config.policies": "PolicyConfig",
    "config.self_play": "SelfPlay",
    "evaluate": "Evaluation evaluate",
    "export": "export",
    "learner.learner": "Learner",
    "networks.default": "default_critic default_network",
    "networks.attention": "AttentionMemory",
    "networks.layers": "ActionDistribution BatchRenormalization LogStd ObservationNormalization",
    "networks.memory": "Memory Recurrent",
    "networks.saving": "load_network",
    "policy.policy": "Policy load_policy",
    "replay.buffer": "Minibatches ReplayBuffer",
    "replay.hindsight": "Hindsight",
    "seeds": "SeedResults train_seeds",
    "spaces.jax_env": "JaxEnv Step",
    "spaces.structure": "parameter_size",
    "spaces.trajectory": "Trajectory load_trajectory",
    "sweep": "SweepResults sweep",
    "train": "Result train",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
_WITH_KERAS = ("learner.learner", "networks.layers", "networks.memory", "networks.attention", "networks.default")
_MODULES = {"algorithms": "algorithms", "callbacks": "callbacks", "jax_envs": "environments.jax.adapters"}

if TYPE_CHECKING:
    from actor_learner import algorithms as algorithms, callbacks as callbacks
    from actor_learner.actors.group import ActorError as ActorError
    from actor_learner.actors.pool import ActorPool as ActorPool
    from actor_learner.algorithms import *  # noqa: F403
    from actor_learner.arena import Standings as Standings, arena as arena
    from actor_learner.config.config import TrainConfig as TrainConfig
    from actor_learner.config.file import load_config as load_config
    from actor_learner.config.policies import PolicyConfig as PolicyConfig
    from actor_learner.config.presets import preset as preset
    from actor_learner.config.self_play import SelfPlay as SelfPlay
    from actor_learner.environments.jax import adapters as jax_envs  # noqa: F401
    from actor_learner.evaluate import Evaluation as Evaluation, evaluate as evaluate
    from actor_learner.export import export as export
    from actor_learner.learner.learner import Learner as Learner
    from actor_learner.networks.attention import AttentionMemory as AttentionMemory
    from actor_learner.networks.default import default_critic as default_critic, default_network as default_network
    from actor_learner.networks.layers import (
        ActionDistribution as ActionDistribution,
        BatchRenormalization as BatchRenormalization,
        LogStd as LogStd,
        ObservationNormalization as ObservationNormalization,
    )
    from actor_learner.networks.memory import Memory as Memory, Recurrent as Recurrent
    from actor_learner.networks.saving import load_network as load_network
    from actor_learner.policy.policy import Policy as Policy, load_policy as load_policy
    from actor_learner.replay.buffer import Minibatches as Minibatches, ReplayBuffer as ReplayBuffer
    from actor_learner.replay.hindsight import Hindsight as Hindsight
    from actor_learner.seeds import SeedResults as SeedResults, train_seeds as train_seeds
    from actor_learner.spaces.jax_env import JaxEnv as JaxEnv, Step as Step
    from actor_learner.spaces.structure import parameter_size as parameter_size
    from actor_learner.spaces.trajectory import Trajectory as Trajectory, load_trajectory as load_trajectory
    from actor_learner.sweep import SweepResults as SweepResults, sweep as sweep
    from actor_learner.train import Result as Result, train as train


class _Package(types.ModuleType):
    """Keeps `al.train` a function: importing the module of the same name would replace it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles it by its name, as modules are: functions of a script that are sent elsewhere may name it."""
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if _HOME.get(name) in _WITH_KERAS:
        importlib.import_module(f"{__name__}.system.keras_import").import_keras()
    home = importlib.import_module(f"{__name__}.{_HOME.get(name, 'algorithms')}")
    if name == "__all__":
        value: Any = [*_HOME, *_MODULES, *home.NAMES, "__version__"]
    elif name in _HOME or name in home.NAMES:
        value = getattr(home, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
