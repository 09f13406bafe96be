"""The roof: worked cases, what a simulation reaches of it, and what changes are expected to bring."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st

from actor_learner.benchmark.roofline import Cost, Parts, prospects, roof, with_actors
from tests.support.event_simulation import simulate


def parts(env=1.0, wait=0.0, acting=0.2, copying=0.1, update=1.0, threads=1, actors=2, cores=4, lag=1):
    """A batch of 100 steps of each actor. wait: seconds of each unroll in which environments don't compute."""
    return Parts(
        steps=100 * max(1, actors),
        env=Cost(env + wait, env),
        acting=Cost(acting, acting),
        copying=Cost(copying, copying),
        update=Cost(update / threads, update),
        num_actors=actors,
        cores=cores,
        max_policy_lag=lag,
    )


@pytest.mark.parametrize(
    ("given", "seconds", "limit"),
    [
        # In lock-step the learner learns after the actors.
        ({"lag": 0}, 1.3 + 1.0, "environments"),
        ({"lag": 0, "update": 2.0}, 1.3 + 2.0, "learning"),
        ({"lag": 0, "update": 2.0, "threads": 4}, 1.3 + 0.5, "environments"),
        ({"lag": 0, "actors": 8}, 8 * 1.3 / 4 + 1.0, "cores"),
        ({"lag": 0, "actors": 8, "wait": 9.0}, 10.3 + 1.0, "environments"),
        ({"lag": 0, "acting": 3.0}, 4.1 + 1.0, "acting"),
        # Overlapping: whatever takes longest.
        ({}, 1.3, "environments"),
        ({"copying": 4.0}, 5.2, "copying"),
        ({"update": 3.0}, 3.0, "learning"),
        ({"cores": 2}, (1.0 + 2 * 1.3) / 2, "cores"),
        ({"cores": 1}, 1.0 + 2 * 1.3, "cores"),
        ({"lag": 5, "actors": 40, "wait": 100.0}, 101.3, "environments"),
        ({"update": 8.0, "threads": 4}, (8.0 + 2 * 1.3) / 4, "cores"),
        # One process does it all, whatever the lag.
        ({"actors": 0, "lag": 1}, 1.3 + 1.0, "environments"),
        ({"actors": 0, "lag": 0, "update": 2.0}, 1.3 + 2.0, "learning"),
    ],
)
def test_worked_cases(given, seconds, limit):
    setting = parts(**given)
    found = roof(setting)
    assert found.seconds == pytest.approx(seconds)
    assert found.steps_per_second == pytest.approx(setting.steps / seconds)
    assert found.limit == limit


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize(("update", "actors", "cores"), [*itertools.product((0.2, 3.0), (1, 3), (1, 2, 4))])
def test_the_simulation_reaches_the_roof_where_all_compute_or_have_cores_of_their_own(update, actors, cores, lag):
    setting = parts(update=update, actors=actors, cores=cores, wait=2.0 if cores > actors else 0.0, lag=lag)
    assert simulate(setting, 24) == pytest.approx(roof(setting).steps_per_second, rel=0.03)


COST = st.floats(0.05, 3.0)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        parts,
        env=COST,
        wait=st.one_of(st.just(0.0), COST),
        acting=COST,
        update=COST,
        actors=st.integers(1, 6),
        cores=st.integers(1, 4),
        lag=st.integers(0, 3),
    ),
    st.booleans(),
    st.integers(0, 9),
)
def test_nothing_that_is_simulated_exceeds_the_roof(setting, learner_first, seed):
    """Whoever goes first, and however unevenly long unrolls are: blocks ahead count once."""
    draw = random.Random(seed).expovariate
    batches = 24
    ahead = 1 + (setting.max_policy_lag + 1) / (batches / 2)
    best = roof(setting).steps_per_second
    assert simulate(setting, batches, learner_first=learner_first) <= best * 1.001
    uneven = simulate(setting, batches, learner_first=learner_first, draw=lambda: 1 + draw(1))
    assert uneven <= best * ahead


def test_a_second_batch_ahead_makes_up_for_unrolls_that_now_and_then_take_longer():
    """15 actors, unrolls of 27 ms, of which 5% take twice as long, and updates of 14 ms."""
    found = []
    for lag in (1, 2):
        chance = random.Random(0)
        setting = parts(env=27.0, acting=0.0, copying=0.0, update=14.0, actors=15, cores=16, lag=lag)
        ideal = setting.steps / (27.0 * 1.05)
        found.append(simulate(setting, 200, draw=lambda: 1.0 + (chance.random() < 0.05)) / ideal)  # noqa: B023
    assert found[0] * 1.1 < found[1] < 1


def test_one_more_actor_is_expected_to_bring_its_share_until_something_else_limits():
    alone = parts(actors=1, update=0.1, lag=0)
    (first, *_) = [each for each in prospects(alone) if each.change == "one more actor"]
    assert first.gain == pytest.approx(2 * (1.3 + 0.1) / (1.3 + 0.2) - 1)
    assert roof(with_actors(alone, 2)).steps_per_second == pytest.approx(200 / 1.5)
    saturated = parts(actors=1, update=5.0)
    assert [each.change for each in prospects(saturated)] == ["an update twice as fast"]


def test_prospects_are_sorted_and_the_lag_is_one_of_them_in_lock_step_alone():
    found = prospects(parts(lag=0, update=1.3))
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)
    assert dict(found)["max_policy_lag=1"] == pytest.approx(1.0)
    assert "max_policy_lag=1" not in dict(prospects(parts(lag=1)))
    assert "max_policy_lag=1" not in dict(prospects(dataclasses.replace(parts(lag=0), num_actors=0)))
