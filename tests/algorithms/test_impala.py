"""Impala, and PPO with V-trace: the loss by hand, and both in a Learner."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from keras import ops

import actor_learner as al
from actor_learner.cli import parse
from actor_learner.cli.train import train_config
from tests.algorithms.test_vtrace import naive_vtrace
from tests.learner.test_learner import linear_network, on_policy, same_weights, weights_of
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory, worked_rows

pytestmark = pytest.mark.usefixtures("without_xla")


def stepped(algorithm, trajectory, action_space=TWO_ACTIONS, network=None):
    """Return the weights after one update of a fresh network, and its metrics."""
    network = network or linear_network(al.parameter_size(action_space))
    metrics = al.Learner(network, algorithm, action_space=action_space).update(trajectory)
    return weights_of(network), metrics


def sgd():
    return keras.optimizers.SGD(0.1)


def test_the_defaults():
    impala = al.Impala()
    assert (impala.gamma, impala.gae_lambda) == (0.99, 1.0)
    assert (impala.rho_clip, impala.c_clip, impala.pg_rho_clip) == (1.0, 1.0, 1.0)
    assert (impala.epochs, impala.minibatch_size, impala.normalize_advantage) == (1, None, False)
    shared = ("learning_rate", "gamma", "gae_lambda", "vf_coef", "ent_coef", "max_grad_norm", "normalize_reward")
    assert [getattr(impala, name) for name in shared] == [getattr(al.A2C(), name) for name in shared]


@pytest.mark.parametrize("name", ["rho_clip", "c_clip", "pg_rho_clip"])
@pytest.mark.parametrize("value", [0, -1.0, "1", float("inf"), float("nan"), True])
def test_refused_clips(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a finite number above 0, or None. Received: {name}="):
        al.Impala(**{name: value})


def test_the_docstrings_example_is_the_published_optimizer():
    lines = re.findall(r">>> (.*)", al.Impala.__doc__)
    names = {"al": al, "keras": keras}
    exec("\n".join(lines), names)
    optimizer = al.Learner(linear_network(), names["algorithm"], action_space=TWO_ACTIONS).optimizer
    assert isinstance(optimizer, keras.optimizers.RMSprop)
    rows = 20 * 32
    # A sum over N rows has N times the gradient of a mean, under a root with epsilon beside N^2 times its square.
    found = optimizer.get_config()
    assert (found["epsilon"] * rows**2, found["global_clipnorm"] * rows) == pytest.approx((0.1, 40.0))
    assert (found["rho"], found["momentum"]) == (0.99, 0.0)
    assert float(optimizer.learning_rate) == pytest.approx(6e-4)


def test_without_clips_weights_stay_as_they_are():
    """They equal bounds that no weight reaches; and no fraction of clipped weights is reported."""
    trajectory = random_trajectory(seed=3)
    names = ("rho_clip", "c_clip", "pg_rho_clip")
    free, metrics = stepped(al.Impala(optimizer=sgd(), **dict.fromkeys(names)), trajectory)
    wide, expected = stepped(al.Impala(optimizer=sgd(), **dict.fromkeys(names, 1e30)), trajectory)
    clipped, _ = stepped(al.Impala(optimizer=sgd()), trajectory)
    assert same_weights(free, wide)
    assert not np.allclose(free[0], clipped[0], atol=1e-4)
    assert metrics["rho"] == expected["rho"] > 1.0
    assert set(expected) - set(metrics) == {"rho_clip_fraction"}


def test_the_loss_by_hand():
    outputs, minibatch = worked_rows(log_rho=np.log(np.array([3.0, 0.5], np.float32)))
    loss, metrics = al.Impala(ent_coef=0.1, vf_coef=0.25, rho_clip=2.0).loss(outputs, minibatch)
    policy = -(2.0 * np.log(0.6) - 1.0 * np.log(0.1)) / 2
    value = ((2 - 1.0) ** 2 + (2 - 5.0) ** 2) / 2
    assert float(metrics["policy_loss"]) == pytest.approx(policy, rel=1e-5)
    assert float(metrics["value_loss"]) == pytest.approx(value, rel=1e-5)
    assert float(loss) == pytest.approx(policy + 0.25 * value - 0.1 * 0.6, rel=1e-5)
    assert float(metrics["rho"]) == pytest.approx((2.0 + 0.5) / 2)
    assert float(metrics["rho_clip_fraction"]) == 0.5
    expected_kl = np.mean([0.5 - np.log(1.5), -0.5 - np.log(0.5)])
    assert float(metrics["approx_kl"]) == pytest.approx(expected_kl, rel=1e-4)


def test_on_policy_it_is_a2c():
    trajectory = on_policy(random_trajectory(), linear_network())
    impala, metrics = stepped(al.Impala(optimizer=sgd(), ent_coef=0.01), trajectory)
    a2c, _ = stepped(al.A2C(optimizer=sgd(), ent_coef=0.01, vf_coef=al.Impala().vf_coef), trajectory)
    for one, other in zip(impala, a2c, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert metrics["rho"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["rho_clip_fraction"] == 0.0


@pytest.mark.xla
def test_off_policy_one_step_of_plain_sgd_by_hand():
    """Targets from the paper's sums, gradients of a linear network written down."""
    algorithm = al.Impala(optimizer=sgd(), ent_coef=0.0, vf_coef=0.5, gae_lambda=0.9, rho_clip=1.2, c_clip=0.8)
    trajectory = random_trajectory(seed=3)
    policy, value_weights = weights_of(linear_network())
    x = trajectory.observation[:-1].reshape(-1, 4).astype(np.float64)
    logits = x @ policy
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.eye(2)[trajectory.action.reshape(-1)]
    log_rho = np.log((probability * chosen).sum(-1)).reshape(trajectory.reward.shape) - trajectory.behaviour_log_prob
    value = (trajectory.observation.astype(np.float64) @ value_weights)[..., 0]
    target, _, advantage = naive_vtrace(
        trajectory, value, log_rho, gamma=0.99, gae_lambda=0.9, rho_clip=1.2, c_clip=0.8, pg_rho_clip=1.0
    )
    rows = len(x)
    policy_gradient = x.T @ (-advantage.reshape(-1, 1) * (chosen - probability)) / rows
    value_gradient = x.T @ (0.5 * 2 * (value[:-1] - target).reshape(-1, 1)) / rows
    found, metrics = stepped(algorithm, trajectory)
    np.testing.assert_allclose(found[0], policy - 0.1 * policy_gradient, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], value_weights - 0.1 * value_gradient, rtol=1e-4, atol=1e-5)
    assert metrics["rho"] == pytest.approx(np.minimum(np.exp(log_rho), 1.2).mean(), rel=1e-4)
    assert metrics["rho_clip_fraction"] == pytest.approx((np.exp(log_rho) > 1.201).mean(), abs=1e-6)


