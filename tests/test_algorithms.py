from __future__ import annotations

import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest

from actor_learner.algorithms import A2C, PPO


def test_ppo_defaults_are_those_of_sb3():
    ppo = PPO()
    assert dataclasses.asdict(ppo) == {
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "epochs": 10,
        "minibatch_size": 64,
        "normalize_advantage": True,
        "target_kl": None,
        "normalize_reward": False,
        "clip_reward": None,
        "optimizer": None,
    }


def test_a2c_defaults_are_those_of_sb3():
    a2c = A2C()
    assert (a2c.learning_rate, a2c.gae_lambda, a2c.vf_coef, a2c.ent_coef) == (7e-4, 1.0, 0.5, 0.0)
    assert (a2c.max_grad_norm, a2c.normalize_advantage) == (0.5, False)
    assert (a2c.epochs, a2c.minibatch_size) == (1, None)


def test_default_optimizers():
    adam = PPO(learning_rate=1e-3, max_grad_norm=2.0).make_optimizer()
    assert isinstance(adam, keras.optimizers.Adam)
    assert adam.epsilon == 1e-5
    assert adam.global_clipnorm == 2.0
    assert adam.clipnorm is None
    assert float(adam.learning_rate) == pytest.approx(1e-3)
    rmsprop = A2C().make_optimizer()
    assert isinstance(rmsprop, keras.optimizers.RMSprop)
    assert (rmsprop.rho, rmsprop.epsilon) == (0.99, 1e-10)


def test_an_optimizer_is_cloned():
    given = keras.optimizers.SGD(0.5, momentum=0.9)
    made = PPO(optimizer=given).make_optimizer()
    assert made is not given
    assert made.get_config() == given.get_config()


def test_every_hyperparameter_is_documented():
    for cls in (PPO, A2C):
        for field in dataclasses.fields(cls):
            assert field.metadata["help"], field.name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.5}, r"`gamma` must be between 0 and 1. Received: gamma=1.5"),
        ({"gamma": "0.9"}, r"`gamma` must be a number. Received: gamma='0.9'"),
        ({"gae_lambda": None}, "`gae_lambda` must be a number. Received: gae_lambda=None"),
        ({"vf_coef": "linear"}, "`vf_coef` must be a number"),
        ({"max_grad_norm": "1"}, "`max_grad_norm` must be above 0, or None. Received: max_grad_norm='1'"),
        ({"target_kl": "small"}, "`target_kl` must be above 0. Received: target_kl='small'"),
        ({"normalize_reward": 1}, "`normalize_reward` must be True or False. Received: normalize_reward=1"),
        ({"optimizer": "adam"}, r"`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer='adam'"),
        ({"optimizer": keras.optimizers.SGD}, "`optimizer` must be a keras.optimizers.Optimizer"),
        ({"gae_lambda": -0.1}, "`gae_lambda` must be between 0 and 1"),
        ({"learning_rate": -1.0}, r"`learning_rate` must be a number, at least 0. Received: learning_rate=-1.0"),
        ({"learning_rate": float("nan")}, "`learning_rate`"),
        ({"learning_rate": "cosine"}, "'linear_<initial value>'. Received: learning_rate='cosine'"),
        ({"learning_rate": "linear_x"}, "Received: learning_rate='linear_x'"),
        ({"minibatch_size": 0}, r"`minibatch_size` must be an integer, at least 1. Received: minibatch_size=0"),
        ({"epochs": 1.5}, "`epochs` must be an integer"),
        ({"max_grad_norm": 0}, "`max_grad_norm` must be above 0"),
        ({"clip_range": 0.0}, "`clip_range` must be above 0"),
        ({"clip_range_vf": -1.0}, "`clip_range_vf` must be above 0"),
        ({"clip_range_vf": "linear"}, "clip_range_vf='linear'"),
        ({"target_kl": 0.0}, "`target_kl` must be above 0"),
        ({"clip_reward": "tanh"}, "`clip_reward` must be None, 'sign' or a bound above 0"),
        ({"ent_coef": float("inf")}, "`ent_coef`"),
        (
            {"optimizer": keras.optimizers.SGD(), "learning_rate": 1e-2},
            r"belongs in the optimizer.*optimizer=SGD, learning_rate=0.01",
        ),
        ({"optimizer": keras.optimizers.SGD(), "max_grad_norm": 1.0}, "`max_grad_norm` belongs in the optimizer"),
    ],
)
def test_refused_values(values, message):
    with pytest.raises(ValueError, match=message):
        PPO(**values)


