"""Latency-v0: the environment that waits. Nothing here measures time: what is asked of `sleep` is written down."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from actor_learner_envs import latency
from actor_learner_envs.latency import LatencyEnv, LatencyVectorEnv

SEEDS = range(2000)


@pytest.fixture
def slept(monkeypatch):
    """The seconds of every sleep, none of which is slept."""
    seconds = []
    monkeypatch.setattr(latency, "time", SimpleNamespace(sleep=seconds.append))
    return seconds


def make(kind, **kwargs):
    return LatencyEnv(**kwargs) if kind == "single" else LatencyVectorEnv(3, **kwargs)


def step(env):
    return env.step(env.action_space.sample())


def seed_that_is(slow, time):
    return next(seed for seed in SEEDS if time.is_slow(seed) is slow)


both = pytest.mark.parametrize("kind", ["single", "vector"])


@both
def test_every_step_waits_once_and_no_reset_does(kind, slept):
    env = make(kind, step_time=0.25)
    env.reset(seed=0)
    assert slept == []
    for _ in range(5):
        step(env)
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert slept == [0.25] * 5


@both
@pytest.mark.parametrize("slow", [False, True])
def test_slow_or_not_by_the_seed(kind, slow, slept):
    env = make(kind, step_time=0.25, slow_fraction=0.5, slow_factor=100.0)
    env.reset(seed=seed_that_is(slow, env.step_time))
    step(env)
    env.reset()  # without a seed it stays as it is
    step(env)
    env.reset(seed=seed_that_is(not slow, env.step_time))
    step(env)
    assert slept == ([25.0, 25.0, 0.25] if slow else [0.25, 0.25, 25.0])


@pytest.mark.parametrize(
    ("kwargs", "received"),
    [
        ({"step_time": -1.0}, "step_time=-1.0"),
        ({"step_time": float("nan")}, "step_time=nan"),
        ({"tail": 1.0}, "tail=1.0"),
        ({"tail": float("nan")}, "tail=nan"),
        ({"slow_fraction": 1.5}, "slow_fraction=1.5"),
        ({"slow_factor": 0.5}, "slow_factor=0.5"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
@both
def test_refused_arguments(kind, kwargs, received):
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        make(kind, **kwargs)
    with pytest.raises(ValueError, match="Received: num_envs=0$"):
        LatencyVectorEnv(0)
