"""Policies that take the choice of the highest value, and explore with probability epsilon, a published weight."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import actor_learner as al
from actor_learner.spaces.structure import action_structure

pytestmark = pytest.mark.slow

OBSERVATION, ROWS = Box(-1, 1, (4,), np.float32), 16


def q_network(observation_space, action_space, epsilon=0.05):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(observation_space.shape)
    values = keras.layers.Dense(int(action_space.n))(keras.layers.Dense(16, "tanh")(inputs))
    parameters = al.ActionDistribution("greedy", epsilon=epsilon)(values)
    return keras.Model(inputs, (parameters, keras.ops.max(values, axis=-1)))


def epsilon_of(network):
    return next(weight for weight in network.weights if weight.name == "epsilon")


@pytest.mark.parametrize("masked", [False, True])
def test_actors_explore_as_often_as_epsilon_says(masked):
    """In the exported graph, whose epsilon is renewed with the weights."""
    network = q_network(OBSERVATION, Discrete(3))
    policy = al.Policy.from_network(network, Discrete(3), batch_size=ROWS)
    observation = np.random.default_rng(0).uniform(-1, 1, (ROWS, 4)).astype(np.float32)
    best = policy.act(observation)
    mask = np.ones((ROWS, 3), bool)
    if masked:
        mask[np.arange(ROWS), best] = False
        best = policy.act(observation, action_mask=mask)
    for epsilon in (1.0, 0.3, 0.05, 0.0):
        epsilon_of(network).assign([epsilon])
        policy.set_weights(network.get_weights())
        steps, others = 200, 0
        for _ in range(steps):
            action, log_prob = policy.step(observation, mask)
            others += (action != best).sum()
            assert np.isfinite(log_prob).all()
            assert mask[np.arange(ROWS), action].all()
        rate = others / (steps * ROWS)
        expected = epsilon * (1 / 2 if masked else 2 / 3)  # the greedy choice is one of those that may be drawn
        assert rate == pytest.approx(expected, abs=4 * np.sqrt(expected / (steps * ROWS)) + 1e-9)
        np.testing.assert_array_equal(policy.act(observation, action_mask=mask), best)


def test_a_pool_publishes_epsilon():
    with al.ActorPool("CartPole-v1", q_network, num_actors=0, num_envs=4, unroll_length=200) as pool:
        for epsilon in (0.0, 1.0):
            epsilon_of(pool.network).assign([epsilon])
            pool.publish(pool.network.get_weights())
            trajectory = pool.collect()
            parameters = pool.network(trajectory.observation[:-1].reshape(-1, 4))[0]
            greedy = np.argmax(np.asarray(parameters)[:, :2], axis=1).reshape(trajectory.action.shape)
            agrees = (greedy == trajectory.action)[trajectory.valid].mean()
            assert agrees == (1 if epsilon == 0 else pytest.approx(0.5, abs=0.08))
            if epsilon:
                np.testing.assert_allclose(trajectory.behaviour_log_prob[trajectory.valid], np.log(0.5), atol=1e-6)


def ladder_network(observation_space, action_space):
    algorithm = al.DQN(epsilon_ladder=7.0)
    return al.default_network(
        observation_space, action_space, hidden_sizes=(4,), **algorithm.network_options(action_structure(action_space))
    )


@pytest.mark.parametrize("num_actors", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_environments_explore_by_apex_s_ladder_whichever_actor_steps_them(num_actors):
    """Epsilon ** (1 + 7 i / (N - 1)): the log-probability of an action tells whether it was the greedy one."""
    with al.ActorPool("CartPole-v1", ladder_network, num_actors=num_actors, num_envs=4, unroll_length=1000) as pool:
        epsilon_of(pool.network).assign([0.4])
        pool.publish(pool.network.get_weights())
        pool.collect()
        trajectory = pool.collect()
        parameters = pool.network(trajectory.observation[:-1].reshape(-1, 4))[0]
    greedy = np.argmax(np.asarray(parameters)[:, :2], axis=1).reshape(trajectory.action.shape)
    for env in range(4):
        rows = trajectory.valid[:, env]
        expected = 0.4 ** (1 + 7 * env / 3) / 2
        rate = (greedy != trajectory.action)[rows, env].mean()
        assert rate == pytest.approx(expected, abs=4 * np.sqrt(expected / rows.sum()) + 1e-9)


def test_the_ladder_is_for_the_environments_of_a_pool_alone():
    """Whoever samples from a policy gets epsilon in each row, wherever it stands in a batch."""
    network = ladder_network(OBSERVATION, Discrete(2))
    epsilon_of(network).assign([0.4])
    policy = al.Policy.from_network(network, Discrete(2), seed=1)
    observation = np.tile(np.float32([0.1, 0.2, -0.1, 0.3]), (4, 1))
    greedy = policy.act(observation)
    rates = np.mean([policy.act(observation, deterministic=False) != greedy for _ in range(1000)], axis=0)
    assert rates == pytest.approx(0.2, abs=4 * np.sqrt(0.2 / 1000))


def test_what_it_cannot_be():
    with pytest.raises(ValueError, match="`distribution='greedy'` needs a Discrete action space"):
        al.Policy.from_network(q_network(OBSERVATION, Discrete(3)), MultiDiscrete([2, 2]))
    with pytest.raises(ValueError, match="`epsilon` must be .*Received: epsilon=1.5"):
        al.ActionDistribution("greedy", epsilon=1.5)
    network = q_network(OBSERVATION, Discrete(3))
    with pytest.raises(ValueError, match="PPO can't learn a greedy policy, whose probabilities have no gradient"):
        al.Learner(network, al.PPO(), action_space=Discrete(3))
