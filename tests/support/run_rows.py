"""Rows of metrics and a config as a run would have written them, for what only looks at a run."""

from __future__ import annotations

from actor_learner.runs.recorded_config import RecordedConfig

CONFIG = RecordedConfig(
    {
        "env": "CartPole-v1",
        "algorithm": {"name": "ppo"},
        "num_actors": 2,
        "max_policy_lag": 0,
        "total_steps": 10_000,
        "machine": {"cores": 4},
    }
)


def row(number, **changes):
    """The row of update `number`: 100 env steps and 2 s each, the return its number."""
    fields = {
        "env_steps": 100 * number,
        "updates": number,
        "time_seconds": 2.0 * number,
        "steps_per_second": 50.0,
        "episode_return": float(number),
        "policy_lag": 0.0,
        "policy_lag_max": 0.0,
        "time/learning": 0.25,
        "time/collecting": 0.7,
        "time/env": 0.5,
        "time/acting": 0.1,
        "time/other": 0.05,
        "time/waiting": 0.35,
        "actor_restarts": 0,
        "memory/learner_mb": 812.0,
        "memory/actor_0_mb": 54.0,
        "memory/actor_1_mb": 55.0,
        "cpu/learner": 1.25,
        "cpu/actor_0": 0.5,
        "cpu/actor_1": 0.75,
    }
    return {**fields, **{name.replace("__", "/"): value for name, value in changes.items()}}
