"""Turn-based games of which all agents learn, by one policy: each agent is an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.games import Agent, batch_of, close_game, course_of, shared_spaces
from actor_learner.environments.serial import add_masks


class TurnGames(AnyVectorEnv):
    """The agents of turn-based games. Only one of each game decides at a time, so that there is no `step` for all.

    An actor plays the games decision by decision (`actors.turns`). `reset` starts them, and shows in each row what the
    agent sees that decides in its game.

    Raises EnvError for games whose agents differ in their spaces.
    """

    def __init__(self, games: Sequence[Any], name: str) -> None:
        self._raw, self._name = list(games), name
        self.courses = [course_of(game, name) for game in games]
        self.agents: list[Agent] = self.courses[0].agents
        self.num_envs = len(games) * len(self.agents)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = shared_spaces(games[0], name)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, each with the seed of its first row."""
        seen, masks, infos = [], {}, dict[str, Any]()
        for number, course in enumerate(self.courses):
            first = number * len(self.agents)
            course.start(None if seed is None else seed + first)
            (turn,) = course.deciding.values()
            for row in range(first, first + len(self.agents)):
                seen.append(turn.observation)
                if turn.mask is not None:
                    masks[row] = turn.mask
        if masks:
            add_masks(infos, masks, self.num_envs)
        return batch_of(self.single_observation_space, seen, self._name), infos

    def close_extras(self, **kwargs: Any) -> None:
        for game in self._raw:
            close_game(game)
