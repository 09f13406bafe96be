"""ALE's environments, and games that go on when a life is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorWrapper

from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.errors import EnvError
from actor_learner.system.types import Array

LIFE_LOST = "life_lost"  # key of `infos`: bool `[b]`, True where `terminated` marks a lost life in a game that goes on
_LIFE_OPTIONS = ("episodic_life", "life_loss_info")
# By default ALE clips rewards, which the learner does, and starts a thread per core, while an actor has one core.
_DEFAULTS = {"reward_clipping": False, "num_threads": 1}


class _LifeLoss:
    """Makes a lost life terminal for learning, while the game goes on and statistics are of whole games.

    As in the Atari papers since DQN, rows of lost lives are `terminated`. `infos["life_lost"]` marks them, and no reset
    follows them. The environment must give its `lives` in every info.
    """

    env: Any
    _lives: Any
    _ended: Any

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, infos = self.env.reset(seed=seed, options=options)
        self._lives, self._ended = _lives(infos), np.False_
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        lives, ended = _lives(infos), np.logical_or(terminated, truncated)
        # Some games show no lives for a few frames before their own end. A row after an end starts a game, maybe with
        # fewer lives than the game before it had left.
        lost = (lives < self._lives) & (lives > 0) & ~ended & ~self._ended
        self._lives, self._ended = lives, ended
        if lost.any():
            terminated, infos = terminated | lost, {**infos, LIFE_LOST: lost}
        return observation, reward, terminated, truncated, infos


class LifeLoss(_LifeLoss, VectorWrapper):
    """Makes lost lives terminal in a vector environment."""


class SingleLifeLoss(_LifeLoss, gym.Wrapper):
    """Makes lost lives terminal in one environment."""


def _lives(infos: Mapping[str, Any]) -> Array:
    if "lives" not in infos:
        raise EnvError(f"`episodic_life=True` needs `lives` in every info. Received: {list(infos)}")
    return np.array(infos["lives"])


def make_atari(spec: EnvSpec, num_envs: int, env_kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """Return ALE's vector environment of a game, with raw rewards.

    `episodic_life=True` and `life_loss_info=True` both mean `LifeLoss`: ALE's own `episodic_life` starts a new game
    at each lost life and so never shows the later part of a game, and its `life_loss_info` doesn't show whether a reset
    follows.
    """
    kwargs, ends_at_lost_life = split_life_options({**_DEFAULTS, **env_kwargs})
    env: AnyVectorEnv = gym.make_vec(spec, num_envs, "vector_entry_point", **kwargs)
    return LifeLoss(env) if ends_at_lost_life else env


def make_single_atari(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Return ALE's environment of a game, which takes `episodic_life` and `life_loss_info` as `make_atari` does."""
    kwargs, ends_at_lost_life = split_life_options(env_kwargs)
    env = gym.make(spec, **kwargs)
    return SingleLifeLoss(env) if ends_at_lost_life else env


def split_life_options(env_kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the other options, and whether an option makes a lost life terminal for learning."""
    others = {name: value for name, value in env_kwargs.items() if name not in _LIFE_OPTIONS}
    return others, any(env_kwargs.get(option) for option in _LIFE_OPTIONS)
