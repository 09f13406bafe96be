"""evaluate: whole episodes, unbiased, repeatable, without TensorFlow for a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import subprocess
import sys
from typing import ClassVar

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv

from actor_learner.config.config import TrainConfig
from actor_learner.evaluate import Evaluation, _outline, evaluate
from actor_learner.networks.default import default_network
from actor_learner.networks.layers import ActionDistribution
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.policy import Policy
from actor_learner.spaces import kinds
from tests.support.counting_memory import AlternatingEnv, alternating_network
from tests.support.processes import patience
from tests.support.run_files import create_run

pytestmark = pytest.mark.slow


KWARGS = {"max_episode_steps": 120}


class Fixed(gym.Env):
    """Episodes of `length` steps with reward 1, whatever is done."""

    observation_space = Box(-1, 1, (4,))
    action_space = Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(4, np.float32), 1.0, False, self.count == self.length, {}


class Called(Fixed):
    def __init__(self, length):
        super().__init__(length())


def balancing_network(scale=1.0):
    """Logits that push the cart under the pole, and a value that nobody reads: its mode solves CartPole-v1."""
    observation = keras.Input((4,))
    logits = keras.layers.Dense(2, name="logits")
    value = keras.layers.Dense(1, name="value")
    network = keras.Model(observation, (logits(observation), value(observation)))
    push_right = scale * np.array([[0.1], [0.5], [10.0], [5.0]])
    logits.set_weights([np.concatenate([-push_right, push_right], axis=1), np.zeros(2)])
    return network


@pytest.fixture(scope="module")
def network():
    return balancing_network()


@pytest.fixture(scope="module")
def policy(network):
    return Policy.from_network(network, Discrete(2), batch_size=8)


@pytest.fixture(scope="module")
def run_with(policy, tmp_path_factory):
    """Makes the directory of a run with this config's fields and the policy; returns its path."""

    def make(**fields):
        run = create_run(TrainConfig(run_dir=tmp_path_factory.mktemp("runs") / "run", **fields))
        policy.exported.save(run.policy)
        return run.path

    return make


@pytest.fixture(scope="module")
def run_dir(run_with):
    return run_with(env="CartPole-v1", env_kwargs=KWARGS)


def test_summary_of_a_networks_episodes(network):
    evaluation = evaluate(network, "CartPole-v1", episodes=5)
    assert evaluation.returns.tolist() == [500.0] * 5
    assert evaluation.lengths.tolist() == [500] * 5
    assert (evaluation.mean, evaluation.std, evaluation.mean_length) == (500.0, 0.0, 500.0)
    evaluation = Evaluation(np.array([1.0, 2.0, 6.0]), np.array([1, 2, 4]))
    assert evaluation.mean == 3.0
    assert evaluation.std == pytest.approx(np.sqrt(14 / 3))
    assert evaluation.mean_length == pytest.approx(7 / 3)
    assert repr(evaluation) == "Evaluation(mean=3, std=2.16025, episodes=3)"


