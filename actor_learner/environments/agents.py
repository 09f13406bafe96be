"""Games of several agents, PettingZoo's, in the vector environments of SuperSuit: each agent is an environment."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.errors import EnvError
from actor_learner.environments.serial import add_masks, merge_numbers
from actor_learner.spaces.structure import MASK_KEY

ABSENT = "absent"  # key of `infos`: bool `[b]`, True where the row's agent has no part in the next step


class AgentsVectorEnv(AnyVectorEnv):
    """The agents of the games in `concat_vec_envs_v1` or `pettingzoo_env_to_vec_env_v1`.

    An agent that dies ends its own episode. Until its game starts again it is marked in `infos["absent"]`, as is one
    that hasn't joined yet, and its last observation stays. A game that is over starts again in the same step. Of
    SuperSuit's classes only the games are used: they forget who is dead, and `black_death_v3` turns truncations into
    terminations.

    Raises EnvError for a vector environment of anything but games in this process.
    """

    def __init__(self, vector_env: Any) -> None:
        parts = getattr(vector_env, "vec_envs", [vector_env])
        if not all(hasattr(part, "par_env") for part in parts):
            expected = "games of PettingZoo in SuperSuit's own vector environment (base_class='gymnasium')"
            kind = type(vector_env).__qualname__
            raise EnvError(f"An actor needs {expected}, in one process (num_cpus=0). Received: {kind}")
        self._games = [_without_black_death(part.par_env) for part in parts]
        rows = iter(range(vector_env.num_envs))
        self._rows = [{agent: next(rows) for agent in game.possible_agents} for game in self._games]
        self.num_envs = vector_env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = vector_env.observation_space
        self.single_action_space = vector_env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        first = create_empty_array(self.single_observation_space, self.num_envs, np.zeros)
        self._newest: list[Any] = list(iterate(self.observation_space, first))
        self._masks: dict[int, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, each with the seed of its first agent's row."""
        for number, rows in enumerate(self._rows):
            first = next(iter(rows.values()))
            self._start(number, seed=None if seed is None else seed + first, options=options)
        return self._observation(), self._infos()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        choices = list(iterate(self.action_space, actions))
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        final_obs, final_info = np.full(self.num_envs, None, object), dict[str, Any]()
        for number, (game, rows) in enumerate(zip(self._games, self._rows, strict=True)):
            playing = list(game.agents)
            observations, rewards, ended, cut_off, infos = game.step({agent: choices[rows[agent]] for agent in playing})
            self._remember(rows, observations, infos)
            for agent in playing:
                row = rows[agent]
                reward[row], truncated[row] = rewards[agent], cut_off[agent]
                terminated[row] = ended[agent] or (agent not in game.agents and not cut_off[agent])
                if terminated[row] or truncated[row]:
                    final_obs[row] = copy.deepcopy(self._newest[row])  # a game may write the next one over it
                    merge_numbers(final_info, infos.get(agent, {}), row, self.num_envs)
            if all(ended.get(agent) or cut_off.get(agent) for agent in game.agents):
                self._start(number)
        infos = self._infos()
        if (terminated | truncated).any():
            infos |= {"final_obs": final_obs, "final_info": final_info}
        return self._observation(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for game in self._games:
            game.close()

    def _start(self, number: int, **kwargs: Any) -> None:
        self._remember(self._rows[number], *self._games[number].reset(**kwargs))

    def _remember(self, rows: dict[Any, int], observations: dict[Any, Any], infos: dict[Any, dict[str, Any]]) -> None:
        for agent, observation in observations.items():
            self._newest[rows[agent]] = observation
        for agent, info in infos.items():
            if MASK_KEY in info:
                self._masks[rows[agent]] = info[MASK_KEY]

    def _observation(self) -> Any:
        out: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self._newest, out)

    def _infos(self) -> dict[str, Any]:
        absent = np.ones(self.num_envs, bool)
        for game, rows in zip(self._games, self._rows, strict=True):
            absent[[rows[agent] for agent in game.agents]] = False
        infos: dict[str, Any] = {ABSENT: absent} if absent.any() else {}
        if self._masks:
            add_masks(infos, self._masks, self.num_envs)
        return infos


def _without_black_death(game: Any) -> Any:
    """Take SuperSuit's black_death_v3 out of a game's wrappers."""
    for name in ("env", "aec_env"):
        if (inner := getattr(game, "__dict__", {}).get(name)) is not None:
            setattr(game, name, _without_black_death(inner))
    return game.env if type(game).__name__ == "black_death_par" else game
