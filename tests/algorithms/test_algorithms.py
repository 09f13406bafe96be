from __future__ import annotations

import dataclasses
import json
import warnings

import keras
import numpy as np
import pytest

from actor_learner import algorithms
from actor_learner.algorithms import optimizers
from actor_learner.algorithms.a2c import A2C
from actor_learner.algorithms.actor_critic import ActorCritic
from actor_learner.algorithms.impala import Impala
from actor_learner.algorithms.ppo import PPO
from actor_learner.algorithms.schedules import Schedule
from tests.support.trajectories import worked_rows


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
        "desired_kl": None,
        "vtrace": False,
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


@pytest.mark.parametrize("by", ["name", "variable"])
def test_what_an_optimizer_excludes_from_weight_decay_stays_excluded(by):
    gamma, kernel = (keras.Variable([1.0], name=name) for name in ("gamma", "kernel"))
    given = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    given.exclude_from_weight_decay(**({"var_names": ["gamma"]} if by == "name" else {"var_list": [gamma]}))
    made = PPO(optimizer=given).make_optimizer()
    made.apply([keras.ops.zeros(1), keras.ops.zeros(1)], [gamma, kernel])
    assert (float(gamma[0]), float(kernel[0])) == (1.0, pytest.approx(0.95))


@pytest.mark.parametrize("own", [False, True])
def test_weight_decay_leaves_log_std_and_what_an_algorithm_owns_alone(own):
    log_std, kernel = (keras.Variable([1.0], name=name) for name in ("log_std", "kernel"))
    optimizer = PPO(optimizer=keras.optimizers.AdamW(0.1, weight_decay=0.5)).make_optimizer()
    optimizers.build(optimizer, [log_std, kernel], own=own)
    optimizer.apply([keras.ops.zeros(1), keras.ops.zeros(1)], [log_std, kernel])
    assert (float(log_std[0]), float(kernel[0])) == (1.0, 1.0 if own else pytest.approx(0.95))


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adafactor(0.1),
        keras.optimizers.Lamb(0.1),
        keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.999, ema_overwrite_frequency=1),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_what_an_algorithm_owns_moves_as_by_adam(optimizer):
    """Its size means nothing: Adafactor and LAMB would hardly move a number near 0."""
    number = keras.Variable(1e-3)
    made = optimizers.build(PPO(optimizer=optimizer).make_optimizer(), [number], own=True)
    for _ in range(3):
        made.apply([keras.ops.ones(())], [number])
    assert float(number) == pytest.approx(-0.299, abs=0.01)


@pytest.mark.parametrize("cls", [A2C, PPO, Impala])
def test_an_optimizer_by_name_keeps_our_rate_and_clipping(cls):
    made = cls(optimizer="rmsprop", learning_rate=2e-3, max_grad_norm=3.0).make_optimizer()
    assert isinstance(made, keras.optimizers.RMSprop)
    assert (float(made.learning_rate), made.global_clipnorm) == (pytest.approx(2e-3), 3.0)
    assert (made.rho, made.epsilon) == (0.99, 1e-10)
    assert isinstance(cls(optimizer="adam").make_optimizer(), keras.optimizers.Adam)


def test_one_step_of_rmsprop_is_torchs():
    """Torch adds epsilon outside the root: the same where the gradient is far above or below it."""
    weight = keras.Variable(np.zeros(2, np.float32))
    gradient = np.array([0.3, -1e-7], np.float32)
    optimizer = A2C(max_grad_norm=None, learning_rate=0.1).make_optimizer()
    optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    expected = -0.1 * gradient / (np.sqrt(0.01 * gradient.astype(np.float64) ** 2) + 1e-5)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(weight.value), expected, rtol=5e-3)


SCALING = {
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    "SGD": lambda: keras.optimizers.SGD(loss_scale_factor=64.0),
}
"""Optimizers for float16, which expect the gradients of a larger loss."""


