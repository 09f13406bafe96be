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

LIFE_LOST = "life_lost"
"""Key of `infos`: bool `[b]`, True where `terminated` says that a life was lost, and the same game goes on."""

LIFE_OPTIONS = ("episodic_life", "life_loss_info")

# ALE clips rewards and starts a thread per core by default: rewards are clipped in the learner, and an actor has one
# core.
_DEFAULTS = {"reward_clipping": False, "num_threads": 1}


class LifeLoss(VectorWrapper):
    """A lost life is terminal for learning, while the game goes on and reports are of whole games.

    Rows of lost lives are `terminated`, as the Atari papers since DQN have it, and `infos["life_lost"]` marks them:
    nothing is reset after them. The environment must tell its `lives` in every info.
    """

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        self._lives: Array = np.zeros(env.num_envs, np.int64)
        self._ended: Array = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the games, and counts lives from there."""
        observation, infos = self.env.reset(seed=seed, options=options)
        if "lives" not in infos:
            raise EnvError(f"`episodic_life=True` needs an environment that tells its lives. Received: {list(infos)}")
        self._lives = np.array(infos["lives"])
        self._ended = np.zeros(self.num_envs, bool)
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the games; rows in which a life was lost are terminated too."""
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        lives = np.array(infos["lives"])
        ended = terminated | truncated
        # Some games show no lives for a few frames before they are over; their end comes by itself. A row after an
        # end starts a game, maybe with fewer lives than the last one had at its end.
        lost = (lives < self._lives) & (lives > 0) & ~ended & ~self._ended
        self._lives, self._ended = lives, ended
        if lost.any():
            terminated, infos = terminated | lost, {**infos, LIFE_LOST: lost}
        return observation, reward, terminated, truncated, infos


def make_atari(spec: EnvSpec, num_envs: int, env_kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """ALE's vector environment of a game, with its raw rewards.

    `episodic_life=True` and `life_loss_info=True` both mean `LifeLoss`: ALE's own `episodic_life` starts a new game
    at each lost life, so that what comes after the first is never seen, and its `life_loss_info` ends rows without a
    word of whether a reset follows.
    """
    kwargs = {**_DEFAULTS, **env_kwargs}
    lives = [bool(kwargs.pop(option, False)) for option in LIFE_OPTIONS]
    env: AnyVectorEnv = gym.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return LifeLoss(env) if any(lives) else env
