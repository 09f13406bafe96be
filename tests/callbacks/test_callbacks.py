"""Callbacks of our own: what they refuse, and what `MemoryLimit` does when memory really grows."""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.actors.processes.restarts import REQUESTED
from actor_learner.callbacks import memory_limit
from actor_learner.callbacks.memory_limit import MemoryLimit
from actor_learner.networks.default import default_network
from actor_learner.system import memory
from actor_learner.system.machine import size_text
from actor_learner.system.memory import measure
from tests.support.leaking_env import LeakingEnv
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("without_xla")

MB = 1_000_000
HEADROOM = 100 * MB
"""How far above what is in use a limit is set; what grows here grows by twice as much."""


@pytest.fixture(autouse=True)
def check_always(monkeypatch):
    """Every update, whatever that costs: these runs are short."""
    monkeypatch.setattr(memory, "_MAX_SHARE", 1e9)
    monkeypatch.setattr(memory_limit, "_PAUSE_SECONDS", 0.02)


def small_network(observation_space, action_space):
    return default_network(observation_space, action_space, hidden_sizes=(8,))


@pytest.fixture(scope="module")
def pool():
    with al.ActorPool("CartPole-v1", small_network, num_actors=0, envs_per_actor=1, unroll_length=4) as pool:
        yield pool


def begin(pool, action, gigabytes=None, **kwargs):
    """A limit that has seen training begin, told what `train` would tell it."""
    gigabytes = gigabytes or (measure(pool.pids).total + HEADROOM) / 1e9
    limit = MemoryLimit(gigabytes, action, seconds=1e-9, **kwargs)
    limit.actors = pool
    limit.set_model(pool.network)
    pool.network.stop_training = False
    limit.on_train_begin()
    return limit


class Hog(al.callbacks.Callback):
    """Takes memory of this process when an update is done."""

    def __init__(self, size=2 * HEADROOM):
        super().__init__()
        self.size, self.kept = size, b""

    def on_train_batch_end(self, batch, logs=None):
        self.kept = b"x" * self.size

    def release(self):
        self.kept = b""


class WhenItPauses(logging.Logger):
    """Keeps what is said, and calls `then` soon after it was that there is a pause."""

    def __init__(self, then):
        super().__init__("paused")
        self.then, self.said = then, []

    def warning(self, text, *args):
        self.said.append(text % args)
        if "Pausing" in text:
            threading.Timer(0.2, self.then).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ({"gigabytes": value}, f"^`gigabytes` must be a finite .* Received: gigabytes={value!r}$")
            for value in (0, -1, math.nan, math.inf, "4", None, True)
        ),
        *(
            ({name: value}, rf"`{name}` must be a finite .* above 0 and at most 1e\+18. Received: {name}={value!r}")
            for name in ("seconds", "pause_minutes")
            for value in (0, math.nan, -2.0)
        ),
        (
            {"action": "stop"},
            "^`action` must be one of 'pause', 'checkpoint_and_stop', 'restart_actors', 'shrink_buffer'. Received: act",
        ),
    ],
)
def test_what_is_no_limit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MemoryLimit(**{"gigabytes": 1, **arguments})


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ((0.001,), r"^`gigabytes`.*when training begins. Received: gigabytes=0.001.*used=.* [GM]B"),
        ((1000, "restart_actors"), "needs actor processes. Received: num_actors=0"),
        ((1000, "shrink_buffer"), "`action=.shrink_buffer.` needs an algorithm with a replay buffer.*: PPO"),
    ],
)
def test_a_limit_that_cannot_be_kept_leaves_no_run(tmp_path, limit, message):
    config = al.TrainConfig(num_actors=0, run_dir=tmp_path / "run", quiet=True, callbacks=[MemoryLimit(*limit)])
    with pytest.raises(ValueError, match=message):
        al.train(config)
    assert not (tmp_path / "run/config.json").exists()


def test_what_the_cgroup_allows_is_the_limit_if_it_is_less(pool, monkeypatch, caplog):
    allowed = (measure({}).total + HEADROOM) / 0.95
    monkeypatch.setattr(memory_limit, "cgroup_limit", lambda: allowed)
    limit = begin(pool, "checkpoint_and_stop", gigabytes=1000)
    assert f"the limit is {size_text(0.95 * allowed)}, 95% of what the cgroup allows" in caplog.text
    limit.on_train_batch_end(0)
    assert not pool.network.stop_training
    kept = b"x" * 2 * HEADROOM
    limit.on_train_batch_end(1)
    assert pool.network.stop_training
    assert len(kept) == 2 * HEADROOM


