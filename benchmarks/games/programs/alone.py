"""Connect Four alone, played at random in one process: PettingZoo's without its wrappers, or OpenSpiel's.

It counts the decisions of both seats: self-play needs two of them for each that one seat learns from.
"""

from __future__ import annotations

import numpy as np

from benchmarks.peers.programs.clock import Clock, read_task

DECISIONS = 2000  # between ticks


def pettingzoo(generator: np.random.Generator) -> int:
    """Play a game, and return its decisions."""
    from pettingzoo.classic import connect_four_v3

    game = connect_four_v3.raw_env()
    game.reset()
    moves = 0
    while not any(game.terminations.values()):
        mask = game.observe(game.agent_selection)["action_mask"]
        game.step(int(generator.choice(np.flatnonzero(mask))))
        moves += 1
    return moves


def open_spiel(generator: np.random.Generator) -> int:
    """Play a game, and return its decisions."""
    import pyspiel

    state = pyspiel.load_game("connect_four").new_initial_state()
    moves = 0
    while not state.is_terminal():
        state.observation_tensor()
        state.apply_action(int(generator.choice(state.legal_actions())))
        moves += 1
    return moves


def main() -> None:
    task = read_task()
    clock, generator, decisions, due = Clock(task), np.random.default_rng(task.seed), 0, DECISIONS
    play = {"pettingzoo": pettingzoo, "open_spiel": open_spiel}[task.game]
    while not clock.enough:
        decisions += play(generator)
        if decisions >= due:
            due += DECISIONS
            clock.tick(decisions)


if __name__ == "__main__":
    main()