def falling():
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.5}, r"`gamma` must be a number between 0 and 1. Received: gamma=1.5"),
        ({"gamma": "0.9"}, r"`gamma` must be a number between 0 and 1. Received: gamma='0.9'"),
        ({"vf_coef": "linear"}, "`vf_coef` must be a finite number of at least 0. Rec"),
        ({"vf_coef": -1}, "`vf_coef` must be a finite number of at least 0. Received: vf_coef=-1"),
        ({"target_kl": "small"}, "`target_kl` must be a finite number above 0, or None. Received: target_kl='small'"),
        ({"normalize_reward": 1}, "`normalize_reward` must be True or False. Received: normalize_reward=1"),
        ({"optimizer": "sgd"}, r"must be 'adam', 'rmsprop' or a keras.optimizers.Optimizer. Received: optimizer='sgd'"),
        ({"optimizer": keras.optimizers.SGD}, "`optimizer` must be 'adam', 'rmsprop' or a keras.optimizers.Optimizer"),
        (
            {"learning_rate": -1.0},
            r"`learning_rate` must be a finite number of at least 0. Received: learning_rate=-1.0",
        ),
        ({"learning_rate": "cosine"}, "'linear_<initial value>'. Received: learning_rate='cosine'"),
        (
            {"minibatch_size": 0},
            r"`minibatch_size` must be an integer of at least 1, or None. Received: minibatch_size=0",
        ),
        ({"epochs": None}, "`epochs` must be an integer of at least 1. Received: epochs=None"),
        ({"max_grad_norm": 0}, "`max_grad_norm` must be a finite number above 0"),
        ({"clip_range": 0.0}, "`clip_range` must be a finite number above 0"),
        ({"clip_range_vf": -1.0}, "`clip_range_vf` must be a finite number above 0"),
        ({"vtrace": 1}, "`vtrace` must be True or False. Received: vtrace=1"),
        ({"desired_kl": -0.01}, "`desired_kl` must be a finite number above 0, or None. Received: desired_kl=-0.01"),
        (
            {"desired_kl": 0.01, "learning_rate": "linear"},
            r"must start as a number \(presets.*\). Received: desired_kl=0.01, learning_rate='linear'",
        ),
        (
            {"desired_kl": 0.01, "optimizer": falling()},
            r"must start as a number \(presets.*\). Received: desired_kl=0.01",
        ),
        *(
            ({"optimizer": make()}, f"`optimizer` must not scale losses: .*bfloat16.* Received: optimizer={name}$")
            for name, make in SCALING.items()
        ),
        ({"learning_rate": "linear_-1"}, "of at least 0. Received: learning_rate=-1.0 at 0 env steps"),
        ({"clip_range": "linear_nan"}, "schedule of `clip_range` must give a finite number.*clip_range=nan"),
        ({"learning_rate": lambda _: None}, "Received: learning_rate=None at 0 env steps"),
        ({"ent_coef": lambda _: float("inf")}, "schedule of `ent_coef` must give a finite number. Received"),
        ({"clip_range_vf": lambda _: -0.1}, "of at least 0. Received: clip_range_vf=-0.1 at 0 env steps"),
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


@pytest.mark.parametrize("rate", [float("nan"), -1e-3, float("-inf"), "fast", None])
@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf"])
def test_a_schedule_that_breaks_says_when(name, rate):
    algorithm = PPO(**{name: lambda remaining: 1e-3 if remaining == 1 else rate})
    with pytest.raises(ValueError, match=rf"schedule of `{name}` must give a finite number of at least 0") as error:
        algorithm.scheduled_values(progress_remaining=0.5, env_steps=50)
    assert str(error.value).endswith(f"Received: {name}={rate!r} at 50 env steps (progress_remaining=0.5)")


def test_an_entropy_coefficient_may_become_negative():
    algorithm = PPO(ent_coef=lambda remaining: remaining - 0.75)
    assert algorithm.scheduled_values(progress_remaining=0.5, env_steps=0)["ent_coef"] == -0.25


def keras_schedule(decay_steps, initial=1e-3):
    return keras.optimizers.schedules.PolynomialDecay(initial, decay_steps=decay_steps, end_learning_rate=0.0)


def test_a_keras_schedule_that_starts_badly_is_refused_before_the_run():
    algorithm = PPO(clip_range=keras_schedule(1000, initial=float("nan")))
    with pytest.raises(ValueError, match="schedule of `clip_range`.*Received: clip_range=nan at 0 env steps"):
        algorithm.check_total_steps(1000)


