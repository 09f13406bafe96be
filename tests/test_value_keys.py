"""Entries of observations for the value alone: policies are saved, exported and evaluated without them."""

from __future__ import annotations

import contextlib

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import actor_learner as al
from actor_learner.networks.contract import call_network
from actor_learner.runs.checkpoints import learner_folder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]
ROWS = 1_000


class Arm(gym.Env):
    """Pays for an action that is the first joint's angle, by a mass."""

    observation_space = Dict(
        joints=Box(-1, 1, (2,)),
        sim=Dict(force=Box(-1, 1, (1,)), masses=Box(0, 2, (2,))),
        privileged_state=Box(0, 2, (1,)),
    )
    action_space = Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action):
        self.steps += 1
        reward = -abs(float(action[0] - self.seen["joints"][0])) * float(self.seen["sim"]["masses"][0])
        return self._draw(), reward, False, self.steps == 5, {}

    def _draw(self):
        draw = self.np_random.uniform
        sim = {"force": draw(-1, 1, 1), "masses": draw(0, 2, 2)}
        self.seen = {"joints": draw(-1, 1, 2), "sim": sim, "privileged_state": draw(0, 2, 1)}
        return as_float32(self.seen)


def as_float32(nest):
    return {name: as_float32(part) if isinstance(part, dict) else np.float32(part) for name, part in nest.items()}


def observations(rows, seed=0):
    draws = np.random.default_rng(seed)
    sim = {"force": draws.uniform(-1, 1, (rows, 1)), "masses": draws.uniform(0, 2, (rows, 2))}
    joints, hidden = draws.uniform(-1, 1, (rows, 2)), draws.uniform(0, 2, (rows, 1))
    return as_float32({"joints": joints, "sim": sim, "privileged_state": hidden})


SEEN = observations(ROWS)
OWN = {"joints": SEEN["joints"], "sim": {"force": SEEN["sim"]["force"]}}
OWN_SPACE = Dict(joints=Box(-1, 1, (2,)), sim=Dict(force=Box(-1, 1, (1,))))
OTHER = observations(ROWS, seed=1) | OWN | {"sim": {**OWN["sim"], "masses": 2 - SEEN["sim"]["masses"]}}
KEYS = ("sim/masses", "privileged_state")
OFTEN = {"learning_starts": 40, "minibatch_size": 8, "updates_per_step": 0.2, "buffer_size": 200}
SHORT = {"env": Arm, "num_envs": 4, "unroll_length": 8, "total_steps": 96, "hidden_sizes": (8,), "value_keys": KEYS}
SHORT |= {"quiet": True, "tensorboard": False}
POOL = {"num_actors": 0, "envs_per_actor": 2, "unroll_length": 4}


@pytest.fixture(scope="module", params=[al.PPO(minibatch_size=16), al.SAC(**OFTEN)], ids=["ppo", "sac"])
def config(request, tmp_path_factory):
    folder, algorithm = tmp_path_factory.mktemp("runs") / "run", request.param
    options = {"num_actors": 1, "max_policy_lag": 1} if isinstance(algorithm, al.PPO) else {"num_actors": 0}
    return al.TrainConfig(**SHORT, **options, algorithm=algorithm, normalize_observation=True, run_dir=folder)


@pytest.fixture(scope="module")
def run(config, without_xla):
    return al.train(config)


def test_the_saved_policy_acts_as_the_network_does_with_and_without_these_entries(run):
    saved, whole = al.load_policy(run.run_dir), al.load_network(run.run_dir)
    assert saved.observation_space == OWN_SPACE
    expected = al.Policy.from_network(whole, Arm.action_space, observation_space=Arm.observation_space).act(SEEN)
    for seen in (OWN, SEEN, OTHER):
        np.testing.assert_array_equal(saved.act(seen), expected)
    np.testing.assert_array_equal(al.load_policy(f"{run.run_dir}@latest").act(OWN), expected)
    assert al.evaluate(run.run_dir, episodes=3).returns.tolist() == al.evaluate(run.network, Arm, 3).returns.tolist()
    with pytest.raises(ValueError, match=r"without \['joints'\] and with the further \['sum'\]"):
        saved.act({"sum": SEEN["joints"], "sim": SEEN["sim"]})


