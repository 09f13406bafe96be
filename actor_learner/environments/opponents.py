"""The players of the seats that don't learn: frozen versions of the policy, a random player, and players of one's own.

Each has a number: 0, 1, 2, ... are frozen versions, -1 plays at random, and -2, -3, ... are players of one's own. A
table gives the probabilities by which each game draws one, from its own generator, at the start of an episode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector.utils import batch_space, iterate

from actor_learner.environments.errors import EnvError, describe_error, short
from actor_learner.environments.games import batch_of
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.policy.policy import Policy

RANDOM = -1

Player = Callable[[Any, Array | None, np.random.Generator], Any]
"""A player of one's own: (observation, mask, the game's generator) -> action."""


class Opponent(NamedTuple):
    """An entry of a table: a player's number, the place of its weights in shared memory, and its share of the draws."""

    number: int
    slot: int = -1
    checksum: int = 0
    weight: float = 1.0


class Request(NamedTuple):
    """A decision for a player to make."""

    observation: Any
    mask: Array | None
    generator: np.random.Generator  # the game's
    memory: dict[str, Any]  # of this player in this game and seat; a policy with memory keeps its state there


class Opponents:
    """Draws opponents and lets them act.

    observation_space, action_space: of a seat. players: players of one's own, by name; their numbers are -2, -3, ...
    epsilon: probability of a random action in place of a frozen version's.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, players: Mapping[str, Player], epsilon: float = 0.0
    ) -> None:
        self._observation_space, self._action_space, self._epsilon = observation_space, action_space, epsilon
        self._sampled = copy.deepcopy(action_space)  # which is seeded for each draw
        self._players = dict(zip(range(RANDOM - 1, RANDOM - 1 - len(players), -1), players.items(), strict=True))
        self._table: Sequence[Opponent] = ()
        self._ends = np.ones(1)
        self._policies: dict[int, Policy] = {}
        self._load: Callable[[Opponent], Policy] | None = None
        self.set_table(())

    def attach(self, load: Callable[[Opponent], Policy] | None) -> None:
        """Take what loads a frozen version. It is called for those that are drawn, while their table counts.

        None: no version is drawn any more.
        """
        self._load = load

    def set_table(self, table: Sequence[Opponent], playing: Sequence[int] = ()) -> None:
        """Draw by this table from now on; an empty one means the random player.

        playing: the numbers of opponents in running games, which keep them until their ends.
        """
        self._table = table or (Opponent(RANDOM),)
        ends = np.cumsum([opponent.weight for opponent in self._table])
        self._ends = ends / ends[-1]
        needed = {opponent.number for opponent in self._table} | set(playing)
        self._policies = {number: policy for number, policy in self._policies.items() if number in needed}

    def draw(self, generator: np.random.Generator) -> int:
        """Draw an opponent from the table and return its number."""
        place = int(np.searchsorted(self._ends, generator.random(), side="right"))
        opponent = self._table[min(place, len(self._table) - 1)]
        if opponent.number >= 0 and opponent.number not in self._policies:
            assert self._load is not None
            self._policies[opponent.number] = self._load(opponent)
        return opponent.number

    def act(self, number: int, requests: Sequence[Request]) -> Sequence[Any]:
        """Return the actions of one opponent for decisions in several games."""
        if number == RANDOM:
            return [self._at_random(request) for request in requests]
        if number < 0:
            return [self._checked(number, request) for request in requests]
        actions = self._of_policy(self._policies[number], requests)
        for row, request in enumerate(requests if self._epsilon else ()):
            if request.generator.random() < self._epsilon:
                actions[row] = self._at_random(request)
        return actions

    def _at_random(self, request: Request) -> Any:
        """Draw any allowed action."""
        space, generator = self._sampled, request.generator
        if isinstance(space, Discrete):
            allowed = np.arange(space.n) if request.mask is None else np.flatnonzero(request.mask)
            return space.dtype.type(space.start + generator.choice(allowed))
        space.seed(int(generator.integers(2**31)))
        mask = None if request.mask is None else request.mask.astype(np.int8)
        if mask is not None and isinstance(space, MultiDiscrete):
            return space.sample(tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
        return space.sample(mask)

    def _checked(self, number: int, request: Request) -> Any:
        """Let a player of one's own act. Raises EnvError for an action that isn't allowed, and where it raises."""
        name, player = self._players[number]
        try:
            action = player(request.observation, request.mask, request.generator)
        except Exception as error:
            raise EnvError(f"The player `{name}` raised {describe_error(error)}") from error
        space, mask = self._action_space, request.mask
        if isinstance(space, Box) and np.can_cast(np.asarray(action).dtype, space.dtype, "same_kind"):
            action = np.asarray(action, space.dtype)
        allowed = space.contains(action)
        if allowed and mask is not None and isinstance(space, Discrete):
            allowed = bool(mask[action - space.start])
        if not allowed:
            legal = f" that the mask allows, {np.flatnonzero(mask).tolist()}" if mask is not None else ""
            raise EnvError(f"The player `{name}` must return an action of {space}{legal}. Received: {short(action)}")
        return action

    def _of_policy(self, policy: Policy, requests: Sequence[Request]) -> list[Any]:
        """Sample a policy's actions, each with the noise of its game."""
        batch = batch_of(self._observation_space, [request.observation for request in requests], "an opponent")
        given = [request.mask for request in requests if request.mask is not None]
        if given and len(given) < len(requests):
            raise EnvError("`action_mask` must come with every decision, or never. Received: none at some")
        masks = np.stack(given) if given else None
        first = policy.initial_state()
        before = zip(*(request.memory.get("state", first) for request in requests), strict=True)
        state = tuple(map(np.stack, before)) or None
        actions, after = policy.sample_rows(batch, [request.generator for request in requests], masks, state)
        for row, request in enumerate(requests):
            request.memory["state"] = tuple(leaf[row] for leaf in after)
        return list(iterate(batch_space(self._action_space, len(requests)), actions))
