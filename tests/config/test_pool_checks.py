"""More actors than memory allows are refused before anything starts."""

from __future__ import annotations

import os

import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.config.pool_checks import check_memory
from actor_learner.system import machine
from tests.support.processes import children


def test_the_smallest_actors_are_counted_unless_the_system_does_not_say(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 2_000_000_000)
    check_memory(100)
    with pytest.raises(MemoryError) as refusal:
        check_memory(101)
    assert str(refusal.value) == (
        "So many actors, of at least 20 MB each, don't fit into memory: 2.02 GB are needed, 2.00 GB are available; "
        "lower `num_actors`. Received: num_actors=101"
    )
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    check_memory(10**9)


def test_far_too_many_are_refused_by_the_pool_and_at_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = children()
    with pytest.raises(MemoryError, match="Received: num_actors=1000000"):
        al.ActorPool("CartPole-v1", num_actors=1_000_000)
    with pytest.raises(MemoryError, match="Received: num_actors=1000000"):
        al.train(al.TrainConfig(num_actors=1_000_000))
    assert cli.main(["train", "--num-actors", "1_000_000", "--envs-per-actor", "8"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(
        "actor-learner: error: So many actors, of at least 20 MB each, don't fit into memory: 20,000.00 GB"
    )
    assert line.count("\n") == 1
    assert os.listdir() == []
    assert children() == before
