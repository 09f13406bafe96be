"""Writes turn-based games into columns, each of which is the timeline of one agent.

A decision becomes a row when its transition is complete: at the agent's next decision, or at its end. So a row's reward
is all that the agent got until then, whichever agent moved, and no algorithm needs to know of other agents.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from actor_learner.actors.transport.batches import ActorColumns
from actor_learner.environments.agents import TurnGames
from actor_learner.environments.buffers import Observations
from actor_learner.environments.episodes import number
from actor_learner.environments.errors import ApiError, EnvError
from actor_learner.environments.games import Agent, End
from actor_learner.policy.policy import Policy
from actor_learner.system.types import Array, Leaves


class _Decision(NamedTuple):
    """A decision whose transition isn't complete yet. Arrays are of one row."""

    observation: Leaves
    mask: Array | None
    action: Leaves
    log_prob: float
    starts: bool  # an episode
    version: int  # of the policy's weights


@dataclass
class _Episode:
    """The running episode of a column's agent."""

    total: float = 0.0
    length: int = 0


class _Cut(NamedTuple):
    """A row that cuts off its episode, and the observation after it."""

    row: int
    column: int
    observation: Leaves


class TurnWriter:
    """Plays turn-based games with a policy and fills columns, one for each agent of each game.

    A game stops where one of its columns is full; the rest of its other columns is invalid, and their last rows are cut
    off with the value of the observation after them. A decision in flight stays with the game and becomes the next
    batch's first row, with the log-probability that it was sampled with. The agents take turns in a game's columns,
    episode by episode, because a first player decides more often than a second.

    seeds: of the actions. first_game: the number of the first game among those of all actors, by which each game has a
    generator of its own.

    Raises EnvError for a policy with memory.
    """

    def __init__(self, games: TurnGames, policy: Policy, seeds: np.random.SeedSequence, first_game: int) -> None:
        if policy.exported.state_shapes:
            raise ApiError(
                "In a game whose agents take turns, a network with memory needs `self_play`. Received: a state of "
                f"shapes {list(policy.exported.state_shapes)}"
            )
        if policy.explores:
            text = "In a game whose agents take turns, `exploration` needs `self_play`"
            raise ApiError(f"{text}. Received: exploration of one's own")
        self._games, self._policy = games, policy
        numbers = range(first_game, first_game + len(games.courses))
        keys = [np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, number)) for number in numbers]
        self._generators = [np.random.Generator(np.random.PCG64(key)) for key in keys]
        self._seen = Observations(policy.spaces.observation, 1)
        self._flights: dict[int, _Decision] = {}  # by column
        self._episodes = [_Episode() for _ in range(games.num_envs)]
        self._begun = [0] * len(games.courses)  # episodes that each game has begun before this one

    def fill(
        self,
        columns: ActorColumns,
        *,
        version: int,
        stop: Sequence[int],
        block: int,
        heartbeat: MutableSequence[int],
    ) -> tuple[float, float] | None:
        """Play until each game has filled a column. Returns seconds in the games and in the policy; None: stopped.

        version: of the policy's weights. stop: the arena's stop words. block: the number of the columns' block.
        heartbeat: its first number grows by 2 with each decision.
        """
        self._columns, self._cursor, self._cuts = columns, np.zeros(self._games.num_envs, np.int64), list[_Cut]()
        for column, flight in self._flights.items():
            columns.policy_version[column] = flight.version  # that of the oldest row
        columns.blank()
        for array in columns.observation:
            array.fill(0)
        in_games = acting = 0.0
        going = list(range(len(self._games.courses)))
        while going := self._complete_turns(going):
            if stop[0]:
                return None
            if stop[1 + block]:
                break
            begun = time.perf_counter()
            chosen = self._choose(going, version)
            acting += time.perf_counter() - begun
            begun = time.perf_counter()
            heartbeat[0] += 1
            for game, action in zip(going, chosen, strict=True):
                self._play(game, action)
            heartbeat[0] += 1
            in_games += time.perf_counter() - begun
            going = [game for game in going if not self._is_full(game)]
        self._end_columns()
        return in_games, acting

    def _column(self, game: int, agent: Agent) -> int:
        count = len(self._games.agents)
        return game * count + (self._games.agents.index(agent) + self._begun[game]) % count

    def _is_full(self, game: int) -> bool:
        count = len(self._games.agents)
        return bool((self._cursor[game * count : (game + 1) * count] == len(self._columns.reward)).any())

    def _complete_turns(self, games: Sequence[int]) -> list[int]:
        """Complete the last decisions of the agents that decide now. Returns the games in which there is room."""
        found = []
        for game in games:
            ((agent, turn),) = self._games.courses[game].deciding.items()
            column = self._column(game, agent)
            self._complete(column, turn.reward)
            if self._cursor[column] < len(self._columns.reward):
                found.append(game)
        return found

    def _choose(self, games: Sequence[int], version: int) -> list[Any]:
        """Let the policy decide in these games; return the environment's actions."""
        policy, turns = self._policy, [next(iter(self._games.courses[game].deciding.items())) for game in games]
        rows = [self._leaves(turn.observation) for _, turn in turns]
        leaves = tuple(np.stack(leaf) for leaf in zip(*rows, strict=True))
        masks = None if turns[0][1].mask is None else np.stack([np.asarray(turn.mask) for _, turn in turns])
        generators = [self._generators[game] for game in games]
        action, log_prob, _ = policy.sample_leaves(leaves, generators, masks, size=len(self._generators))
        for place, (game, (agent, turn)) in enumerate(zip(games, turns, strict=True)):
            column = self._column(game, agent)
            starts = not self._episodes[column].length
            own = tuple(leaf[place] for leaf in action)
            self._flights[column] = _Decision(rows[place], turn.mask, own, float(log_prob[place]), starts, version)
        return list(iterate(batch_space(self._games.single_action_space, len(games)), policy.env_action(action)))

    def _leaves(self, observation: Any) -> Leaves:
        """Return an observation's leaves in the trajectory's dtypes. Raises EnvError for NaN and the like."""
        self._seen.write_row(0, observation)
        if (fault := self._seen.fault()) is not None:
            raise EnvError(f"{fault.label} of a game must be {fault.rule}. Received: {fault.value}")
        return tuple(leaf[0].copy() for leaf in self._seen.leaves)

    def _play(self, game: int, action: Any) -> None:
        """Take an action, complete the transitions of agents that ended, and start the next episode after the last."""
        course = self._games.courses[game]
        (agent,) = course.deciding
        course.play({agent: action})
        for ended, end in course.ends.items():
            self._complete(self._column(game, ended), end.reward, end)
        if not course.deciding:
            self._begun[game] += 1
            course.start()

    def _complete(self, column: int, reward: float, end: End | None = None) -> None:
        """Write the decision in flight of a column, if there is one, as its next row."""
        if (decision := self._flights.pop(column, None)) is None:
            return
        if not np.isfinite(reward):
            raise EnvError(f"reward of a game must be finite. Received: {reward}")
        columns, row, episode = self._columns, int(self._cursor[column]), self._episodes[column]
        self._cursor[column] += 1
        for array, leaf in zip(columns.observation, decision.observation, strict=True):
            array[row, column] = leaf
        for array, leaf in zip(columns.action, decision.action, strict=True):
            array[row, column] = leaf
        if columns.action_mask is not None:
            columns.action_mask[row, column] = decision.mask
        columns.behaviour_log_prob[row, column], columns.reward[row, column] = decision.log_prob, reward
        columns.valid[row, column], columns.start[row, column] = True, decision.starts
        episode.total += reward
        episode.length += 1
        if end is not None:
            self._end(column, row, end)

    def _end(self, column: int, row: int, end: End) -> None:
        columns, episode = self._columns, self._episodes[column]
        cut_off = end.truncated and not end.terminated
        columns.terminated[row, column], columns.truncated[row, column] = end.terminated, cut_off
        columns.episode_return[row, column] = episode.total
        columns.episode_length[row, column] = episode.length
        for key, values in columns.episode_info.items():
            value = number(end.info.get(key))
            values[row, column] = np.nan if value is None else value
        self._episodes[column] = _Episode()
        if cut_off:
            last = self._leaves(end.observation)
            self._cuts.append(_Cut(row, column, last))
            columns.final_row[column] = row
            for kept, leaf in zip(columns.final_observation, last, strict=True):
                kept[column] = leaf
            if columns.final_action_mask is not None:
                columns.final_action_mask[column] = False if end.mask is None else end.mask

    def _end_columns(self) -> None:
        """Write the observation after each column's last row, and cut off the rows whose episodes go on elsewhere."""
        columns = self._columns
        following = {column: (decision.observation, decision.mask) for column, decision in self._flights.items()}
        for game, course in enumerate(self._games.courses):
            for agent, turn in course.deciding.items():
                following.setdefault(self._column(game, agent), (self._leaves(turn.observation), turn.mask))
        for column, row in enumerate(self._cursor.tolist()):
            if column in following:
                for array, leaf in zip(columns.observation, following[column][0], strict=True):
                    array[row, column] = leaf
                if columns.action_mask is not None:
                    columns.action_mask[row, column] = following[column][1]
                columns.start[row, column] = not self._episodes[column].length
            last = row - 1
            if 0 <= last < len(columns.reward) - 1 and not (
                columns.terminated[last, column] or columns.truncated[last, column]
            ):
                columns.truncated[last, column] = True
                self._cuts.append(_Cut(last, column, following[column][0]))
        size = self._games.num_envs
        for first in range(0, len(self._cuts), size):
            cuts = self._cuts[first : first + size]
            padded = [cut.observation for cut in cuts] + [cuts[0].observation] * (size - len(cuts))
            values = self._policy.value_leaves(tuple(np.stack(leaf) for leaf in zip(*padded, strict=True)))
            for cut, value in zip(cuts, values.tolist(), strict=False):
                columns.truncation_value[cut.row, cut.column] = value
