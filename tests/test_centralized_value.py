"""A centralized value: it sees the state of the whole game, and the policy that is saved is an agent's own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.networks.contract import call_network
from actor_learner.policy.export.exporting import export_policy
from tests.support.agents_game import LastStanding

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]


class Watched(LastStanding):
    """Agents don't see what their reward depends on."""

    def state(self):
        return np.array([self.steps, self.games, len(self.agents)], np.float32)


SETTINGS = {
    "env": Watched,
    "algorithm": al.PPO(minibatch_size=24),
    "envs_per_actor": 6,
    "num_actors": 0,
    "unroll_length": 8,
    "centralized_value": True,
    "quiet": True,
    "tensorboard": False,
}


LEARNING = {**SETTINGS, "total_steps": 200, "hidden_sizes": (8,), "normalize_observation": True, "memory": "gru"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, without_xla):
    return al.train(al.TrainConfig(**LEARNING, run_dir=tmp_path_factory.mktemp("runs") / "run"))


def observations(rows):
    draws = np.random.default_rng(0)
    agent, state = draws.integers(3, size=rows, dtype=np.int32), draws.normal(size=(rows, 3)).astype(np.float32)
    return {"observation": draws.normal(size=(rows, 4)).astype(np.float32), "agent": agent, "state": state}


def test_the_saved_policy_acts_on_an_agents_own_observation_as_the_training_network_does(run):
    saved, whole = al.load_policy(run.run_dir, seed=3), al.load_network(run.run_dir)
    assert saved.observation_space == Watched().observation_space("agent_0")
    assert not saved.exported.has_value
    assert not any("value" in name or "state" in name for name in saved.exported.weight_names)
    assert all(layer.count > 0 for layer in whole.layers if hasattr(layer, "count"))
    with al.ActorPool(Watched, whole, num_actors=0, envs_per_actor=6, centralized_value=True) as actors:
        acting = al.Policy(actors.exported, seed=3)
    seen = observations(6)
    for start in (True, False):
        np.testing.assert_array_equal(saved.act(seen["observation"], start=start), acting.act(seen, start=start))
        seen = {**seen, "state": seen["state"] + 1}  # which changes no action
    (actions, log_probs), (others, other_log_probs) = saved.step(seen["observation"]), acting.step(seen)
    np.testing.assert_array_equal(actions, others)
    np.testing.assert_allclose(log_probs, other_log_probs, rtol=1e-6)


def test_runs_and_networks_play_the_game_without_its_state(run, tmp_path):
    played = al.evaluate(run.run_dir, LastStanding, episodes=9, num_envs=3)
    np.testing.assert_array_equal(played.returns, al.evaluate(run.network, LastStanding, 9, num_envs=3).returns)
    model = al.load_network(al.export(run.run_dir, tmp_path / "keras", format="keras"))
    assert sorted(model.input) == ["observation", "start", "state_0"]


def test_a_run_goes_on_and_another_starts_from_it(run, tmp_path):
    config = al.TrainConfig(**{**LEARNING, "total_steps": 300}, run_dir=run.run_dir)
    assert al.train(config, resume=True).metrics["env_steps"] >= 300
    evaluating = al.callbacks.Evaluate(48, episodes=3)
    changes = {"total_steps": 48, "run_dir": tmp_path / "run", "init_from": run.run_dir, "callbacks": [evaluating]}
    result = al.train(al.TrainConfig(**{**SETTINGS, **changes}))
    assert result.metrics["evaluation/return_mean"] == evaluating.evaluation.mean
    assert evaluating.evaluation.returns.tolist() == al.evaluate(result.run_dir, episodes=3).returns.tolist()


def two_layers(observation_space, action_space):
    inputs = {name: keras.Input(space.shape, name=name) for name, space in observation_space.spaces.items()}
    value = keras.layers.Dense(1)(keras.ops.concatenate([inputs["observation"], inputs["state"]], axis=-1))
    return keras.Model(inputs, (keras.layers.Dense(int(action_space.n))(inputs["observation"]), value))


def test_a_network_of_ones_own_gets_everything_and_its_finished_run_is_read_again(tmp_path):
    config = al.TrainConfig(**SETTINGS, total_steps=48, network=two_layers, run_dir=tmp_path / "run")
    networks = al.train(config).network, al.train(config, resume=True).network
    for first, second in zip(*(network.get_weights() for network in networks), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_cut_off_agent_has_the_value_of_the_state_at_that_moment():
    with al.ActorPool(Watched, num_actors=0, envs_per_actor=3, unroll_length=5, centralized_value=True) as actors:
        batch = actors.collect()
        assert batch.truncated[4].tolist() == [False, False, True]
        last = {"observation": [[5, 2, 1, batch.action[4, 2]]], "agent": [2], "state": [[5, 1, 0]]}
        dtypes = {name: leaf.dtype for name, leaf in batch.observation.items()}
        seen = {name: np.array(value, dtypes[name]) for name, value in last.items()}
        value = float(call_network(actors.network, seen)["value"][0])
        assert batch.truncation_value[4, 2] == pytest.approx(value, rel=1e-5)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.policy, self.value = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, seen):
        return self.policy(seen["observation"]), self.value(seen["state"])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Subclassed(), "needs a functional model, with the observation's entries.*Received: network='subclassed'"),
        (al.default_network, "must not depend on 'state'.* layer 'observations' reads it.* network='actor_critic'"),
    ],
)
def test_a_network_whose_policy_may_see_the_state_is_refused(network, message):
    with pytest.raises(ValueError, match=message):
        al.ActorPool(Watched, network, num_actors=0, envs_per_actor=3, centralized_value=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"self_play": True}, r"leave it out with `self_play`. Received: centralized_value=True"),
        ({"algorithm": al.DQN()}, r"must be left out for DQN.* Received: centralized_value=True"),
        (
            {"network": al.default_network, "normalize_observation": True},
            r"build al.ObservationNormalization layers.* Received: normalize_observation=True",
        ),
    ],
)
def test_settings_that_exclude_a_centralized_value(changes, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**{**SETTINGS, **changes})


def test_a_network_that_is_exported_for_the_whole_observation_keeps_its_value():
    with al.ActorPool(Watched, num_actors=0, envs_per_actor=3, centralized_value=True) as actors:
        whole = export_policy(actors.network, Discrete(3), 1, actors.observation_space)
        own = export_policy(actors.network, Discrete(3), 1, Box(-1, np.inf, (4,)))
    assert (whole.has_value, own.has_value) == (True, False)
