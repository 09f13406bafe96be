"""Seeds of the spaces of environments, which may draw from them: `reset(seed=...)` seeds only their `np_random`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from actor_learner.environments.autoreset import AnyVectorEnv, layers

_NAMES = ("observation_space", "action_space", "single_observation_space", "single_action_space")


def seed_spaces(vector_env: AnyVectorEnv, seed: int) -> None:
    """Seed the spaces of environments and their wrappers: those of environment i from `seed + i`."""
    base = vector_env.unwrapped
    for number, env in enumerate(base.envs if isinstance(base, SyncVectorEnv) else [vector_env]):
        _seed((_own_space(layer, name) for layer in layers(env) for name in _NAMES), seed + number)


def _own_space(env: Any, name: str) -> Any:
    """Return a space of an environment, which gets a copy of one that is its class's, and so every environment's."""
    if isinstance(getattr(type(env), name, None), gym.Space) and name not in vars(env):
        setattr(env, name, copy.deepcopy(getattr(env, name)))
    return getattr(env, name, None)


def seed_game(game: Any, seed: int | None) -> None:
    """Seed the spaces of a game's agents; None: leave them as they are."""
    if seed is not None:
        of_agent = (game.observation_space, game.action_space)
        _seed((space(agent) for agent in game.possible_agents for space in of_agent), seed)


def _seed(spaces: Iterable[Any], seed: int) -> None:
    """Seed each space once, with a number of its own, which isn't that of the environment's `np_random`."""
    for number, space in enumerate({id(space): space for space in spaces}.values()):
        if isinstance(space, gym.Space):
            space.seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
