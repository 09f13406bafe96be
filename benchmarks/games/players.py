"""Players of PettingZoo's board games: (observation, mask, generator) -> action."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

_COLUMNS, _ROWS = 7, 6
_LINES = [
    *((3 * i, 3 * i + 1, 3 * i + 2) for i in range(3)),
    *((i, i + 3, i + 6) for i in range(3)),
    (0, 4, 8),
    (2, 4, 6),
]


def perfect_tic_tac_toe(observation: Any, mask: Any, generator: np.random.Generator) -> int:
    """Take any of the best moves of tic-tac-toe. observation: `[3, 3, 2]`, own marks and the opponent's."""
    mine, theirs = (frozenset(np.flatnonzero(observation[..., side].reshape(-1)).tolist()) for side in (0, 1))
    values = {move: -_tic_tac_toe(theirs, mine | {move}) for move in np.flatnonzero(mask).tolist()}
    best = max(values.values())
    return int(generator.choice([move for move, value in values.items() if value == best]))


@functools.cache
def _tic_tac_toe(mine: frozenset[int], theirs: frozenset[int]) -> int:
    """Return the value of a position for the player to move: 1, 0 or -1."""
    if any(theirs.issuperset(line) for line in _LINES):
        return -1
    free = set(range(9)) - mine - theirs
    return max((-_tic_tac_toe(theirs, mine | {move}) for move in free), default=0)


def minimax1(observation: Any, mask: Any, generator: np.random.Generator) -> int:
    """Win Connect Four at once where that is possible."""
    return _connect_four(observation, mask, generator, 1)


def minimax2(observation: Any, mask: Any, generator: np.random.Generator) -> int:
    """Win Connect Four at once, or don't let the opponent do so."""
    return _connect_four(observation, mask, generator, 2)


def minimax4(observation: Any, mask: Any, generator: np.random.Generator) -> int:
    """Look four plies ahead in Connect Four."""
    return _connect_four(observation, mask, generator, 4)


def _connect_four(observation: Any, mask: Any, generator: np.random.Generator, depth: int) -> int:
    """Take any of the moves with the best value. Boards are bits: column x 7 + height."""
    mine, theirs = _boards(observation)
    values: dict[int, float] = {}
    for column in np.flatnonzero(mask).tolist():
        disc = _landing(mine | theirs, column)
        values[column] = 1.0 if _wins(mine | disc) else -_value(theirs, mine | disc, depth - 1)
    best = max(values.values())
    return int(generator.choice([column for column, value in values.items() if value == best]))


def _boards(observation: Any) -> tuple[int, int]:
    """Return the bits of own discs and the opponent's, of `[6, 7, 2]` from the top row down."""
    found = []
    for side in (0, 1):
        rows, columns = np.nonzero(observation[..., side])
        found.append(sum(1 << (c * 7 + _ROWS - 1 - r) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)))
    return found[0], found[1]


def _landing(full: int, column: int) -> int:
    """Return the bit on which a disc lands; 0 in a full column."""
    return (full + (1 << (column * 7))) & (0x3F << (column * 7))


def _wins(board: int) -> bool:
    for shift in (1, 7, 6, 8):
        pairs = board & (board >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


def _value(mine: int, theirs: int, depth: int) -> float:
    """Return 1 if the player to move wins within so many plies, -1 if it loses, else 0."""
    if depth == 0:
        return 0.0
    landings = [disc for column in range(_COLUMNS) if (disc := _landing(mine | theirs, column))]
    if any(_wins(mine | disc) for disc in landings):
        return 1.0
    best = -1.0 if landings else 0.0
    for disc in landings:
        best = max(best, -_value(theirs, mine | disc, depth - 1))
        if best == 1.0:
            break
    return best
