"""An algorithm without values and advantages learns: it asks of `Algorithm` only what any algorithm needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from keras import ops

import actor_learner as al
from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.returns import mean_valid
from actor_learner.algorithms.source import ShuffledEpochs
from actor_learner.networks.contract import call_network
from tests.support.small_networks import same_weights, weights_of
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


@dataclass(frozen=True, kw_only=True)
class BehaviourCloning(al.algorithms.Algorithm):
    """Maximum likelihood of a batch's actions."""

    minibatch_size: int = hyperparameter(32, "rows in a minibatch")

    def source(self):
        return ShuffledEpochs(epochs=4, minibatch_size=self.minibatch_size)

    def loss(self, outputs, minibatch):
        valid = minibatch["valid"]
        likelier = ops.cast(ops.argmax(outputs["parameters"], axis=-1), "int64")
        agrees = ops.cast(likelier == ops.cast(minibatch["action"], "int64"), "float32")
        accuracy = mean_valid(agrees, valid)
        return -mean_valid(outputs["log_prob"], valid), {"accuracy": accuracy}


def demonstrations(seed=0):
    """A fixed batch of an expert that looks at the sign of one number."""
    trajectory = random_trajectory(steps=64, columns=4, invalid_rate=0.1, seed=seed)
    return trajectory._replace(action=(trajectory.observation[:-1, :, 1] > 0).astype(trajectory.action.dtype))


def accuracy(network, batch):
    """Return the share of valid rows in which the likeliest action is the expert's."""
    rows = np.nan_to_num(batch.observation[:-1][batch.valid])
    likeliest = ops.convert_to_numpy(ops.argmax(call_network(network, rows)["parameters"], axis=-1))
    return float(np.mean(likeliest == batch.action[batch.valid]))


def test_the_fields_of_a_minibatch_are_those_that_the_docstring_of_loss_lists():
    seen = set()

    @dataclass(frozen=True, kw_only=True)
    class Seeing(al.PPO):
        def loss(self, outputs, minibatch):
            seen.update(minibatch)
            return super().loss(outputs, minibatch)

    learner = al.Learner(al.default_network(VECTOR, TWO_ACTIONS), Seeing(), action_space=TWO_ACTIONS)
    batch = demonstrations()
    learner.trace(batch._replace(action_mask=np.ones((*batch.valid.shape, 2), bool)))
    fields = al.algorithms.Algorithm.loss.__doc__.partition("Those of the batch")[2]
    listed = set(re.findall(r"`(\w+)(?: \[.*?\])?`", fields))
    assert seen <= listed
    others = {"rewards", "Trajectory", "ActorCritic", "targets", "parameters"}
    assert listed - seen == others | {"start", "initial_state"}  # of a network with memory


def test_it_learns_what_the_expert_does_and_an_update_that_is_not_finite_is_undone():
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(16,), normalize_observation=True, seed=1)
    value_head = network.get_layer("value").get_weights()
    learner = al.Learner(network, BehaviourCloning(learning_rate=1e-3), action_space=TWO_ACTIONS)
    batch = demonstrations()
    untrained = accuracy(network, batch)
    metrics = [learner.update(batch) for _ in range(30)]
    assert untrained < 0.8
    assert metrics[-1]["accuracy"] > 0.97
    assert accuracy(network, batch) > 0.97
    assert metrics[-1].keys() == {"loss", "accuracy", "gradient_norm", "learning_rate"}
    assert same_weights(value_head, network.get_layer("value").get_weights())
    assert learner.updates == 30
    assert learner.env_steps == 30 * batch.valid.sum()

    before = weights_of(network)
    learner.optimizer.learning_rate = np.inf
    assert learner.update(batch)["undone"] == 1.0
    assert same_weights(before, weights_of(network))


def test_its_schedule_and_state_are_those_of_any_algorithm(tmp_path):
    algorithm = BehaviourCloning(learning_rate="linear_1e-2", optimizer="rmsprop")
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(8,), seed=1)
    learner = al.Learner(network, algorithm, action_space=TWO_ACTIONS, total_steps=10_000)
    learner.update(demonstrations())
    learner.save(tmp_path / "learner")
    again = al.Learner.load(tmp_path / "learner", algorithm=algorithm)
    assert learner.update(demonstrations(1)) == again.update(demonstrations(1))
    assert same_weights(weights_of(network), weights_of(again.network))


def test_it_has_no_hyperparameters_of_actor_critics():
    names = {"gamma", "gae_lambda", "vf_coef", "epochs", "normalize_advantage", "clip_reward"}
    assert not names & set(dir(BehaviourCloning()))
    for name in names:
        with pytest.raises(TypeError, match=f"no such field.*Received: {name}=1"):
            BehaviourCloning(**{name: 1})


def test_targets_belong_to_an_actor_critic():
    with pytest.raises(TypeError, match=r"OfTargets has `targets`.*subclass al\.algorithms\.ActorCritic"):

        class OfTargets(BehaviourCloning):
            def targets(self, batch, value):
                return {}