class TestConfidenceInterval:
    def test_covers_the_mean_as_often_as_it_says(self):
        """Of 150 samples of 30 returns from a skewed distribution with mean 1."""
        rng = np.random.default_rng(1)
        lengths = np.ones(30, np.int64)
        covered = 0
        for _ in range(150):
            low, high = Evaluation(rng.exponential(size=30), lengths).confidence_interval()
            covered += low <= 1.0 <= high
        assert 0.86 < covered / 150 < 0.98

    def test_is_narrower_at_a_lower_level_and_repeats(self):
        evaluation = Evaluation(np.arange(20.0), np.ones(20, np.int64))
        wide, narrow = evaluation.confidence_interval(), evaluation.confidence_interval(0.5)
        assert wide[0] < narrow[0] < evaluation.mean < narrow[1] < wide[1]
        assert evaluation.confidence_interval() == wide
        assert wide[1] - wide[0] == pytest.approx(2 * 1.96 * evaluation.std / np.sqrt(20), rel=0.05)

    def test_one_episode_has_none_and_equal_ones_a_point(self):
        one = Evaluation(np.array([3.0]), np.array([3]))
        assert np.isnan(one.confidence_interval()).all()
        assert Evaluation(np.full(4, 3.0), np.full(4, 3)).confidence_interval() == (3.0, 3.0)

    def test_of_an_entry_of_the_infos_over_the_episodes_that_have_it(self):
        won = np.array([1.0, 0.0, 1.0, 1.0])
        lengths = np.ones(5, np.int64)
        evaluation = Evaluation(np.arange(5.0), lengths, {"won": np.array([*won, np.nan]), "one": won[:1]})
        assert evaluation.confidence_interval(key="won") == Evaluation(won, lengths).confidence_interval()
        assert np.isnan(evaluation.confidence_interval(key="one")).all()
        with pytest.raises(ValueError, match=r"^`key` must be one of 'won', 'one' \(did you mean 'won'\?\)"):
            evaluation.confidence_interval(key="wn")

    @pytest.mark.parametrize("level", [0, 1, 95])
    def test_a_level_that_is_none(self, level):
        with pytest.raises(ValueError, match=r"^`level` must be between 0 and 1.*Received: level="):
            Evaluation(np.arange(3.0), np.arange(3)).confidence_interval(level)


class Told(Fixed):
    """Its last step's info has two entries, one of which comes in the first episode alone."""

    episodes = 0

    def step(self, action):
        *rest, ended, _ = super().step(action)
        self.episodes += ended
        info = {"laps": 2.0 * self.episodes, **({"is_success": self.episodes == 1} if self.episodes < 2 else {})}
        return *rest, ended, info if ended else {}


def test_entries_of_the_last_info(policy, run_with):
    evaluation = evaluate(policy, Told, episodes=2, num_envs=1)
    np.testing.assert_array_equal(evaluation.info["is_success"], [1.0, np.nan])
    assert set(evaluation.info) == {"is_success"}
    run_dir = run_with(env="CartPole-v1", info_keys=("laps",))
    assert evaluate(run_dir, Told, episodes=2, num_envs=1).info["laps"].tolist() == [2.0, 4.0]
    with pytest.warns(UserWarning, match="none of 2 episodes has laps of `info_keys`; its numbers are none$"):
        assert evaluate(run_dir, Fixed, episodes=2).info == {}


def test_run_directory_brings_its_environment_unless_another_is_given(run_dir):
    assert evaluate(run_dir, episodes=3).returns.tolist() == [120.0] * 3
    assert evaluate(str(run_dir), episodes=1).lengths.tolist() == [120]
    assert evaluate(run_dir, episodes=2, env_kwargs={"max_episode_steps": 40}).lengths.tolist() == [40, 40]
    assert evaluate(run_dir, Fixed, episodes=3).lengths.tolist() == [3, 3, 3]  # without the run's env_kwargs
    assert evaluate(run_dir, Fixed, episodes=3, env_kwargs={"length": 7}).lengths.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("env", "kwargs"), [(Fixed, {"length": 0}), ("CartPole-v1", {}), ("CartPole-v1", {"max_episode_steps": 9})]
)
def test_endless_episodes_are_cut_off(policy, env, kwargs):
    length = min(kwargs.get("max_episode_steps", 20), 20)
    assert evaluate(policy, env, 3, env_kwargs=kwargs, max_episode_steps=20).lengths.tolist() == [length] * 3


def test_whole_vector_environments_end_their_own_episodes(policy):
    def make(num_envs):
        return gym.make_vec("CartPole-v1", num_envs)

    assert "`max_episode_steps` needs single environments" in refused(policy, make, max_episode_steps=5)


def test_keys_that_no_episode_had_are_named(policy, run_with):
    run_dir = run_with(env=Told, info_keys=("lap",))
    with pytest.warns(
        UserWarning, match="none of 2 episodes has lap of `info_keys`; its numbers are is_success, laps$"
    ):
        evaluate(run_dir, episodes=2)


