"""Gradients, steps and dead units of layers as metrics: their values, their names, and weights that stay the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import actor_learner as al
from actor_learner.networks.contract import named_layers
from actor_learner.reports.report import charts
from actor_learner.runs.meter import look_up
from actor_learner.runs.metrics import read_metrics
from actor_learner.spaces.structure import action_structure
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")
OFTEN = {"learning_starts": 0, "minibatch_size": 16, "updates_per_step": 0.1}
CASES = {
    "ppo": (lambda: al.PPO(epochs=3, minibatch_size=16, target_kl=0.05), TWO_ACTIONS, {}),
    "memory": (lambda: al.PPO(minibatch_size=32), TWO_ACTIONS, {"memory": "gru", "memory_size": 4}),
    "sac": (lambda: al.SAC(**OFTEN), TORQUES, {"distribution": "squashed"}),
    "td3": (lambda: al.TD3(**OFTEN), TORQUES, {}),
}
STEP = ("gradient_norm", "update_ratio")


def blocks():
    """A network of a nested model, and of two layers of one name in a layer: Dense with 4 units behind ReLUs each."""
    seen, rows = keras.Input((4,)), keras.Input((4,))
    trunk = keras.Model(rows, layers.ReLU(name="relu")(layers.Dense(4, name="dense")(rows)), name="trunk")
    features = Block(name="block")(layers.Dense(4, "relu", name="dense")(trunk(seen)))
    return keras.Model(seen, (layers.Dense(2, name="parameters")(features), layers.Dense(1, name="value")(features)))


class Block(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.parts = [layers.Dense(4, name="same"), layers.Activation("relu"), layers.Dense(4, name="same")]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def learn(case, diagnose):
    """A learner after three updates, and the metrics of the last."""
    algorithm, actions, options = CASES[case]
    algorithm = algorithm()
    options = {**options, **algorithm.network_options(action_structure(actions))}
    network = al.default_network(VECTOR, actions, hidden_sizes=(8, 8), activation="relu", seed=1, **options)
    spaces = {"action_space": actions, "observation_space": VECTOR}
    learner = al.Learner(network, algorithm, total_steps=10_000, diagnose=diagnose, **spaces)
    for seed in range(3):
        batch = random_trajectory(actions, seed=seed)
        if case == "memory":
            start = np.zeros((17, 4), bool)
            batch = batch._replace(start=start, initial_state=(np.zeros((4, 4), np.float32),))
        metrics = learner.update(batch)
    return learner, metrics


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_same_and_every_layer_is_measured(case):
    (usual, without), (learner, metrics) = (learn(case, diagnose) for diagnose in (False, True))
    for one, other in zip(usual.get_weights(), learner.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    measured = {name: value for name, value in metrics.items() if name.startswith("diagnose/")}
    assert metrics.keys() - measured.keys() == without.keys()
    assert {look_up(name).subject for name in measured} == {"layers"}
    models = {"": learner.network}
    models |= {f"critic_{number}": critic for number, critic in enumerate(getattr(learner, "critics", ()))}
    found = named_layers(models)
    trained = {name for name, layer in found.items() if any(one.trainable for one in layer._trainable_variables)}
    relus = {name for name in trained if "hidden" in name}
    expected = {f"{kind}/{name}" for kind in STEP for name in trained} | {f"dead_units/{name}" for name in relus}
    assert {name.removeprefix("diagnose/") for name in measured} == expected
    assert all(value > 0 for name, value in measured.items() if "dead_units" not in name)


def test_norms_and_ratios_are_those_of_the_step():
    rate, network = 0.01, blocks()
    algorithm = al.A2C(optimizer=keras.optimizers.SGD(rate))
    learner = al.Learner(network, algorithm, action_space=TWO_ACTIONS, diagnose=True)
    found = {name: layer for name, layer in named_layers({"": network}).items() if layer._trainable_variables}
    assert [*found] == ["trunk.dense", "dense", "block.same", "block.same-2", "parameters", "value"]

    def weights(layer):
        return np.concatenate([np.ravel(one) for one in layer.get_weights()])

    before = {name: weights(layer) for name, layer in found.items()}
    metrics = learner.update(random_trajectory())
    for name, layer in found.items():
        moved, after = np.linalg.norm(weights(layer) - before[name]), np.linalg.norm(weights(layer))
        assert metrics[f"diagnose/gradient_norm/{name}"] == pytest.approx(moved / rate, rel=1e-3)
        assert metrics[f"diagnose/update_ratio/{name}"] == pytest.approx(moved / after, rel=1e-3)
    squares = [metrics[f"diagnose/gradient_norm/{name}"] ** 2 for name in found]
    assert np.sqrt(sum(squares)) == pytest.approx(metrics["gradient_norm"], rel=1e-4)


def test_units_are_dead_that_are_zero_in_all_rows():
    network = blocks()
    learner = al.Learner(network, al.A2C(), action_space=TWO_ACTIONS, diagnose=True)
    biases = {"trunk.dense": [-99, 9, 9, 9], "dense": [-999, -999, 999, 999], "block.same": [9e4] * 4}
    for name, values in biases.items():
        named_layers({"": network})[name].bias.assign(values)
    metrics = learner.update(random_trajectory())
    dead = {name.rpartition("/")[2]: value for name, value in metrics.items() if "dead_units" in name}
    assert dead == {"trunk.relu": 0.25, "dense": 0.5, f"block.{network.get_layer('block').parts[1].name}": 0.0}


def test_units_of_a_slowly_moving_copy_do_not_count():
    options = {"distribution": "greedy", "hidden_sizes": (4,), "activation": "relu"}
    network = al.default_network(VECTOR, TWO_ACTIONS, **options)
    algorithm = al.DQN(**{**OFTEN, "target_update_interval": 10_000})
    spaces = {"action_space": TWO_ACTIONS, "observation_space": VECTOR}
    learner = al.Learner(network, algorithm, total_steps=10_000, diagnose=True, **spaces)
    learner.update(random_trajectory())
    network.get_layer("policy_hidden_1").bias.assign([-99, -99, -99, 99])
    assert learner.update(random_trajectory())["diagnose/dead_units/policy_hidden_1"] == 0.75


def test_a_run_records_and_draws_them_and_a_resumed_one_goes_on(tmp_path):
    config = al.TrainConfig(run_dir=tmp_path, diagnose=True, total_steps=512, num_envs=4, num_actors=0, quiet=True)
    al.train(config)
    al.train(config.replace(total_steps=1024), resume=True)
    rows = read_metrics(tmp_path)
    assert "diagnose/update_ratio/logits" in rows[0].keys() & rows[-1].keys()
    drawn = charts([{**row, "later": row["updates"]} for row in rows]).groups
    assert {chart.metric.split("/")[1] for chart in drawn["layers"]} == {*STEP}
    assert drawn["learning"][-1].metric == "later"


def test_without_it_nothing_is_measured_by_default():
    assert not al.TrainConfig().diagnose
    with pytest.raises(ValueError, match=r"^`diagnose` must be True or False. Received: diagnose=2$"):
        al.Learner(blocks(), al.PPO(), action_space=TWO_ACTIONS, diagnose=2)
