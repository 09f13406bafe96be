"""ALE's native vector environment, and games that go on when a life is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorWrapper

from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.errors import EnvError

Array = np.ndarray[Any, Any]

LIFE_LOST = "life_lost"  # key of `infos`: bool `[b]`, True where `terminated` marks a lost life in a game that goes on
LIFE_OPTIONS = ("episodic_life", "life_loss_info")
# By default ALE clips rewards, which the learner does, and starts a thread per core, while an actor has one core.
_DEFAULTS = {"reward_clipping": False, "num_threads": 1}


class LifeLoss(VectorWrapper):
    """Makes a lost life terminal for learning, while the game goes on and statistics are of whole games.

    As in the Atari papers since DQN, rows of lost lives are `terminated`. `infos["life_lost"]` marks them, and no reset
    follows them. The environment must give its `lives` in every info.
    """

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        self._lives: Array = np.zeros(env.num_envs, np.int64)
        self._ended: Array = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, infos = self.env.reset(seed=seed, options=options)
        if "lives" not in infos:
            raise EnvError(f"`episodic_life=True` needs `lives` in every info. Received: {list(infos)}")
        self._lives = np.array(infos["lives"])
        self._ended = np.zeros(self.num_envs, bool)
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        lives = np.array(infos["lives"])
        ended = terminated | truncated
        # Some games show no lives for a few frames before their own end. A row after an end starts a game, maybe with
        # fewer lives than the game before it had left.
        lost = (lives < self._lives) & (lives > 0) & ~ended & ~self._ended
        self._lives, self._ended = lives, ended
        if lost.any():
            terminated, infos = terminated | lost, {**infos, LIFE_LOST: lost}
        return observation, reward, terminated, truncated, infos


def make_atari(spec: EnvSpec, num_envs: int, env_kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """Return ALE's vector environment of a game, with raw rewards.

    `episodic_life=True` and `life_loss_info=True` both mean `LifeLoss`: ALE's own `episodic_life` starts a new game
    at each lost life and so never shows the later part of a game, and its `life_loss_info` doesn't show whether a reset
    follows.
    """
    kwargs = {**_DEFAULTS, **env_kwargs}
    lives = [bool(kwargs.pop(option, False)) for option in LIFE_OPTIONS]
    env: AnyVectorEnv = gym.make_vec(spec, num_envs, "vector_entry_point", **kwargs)
    return LifeLoss(env) if any(lives) else env
