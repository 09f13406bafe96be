"""Entries of config.json by type, of whole, old and damaged files."""

from __future__ import annotations

import pytest

import actor_learner as al
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, RecordedConfig, flat_config
from actor_learner.system.machine import available_cores


def test_the_entries_of_a_config():
    config = RecordedConfig(al.TrainConfig(num_actors=3, envs_per_actor=2).to_json() | {"machine": {"cores": 7}})
    assert (config.env, config.algorithm, config.cores, config.num_envs) == ("CartPole-v1", "ppo", 7, 6)
    assert config.integer("total_steps") == config["total_steps"]
    assert config.chosen == {}


@pytest.mark.parametrize("name", ["verbose", "ray_address", "actors_per_host", "ray_wait", "acting"])
def test_where_a_run_was_and_what_it_said_is_not_compared(name):
    assert name in flat_config(al.TrainConfig().to_json())
    assert name not in flat_config(al.TrainConfig().to_json(), skip=WITHOUT_EFFECT)


def test_what_is_a_callable_or_of_a_module_is_named():
    config = RecordedConfig(env={"callable": "package.module:make"}, algorithm={"name": "package.module:Own"})
    assert (config.env, config.algorithm) == ("package.module:make", "Own")
    assert flat_config({"env_kwargs": {"a": {"import": "module:f"}}}) == {"env_kwargs.a": "module:f"}


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"env": None, "algorithm": [], "machine": "old", "num_actors": "two", "chosen": 3},
        {"algorithm": {"name": None}, "machine": {"cores": 0}, "num_actors": 2, "envs_per_actor": 0.5},
        {"machine": {"cores": True}, "num_actors": True, "envs_per_actor": True, "finished": {"env_steps": True}},
    ],
)
def test_missing_and_damaged_entries(damaged):
    config = RecordedConfig(damaged)
    assert (config.env, config.algorithm, config.cores) == ("", "", available_cores())
    assert (config.num_envs, config.chosen, config.finished_steps) == (None, {}, 0)
    assert config.integer("machine", "cores", "deeper") is None