def test_numbers_of_numpy_become_pythons():
    algorithm = PPO(gamma=np.float32(0.5), epochs=np.int64(3), clip_range=np.float64(0.25))
    assert algorithm == PPO(gamma=0.5, epochs=3, clip_range=0.25)
    assert [type(value) for value in (algorithm.gamma, algorithm.epochs)] == [float, int]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [(0.1, 0.1), ("linear", 0.25 * 3e-4), ("linear_1e-3", 0.25e-3), ("lin_1e-3", 0.25e-3), (lambda p: p**2, 0.0625)],
)
def test_schedules(schedule, expected):
    values = PPO(learning_rate=schedule).scheduled_values(progress_remaining=0.25, env_steps=10)
    assert values["learning_rate"] == pytest.approx(expected)
    assert values["clip_range"] == 0.2
    assert "clip_range_vf" not in values


def test_a_keras_schedule_counts_env_steps():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=100, end_learning_rate=0.0)
    values = PPO(clip_range=schedule).scheduled_values(progress_remaining=1.0, env_steps=75)
    assert values["clip_range"] == pytest.approx(0.25)


@pytest.mark.parametrize("rate", [float("nan"), -1e-3])
def test_a_schedule_that_breaks_says_when(rate):
    with pytest.raises(ValueError, match=r"schedule of `learning_rate`.*at 50 env steps"):
        PPO(learning_rate=lambda _: rate).scheduled_values(progress_remaining=0.5, env_steps=50)


def test_the_loss_by_hand():
    outputs = {
        "log_prob": np.log(np.array([0.6, 0.1], np.float32)),
        "value": np.array([1.0, 5.0], np.float32),
        "entropy": np.array([0.5, 0.7], np.float32),
    }
    minibatch = {
        "behaviour_log_prob": np.log(np.array([0.4, 0.2], np.float32)),
        "advantage": np.array([2.0, -1.0], np.float32),
        "return": np.array([2.0, 2.0], np.float32),
        "value": np.array([0.0, 4.8], np.float32),
        "valid": np.array([True, True]),
    }
    ppo = PPO(normalize_advantage=False, ent_coef=0.1, vf_coef=0.5, clip_range_vf=0.5)
    loss, metrics = ppo.loss(outputs, minibatch)
    # Ratios 1.5 and .5, clipped to 1.2 and .8: min(3, 2.4) = 2.4 and min(-.5, -.8) = -.8.
    policy = -(2.4 - 0.8) / 2
    value = ((2 - 0.5) ** 2 + (2 - 5.0) ** 2) / 2
    assert float(metrics["policy_loss"]) == pytest.approx(policy, rel=1e-5)
    assert float(metrics["value_loss"]) == pytest.approx(value, rel=1e-5)
    assert float(loss) == pytest.approx(policy + 0.5 * value - 0.1 * 0.6, rel=1e-5)
    assert float(metrics["clip_fraction"]) == 1.0
    expected_kl = np.mean([0.5 - np.log(1.5), -0.5 - np.log(0.5)])
    assert float(metrics["approx_kl"]) == pytest.approx(expected_kl, rel=1e-4)


def test_hyperparameters_load_neither_tensorflow_nor_keras():
    code = (
        "import sys; from actor_learner.algorithms import PPO; PPO(learning_rate='linear'); "
        "sys.exit(any(name in sys.modules for name in ('keras', 'tensorflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