def test_at_lag_0_ppo_is_the_same_with_vtrace():
    action_space = TORQUES
    network = al.default_network(VECTOR, action_space, seed=1, hidden_sizes=(8,))
    policy = al.Policy.from_network(network, action_space, seed=0)
    trajectory = random_trajectory(action_space)
    rows = [policy.step(observation) for observation in trajectory.observation[:-1]]
    action, log_prob = (np.stack(field) for field in zip(*rows, strict=True))
    trajectory = trajectory._replace(action=action, behaviour_log_prob=log_prob)
    weights = [
        stepped(
            al.PPO(optimizer=sgd(), vtrace=vtrace, epochs=2, minibatch_size=16),
            trajectory,
            action_space,
            al.default_network(VECTOR, action_space, seed=1, hidden_sizes=(8,)),
        )[0]
        for vtrace in (False, True)
    ]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_ppos_first_full_batch_step_with_vtrace_has_impalas_gradient():
    """Without clipping, the ratio is the importance weight, which Impala's advantage contains."""
    common = {"gae_lambda": 0.9, "normalize_advantage": False, "epochs": 1, "minibatch_size": None, "vf_coef": 0.5}
    trajectory = random_trajectory(seed=4)
    ppo, metrics = stepped(al.PPO(optimizer=sgd(), vtrace=True, clip_range=1e6, **common), trajectory)
    impala, _ = stepped(al.Impala(optimizer=sgd(), pg_rho_clip=1e6, **common), trajectory)
    without, _ = stepped(al.PPO(optimizer=sgd(), clip_range=1e6, **common), trajectory)
    for one, other in zip(ppo, impala, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not np.allclose(ppo[0], without[0], atol=1e-4)
    assert "update_kl" not in metrics  # nothing asks for it


def test_a2c_knows_no_behaviour_policy():
    trajectory = random_trajectory()
    other = trajectory._replace(behaviour_log_prob=trajectory.behaviour_log_prob - 1.0)
    assert same_weights(stepped(al.A2C(), trajectory)[0], stepped(al.A2C(), other)[0])


def test_the_learning_rate_follows_desired_kl_and_survives_a_file(tmp_path):
    algorithm = al.PPO(learning_rate=1e-3, desired_kl=1e-6, epochs=4, minibatch_size=16)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS)
    trajectory = random_trajectory()  # of another policy, so that the divergence is large
    assert learner.update(trajectory)["learning_rate"] == pytest.approx(1e-3)
    assert learner.update(trajectory)["learning_rate"] == pytest.approx(1e-3 / 1.5)
    learner.save(tmp_path)
    again = al.Learner.load(tmp_path)
    assert again.update(trajectory)["learning_rate"] == pytest.approx(1e-3 / 1.5**2)


