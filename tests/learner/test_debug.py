"""An update that runs in Python: a debugger in a loss sees numbers, and the weights are the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

import actor_learner as al
from actor_learner.build import on_device
from actor_learner.networks.default import default_network
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")
SEEN = []


@dataclass(frozen=True, kw_only=True)
class LookingPPO(al.PPO):
    def loss(self, outputs, minibatch):
        SEEN.append(outputs["value"])
        return super().loss(outputs, minibatch)


@dataclass(frozen=True, kw_only=True)
class LookingDQN(al.DQN):
    def loss(self, models, minibatch):
        SEEN.append(models.parameters(minibatch["observation"]))
        return super().loss(models, minibatch)


def is_number(value):
    """A debugger prints it; inside of a gradient of JAX, too."""
    return re.search(r"numpy=|primal=\[|^Array", repr(value)) is not None


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_loss_sees_numbers_and_learns_the_same(kind):
    algorithm = LookingPPO(epochs=2, minibatch_size=16)
    if kind == "dqn":
        algorithm = LookingDQN(learning_starts=0, minibatch_size=16, updates_per_step=0.1, target_update_interval=1)
    weights = []
    for debug in (False, True):
        SEEN.clear()
        options = {"distribution": "greedy"} if kind == "dqn" else {}
        network = default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(4,), seed=1, **options)
        spaces = {"action_space": TWO_ACTIONS, "observation_space": VECTOR}
        learner = al.Learner(network, algorithm, total_steps=10_000, **spaces)
        with on_device(al.TrainConfig(debug=debug)):
            for seed in range(3):
                learner.update(random_trajectory(seed=seed))
        assert any(map(is_number, SEEN)) == debug
        weights.append(learner.get_weights())
    for compiled, eager in zip(*weights, strict=True):
        np.testing.assert_allclose(eager, compiled, atol=1e-5)
