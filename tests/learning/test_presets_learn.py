"""The quickest of the presets, from nothing to solved; benchmarks/learning/learning.md has the others."""

from __future__ import annotations

import keras
import pytest

import actor_learner as al

pytestmark = pytest.mark.thorough


def test_ppo_solves_cartpole(tmp_path):
    result = al.train(al.preset("CartPole-v1", run_dir=tmp_path / "run", quiet=True))
    evaluation = al.evaluate(result.run_dir, episodes=20, seed=1000)
    assert evaluation.mean >= 490
    assert len(evaluation.returns) == 20


def test_ppo_learns_cartpole_in_16_bits(tmp_path):
    """One batch ahead."""
    changes = {"precision": "bfloat16", "max_policy_lag": 1, "total_steps": 10_000, "quiet": True}
    result = al.train(al.preset("CartPole-v1", run_dir=tmp_path / "run", **changes))
    assert {layer.compute_dtype for layer in result.network.layers} >= {"bfloat16"}
    assert keras.config.dtype_policy().name == "float32"
    assert al.evaluate(result.run_dir, episodes=20, seed=1000).mean >= 50  # at first about 20
