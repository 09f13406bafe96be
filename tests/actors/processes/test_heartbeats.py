"""Who counts as hung, by counters and by time in which the judge was running."""

from __future__ import annotations

import numpy as np
import pytest

from actor_learner.actors.processes.restarts import Heartbeats
from actor_learner.config.settings import PoolSettings


@pytest.fixture
def words():
    return np.zeros(2, np.int64)


@pytest.fixture
def heartbeats(words):
    heartbeats = Heartbeats(PoolSettings(actor_timeout=8.0, start_timeout=40.0))
    heartbeats.words = words
    for actor in (0, 1):
        heartbeats.start(actor)
    return heartbeats


def looks(heartbeats, count, *, starting=(), busy=()):
    """Seconds after which an actor is found silent, at one look a second."""
    for second in range(1, count + 1):
        if found := heartbeats.find_silent(1.0, starting, busy):
            return second, found
    return None


def test_a_counter_that_stands_still_is_found_after_the_timeout(heartbeats, words):
    words[:] = 2
    assert heartbeats.find_silent(1.0, (), (0, 1)) == []
    words[0] = 3
    assert heartbeats.find_silent(1.0, (), (0, 1)) == []
    second, (silence,) = looks(heartbeats, 20, busy=(0,))
    assert (second, silence) == (7, (0, 8.0, "in env.step"))


def test_one_that_moves_is_never_found(heartbeats, words):
    for beat in range(0, 200, 2):
        words[0] = beat
        assert looks(heartbeats, 6, busy=(0,)) is None


def test_starting_and_loading_take_longer(heartbeats, words):
    second, (silence,) = looks(heartbeats, 60, starting=(1,))
    assert (second, silence.actor, silence.where) == (40, 1, "making or resetting its environments")
    second, (silence,) = looks(heartbeats, 60, busy=(0,))
    assert (second, silence.where) == (40, "outside of env.step")
    words[0] = 5  # loaded, and gone in the midst of a step
    looks(heartbeats, 1, busy=(0,))
    heartbeats.start(0)
    assert looks(heartbeats, 60, busy=(0,))[0] == 40


def test_who_has_nothing_to_do_is_not_judged(heartbeats, words):
    words[0] = 2
    heartbeats.find_silent(1.0, (), (0,))
    for _ in range(10):
        assert looks(heartbeats, 6, busy=(0,)) is None
        heartbeats.pause(0)


def test_time_in_which_the_judge_stood_still_does_not_count(heartbeats, words):
    words[0] = 2
    heartbeats.find_silent(1.0, (), (0,))
    assert heartbeats.find_silent(3600.0, (), (0,)) == []
    assert looks(heartbeats, 20, busy=(0,)) is not None
