"""The quickest of the presets, from nothing to solved; benchmarks/learning/learning.md has the others."""

from __future__ import annotations

import keras
import pytest

import actor_learner as al

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("max_policy_lag", [0, 1])
def test_ppo_solves_cartpole(tmp_path, max_policy_lag):
    result = al.train(al.preset("CartPole-v1", run_dir=tmp_path / "run", quiet=True, max_policy_lag=max_policy_lag))
    evaluation = al.evaluate(result.run_dir, episodes=20, seed=1000)
    assert evaluation.mean >= 490
    assert len(evaluation.returns) == 20


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_ppo_learns_cartpole_in_16_bits(tmp_path, precision):
    config = al.preset("CartPole-v1", run_dir=tmp_path / "run", quiet=True, precision=precision)
    result = al.train(config)
    assert {layer.compute_dtype for layer in result.network.layers} >= {precision}
    assert keras.config.dtype_policy().name == "float32"
    assert al.evaluate(result.run_dir, episodes=20, seed=1000).mean >= 475
    assert ("loss_scale" in result.metrics) == (precision == "float16")


@pytest.mark.thorough
def test_ppo_swings_the_pendulum_up(tmp_path):
    result = al.train(al.preset("Pendulum-v1", run_dir=tmp_path / "run", quiet=True))
    assert al.evaluate(result.run_dir, episodes=20, seed=1000).mean > -250