@dataclass(frozen=True, kw_only=True)
class Renamed(al.PPO):
    """Reports `approx_kl` alone, as the loss of a user's algorithm may."""

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        return loss, {"approx_kl": metrics["approx_kl"]}


def test_the_age_of_the_actors_weights_ends_no_update_and_lowers_no_rate():
    """The policy is far from the behaviour policy, but near the one before the update; `approx_kl` alone can't tell.

    An update that `target_kl` ends adapts the rate, too.
    """
    options = {"learning_rate": 1e-4, "epochs": 2, "minibatch_size": 16, "target_kl": 0.01, "desired_kl": 0.01}
    trajectory = random_trajectory()
    learners = [
        al.Learner(linear_network(), algorithm(**options), action_space=TWO_ACTIONS) for algorithm in (al.PPO, Renamed)
    ]
    metrics, by_age = (learner.update(trajectory) for learner in learners)
    assert metrics["approx_kl"] > 0.1
    assert metrics["update_kl"] < 1e-4
    assert "update_kl" not in by_age
    assert [int(learner.optimizer.iterations) for learner in learners] == [2 * 4, 0]
    rates = [float(ops.convert_to_numpy(learner.optimizer.learning_rate)) for learner in learners]
    assert rates == pytest.approx([1.5e-4, 1e-4 / 1.5])


def test_on_policy_the_two_divergences_are_the_same():
    network = linear_network()
    learner = al.Learner(network, al.PPO(learning_rate=0.01, target_kl=1.0), action_space=TWO_ACTIONS)
    metrics = learner.update(on_policy(random_trajectory(), network))
    assert metrics["update_kl"] == pytest.approx(metrics["approx_kl"], rel=1e-3)
    assert metrics["update_kl"] > 1e-4


@pytest.mark.parametrize("algorithm", [al.Impala(), al.PPO(vtrace=True)])
def test_an_unroll_of_one_step_is_refused_before_anything_starts(algorithm):
    with pytest.raises(ValueError, match="`unroll_length` must be at least 2.*Received: unroll_length=1"):
        al.TrainConfig(algorithm=algorithm, unroll_length=1)
    al.TrainConfig(algorithm=al.A2C(), unroll_length=1)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS)
    with pytest.raises(ValueError, match="Received: unroll_length=1"):
        learner.update(random_trajectory(steps=1))


def test_a_loss_that_reports_no_divergence_has_nothing_to_adapt_to():
    class Silent(al.PPO):
        def loss(self, outputs, minibatch):
            loss, metrics = super().loss(outputs, minibatch)
            return loss, {name: value for name, value in metrics.items() if not name.endswith("_kl")}

    learner = al.Learner(linear_network(), Silent(desired_kl=0.01), action_space=TWO_ACTIONS)
    with pytest.raises(ValueError, match="`desired_kl` needs a loss that reports `approx_kl`"):
        learner.update(random_trajectory())


def test_on_the_command_line():
    flags = "--rho-clip 2 --c-clip none --gae-lambda .9 --optimizer adam --max-policy-lag 1"
    arguments = parse(["train", "Acrobot-v1", "--algorithm", "impala", *flags.split()])
    algorithm = train_config(arguments).algorithm
    assert algorithm == al.Impala(rho_clip=2.0, c_clip=None, gae_lambda=0.9, optimizer="adam")
    assert al.algorithms.from_json(json.loads(json.dumps(al.algorithms.to_json(algorithm)))) == algorithm