def test_samples_repeat_with_their_seed():
    unsure = balancing_network(scale=0.05)
    sampled = functools.partial(evaluate, unsure, "CartPole-v1", episodes=6, env_kwargs=KWARGS, deterministic=False)
    first, again, other = (sampled(seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.returns.tolist() != other.returns.tolist()
    assert first.mean < 119.0
    assert sampled(seed=3, deterministic=True).mean == 120.0


@pytest.mark.parametrize(("episodes", "num_envs"), [(7, 2), (7, 3), (3, 8), (1, 1), (20, None)])
def test_number_of_episodes(policy, episodes, num_envs):
    evaluation = evaluate(policy, Fixed, episodes=episodes, num_envs=num_envs)
    assert len(evaluation.returns) == len(evaluation.lengths) == episodes


def test_short_episodes_do_not_count_more_often(policy):
    lengths = itertools.cycle([2, 11])
    evaluation = evaluate(policy, lambda: Fixed(next(lengths)), episodes=6, num_envs=2)
    assert evaluation.lengths.tolist() == [2, 2, 2, 11, 11, 11]


def test_environments_are_closed(policy):
    closed = []

    class Closing(Fixed):
        def close(self):
            closed.append(self)

    evaluate(policy, Closing, episodes=3)
    assert len(closed) == 3


def test_run_directory_needs_no_tensorflow(run_dir):
    code = (
        "import sys\nfrom actor_learner.evaluate import evaluate\n"
        "print(evaluate(sys.argv[1], episodes=4).mean, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, run_dir], check=True, timeout=patience(60), capture_output=True, text=True
    )
    assert done.stdout.split() == ["120.0", "False", "False"]


class Picky(gym.Env):
    """Nested spaces; an action outside of its space, or one that the mask forbids, is an error."""

    observation_space = Dict(
        {"action_mask": MultiBinary(5), "pair": Tuple([Box(-1, 1, (4,), np.float32), Discrete(3, start=7)])}
    )
    action_space = Dict({"force": Box(-2, 3, (2,), np.float32), "kind": Discrete(5, start=1)})
    chosen: ClassVar = set()

    def __init__(self, masks_in_infos=False):
        self.masks_in_infos = masks_in_infos
        if masks_in_infos:
            self.observation_space = self.observation_space["pair"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look()

    def step(self, action):
        assert self.action_space.contains(action)
        assert self.allowed[action["kind"] - 1], "a forbidden action"
        self.chosen.add(int(action["kind"]))
        self.count += 1
        return (*self.look()[:1], 1.0, self.count == 7, False, self.look()[1])

    def look(self):
        self.allowed = np.zeros(5, np.int8)
        self.allowed[(self.count % 5, (self.count + 2) % 5),] = 1
        pair = (np.full(4, self.count / 10, np.float32), np.int64(7 + self.count % 3))
        if self.masks_in_infos:
            return pair, {"action_mask": self.allowed}
        return {"action_mask": self.allowed, "pair": pair}, {}


def test_an_environment_without_the_masks_of_the_training_is_named(policy):
    trained = Policy(dataclasses.replace(policy.exported, trained_with_masks=True))
    with pytest.warns(
        UserWarning, match=r"trained with action masks.*env `Fixed` must give them by `info\['action_mask"
    ):
        evaluate(trained, Fixed, episodes=1)


class TestNestedSpacesAndMasks:
    @pytest.mark.parametrize(
        ("distribution", "masks_in_infos", "deterministic"),
        [("gaussian", True, True), ("squashed", True, False), ("squashed", False, True)],
    )
    def test_only_what_is_allowed_is_done(self, distribution, masks_in_infos, deterministic):
        make = functools.partial(Picky, masks_in_infos)
        env = make()
        network = default_network(env.observation_space, env.action_space, distribution=distribution)
        Picky.chosen.clear()
        evaluation = evaluate(network, make, episodes=20, deterministic=deterministic)
        assert evaluation.lengths.tolist() == [7] * 20
        assert len(Picky.chosen) >= (2 if deterministic else 5)

    def test_another_policy_is_refused(self):
        """It was exported without masks, or for other leaves, which are named."""
        env = Picky()
        exported = export_policy(
            default_network(env.observation_space, env.action_space), env.action_space, 1, env.observation_space
        )
        policy = Policy(exported)
        with pytest.raises(ValueError, match="exported without masks"):
            evaluate(policy, Picky, episodes=1)
        with pytest.raises(
            ValueError, match=r"of observation\['action_mask'\] of shape \(5,\) in int8, observation\['pair'\]\[0\] of"
        ):
            evaluate(policy, functools.partial(Picky, masks_in_infos=True), episodes=1)


class Guess(gym.Env):
    """Rewards the action that `target` names; `hand` names another one. `order`: of the keys of the observation."""

    action_space = Discrete(4)

    def __init__(self, order=("hand", "target")):
        box = Box(0, 1, (4,), np.float32)
        self.observation_space = Dict([(key, MultiBinary(4) if key == "action_mask" else box) for key in order])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def step(self, action):
        reward = float(action == self.count % 4)
        self.count += 1
        return self.look(), reward, self.count == 8, False, {}

    def look(self):
        named = np.eye(4, dtype=np.float32)
        parts = {
            "target": named[self.count % 4],
            "hand": named[(self.count + 1) % 4],
            "action_mask": np.ones(4, np.int8),
        }
        return {key: parts[key] for key in self.observation_space.spaces}


def guessing_network(keys=("target", "hand"), dtype="float32"):
    """Its logits are `target`."""
    inputs = {key: keras.Input((4,), name=key, dtype=dtype) for key in keys}
    logits = keras.layers.Dense(4, use_bias=False, kernel_initializer="identity", name="logits")(inputs["target"])
    joined = keras.layers.Concatenate()(list(inputs.values()))
    return keras.Model(inputs, (logits, keras.layers.Dense(1)(joined)))


class TestLeavesGoByTheirLabels:
    @pytest.mark.parametrize("deterministic", [True, False])
    def test_a_policy_that_was_not_told_the_space(self, deterministic):
        """The network's inputs keep their order; Gymnasium sorts the keys of a plain dict."""
        network = guessing_network()
        network.get_layer("logits").set_weights([100 * np.eye(4)])
        policy = Policy.from_network(network, Discrete(4))
        assert list(policy.observation_space) == ["target", "hand"]
        assert evaluate(policy, Guess, episodes=3, deterministic=deterministic).returns.tolist() == [8.0] * 3

    def test_a_mask_leaf_that_the_network_has_no_input_for(self):
        policy = Policy.from_network(guessing_network(), Discrete(4))
        for order in itertools.permutations(("hand", "target", "action_mask")):
            make = functools.partial(Guess, order)
            assert policy.act(make().reset()[0]) == 0
            assert evaluate(policy, make, episodes=2).mean == 8.0

    def test_other_leaves_that_are_missing_or_left_over(self):
        policy = Policy.from_network(guessing_network(), Discrete(4))
        with pytest.raises(ValueError, match="`env` has other spaces"):
            evaluate(policy, functools.partial(Guess, ("hand",)), episodes=1)
        policy = Policy.from_network(guessing_network(("target",)), Discrete(4))
        assert len(evaluate(policy, Guess, episodes=1).returns) == 1  # further entries are dropped


class Rooms(gym.Env):
    """Rewards an action that is the observation's parity, counted from 0."""

    action_space = Discrete(2)

    def __init__(self, observation_space):
        self.observation_space = observation_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def step(self, action):
        reward = float(action == self.count % 2)
        self.count += 1
        return self.look(), reward, self.count == 6, False, {}

    def look(self):
        space = self.observation_space
        room = space.start + self.count % 2 if isinstance(space, (Discrete, MultiDiscrete)) else self.count % 2
        return np.broadcast_to(room, space.shape).astype(space.dtype) if space.shape else space.dtype.type(room)


def parity_network(shape=(), dtype="int32"):
    observation = keras.Input(shape, dtype=dtype)
    number = keras.layers.Reshape((-1,))(keras.ops.cast(observation, "float32"))[:, :1]
    logits = keras.ops.concatenate([0.5 - number, number - 0.5], axis=-1)
    return keras.Model(observation, (logits, keras.layers.Dense(1)(number)))


class TestDiscreteObservations:
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (Discrete(16), Discrete(500)),
            (Discrete(500), Discrete(16)),
            (MultiDiscrete([3, 4]), MultiDiscrete([4, 3])),
            (Discrete(16), Box(0, 15, (), np.int32)),
        ],
    )
    def test_another_number_of_values(self, ours, theirs):
        policy = Policy.from_network(parity_network(ours.shape), Discrete(2), observation_space=ours)
        assert evaluate(policy, functools.partial(Rooms, ours), episodes=1).mean == 6.0
        with pytest.raises(ValueError) as caught:
            evaluate(policy, functools.partial(Rooms, theirs), episodes=1)
        assert f"trained for observations of {ours} and actions" in str(caught.value)

    @pytest.mark.parametrize("dtype", ["int32", "float32"])
    def test_a_policy_that_was_not_told_their_number(self, dtype):
        policy = Policy.from_network(parity_network(dtype=dtype), Discrete(2))
        for space in (Discrete(16), Discrete(2, start=7), Box(0, 1, (), np.int8)):
            assert evaluate(policy, functools.partial(Rooms, space), episodes=2).mean == 6.0

    def test_fractions_for_whole_numbers(self):
        policy = Policy.from_network(parity_network(), Discrete(2))
        with pytest.raises(ValueError, match=r"observations of shape \(\) in int32 and"):
            evaluate(policy, functools.partial(Rooms, Box(0, 1, (), np.float32)), episodes=1)


class Recording(VectorEnv):
    """One environment that keeps the actions. An episode ends after `length` steps, a life alone after `life_lost`."""

    def __init__(self, mode, length, life_lost=None):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs, self.length, self.life_lost = 1, length, life_lost
        self.single_observation_space = Box(-1, 1, (1,), np.float32)
        self.single_action_space = Box(-10, 10, (1,), np.float32)
        self.actions, self.count = [], 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros((1, 1), np.float32), {}

    def step(self, actions):
        if self.count == self.length:  # NEXT_STEP: only reset
            self.actions.append(None)
            self.count = 0
            return np.zeros((1, 1), np.float32), np.zeros(1), np.array([False]), np.array([False]), {}
        self.actions.append(float(actions[0, 0]))
        self.count += 1
        lost = np.array([self.count == self.life_lost])
        ended = lost | (self.count == self.length)
        return np.zeros((1, 1), np.float32), np.ones(1), ended, np.array([False]), {"life_lost": lost}


def raise_after(step, calls, actions):
    """Steps once for each of `calls`, then raises RuntimeError."""
    if next(calls, None) is None:
        raise RuntimeError("the simulator failed")
    return step(actions)


class TestHeldNoise:
    """With the mean at 0 and a deviation of 1 an action is its noise."""

    def network(self):
        observation = keras.Input((1,))
        parameters = keras.layers.Dense(2, kernel_initializer="zeros")(observation)
        held = ActionDistribution(noise_hold=4)(parameters)
        return keras.Model(observation, (held, keras.layers.Dense(1)(observation)))

    def lengths_of_runs(self, env):
        def make(num_envs=1, seed=None):
            return env

        evaluate(self.network(), make, episodes=2, num_envs=1, deterministic=False)
        return [len(list(group)) for action, group in itertools.groupby(env.actions) if action is not None]

    def test_the_step_that_only_resets_takes_nothing_from_an_episodes_noise(self):
        assert self.lengths_of_runs(Recording(AutoresetMode.NEXT_STEP, 6)) == [4, 2, 4, 2]

    def test_it_is_renewed_where_a_life_is_lost(self):
        assert self.lengths_of_runs(Recording(AutoresetMode.DISABLED, 6, life_lost=3)) == [3, 3, 3, 3]

    @pytest.mark.parametrize("breaks", [False, True])
    def test_a_policy_that_is_passed_in_plays_from_the_seed_and_keeps_its_own_noise(self, breaks):
        space, observation = Box(-10, 10, (1,), np.float32), np.zeros((1, 1), np.float32)
        policy, other = (Policy.from_network(self.network(), space, seed=3) for _ in range(2))
        noise = [float(one.step(observation)[0][0, 0]) for one in (policy, other) for _ in range(2)]
        assert len(set(noise)) == 1  # both hold a draw, which is to be used twice more

        def play(seed):
            env = Recording(AutoresetMode.DISABLED, 5)
            if breaks:
                env.step = functools.partial(raise_after, env.step, iter(range(3)))
            with pytest.raises(RuntimeError) if breaks else contextlib.nullcontext():
                evaluate(policy, lambda num_envs=1, seed=None: env, episodes=1, seed=seed, deterministic=False)
            return env.actions

        first = play(1)
        assert play(1) == first != play(2)
        np.testing.assert_array_equal(*([one.step(observation)[0] for _ in range(9)] for one in (policy, other)))


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (Box(-1, 1, (2,)), Box(-5, 5, (2,), np.float64), True),
        (Discrete(3), Discrete(3, start=1), False),
        (MultiDiscrete([2, 3]), MultiDiscrete([3, 2]), False),
        (Tuple([Discrete(2), Box(-1, 1, (2,))]), Tuple([Discrete(2), Box(-2, 2, (2,))]), True),
        (Dict({"a": Discrete(2)}), Dict({"b": Discrete(2)}), False),
        (MultiBinary(2), MultiBinary(3), False),
    ],
)
def test_actions_are_compared_without_bounds(ours, theirs, same):
    assert (_outline(kinds.to_json(ours)) == _outline(kinds.to_json(theirs))) == same


