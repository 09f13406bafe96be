"""The comparison of games: Leduc's rules and best responses, and the observations of OpenSpiel."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.games import leduc, peer_players, peer_runs

leduc_holdem = pytest.importorskip("pettingzoo.classic.leduc_holdem_v4")


@pytest.mark.parametrize("seed", range(100))
def test_leducs_rules_are_those_of_the_game(seed):
    rng, game = np.random.default_rng(seed), leduc_holdem.raw_env()
    game.reset(seed=seed)
    small, state, public = game.agent_selection, leduc.State(), None
    ranks = ["JQK".index(player.hand.rank) for player in game.env.game.players]
    while not all(game.terminations.values()):
        shown, seat = game.observe(game.agent_selection), int(game.agent_selection != small)
        if state.ends_round:
            state, public = state.next_round(), "JQK".index(game.env.game.public_card.rank)
        card = ranks[game.possible_agents.index(game.agent_selection)]
        assert state.seat == seat
        np.testing.assert_array_equal(shown["observation"], state.observation(card, public))
        np.testing.assert_array_equal(shown["action_mask"], state.mask())
        action = int(rng.choice(np.flatnonzero(state.mask())))
        state = state.after(action)
        game.step(action)
    assert state.is_over
    first = game.possible_agents.index(small)
    cards = ranks[first], ranks[1 - first]
    assert game.rewards[small] == state.payoff(0, cards, public)
    assert game.rewards[game.possible_agents[1 - first]] == state.payoff(1, cards[::-1], public)


def test_a_best_response_beats_any_policy_and_is_lower_for_a_mixture():
    def careful(rows, masks):
        return np.eye(4)[np.where(masks[:, leduc.CALL], leduc.CALL, leduc.CHECK)]

    def bold(rows, masks):
        return np.eye(4)[np.where(masks[:, leduc.RAISE], leduc.RAISE, leduc.CALL)]

    alone = [leduc.exploitability([policy]) for policy in (careful, bold, leduc.uniform)]
    assert min(alone) > 0
    assert leduc.exploitability([careful, bold, leduc.uniform]) < np.mean(alone)
    assert leduc.exploitability([careful, careful]) == pytest.approx(alone[0])


def test_who_always_folds_loses_the_blind():
    def fold(rows, masks):
        return np.eye(4)[np.full(len(rows), leduc.FOLD)]

    assert leduc.exploitability([fold]) == pytest.approx((0.5 + 1.0) / 2)


def test_open_spiels_observation_has_the_first_players_discs_first():
    shown = np.zeros((6, 7, 2), np.int8)
    shown[5, 0, 1] = 1  # the second player decides; the other one's disc is in the lowest row
    planes = peer_players.to_open_spiel(shown).reshape(3, 6, 7)
    assert planes[0, 0, 0] == 1
    assert planes.sum(axis=(1, 2)).tolist() == [1, 0, 41]
    shown[5, 3, 0] = 1
    planes = peer_players.to_open_spiel(shown).reshape(3, 6, 7)
    assert planes[0, 0, 3] == planes[1, 0, 0] == 1


def test_every_compared_run_has_a_program_and_a_venv():
    for programs in peer_runs.PROGRAMS_OF.values():
        assert "ours" in programs
        for program in programs.values():
            assert (peer_runs.PROGRAMS / f"{program.script}.py").exists()
            assert program.venv is None or program.venv in peer_runs.VENVS