class WideEnv(gym.Env):
    """Observations of 80 kB that are all different."""

    observation_space = Box(-1, 1, (20_000,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(20_000, np.float32), {}

    def step(self, action):
        return self.np_random.random(20_000, np.float32), 1.0, False, False, {}


@pytest.mark.slow
def test_a_replay_buffer_that_grows_beyond_the_limit_forgets_its_oldest_steps(tmp_path, caplog):
    seen = []

    class Watch(al.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((self.learner.buffer.capacity, measure(self.actors.pids).total))

    limit = (measure({}).total + 3 * HEADROOM) / 1e9
    al.train(
        al.TrainConfig(
            env=WideEnv,
            algorithm=al.DQN(buffer_size=5_000, learning_starts=5_490, target_update_interval=1_000),  # 400 MB
            total_steps=5_500,
            hidden_sizes=(2,),
            num_actors=0,
            num_envs=4,
            unroll_length=50,
            run_dir=tmp_path / "run",
            quiet=True,
            checkpoint_buffer=False,
            callbacks=[MemoryLimit(limit, "shrink_buffer", seconds=1e-9), Watch()],
        )
    )
    assert "The replay buffer now keeps" in caplog.text
    assert 500 <= seen[-1][0] < 5_000
    assert max(total for _, total in seen) < limit * 1e9 + HEADROOM
    assert len({capacity for capacity, _ in seen}) > 1


def test_above_the_limit_the_run_ends_and_below_it_nothing_happens(pool, caplog):
    limit, hog = begin(pool, "checkpoint_and_stop"), Hog()
    limit.on_train_batch_end(0)
    assert not pool.network.stop_training
    assert caplog.text == ""
    hog.on_train_batch_end(1)
    limit.on_train_batch_end(1)
    assert pool.network.stop_training
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("actor_learner", logging.WARNING)
    assert record.getMessage().startswith("Memory: ")
    assert record.getMessage().endswith("The run is saved and ends.")


def test_between_two_checks_nothing_is_measured(pool):
    limit, hog = begin(pool, "checkpoint_and_stop"), Hog()
    limit._sampler = limit._make_sampler(3600)
    limit.on_train_batch_end(0)
    hog.on_train_batch_end(1)
    limit.on_train_batch_end(1)
    assert not pool.network.stop_training


def test_a_pause_lasts_until_memory_is_free(pool, monkeypatch):
    limit, hog = begin(pool, "pause"), Hog()
    monkeypatch.setattr(memory_limit, "_LOG", log := WhenItPauses(hog.release))
    hog.on_train_batch_end(0)
    limit.on_train_batch_end(0)
    assert hog.kept == b""
    assert not pool.network.stop_training
    first, last = log.said
    assert first.endswith("Pausing until it is less, at most 60 minutes.")
    assert last.startswith("The pause is over after ")


def test_a_pause_that_does_not_help_ends_the_run(pool, caplog):
    limit, hog = begin(pool, "pause", pause_minutes=0.005), Hog()
    hog.on_train_batch_end(0)
    limit.on_train_batch_end(0)
    assert pool.network.stop_training
    assert "A pause of 0.005 minutes didn't help. The run is saved and ends." in caplog.messages[-1]


@pytest.mark.thorough
def test_ctrl_c_ends_a_pause_and_the_run_is_saved(tmp_path, monkeypatch):
    """The limit is far above what training takes, and the hog's size far above that and what training frees."""
    gc.collect()
    limit = MemoryLimit(measure({}).total / 1e9 + 0.8)
    hog = Hog(2500 * MB)
    monkeypatch.setattr(memory_limit, "_LOG", WhenItPauses(lambda: os.kill(os.getpid(), signal.SIGINT)))
    config = al.TrainConfig(
        num_actors=0,
        envs_per_actor=1,
        unroll_length=16,
        total_steps=1000,
        hidden_sizes=(8,),
        algorithm=al.A2C(),
        run_dir=tmp_path / "run",
        quiet=True,
        callbacks=[hog, limit],
    )
    with pytest.raises(KeyboardInterrupt, match="the run is saved in"):
        al.train(config)
    assert al.load_network(tmp_path / "run") is not None


def two_actors(env, **kwargs):
    return al.ActorPool(env, small_network, num_actors=2, envs_per_actor=1, unroll_length=8, **kwargs)


def collected(pool, limit=None):
    """Goes on as a run does: the next batch, published, and a check; returns the memory that is in use."""
    pool.collect()
    pool.publish(pool.network.get_weights())
    if limit is not None:
        limit.on_train_batch_end(0)
    return measure(pool.pids).total


def test_the_largest_actors_are_restarted_and_only_they(tmp_path, caplog):
    caplog.set_level(logging.INFO, "actor_learner")
    env = {"megabytes": 2 * HEADROOM // MB, "steps": 8, "switch": str(tmp_path / "leak"), "actors": ("actor-1",)}
    with two_actors(LeakingEnv, env_kwargs=env) as pool:
        limit = begin(pool, "restart_actors")
        collected(pool, limit)
        before = pool.pids
        assert pool.restart_count == 0
        (tmp_path / "leak").touch()
        assert wait_until(lambda: collected(pool) > limit.gigabytes * 1e9)
        (tmp_path / "leak").unlink()
        collected(pool, limit)  # sees it
        assert wait_until(lambda: len(pool.pids) == 2 and pool.pids[1] != before[1])
        collected(pool, limit)
        assert [(restart.actor, restart.cause) for restart in pool.restarts] == [(1, REQUESTED)]
        assert pool.pids[0] == before[0]
        assert collected(pool, limit) < limit.gigabytes * 1e9
        assert pool.restart_count == 1
        assert not pool.network.stop_training
    (line,) = (record.getMessage() for record in caplog.records if "Restarting" in record.getMessage())
    assert re.search(r"Restarting the largest actors: 1 \(\d+\.\d+ [GM]B\)", line)


def test_if_restarting_every_actor_does_not_help_the_run_ends(caplog):
    """It isn't they who take it."""
    hog = Hog(4 * HEADROOM)
    with two_actors("CartPole-v1") as pool:
        limit = begin(pool, "restart_actors")
        collected(pool, limit)
        hog.on_train_batch_end(0)
        collected(pool, limit)
        assert not pool.network.stop_training
        assert wait_until(lambda: pool.restart_count == 2 and len(pool.pids) == 2)
        collected(pool, limit)
        assert pool.network.stop_training
        assert "Restarting every actor didn't help. The run is saved and ends." in caplog.messages[-1]
        hog.release()
        collected(pool, limit)
        assert limit._restarted == {}
