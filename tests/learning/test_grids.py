"""Small grids are learned with the default network, whatever their dtype, bounds and meaning."""

from __future__ import annotations

import pytest

import actor_learner as al
from tests.support.grid_env import GridEnv

pytestmark = [pytest.mark.usefixtures("without_xla"), pytest.mark.slow]


@pytest.mark.parametrize("kind", ["planes", pytest.param("beside a vector", marks=pytest.mark.thorough)])
def test_a_square_is_found(kind, tmp_path):
    algorithm = al.PPO(learning_rate=3e-3, gamma=0.0, minibatch_size=128, epochs=8)
    settings = {
        "num_actors": 0,
        "envs_per_actor": 8,
        "unroll_length": 64,
        "total_steps": 10_000,
        "quiet": True,
        "max_policy_lag": 0,
    }
    config = al.TrainConfig(
        env=GridEnv, env_kwargs={"kind": kind}, algorithm=algorithm, run_dir=tmp_path / "run", **settings
    )
    result = al.train(config)
    evaluation = al.evaluate(result.run_dir, GridEnv, env_kwargs={"kind": kind}, episodes=50, seed=7)
    assert evaluation.mean / evaluation.lengths[0] >= 0.9