def refused(*args, **kwargs):
    with pytest.raises(ValueError) as caught:
        evaluate(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_evaluated_is_one_line(network, run_dir, tmp_path):
    class Three(Fixed):
        action_space = Discrete(3)

    create_run(TrainConfig(env="CartPole-v1", run_dir=tmp_path / "run"))
    for arguments, message in (
        ([tmp_path], "holds no run"),
        ([tmp_path / "nowhere"], "holds no run"),
        ([str(tmp_path), "CartPole-v1"], "holds no run"),
        ([tmp_path / "run"], "no exported policy"),
        ([network], "`env` must be given, because there is no run"),
        ([run_dir, Three], "`env` has other spaces"),
        ([run_dir, "CartPol-v1"], "did you mean `CartPole-v1`?"),
        ([network, lambda: 1 / 0], "can't be built: ZeroDivisionError"),
    ):
        assert message in refused(*arguments)


def test_the_run_of_a_callable(run_with):
    run_dir = run_with(env=lambda length: Fixed(length), env_kwargs={"length": 4})
    message = refused(run_dir)
    assert "`env` must be given, because the run's was the callable" in message
    assert "<lambda>; at a shell, --env module:factory. Received" in message
    assert evaluate(run_dir, Fixed, episodes=2).lengths.tolist() == [4, 4]  # with the run's own env_kwargs
    run_dir = run_with(env=Fixed, env_kwargs={"length": 4})  # it can be imported
    for env in (None, Fixed, f"{__name__}:Fixed"):
        assert evaluate(run_dir, env, episodes=2).lengths.tolist() == [4, 4]


def test_keyword_arguments_that_a_file_cannot_store_are_asked_for(run_with):
    run_dir = run_with(env=Fixed, env_kwargs={"length": np.array([4])})
    for env in (None, Fixed):
        assert "`env_kwargs` must be given" in (message := refused(run_dir, env))
        assert "env_kwargs= in Python (was numpy:ndarray)" in message
    assert evaluate(run_dir, env_kwargs={"length": 4}, episodes=2).lengths.tolist() == [4, 4]


def five():
    return 5


def test_functions_among_keyword_arguments_are_imported(run_with):
    run_dir = run_with(env=Called, env_kwargs={"length": five})
    assert evaluate(run_dir, episodes=2).lengths.tolist() == [5, 5]


def test_the_runs_wrappers_go_around_every_environment_unless_others_are_given(run_with):
    wrapping = {"wrappers": ["gymnasium.wrappers:TimeLimit"], "wrapper_kwargs": {"TimeLimit": {"max_episode_steps": 2}}}
    run_dir = run_with(env="CartPole-v1", **wrapping)
    for env in (None, Fixed):
        assert evaluate(run_dir, env, episodes=2).lengths.tolist() == [2, 2]
    assert evaluate(run_dir, Fixed, episodes=2, wrappers=()).lengths.tolist() == [3, 3]
    assert evaluate(run_dir, episodes=1, wrapper_kwargs=[{"max_episode_steps": 5}]).lengths.tolist() == [5]
    wrapping["wrappers"].append("gymnasium.wrappers:RecordEpisodeStatistics")
    run_dir = run_with(env="CartPole-v1", **wrapping)
    other = {"RecordEpisodeStatistics": {"buffer_length": 3}}
    assert evaluate(run_dir, episodes=2, wrapper_kwargs=other).lengths.tolist() == [2, 2], (
        "the other class keeps its own"
    )
    run_dir = run_with(env="CartPole-v1", wrappers=[lambda env: env])
    assert "`wrappers` must be given" in refused(run_dir)


@pytest.mark.parametrize(
    ("name", "value"), [("episodes", 0), ("episodes", -3), ("num_envs", 0), ("max_episode_steps", 0)]
)
def test_counts_that_are_none(run_dir, name, value):
    optional = "" if name == "episodes" else ", or None"
    expected = f"`{name}` must be an integer of at least 1{optional}. Received: {name}={value}"
    assert expected in refused(run_dir, **{name: value})


@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_other_spaces_are_named(run_dir, env):
    message = refused(run_dir, env)
    assert "trained for observations of shape (4,) in float32 and actions of Discrete(2)" in message
    assert f"env={env!r}" in message


def test_a_policy_remembers_within_an_episode_and_not_beyond():
    """Environments of a batch end at different steps, and begin without what was remembered before."""
    env = AlternatingEnv()
    network = alternating_network(env.observation_space, env.action_space)
    policy = Policy.from_network(network, env.action_space, observation_space=env.observation_space, batch_size=3)
    for num_envs in (1, 3, 2):
        found = evaluate(policy, AlternatingEnv, episodes=20, seed=0, num_envs=num_envs)
        assert found.mean == found.mean_length
    assert found.mean > 4


class Bounds(gym.Env):
    """Keeps the actions; its observations and actions have the given bounds."""

    def __init__(self, observation=1.0, action=1.0, dtype=np.float32):
        self.observation_space = Box(-observation, observation, (2,), dtype)
        self.action_space = Box(-action, action, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.rewards = [2.0**24, 1.0]
        return np.zeros(2, self.observation_space.dtype), {}

    def step(self, action):
        return np.zeros(2, self.observation_space.dtype), self.rewards.pop(), not self.rewards, False, {}


@pytest.fixture(scope="module")
def bounded():
    env = Bounds()
    network = default_network(env.observation_space, env.action_space, hidden_sizes=(2,))
    return Policy.from_network(network, env.action_space, observation_space=env.observation_space)


def test_narrower_bounds_of_actions_are_refused(bounded):
    assert evaluate(bounded, functools.partial(Bounds, action=2.0), episodes=1).mean == 2**24 + 1, "summed in float64"
    message = refused(bounded, functools.partial(Bounds, action=0.1))
    assert "actions may leave the bounds of `env`; gymnasium.wrappers.ClipAction or RescaleAction keeps" in message
    assert "Box(-0.1, 0.1, (1,), float32)" in message


@pytest.mark.parametrize("changes", [{"observation": 5.0}, {"dtype": np.float16}])
def test_observations_of_another_kind_are_named(bounded, changes):
    kind = r"was trained on observation Box\(-1\.0, 1\.0, \(2,\), float32\): .*Received: env="
    with pytest.warns(UserWarning, match=kind):
        evaluate(bounded, functools.partial(Bounds, **changes), episodes=1)