def test_a_keras_schedule_that_ends_early_was_meant_to_count_something_else():
    algorithm = PPO(learning_rate=keras_schedule(499))
    with pytest.warns(UserWarning, match="`learning_rate` counts env steps, of which there will be 1000.*=499"):
        algorithm.check_total_steps(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.check_total_steps(998)
        algorithm.check_total_steps(None)
        PPO(learning_rate="linear").check_total_steps(10)


@pytest.mark.parametrize(
    ("divergence", "rate", "expected"),
    [
        (0.021, 3e-4, 2e-4),
        (0.004, 2e-4, 3e-4),
        (0.02, 3e-4, None),  # the bounds themselves are still fine
        (0.005, 3e-4, None),
        (0.0, 3e-4, None),  # nothing was learned
        (-1e-9, 3e-4, None),  # rounding
        (float("nan"), 3e-4, None),
        (None, 3e-4, None),
        (1.0, 1.2e-5, 1e-5),
        (1e-5, 9e-3, 1e-2),
        (1.0, 1e-6, 1e-6),  # a rate from outside the range is never moved the wrong way
        (1e-5, 0.5, 0.5),
    ],
)
def test_the_rate_follows_the_divergence(divergence, rate, expected):
    metrics = {} if divergence is None else {"approx_kl": divergence}
    found = PPO(desired_kl=0.01).adapted_learning_rate(rate, metrics)
    assert found == (None if expected is None else pytest.approx(expected))
    assert PPO().adapted_learning_rate(rate, metrics) is None
    assert A2C().adapted_learning_rate(rate, metrics) is None


@pytest.mark.parametrize(
    ("algorithm", "source"),
    [
        (PPO(), None),
        (PPO(desired_kl=0.01), "desired_kl=0.01"),
        (A2C(learning_rate="linear"), "learning_rate='linear'"),
        (PPO(optimizer=keras.optimizers.SGD()), None),
        (PPO(optimizer=keras.optimizers.SGD(), desired_kl=0.01), "desired_kl=0.01"),
    ],
)
def test_what_writes_the_learning_rate(algorithm, source):
    assert algorithm.rate_source == source
    assert algorithm.changes_learning_rate == (source == "learning_rate='linear'")


@pytest.mark.parametrize(
    "algorithm",
    [
        A2C(optimizer="adam"),
        PPO(vtrace=True, desired_kl=0.02, clip_range="linear"),
        Impala(rho_clip=2.0, learning_rate="linear_1e-3", optimizer="rmsprop", max_grad_norm=None),
    ],
)
def test_json_there_and_back(algorithm):
    assert algorithms.from_json(json.loads(json.dumps(algorithms.to_json(algorithm)))) == algorithm


def test_a_subclass_may_bring_an_optimizer_and_need_nothing_else():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Plain(ActorCritic):
        def default_optimizer(self):
            return keras.optimizers.SGD(self.initial_learning_rate)

        def loss(self, outputs, minibatch):
            return self.actor_critic_loss(0.0, outputs["value"], outputs, minibatch)

    assert isinstance(Plain().make_optimizer(), keras.optimizers.SGD)
    assert isinstance(Plain(optimizer="adam").make_optimizer(), keras.optimizers.Adam)


def test_the_loss_by_hand():
    outputs, minibatch = worked_rows(value=np.array([0.0, 4.8], np.float32))
    ppo = PPO(normalize_advantage=False, ent_coef=0.1, vf_coef=0.5, clip_range_vf=0.5)
    loss, metrics = ppo.loss(outputs, minibatch)
    # Ratios 1.5 and 0.5, clipped to 1.2 and 0.8: min(3, 2.4) = 2.4 and min(-0.5, -0.8) = -0.8.
    policy = -(2.4 - 0.8) / 2
    value = ((2 - 0.5) ** 2 + (2 - 5.0) ** 2) / 2
    assert float(metrics["policy_loss"]) == pytest.approx(policy, rel=1e-5)
    assert float(metrics["value_loss"]) == pytest.approx(value, rel=1e-5)
    assert float(loss) == pytest.approx(policy + 0.5 * value - 0.1 * 0.6, rel=1e-5)
    assert float(metrics["clip_fraction"]) == 1.0
    expected_kl = np.mean([0.5 - np.log(1.5), -0.5 - np.log(0.5)])
    assert float(metrics["approx_kl"]) == pytest.approx(expected_kl, rel=1e-4)


def test_target_kl_of_a_subclass_ends_its_updates():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class CarefulA2C(A2C):
        target_kl: float | None = None

    metrics = {"approx_kl": 0.016}
    assert CarefulA2C(target_kl=0.01).ends_update(metrics)
    assert not CarefulA2C(target_kl=0.02).ends_update(metrics)
    assert CarefulA2C().ends_update(metrics) is None
    with pytest.raises(ValueError, match="`target_kl` needs a loss that reports `approx_kl`"):
        CarefulA2C(target_kl=0.01).check_metrics(["policy_loss"])


def test_a_subclass_that_is_no_dataclass_or_forgets_a_schedule_is_told():
    class Mine(PPO):
        coef: float = 0.1

    with pytest.raises(
        TypeError, match=r"Mine isn't a dataclass: put @dataclass\(frozen=True, kw_only=True\) above it"
    ):
        Mine(coef=0.2)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scheduled(PPO):
        coef: Schedule = 0.1

    assert Scheduled(coef=0.2).coef == 0.2
    with pytest.raises(
        ValueError, match=r"`coef` must be a number, or named in SCHEDULED of Scheduled. Received: coef='lin"
    ):
        Scheduled(coef="linear_0.1")

    unnamed = dataclasses.make_dataclass(
        "Unnamed", [("coef", Schedule, 0.1)], bases=(PPO,), frozen=True, kw_only=True
    )  # as a module without `from __future__ import annotations` writes it
    with pytest.raises(ValueError, match=r"`coef` must be a number, or named in SCHEDULED of Unnamed"):
        unnamed(coef="linear_0.1")
