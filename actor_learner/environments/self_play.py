"""Games as a vector environment in which the learner has one seat of each, and opponents play the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from actor_learner.environments.autoreset import AnyVectorEnv, declare
from actor_learner.environments.errors import EnvError
from actor_learner.environments.games import Agent, Course, End, batch_of, close_game, course_of, shared_spaces
from actor_learner.environments.opponents import RANDOM, Opponent, Opponents, Player, Request
from actor_learner.environments.serial import add_masks, merge_numbers
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.policy.policy import Policy

OPPONENT, OUTCOME, SEAT = "opponent", "outcome", "seat"
"""Entries of an episode's last info: the opponent's number, the learner's outcome from 0 to 1, and its seat."""

MAX_PLIES = 10_000
"""Decisions of opponents in one game, without one of the learner, after which the game counts as endless."""
_STREAM = 0x5EA7  # of a game's generator, beside the one that the game itself is seeded with

Outcome = Callable[[Mapping[Agent, float]], Mapping[Agent, float]]


def share_beaten(returns: Mapping[Agent, float]) -> dict[Agent, float]:
    """Return, for each agent, the share of the others that have a lower return; equal ones count half.

    Of two agents, that is 1 for a win, 0.5 for a draw and 0 for a loss. Equal players have 0.5 in any number.
    """
    values = np.array(list(returns.values()))
    lower = (values[:, None] > values).sum(axis=1) + 0.5 * ((values[:, None] == values).sum(axis=1) - 1)
    return dict(zip(returns, (lower / max(1, len(values) - 1)).tolist(), strict=True))


@dataclass(frozen=True)
class Seats:
    """How the seats of a game are taken: one by the learner, the others by opponents.

    players: players of one's own, by name; their numbers are -2, -3, ... seat: the learner's, counted from 0; None:
    drawn for each episode, or with `take_turns` one after the other. outcome: {agent: return} -> {agent: 0 to 1}; None:
    `share_beaten`. epsilon: probability of a random action in place of a frozen version's. opening: largest number of
    decisions at the start of an episode that all agents make at random, the learner's too; each episode draws one.
    """

    players: Mapping[str, Player] = field(default_factory=dict)
    seat: int | None = None
    take_turns: bool = False
    outcome: Outcome | None = None
    epsilon: float = 0.0
    opening: int = 0

    @classmethod
    def of(cls, settings: Any) -> Seats:
        """Return the seats of a run's `SelfPlay` settings."""
        return cls(settings.players, outcome=settings.outcome, epsilon=settings.epsilon, opening=settings.opening)


@dataclass
class _Game:
    """A game, its generator, and who plays in the present episode."""

    course: Course
    generator: np.random.Generator
    first_seat: int = 0  # of the learner, where it takes turns
    episodes: int = 0
    learner: Agent = None
    seat: int = 0
    opponent: int = RANDOM
    memories: dict[Agent, dict[str, Any]] = field(default_factory=dict)  # of the opponent, in each of its seats
    has_decided: bool = False  # the learner, in this episode
    plies: int = 0  # of opponents since the learner's last decision
    opening: int = 0  # decisions that are still to be made at random
    end: End | None = None  # of the learner, while other agents play on

    @property
    def waits(self) -> bool:
        """True where the learner has to decide."""
        return not self.opening and self.learner in self.course.deciding


