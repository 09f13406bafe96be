"""What algorithms own beside the network, and what is said of variables, fields and methods that would be lost."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms import optimizers
from actor_learner.algorithms.off_policy.base import Loss, LossGroup
from actor_learner.algorithms.returns import mean_valid
from actor_learner.spaces.structure import action_structure
from tests.support.processes import patience
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")

SMALL = {"hidden_sizes": (8,)}


def model():
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1, kernel_regularizer="l2")])


@dataclass(frozen=True, kw_only=True)
class Owning(al.PPO):
    """Trains a predictor and a number, counts its updates, and draws."""

    epochs: int = 1
    minibatch_size: int | None = None

    def models(self, observation_space, action_space):
        assert (observation_space, action_space) == (VECTOR, TWO_ACTIONS)
        count = keras.Variable(0.0, trainable=False, name="count")
        return {
            "predictor": model(),
            "number": keras.Variable(1.0, name="number"),
            "count": count,
            "seed": keras.random.SeedGenerator(7),
        }

    def targets(self, batch, value):
        self.own["count"].assign(self.own["count"] + 1.0)
        return super().targets(batch, value)

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        error = ops.square(self.own["predictor"](minibatch["observation"])[:, 0] - 3.0)
        error = mean_valid(error, minibatch["valid"]) + ops.square(self.own["number"].value)
        again = self.network_outputs({**minibatch, "observation": minibatch["observation"] * 1.0})
        drawn = keras.random.uniform((), seed=self.own["seed"])
        same = ops.max(ops.abs(again["log_prob"] - outputs["log_prob"]))
        return loss + error, {**metrics, "error": error, "drawn": drawn, "same": same}

    def batch_metrics(self, rows):
        return {**super().batch_metrics(rows), "count": ops.convert_to_tensor(self.own["count"])}


def owning_learner(algorithm=None, **options):
    network = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, seed=0)
    algorithm = algorithm or Owning(learning_rate=0.01)
    return al.Learner(network, algorithm, action_space=TWO_ACTIONS, observation_space=VECTOR, **options)


def values(learner):
    return [np.asarray(variable.value) for variable in learner._update.state]


def test_models_variables_and_seeds_are_trained_advanced_undone_and_saved(tmp_path):
    keras.utils.set_random_seed(0)  # of the predictor
    learner = owning_learner()
    found = [learner.update(random_trajectory(seed=seed)) for seed in range(3)]
    assert found[2]["error"] < found[0]["error"]
    assert [each["count"] for each in found] == [1, 2, 3]
    assert len({each["drawn"] for each in found}) == 3
    assert max(each["same"] for each in found) < 1e-6
    assert not any(
        each is weight for each in learner.network.weights for weight in learner.algorithm.own["predictor"].weights
    )

    before = values(learner)
    broken = random_trajectory(seed=4)
    broken.reward[:] = 1e38
    assert learner.update(broken)["undone"]
    for one, other in zip(before, values(learner), strict=True):
        np.testing.assert_array_equal(one, other)

    learner.save(tmp_path / "saved")
    again = al.Learner.load(tmp_path / "saved", algorithm=Owning(learning_rate=0.01))
    expected = learner.update(random_trajectory(seed=5))
    assert again.update(random_trajectory(seed=5)) == expected
    for one, other in zip(values(learner), values(again), strict=True):
        np.testing.assert_array_equal(one, other)


@dataclass(frozen=True, kw_only=True)
class Curious(al.DQN):
    """DQN beside a predictor, which is a loss group."""

    learning_starts: int = 0
    target_update_interval: int = 1000
    trained: str = "predictor"

    def models(self, observation_space, action_space):
        return {"predictor": model(), "seed": keras.random.SeedGenerator(7)}

    def groups(self):
        return (*super().groups(), LossGroup(self.trained, self.prediction_loss))

    def prediction_loss(self, models, minibatch):
        error = ops.mean(ops.square(self.own["predictor"](minibatch["observation"]) - 3.0))
        return Loss(error, {"error": error, "drawn": keras.random.uniform((), seed=self.own["seed"])})


def off_policy_learner(algorithm, space=TWO_ACTIONS):
    options = algorithm.network_options(action_structure(space))
    network = al.default_network(VECTOR, space, **SMALL, **options, seed=0)
    return al.Learner(network, algorithm, action_space=space, observation_space=VECTOR, total_steps=5000)


def test_a_model_of_an_off_policy_algorithm_is_a_loss_group(tmp_path):
    learner = off_policy_learner(Curious(learning_rate=0.01))
    found = [learner.update(random_trajectory(seed=seed)) for seed in range(3)]
    assert found[2]["error"] < found[0]["error"]
    learner.save(tmp_path / "saved")
    again = al.Learner.load(tmp_path / "saved", algorithm=Curious(learning_rate=0.01))
    assert again.update(random_trajectory(seed=5)) == learner.update(random_trajectory(seed=5))
    with pytest.raises(
        ValueError, match=r"A loss group must be of a model or variable that there is. Received: 'other'"
    ):
        off_policy_learner(Curious(trained="other")).update(random_trajectory())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda: {"idle": keras.Variable(1.0)}, "needs a LossGroup of its name, or trainable=False. Received: 'idle'"),
        (lambda: {"critics": model()}, "unlike other groups. Received: 'critics'"),
        (lambda: {"same": (one := model()), "predictor": one}, "of one part.*kernel' of '.*' and '.*'"),
    ],
)
def test_parts_of_an_off_policy_algorithm_that_would_not_learn_as_they_seem_are_refused(parts, message):
    methods = {"models": lambda self, *spaces: {**Curious.models(self, *spaces), **parts()}}
    cls = dataclass(frozen=True, kw_only=True)(type("Mine", (Curious,), methods))
    with pytest.raises(ValueError, match=message):
        off_policy_learner(cls()).update(random_trajectory())


def test_a_part_that_shares_weights_with_the_network_is_refused():
    network = al.default_network(VECTOR, TWO_ACTIONS, **SMALL)
    methods = {"models": lambda self, *spaces: {"again": network}}
    algorithm = dataclass(frozen=True, kw_only=True)(type("Mine", (al.PPO,), methods))()
    with pytest.raises(ValueError, match=r"must be of one part.*Received: '.*' of 'the network' and 'again'"):
        al.Learner(network, algorithm, action_space=TWO_ACTIONS, observation_space=VECTOR).update(random_trajectory())


@dataclass(frozen=True, kw_only=True)
class Capturing(al.PPO):
    """Uses what isn't the learner's: `kind` says how."""

    held: Any = None
    kind: str = ""
    epochs: int = 1
    minibatch_size: int | None = None

    def targets(self, batch, value):
        fields = super().targets(batch, value)
        advantage = fields["advantage"]
        if self.kind == "assign":
            self.held.assign(self.held.value + 1.0)
        changed = {"turned": ops.transpose(advantage), "short": advantage[:-1], "column": ops.mean(advantage, axis=0)}
        return {**fields, "mine": changed[self.kind]} if self.kind in changed else fields

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        if self.kind == "read":
            loss = loss + mean_valid(self.held(minibatch["observation"])[:, 0], minibatch["valid"])
        if self.kind == "draw":
            metrics["drawn"] = keras.random.uniform((), seed=self.held)
        if self.kind == "mixed":
            loss = loss + mean_valid(minibatch["return"][:, None] - outputs["value"], minibatch["valid"])
        if self.kind == "vector":
            metrics["vector"] = outputs["value"]
        if self.kind == "apart":
            loss = mean_valid(minibatch["return"], minibatch["valid"])
        return (minibatch["return"] if self.kind == "rows" else loss), metrics


@pytest.mark.parametrize(
    ("kind", "held", "message"),
    [
        ("assign", lambda: keras.Variable(0.0, trainable=False, name="mine"), "assigns a variable that isn't.*'.*mine"),
        ("draw", lambda: keras.random.SeedGenerator(1), "`keras.random` needs a SeedGenerator from there"),
        ("turned", None, r"return must be \[T, B, ...\], here \[16, 4\]. Received: mine of shape \[4, 16\]"),
        ("short", None, r"Received: mine of shape \[15, 4\]"),
        ("column", None, r"Received: mine of shape \[4\]"),
        ("mixed", None, r"`values` must be of the shape of `valid`, \[64\]. Received: values=\[64, 64\]"),
        ("vector", None, r"`vector` must be a scalar.*shape \[64\]"),
        ("rows", None, r"`loss` must be a scalar.*shape \[64\]"),
        ("apart", None, r"depends on none of the weights that it trains.*Received: \d+ weights, the first .*kernel"),
    ],
)
def test_what_would_be_lost_or_shuffled_is_refused_by_name(kind, held, message):
    learner = owning_learner(Capturing(kind=kind, held=held and held()))
    with pytest.raises(ValueError, match=message):
        learner.update(random_trajectory())


def test_a_trainable_model_that_is_only_read_is_warned_of():
    held = model()
    with pytest.warns(UserWarning, match="A trainable variable that no optimizer steps is part of the update"):
        owning_learner(Capturing(kind="read", held=held)).update(random_trajectory())
    held.trainable = False
    owning_learner(Capturing(kind="read", held=held)).update(random_trajectory())


def test_a_variable_that_is_only_read_and_changes_is_followed_or_named():
    held = model()
    held.trainable = False
    learner = owning_learner(Capturing(kind="read", held=held))
    first = [learner.update(random_trajectory()) for _ in range(2)][1]["value_loss"]
    held.set_weights([weight + 1.0 for weight in held.get_weights()])
    if keras.backend.backend() == "jax":
        with pytest.raises(ValueError, match=r"changed after an update read it.*Received: '.*kernel'"):
            learner.update(random_trajectory())
    else:
        assert learner.update(random_trajectory())["value_loss"] != first


@pytest.mark.parametrize(("base", "name"), [(al.DQN, "targets"), (al.SAC, "batch_metrics"), (al.PPO, "groups")])
def test_methods_that_no_learner_calls_are_refused_with_their_class(base, name):
    with pytest.raises(TypeError, match=f"Mine has `{name}`, which only algorithms have that learn from"):
        type("Mine", (base,), {name: lambda self: None})


@pytest.mark.parametrize("parts", [{"a": 3}, {"a": keras.Sequential([layers.Dense(1)])}], ids=["number", "not built"])
def test_models_that_are_none_are_refused(parts):
    cls = dataclass(frozen=True, kw_only=True)(type("Mine", (al.PPO,), {"models": lambda self, *spaces: parts}))
    with pytest.raises(ValueError, match=r"`models` of Mine must .*Received: .*a'?"):
        owning_learner(cls())


@dataclass(frozen=True, kw_only=True)
class More(al.SAC):
    """Needs more noise, and gives the entropy by which SAC's own is known."""

    learning_starts: int = 0
    minibatch_size: int = 16

    NOISE = (*al.SAC.NOISE, "mine")

    @property
    def noise_columns(self):
        return super().noise_columns + 1

    def temperature_loss(self, models, minibatch):
        assert minibatch["noise"].shape[1] == 4 * models.action_size == 4 * self.noise(minibatch, "mine").shape[1]
        loss = super().temperature_loss(models, minibatch)
        wanted = loss.value / models.variables["log_ent_coef"].value + ops.mean(minibatch["log_prob"])
        return loss._replace(metrics={**loss.metrics, "wanted": -wanted})


