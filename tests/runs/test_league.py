"""The league of a run by self-play: which versions stay, how often they are drawn, and how players are rated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from actor_learner.config.self_play import SelfPlay
from actor_learner.runs.league import League, rate


def vector(number):
    return np.full(3, number, np.float32)


def league_of(count, **settings):
    league = League(SelfPlay(**settings))
    for update in range(count):
        league.freeze(vector(update), update)
    return league


def results(*pairs):
    return np.array(pairs, np.float64).reshape(-1, 2)


def test_the_ratings_of_two_players_are_the_logarithm_of_their_odds():
    found = rate({(0, -1): (99.5, 74.75)})  # with half a drawn game: 75 of 100
    assert found[-1] == 0
    assert found[0] == pytest.approx(400 * np.log10(3), abs=0.01)


def test_ratings_explain_the_scores_that_they_were_made_from():
    true = np.array([0.0, 150.0, 300.0, -80.0])
    expected = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    pairs = {(a - 1, b - 1): (1e6, 1e6 * expected[a, b]) for a in range(4) for b in range(a)}
    found = rate(pairs)
    np.testing.assert_allclose([found[player] for player in (-1, 0, 1, 2)], true, atol=0.1)


def test_ratings_stay_finite_and_without_the_random_player_the_first_is_zero():
    found = rate({(3, 5): (10.0, 10.0), (5, 5): (4.0, 2.0)})
    assert found[3] == 0
    assert -1000 < found[5] < 0
    assert rate({}) == {}


def test_spread_keeps_the_first_the_newest_and_versions_over_the_whole_run():
    assert sorted(league_of(4, size=6).versions) == [0, 1, 2, 3]
    league = league_of(100, size=6)
    kept = sorted(league.versions)
    assert (kept[0], kept[-1], len(kept)) == (0, 99, 6)
    assert kept == [0, 58, 82, 94, 98, 99]  # the older, the further apart
    np.testing.assert_array_equal(league.versions[99], vector(99))
    assert sorted(league_of(100, size=6, keep="newest").versions) == [94, 95, 96, 97, 98, 99]
    assert sorted(league_of(9, size=1).versions) == [8]


def test_pfsp_prefers_the_versions_that_win():
    league = league_of(3, random=0.1)
    league.record(results(*[(0, 1)] * 40, *[(1, 0)] * 40, *[(2, 0.5)] * 40))
    weights = league.weights()
    assert weights[-1] == pytest.approx(0.1)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights[1] > 2 * weights[2] > 4 * weights[0]
    expected = [(1 - league.score(number)) ** 2 + 0.01 for number in range(3)]
    np.testing.assert_allclose([weights[number] for number in range(3)], 0.9 * np.array(expected) / sum(expected))


def test_uniform_and_latest_rules():
    assert league_of(4, rule="uniform", random=0.2).weights() == pytest.approx(
        {-1: 0.2, **dict.fromkeys(range(4), 0.2)}
    )
    latest = league_of(3, rule="latest", latest=0.6, random=0.0).weights()
    assert latest == pytest.approx({0: 0.2, 1: 0.2, 2: 0.6})
    assert league_of(1, rule="latest", random=0.0).weights() == {0: 1.0}
    players = {"mine": lambda observation, mask, generator: 0}
    assert league_of(1, players=players).weights() == pytest.approx({-1: 0.1, -2: 0.1, 0: 0.8})


def test_a_version_is_due_by_updates_or_by_its_score():
    league = League(SelfPlay(every=3))
    assert league.is_due(0)
    league.freeze(vector(0), 0)
    assert [league.is_due(update) for update in (1, 2, 3)] == [False, False, True]
    league = League(SelfPlay(every=3, above=0.7))
    league.freeze(vector(0), 0)
    league.record(results(*[(0, 1)] * 49))
    assert not league.is_due(9)  # too few games
    league.record(results((0, 1)))
    assert league.is_due(1)
    league.record(results(*[(0, 0)] * 200))
    assert not league.is_due(9)


def test_older_results_count_less():
    league = league_of(1)
    league.record(results(*[(0, 0)] * 500, *[(0, 1)] * 500))
    assert league.score(0) > 0.9
    assert league.pairs[0, 0] == [1000.0, 500.0]


def test_a_long_run_keeps_no_more_than_the_last_players_and_the_pool():
    league = league_of(1, size=4)
    for update in range(1, 600):
        league.record(results((update - 1, 1), (-1, 1), (0, 0), (max(0, update - 40), 1)))
        league.freeze(vector(update), update)
    players = {player for pair in league.pairs for player in pair}
    assert len(players) <= 200 + 4 + 1
    assert set(league._recent) <= {-1, *league.versions}
    assert league.newest == 599
    assert league.ratings[-1] == 0


def test_versions_with_random_actions_are_rated_apart_from_what_they_were():
    for epsilon in (0.0, 0.2):
        league = league_of(1, epsilon=epsilon)
        for update in range(1, 30):  # the policy stays as it is, and beats its versions, which are handicapped
            before = max(0, update - 2)
            league.record(results(*[(-1, 1)] * 9, (-1, 0), *[(before, 1)] * 8, *[(before, 0)] * 2))
            league.freeze(vector(update), update)
        ratings = [league.ratings[player] for player in range(29)]
        assert (max(ratings) - min(ratings) > 100) == (epsilon == 0.0)


def test_metrics():
    league = league_of(1)
    assert league.metrics() == {"league/versions": 1.0}
    league.record(results(*[(-1, 1)] * 60, *[(0, 0)] * 20))
    found = league.metrics()
    assert found["league/score"] == 0.75
    assert found["league/score_random"] > 0.9
    assert "league/rating" not in found
    league.freeze(vector(1), 20)
    assert league.metrics()["league/rating"] > 300


def test_a_league_comes_back_from_its_json_and_its_files(tmp_path):
    league = league_of(12, size=4)
    league.record(results((0, 1), (-1, 0.5), (11, 0)))
    league.freeze(vector(12), 12)
    league.write_versions(tmp_path)
    data = json.loads(json.dumps(league.to_json(), allow_nan=False))
    again = League.from_json(SelfPlay(size=4), data, tmp_path)
    assert again.to_json() == league.to_json()
    assert (again.weights(), again.metrics(), again.newest) == (league.weights(), league.metrics(), 12)
    for number, weights in league.versions.items():
        np.testing.assert_array_equal(again.versions[number], weights)
    smaller = League.from_json(SelfPlay(size=2), data, tmp_path)
    assert sorted(smaller.versions) == [0, 12]