def test_a_file_of_onnx_has_no_such_input(run, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    folder = al.export(run.run_dir, tmp_path / "out", format="onnx")
    session = runtime.InferenceSession(folder / "policy.onnx")
    feed = {"observation.joints": OWN["joints"], "observation.sim.force": OWN["sim"]["force"]}
    assert {one.name for one in session.get_inputs()} == feed.keys()
    (found,) = session.run(["action"], feed)
    np.testing.assert_allclose(found, al.load_policy(run.run_dir).act(OWN), atol=1e-6)


def test_a_run_goes_on_and_its_value_or_critics_see_everything(run, config):
    result = al.train(config.replace(total_steps=160), resume=True)
    assert result.metrics["env_steps"] >= 160
    assert al.load_policy(run.run_dir).observation_space == OWN_SPACE
    action = np.zeros((ROWS, 1), np.float32)
    if isinstance(config.algorithm, al.SAC):
        critic = al.Learner.load(learner_folder(run.run_dir)).critics[0]
        values = [np.asarray(critic((seen, action))) for seen in (SEEN, OTHER)]
    else:
        values = [np.asarray(call_network(result.network, seen)["value"]) for seen in (SEEN, OTHER)]
    assert (values[0] != values[1]).mean() > 0.9


def heads(policy, value, width):
    x = keras.layers.Concatenate(name="joined")(policy)
    return keras.layers.Dense(width)(x), keras.layers.Dense(1)(keras.layers.Concatenate()(value))


def blind(space, action_space, *, sees=("joints", "sim.force")):
    """By names, in another order."""
    names = {"sim.masses": 2, "privileged_state": 1, "joints": 2, "sim.force": 1}
    inputs = {name: keras.Input((size,), name=name) for name, size in names.items()}
    return keras.Model(list(inputs.values()), heads([inputs[name] for name in sees], list(inputs.values()), 2))


def seeing(space, action_space):
    return blind(space, action_space, sees=("joints", "sim.force", "sim.masses"))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.policy, self.value = keras.layers.Dense(2), keras.layers.Dense(1)

    def call(self, seen):
        return self.policy(seen["joints"]), self.value(seen["privileged_state"])


def test_a_network_of_ones_own_gets_everything_and_its_finished_run_is_read_again(tmp_path):
    own = {name: value for name, value in SHORT.items() if name != "hidden_sizes"}
    config = al.TrainConfig(**own, algorithm=al.A2C(), num_actors=0, network=blind, run_dir=tmp_path / "run")
    first, second = al.train(config).network, al.train(config, resume=True).network
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    saved = al.load_policy(tmp_path / "run")
    mean = np.asarray(call_network(first, OTHER)["parameters"])[:, :1]
    np.testing.assert_allclose(saved.act(OWN), np.clip(mean, -1, 1), atol=1e-5)


def by_space(space, action_space):
    inputs = {"joints": keras.Input((2,)), "sim": {"force": keras.Input((1,)), "masses": keras.Input((2,))}}
    if "privileged_state" in space.spaces:
        inputs["privileged_state"] = keras.Input((1,))
    parameters = keras.layers.Dense(2)(inputs["joints"])
    return keras.Model(inputs, {"parameters": al.ActionDistribution("squashed")(parameters)})


@pytest.mark.parametrize("network", [by_space, by_space(Arm.observation_space, None)], ids=["function", "model"])
def test_a_finished_off_policy_run_gives_a_network_that_takes_what_is_hidden_by_default(network, tmp_path):
    own = {name: value for name, value in SHORT.items() if name not in ("hidden_sizes", "value_keys")}
    config = al.TrainConfig(**own, algorithm=al.SAC(**OFTEN), num_actors=0, network=network, run_dir=tmp_path / "run")
    first, second = al.train(config).network, al.train(config, resume=True).network
    assert "privileged_state" not in al.load_policy(tmp_path / "run").observation_space.spaces
    assert second.input.keys() == first.input.keys() == Arm.observation_space.spaces.keys()
    np.testing.assert_array_equal(second(SEEN)["parameters"], first(SEEN)["parameters"])


@pytest.mark.parametrize(
    ("env", "network", "keys", "message"),
    [
        (Arm, seeing, KEYS, r"must not depend on 'sim.masses'.* the layer 'joined' reads it for the policy"),
        (Arm, al.default_network, KEYS, r"must not depend on .* the layer 'observations' reads it"),
        (Arm, lambda *_: Subclassed(), KEYS, r"needs a functional model.*network='subclassed"),
        (Arm, None, ("masses",), r"\(joints, sim, sim/force, sim/masses, privileged_state\), but not all"),
        (Arm, None, ("joints", "sim", "privileged_state"), r"some of the entries of a Dict observation .* but not all"),
        ("CartPole-v1", None, ("masses",), r"some of the entries of a Dict observation \(this is none\), but not all"),
    ],
)
def test_what_the_policy_would_see_and_what_it_would_not_is_one_line(env, network, keys, message):
    with pytest.raises(ValueError, match=message) as caught:
        al.ActorPool(env, network, value_keys=keys, **POOL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_keys": "sim"}, "`value_keys` must be different entries of a Dict observation"),
        ({"value_keys": ("sim", "sim")}, "`value_keys` must be different entries of a Dict observation"),
        ({"algorithm": al.DQN()}, "`value_keys` must be left out for DQN, whose policy is its values"),
        ({"network": blind, "hidden_sizes": (64, 64), "normalize_observation": True}, "With `value_keys`, build"),
    ],
)
def test_settings_that_exclude_entries_for_the_value(changes, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**{**SHORT, **changes})