def test_a_temperature_s_optimizer_of_another_kind_begins_anew(tmp_path, monkeypatch):
    algorithm = al.SAC(optimizer=keras.optimizers.Adafactor(0.01), learning_starts=0, minibatch_size=16)
    with monkeypatch.context() as earlier:
        earlier.setattr(optimizers, "_RELATIVE", ())
        off_policy_learner(algorithm, TORQUES).save(tmp_path / "saved")
    with pytest.warns(UserWarning, match="log_ent_coef_optimizer begins anew"):
        learner = al.Learner.load(tmp_path / "saved", algorithm=algorithm)
    assert learner.update(random_trajectory(TORQUES))["ent_coef"] > 0


def test_noise_of_a_subclass_stands_behind_that_of_its_base():
    learner = off_policy_learner(More(ent_coef="auto_0.5"), TORQUES)
    found = learner.update(random_trajectory(TORQUES))
    assert found["wanted"] == pytest.approx(3.0, abs=1e-3) or found["wanted"] == pytest.approx(-3.0, abs=1e-3)


@pytest.mark.slow
def test_all_of_this_on_jax():
    pytest.importorskip("jax", reason="needs jax")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    chosen = ["-k", "trained_advanced or loss_group or refused_by_name or only_read"]
    done = subprocess.run(
        [*command, *chosen],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
