"""Connect Four by self-play, with a player of one's own among the opponents.

pip install 'actor-learner[games]', then: python examples/connect_four.py [TOTAL_STEPS]
"""

import sys

import numpy as np

import actor_learner as al

GAME = "pettingzoo:classic/connect_four-v3"


def wins_at_once(observation, mask, generator):
    """Complete a row of four where that is possible; otherwise play at random."""
    allowed = np.flatnonzero(mask)
    for column in allowed:
        height = 5 - int(observation[:, column].sum())  # rows are counted from the top
        board = observation[..., 0].astype(int)
        board[height, column] = 1
        if has_four(board):
            return int(column)
    return int(generator.choice(allowed))


def has_four(board):
    for rows, columns in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for row, column in np.argwhere(board):
            ends = row + 3 * rows, column + 3 * columns
            if (
                0 <= ends[0] < 6
                and 0 <= ends[1] < 7
                and all(board[row + i * rows, column + i * columns] for i in range(4))
            ):
                return True
    return False


def main(total_steps: int = 1_000_000) -> float:
    config = al.preset(GAME, total_steps=total_steps, self_play=al.SelfPlay(players={"wins at once": wins_at_once}))
    result = al.train(config)
    standings = al.arena({"trained": result.run_dir, "wins at once": wins_at_once, "random": "random"}, GAME, games=200)
    print(standings)
    return float(standings.ratings[0])


if __name__ == "__main__":
    print("rating, the random player being 0:", main(*map(int, sys.argv[1:])))