@pytest.mark.parametrize(
    ("network", "keys", "names"),
    [
        (None, None, ["joints", "sim"]),
        (None, (), ["joints", "privileged_state", "sim"]),
        (al.default_network, None, ["joints", "privileged_state", "sim"]),  # as networks of earlier versions do
    ],
)
def test_a_privileged_state_is_the_values_unless_the_network_or_the_caller_says_otherwise(network, keys, names):
    warns = contextlib.nullcontext() if network is None else pytest.warns(UserWarning, match="sees `privileged_state`")
    with warns, al.ActorPool(Arm, network, value_keys=keys, **POOL) as actors:
        assert sorted(actors.policy_space) == names
        assert sorted(actors.collect().observation) == ["joints", "privileged_state", "sim"]
        part = al.Policy.from_network(actors.policy_network, Arm.action_space, observation_space=actors.policy_space)
        np.testing.assert_array_equal(part.act(SEEN), al.Policy(actors.exported).act(SEEN))


def test_a_policy_with_memory_has_no_such_entries():
    network = al.default_network(Arm.observation_space, Arm.action_space, memory="gru", memory_size=8, value_only=KEYS)
    with al.ActorPool(Arm, network, value_keys=KEYS, **POOL) as actors:
        part = al.Policy.from_network(actors.policy_network, Arm.action_space, observation_space=OWN_SPACE)
        acting = al.Policy(actors.exported)
    for start in (True, False):
        np.testing.assert_array_equal(part.act(OWN, start=start), acting.act(OTHER, start=start))


def test_a_simulator_in_jax_records_everything():
    if keras.backend.backend() != "jax":
        pytest.skip("needs Keras on JAX")
    from tests.support.jax_envs import Walk

    class Hidden(Walk):
        observation_space = Dict(walk=Walk.observation_space, noise=Box(-1, 1, (1,)))

        def reset(self, key):
            state, seen = super().reset(key)
            return state, {"walk": seen, "noise": seen[:1] * 0}

        def step(self, key, state, action):
            after = super().step(key, state, action)
            return after._replace(observation={"walk": after.observation, "noise": action})

    with al.ActorPool(Hidden(), num_envs=4, unroll_length=4, value_keys=("noise",)) as actors:
        assert list(actors.policy_space) == ["walk"]
        assert sorted(actors.collect().observation) == ["noise", "walk"]
