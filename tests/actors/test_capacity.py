"""More actors than memory allows: refused before anything starts, or when the first one has shown its size."""

from __future__ import annotations

import os

import numpy as np
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.actors import capacity
from actor_learner.system.memory import own_memory
from tests.support.counting_env import CountingEnv
from tests.support.processes import children

MEGABYTE = 1_000_000


class LargeEnv(CountingEnv):
    """Takes 60 MB."""

    def __init__(self):
        super().__init__()
        self.ballast = np.ones(60 * MEGABYTE, np.uint8)


@pytest.fixture
def available(monkeypatch):
    """Sets how much memory there seems to be."""
    return lambda size: monkeypatch.setattr(capacity, "available_memory", lambda: size)


def test_the_smallest_actors_are_counted_before_anything_starts():
    capacity.check_memory(100, available=2_000 * MEGABYTE)
    with pytest.raises(MemoryError) as refusal:
        capacity.check_memory(101, available=2_000 * MEGABYTE)
    assert str(refusal.value) == (
        "So many actors don't fit into memory: 2.02 GB are needed (20 MB each, at least), 2.00 GB are available; "
        "lower `num_actors`. Received: num_actors=101"
    )


def test_the_rest_is_counted_in_sizes_of_the_first():
    here = own_memory(os.getpid())
    capacity.check_rest(11, os.getpid(), available=11 * here)
    with pytest.raises(MemoryError, match="as measured of the first.* Received: num_actors=14"):
        capacity.check_rest(14, os.getpid(), available=11 * here)


def test_only_many_actors_wait_for_the_first_and_none_where_the_system_does_not_say(available):
    assert not capacity.starts_with_one(25, available=2_000 * MEGABYTE)
    assert capacity.starts_with_one(26, available=2_000 * MEGABYTE)
    available(None)
    capacity.check_memory(10**9)
    assert not capacity.starts_with_one(10**9)


def test_far_too_many_are_refused_by_the_pool_and_at_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = children()
    with pytest.raises(MemoryError, match="Received: num_actors=1000000"):
        al.ActorPool("CartPole-v1", num_actors=1_000_000)
    with pytest.raises(MemoryError, match="Received: num_actors=1000000"):
        al.train(al.TrainConfig(num_actors=1_000_000))
    assert cli.main(["train", "--num-actors", "1_000_000", "--envs-per-actor", "8"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("actor-learner: error: So many actors don't fit into memory: 20,000.00 GB are needed")
    assert line.count("\n") == 1
    assert os.listdir() == []
    assert children() == before


@pytest.mark.slow
def test_one_that_is_larger_than_the_smallest_is_noticed_when_it_is_ready(available):
    available(100 * MEGABYTE)
    before = children()
    with pytest.raises(MemoryError, match=r"\((8|9)\d MB each, as measured of the first\).* num_actors=3"):
        al.ActorPool(LargeEnv, num_actors=3, envs_per_actor=1)
    assert children() == before


@pytest.mark.slow
def test_those_that_fit_are_started_after_the_first(available):
    available(100 * MEGABYTE)
    with al.ActorPool(CountingEnv, num_actors=3, envs_per_actor=1, unroll_length=4) as actors:
        assert actors.collect().reward.shape == (4, 3)