class SelfPlayVectorEnv(AnyVectorEnv):
    """One learned seat in each game. A step of a row reaches from the learner's decision to its next one.

    The rewards in between add up, whichever agent moved. An end on an opponent's move ends the learner's episode, and
    the next one starts at once. Seat and opponent are drawn for each episode, from the game's own generator, and stay
    to its end. Opponents' decisions are batched over all games. The first episodes, which begin before there is a
    policy, are played against the random player.

    games: PettingZoo's, of either interface. name: for messages.

    Raises EnvError for games of one agent, or whose agents differ in their spaces.
    """

    def __init__(self, games: Sequence[Any], seats: Seats, name: str) -> None:
        self._seats, self._name = seats, name
        self._raw = list(games)
        courses = [course_of(game, name) for game in games]
        self._games = [_Game(each, np.random.default_rng(0), first_seat=row) for row, each in enumerate(courses)]
        agents = self._games[0].course.agents
        if len(agents) < 2:
            raise EnvError(f"`self_play` needs a game of at least two agents. Received: `{name}` with {agents}")
        if seats.seat is not None and seats.seat >= len(agents):
            raise EnvError(f"`seat` must be below {len(agents)}, the agents of `{name}`. Received: seat={seats.seat}")
        spaces = shared_spaces(games[0], name)
        declare(self, len(games), AutoresetMode.SAME_STEP, *spaces)
        self._opponents = Opponents(*spaces, seats.players, seats.epsilon)

    def attach(self, load: Callable[[Opponent], Policy]) -> None:
        """Take what loads a frozen version of the policy from shared memory."""
        self._opponents.attach(load)

    def set_opponents(self, table: Sequence[Opponent]) -> None:
        """Draw opponents by this table from now on. Running games keep theirs."""
        self._opponents.set_table(table, [game.opponent for game in self._games])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, with consecutive seeds."""
        for number, game in enumerate(self._games):
            own = None if seed is None else seed + number
            game.generator = np.random.Generator(np.random.PCG64(None if own is None else [own, _STREAM]))
            self._start(game, own)
        self._advance({})
        return self._observation(), self._infos()

    def quotas(self, games: int) -> dict[tuple[int, int], int]:
        """Return how many games each row plays with the learner in each seat, of at least so many games.

        Taking the first that end would favour short games.
        """
        agents = len(self._games[0].course.agents)
        places = [(row, seat) for row in range(self.num_envs) for seat in range(agents)]
        each, rest = divmod(games + -games % agents, len(places))
        return {place: each + (number < rest) for number, place in enumerate(places)}

    @property
    def seats_taken(self) -> list[int]:
        """The learner's seat in each game."""
        return [game.seat for game in self._games]

    def requests(self) -> list[Request]:
        """Return the learner's present decisions, for a player in its place that `step_each` gets the answers of."""
        found = []
        for game in self._games:
            turn = game.course.deciding[game.learner]
            memory = game.memories.setdefault(game.learner, {})
            found.append(Request(turn.observation, turn.mask, game.generator, memory))
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.step_each(list(iterate(self.action_space, actions)))

    def step_each(self, actions: Sequence[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step by a sequence of actions, one for each row."""
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        ends: dict[int, tuple[End, dict[str, float]]] = {}
        for game in self._games:
            game.has_decided, game.plies = True, 0
        self._advance(ends, actions)
        for row, game in enumerate(self._games):
            if row not in ends:
                reward[row] = game.course.deciding[game.learner].reward
        infos = self._infos()
        if ends:
            final_obs, final_info = np.full(self.num_envs, None, object), dict[str, Any]()
            for row, (end, numbers) in ends.items():
                reward[row], truncated[row] = end.reward, end.truncated and not end.terminated
                terminated[row], final_obs[row] = end.terminated, end.observation
                merge_numbers(final_info, {**end.info, **numbers}, row, self.num_envs)
            masks = {row: end.mask for row, (end, _) in ends.items() if end.mask is not None}
            add_masks(final_info, masks, self.num_envs)
            infos |= {"final_obs": final_obs, "final_info": final_info}
        return self._observation(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._opponents.attach(None)  # what loads versions may hold their memory
        for game in self._raw:
            close_game(game)

    def _start(self, game: _Game, seed: int | None = None) -> None:
        """Draw seat and opponent, and start an episode."""
        agents, seat = game.course.agents, self._seats.seat
        drawn = int(game.generator.integers(len(agents)))
        in_turn = (game.first_seat + game.episodes) % len(agents)
        game.seat = seat if seat is not None else in_turn if self._seats.take_turns else drawn
        game.episodes += 1
        game.learner, game.opponent = agents[game.seat], self._opponents.draw(game.generator)
        game.memories, game.has_decided = {}, False
        game.opening = int(game.generator.integers(self._seats.opening + 1)) if self._seats.opening else 0
        game.end = None
        game.course.start(seed)

    def _advance(self, ends: dict[int, tuple[End, dict[str, float]]], chosen: Sequence[Any] | None = None) -> None:
        """Play games on until the learner has to decide in each. ends: takes the ends of its episodes, by row.

        chosen: the learner's actions for its present decisions; None: in no game a decision of it is pending.
        """
        actions: dict[int, dict[Agent, Any]] = {}
        for row, game in enumerate(self._games):
            if chosen is not None:
                actions[row] = {game.learner: chosen[row]}
            elif not game.waits:
                actions[row] = {}
        while actions:
            self._let_opponents_act(actions)
            for row, by_agent in actions.items():
                game = self._games[row]
                game.opening = max(0, game.opening - 1)
                game.course.play(by_agent)
                self._settle(row, ends)
            actions = {row: {} for row in actions if not self._games[row].waits}

    def _let_opponents_act(self, actions: dict[int, dict[Agent, Any]]) -> None:
        """Add the actions of all agents that decide in these games, but the learner's, batched by opponent."""
        asked: dict[int, list[tuple[int, Agent, Request]]] = {}
        for row in actions:
            game = self._games[row]
            for agent, turn in game.course.deciding.items():
                if agent in actions[row]:
                    continue
                game.plies += 1
                request = Request(turn.observation, turn.mask, game.generator, game.memories.setdefault(agent, {}))
                player = RANDOM if game.opening else game.opponent
                asked.setdefault(player, []).append((row, agent, request))
            if game.plies > MAX_PLIES:
                raise EnvError(
                    f"`{self._name}` must let every agent decide, and end; opponents decided {MAX_PLIES:,} times in a "
                    f"row. Received: no decision of {game.learner!r}"
                )
        for opponent, places in asked.items():
            answers = self._opponents.act(opponent, [request for _, _, request in places])
            for (row, agent, _), action in zip(places, answers, strict=True):
                actions[row][agent] = action

    def _settle(self, row: int, ends: dict[int, tuple[End, dict[str, float]]]) -> None:
        """Take the learner's end out of a game that is over, and start the next one.

        The others play on when the learner has ended: the outcome may depend on their returns. Where it comes back into
        the same game, that is over here.
        """
        game = self._games[row]
        comes_back = game.end is not None and game.learner in game.course.deciding
        game.end = game.course.ends.get(game.learner, game.end)
        if game.course.deciding and not comes_back:
            return
        if game.has_decided and game.end is None:  # the learner was neither terminated nor truncated
            raise EnvError(
                f"`{self._name}` must end the episode of every agent. Received: no agents left, and no end of "
                f"{game.learner!r}"
            )
        if game.has_decided and game.end is not None:
            ends[row] = game.end, {OPPONENT: game.opponent, OUTCOME: self._outcome(game), SEAT: game.seat}
        self._start(game)

    def _outcome(self, game: _Game) -> float:
        outcomes = (self._seats.outcome or share_beaten)(game.course.returns)
        try:
            outcome = float(outcomes[game.learner])
        except (TypeError, ValueError, KeyError):
            outcome = np.nan
        if not 0 <= outcome <= 1:
            expected = "`outcome` must return a number from 0 to 1 for each agent"
            raise EnvError(f"{expected}. Received: {outcomes!r} for the returns {game.course.returns}")
        return outcome

    def _observation(self) -> Any:
        seen = [game.course.deciding[game.learner].observation for game in self._games]
        return batch_of(self.single_observation_space, seen, self._name)

    def _infos(self) -> dict[str, Any]:
        masks: dict[int, Array] = {}
        for row, game in enumerate(self._games):
            if (mask := game.course.deciding[game.learner].mask) is not None:
                masks[row] = mask
        infos: dict[str, Any] = {}
        add_masks(infos, masks, self.num_envs)
        return infos
