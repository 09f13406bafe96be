"""The exact exploitability of a policy for Leduc hold'em, by RLCard's rules as PettingZoo plays them.

Two players put in blinds of 1 and 2 chips and get a card of J, J, Q, Q, K, K. The small blind begins. In each of two
rounds there are two raises at most, of 2 and of 4 chips; between the rounds a public card is shown. A pair with it
wins, then the higher card. The rewards are half the chips, which RLCard counts in big blinds.

A best response knows the policy, and the whole course of a game; the policy sees PettingZoo's observation. Seats are
0 for the small blind and 1 for the big blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

CALL, RAISE, FOLD, CHECK = range(4)
RANKS, COPIES, RAISES = 3, 2, 2
BLINDS, UNIT = (1, 2), 2.0
AMOUNTS = (2, 4)

Probabilities = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Observations `[N, 36]` and masks `[N, 4]` -> the policy's probabilities `[N, 4]`."""


@dataclass(frozen=True)
class State:
    """The public part of a position but for the card: who decides, and the chips of seats 0 and 1."""

    second_round: bool = False
    seat: int = 0
    chips: tuple[int, int] = BLINDS
    raises: int = 0
    settled: int = 0  # seats that have nothing to answer; the round ends at two
    folded: int | None = None

    @property
    def to_call(self) -> int:
        """The chips that this seat lacks. Chips are equal where the second round begins."""
        return self.chips[1 - self.seat] - self.chips[self.seat]

    @property
    def ends_round(self) -> bool:
        return self.settled == 2

    @property
    def is_over(self) -> bool:
        return self.folded is not None or (self.second_round and self.ends_round)

    def mask(self) -> np.ndarray:
        """Return which actions are allowed, bool `[4]`."""
        return np.array([self.to_call > 0, self.raises < RAISES, True, self.to_call == 0])

    def after(self, action: int) -> State:
        """Return the position after an action; the public card is still to come where a round ends."""
        if action == FOLD:
            return replace(self, folded=self.seat)
        paid = self.to_call + (AMOUNTS[self.second_round] if action == RAISE else 0)
        chips = list(self.chips)
        chips[self.seat] += paid
        settled, raises = (1, self.raises + 1) if action == RAISE else (self.settled + 1, self.raises)
        return replace(self, seat=1 - self.seat, chips=(chips[0], chips[1]), raises=raises, settled=settled)

    def next_round(self) -> State:
        return replace(self, second_round=True, raises=0, settled=0)

    def observation(self, card: int, public: int | None) -> np.ndarray:
        """Return what PettingZoo shows this seat, `[36]`."""
        found = np.zeros(36, np.float32)
        found[card] = 1
        if public is not None:
            found[3 + public] = 1
        found[6 + self.chips[self.seat]] = 1
        found[21 + self.chips[1 - self.seat]] = 1
        return found

    def payoff(self, seat: int, cards: tuple[int, int], public: int | None) -> float:
        """Return the reward of a seat at the end. cards: the ranks of this seat's card and of the other one's."""
        if self.folded is not None:
            share = -1 if self.folded == seat else 1
        elif public in cards:
            share = (cards[0] == public) - (cards[1] == public)
        else:
            share = int(np.sign(cards[0] - cards[1]))
        return share * self.chips[1 - seat if share > 0 else seat] / UNIT


class Opponents:
    """Policies, one of which plays a whole game, each as often: their probabilities at every position."""

    def __init__(self, policies: Sequence[Probabilities]) -> None:
        self.count = len(policies)
        asked = {_key(state, card, public): (state, card, public) for state, card, public in positions()}
        rows = np.stack([state.observation(card, public) for state, card, public in asked.values()])
        masks = np.stack([state.mask() for state, _, _ in asked.values()])
        found = np.stack([policy(rows, masks) for policy in policies], axis=1)
        self._found = dict(zip(asked, found, strict=True))

    def probabilities(self, state: State, public: int | None) -> np.ndarray:
        """Return `[policies, cards, actions]` for the seat that decides."""
        return np.stack([self._found[_key(state, card, public)] for card in range(RANKS)], axis=1)


def positions() -> Iterator[tuple[State, int, int | None]]:
    """Yield all positions in which a seat decides: the state, its card, and the public one."""
    stack = [State()]
    while stack:
        state = stack.pop()
        if state.is_over:
            continue
        if state.ends_round:
            stack.append(state.next_round())
            continue
        for card in range(RANKS):
            for public in range(RANKS) if state.second_round else (None,):
                yield state, card, public
        stack.extend(state.after(action) for action in np.flatnonzero(state.mask()).tolist())


def exploitability(policies: Sequence[Probabilities]) -> float:
    """Return the reward of a best response in a game, the mean of both seats; it is 0 for an equilibrium.

    policies: one of them, each as often, plays a whole game; the best response isn't told which.
    """
    opponents = Opponents(policies)
    return float(np.mean([best_response(opponents, seat) for seat in (0, 1)]))


def best_response(opponents: Opponents, seat: int) -> float:
    """Return the best reward of a seat against the policies, in the other one."""
    total = 0.0
    for card in range(RANKS):
        left = np.full(RANKS, COPIES) - np.eye(RANKS)[card]
        reach = np.tile(left / left.sum(), (opponents.count, 1)) / opponents.count
        total += _value(opponents, State(), seat, card, None, reach) / RANKS
    return total


def _value(opponents: Opponents, state: State, seat: int, card: int, public: int | None, reach: np.ndarray) -> float:
    """Return a position's best value. reach: `[policies, cards]`, the probabilities of the other side's ways here."""
    if state.is_over:
        payoffs = [state.payoff(seat, (card, other), public) for other in range(RANKS)]
        return float(reach.sum(axis=0) @ np.array(payoffs))
    if state.ends_round:
        return _after_public_card(opponents, state.next_round(), seat, card, reach)
    allowed = np.flatnonzero(state.mask()).tolist()
    if state.seat == seat:
        return max(_value(opponents, state.after(action), seat, card, public, reach) for action in allowed)
    odds = opponents.probabilities(state, public)
    return sum(
        _value(opponents, state.after(action), seat, card, public, reach * odds[..., action]) for action in allowed
    )


def _after_public_card(opponents: Opponents, state: State, seat: int, card: int, reach: np.ndarray) -> float:
    """Return the mean over the public cards, of which four are left for each pair of the seats' cards."""
    total = 0.0
    for public in range(RANKS):
        left = COPIES - (card == public) - (np.arange(RANKS) == public)
        total += _value(opponents, state, seat, card, public, reach * left / 4)
    return total


def _key(state: State, card: int, public: int | None) -> tuple[bytes, bytes]:
    return state.observation(card, public).tobytes(), state.mask().tobytes()


def uniform(rows: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the random player's probabilities."""
    return masks / masks.sum(axis=1, keepdims=True)
