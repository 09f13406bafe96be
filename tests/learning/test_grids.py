"""Small grids are learned with the default network, whatever their dtype, bounds and meaning."""

from __future__ import annotations

import gymnasium as gym
import pytest

import actor_learner as al
from tests.support.grid_env import SPACES, GridEnv

pytestmark = [pytest.mark.usefixtures("without_xla"), pytest.mark.slow]


def trained(tmp_path, env, total_steps, *, algorithm=None, **settings):
    run = tmp_path / "run"
    return al.train(
        al.TrainConfig(
            env=env, total_steps=total_steps, algorithm=algorithm or al.PPO(), run_dir=run, quiet=True, **settings
        )
    )


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "planes" else pytest.mark.thorough) for kind in SPACES]
)
def test_a_square_is_found(kind, tmp_path):
    algorithm = al.PPO(learning_rate=3e-3, gamma=0.0, minibatch_size=128, epochs=8)
    settings = {"num_actors": 0, "envs_per_actor": 8, "unroll_length": 64}
    result = trained(tmp_path, GridEnv, 10_000, algorithm=algorithm, env_kwargs={"kind": kind}, **settings)
    evaluation = al.evaluate(result.run_dir, GridEnv, env_kwargs={"kind": kind}, episodes=50, seed=7)
    assert evaluation.mean / evaluation.lengths[0] >= 0.9


@pytest.mark.thorough
def test_minigrids_image_is_learned(tmp_path):
    """A random player reaches about 0.15; five seeds reached 0.66 to 0.96."""
    minigrid = pytest.importorskip("minigrid", reason="needs minigrid")

    def empty_room():
        return minigrid.wrappers.ImgObsWrapper(gym.make("MiniGrid-Empty-8x8-v0"))

    result = trained(tmp_path, empty_room, 50_000)
    assert result.metrics["episode_return"] > 0.5


@pytest.mark.thorough
def test_2048_is_learned(tmp_path):
    """A random player reaches about 1,050."""
    pytest.importorskip("gymnasium_2048", reason="needs gymnasium-2048")
    result = trained(tmp_path, "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", 100_000)
    assert result.metrics["episode_return"] > 1_200
    assert result.metrics["entropy"] < 1.2
