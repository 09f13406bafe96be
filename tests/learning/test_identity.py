"""Every kind of action space is learned: repeating the observation earns at least 90% of the best, soon."""

from __future__ import annotations

import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import actor_learner as al
from tests.support.identity_env import IdentityEnv

pytestmark = [pytest.mark.usefixtures("without_xla"), pytest.mark.slow]

FORCE = Box(-1.0, 1.0, (2,))
SPACES = {
    "masked": (Discrete(4), {"masked": True}),
    "tuple-squashed": (Tuple([MultiDiscrete([2, 3]), Dict(force=FORCE, switches=MultiBinary(2)), Discrete(2)]), {}),
}


@pytest.mark.parametrize("name", ["masked", pytest.param("tuple-squashed", marks=pytest.mark.thorough)])
def test_the_identity_is_learned(name, tmp_path):
    space, options = SPACES[name]
    kwargs = {"space": space, **options}
    result = al.train(
        al.TrainConfig(
            env=IdentityEnv,
            env_kwargs=kwargs,
            algorithm=al.PPO(learning_rate=3e-3, gamma=0.0, minibatch_size=128, epochs=8),
            num_actors=0,
            tensorboard=False,
            envs_per_actor=8,
            unroll_length=64,
            total_steps=10_000,
            distribution="squashed" if name.endswith("squashed") else "gaussian",
            run_dir=tmp_path / "run",
            quiet=True,
        )
    )
    evaluation = al.evaluate(result.run_dir, IdentityEnv, env_kwargs=kwargs, episodes=20, seed=7)
    assert evaluation.mean / evaluation.lengths[0] >= 0.9
