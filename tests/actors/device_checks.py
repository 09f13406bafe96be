"""Checks of environments in JAX on the learner's device. They need Keras on JAX: test_device_actors.py runs them."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import warnings
from types import SimpleNamespace

import gymnasium as gym
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from rich.console import Console

import actor_learner as al
from actor_learner.actors.device_actors import DeviceActors
from actor_learner.benchmark.measure import as_json, measure_setting
from actor_learner.benchmark.text import show
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.jax import checks
from actor_learner.learner.ahead import Guess, weights_for
from actor_learner.networks.contract import call_network
from actor_learner.networks.step import PolicyStep
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import DeviceTrajectory
from actor_learner.spaces.validate import validate_trajectory
from tests.support.counting_memory import Counter
from tests.support.jax_envs import LIMIT, Drawn, Masked, MaskedByEntry, Numbers, Walk, allowed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:__array__ implementation")]  # Keras's

N, T = 6, 16


def pool(env, network=None, num_envs=N, unroll_length=T, **options):
    return al.ActorPool(env, network, num_envs=num_envs, unroll_length=unroll_length, **options)


def batches(count, *arguments, **options):
    with pool(*arguments, **options) as actors:
        return actors, [actors.collect().copy() for _ in range(count)]


def values_of(network, observation):
    return np.asarray(call_network(network, observation)["value"]).ravel()


def test_each_row_is_the_environments_step_and_the_networks_action():
    actors, found = batches(3, Walk(), seed=3, info_keys=("position",))
    policy = PolicyStep(actors.network, Spaces(actors.observation_space, actors.action_space))
    for batch in found:
        played = np.clip(batch.action[..., 0], -1, 1)
        position = batch.observation[:-1, :, 0] + played
        steps = batch.observation[:-1, :, 1] + 1
        np.testing.assert_allclose(batch.reward, played, rtol=1e-6)
        np.testing.assert_array_equal(batch.terminated, np.abs(position) > 2)
        np.testing.assert_array_equal(batch.truncated, (steps >= LIMIT) & ~batch.terminated)
        done = batch.terminated | batch.truncated
        going = ~done
        after = batch.observation[1:]
        np.testing.assert_allclose(after[going], np.stack([position, steps], -1)[going], rtol=1e-5, atol=1e-6)
        assert (after[done][:, 1] == 0).all()
        assert (np.abs(after[done][:, 0]) <= 1).all()
        np.testing.assert_array_equal(batch.start[1:], done)
        parameters = call_network(actors.network, batch.observation[:-1].reshape(-1, 2))["parameters"]
        log_prob = policy.distribution.log_prob(parameters, [batch.action.reshape(-1, 1)], None)
        np.testing.assert_allclose(batch.behaviour_log_prob.ravel(), np.asarray(log_prob), rtol=1e-5, atol=1e-5)
        assert batch.valid.all()
        rows, columns = np.nonzero(batch.truncated)
        assert (batch.truncated.sum(0) > 1).any()  # several in one column
        last = np.stack([position, steps], -1)[rows, columns].astype(np.float32)
        expected = values_of(actors.network, last)
        np.testing.assert_allclose(batch.truncation_value[rows, columns], expected, rtol=1e-5, atol=1e-5)
        assert not batch.truncation_value[~batch.truncated].any()
        for column in range(N):
            cut = np.flatnonzero(batch.truncated[:, column])
            assert batch.final_row[column] == (cut[-1] if len(cut) else -1)
            if len(cut):
                expected = [position[cut[-1], column], LIMIT]
                np.testing.assert_allclose(batch.final_observation[column], expected, rtol=1e-5)
        validate_trajectory(batch, Spaces(actors.observation_space, actors.action_space))
    np.testing.assert_array_equal(found[0].observation[-1], found[1].observation[0])
    assert found[0].start[0].all()
    assert not np.array_equal(found[0].start[0], found[1].start[0])


def test_episodes_go_on_over_batches_and_their_last_infos_are_reported():
    with pool(Walk(), seed=1, unroll_length=4, info_keys=("position",)) as actors:
        sums = np.zeros((N, 2))
        for _ in range(5):
            batch = actors.collect().copy()
            totals, lengths, last = [], [], []
            for row in range(4):
                sums += np.stack([batch.reward[row], np.ones(N)], -1)
                for column in np.flatnonzero(batch.terminated[row] | batch.truncated[row]):
                    totals.append(sums[column, 0])
                    lengths.append(sums[column, 1])
                    last.append(batch.observation[row, column, 0] + batch.reward[row, column])
                    sums[column] = 0
            assert actors.episodes["length"].tolist() == lengths
            np.testing.assert_allclose(actors.episodes["return"], totals, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(actors.episodes.get("position", []), last, rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_bytes_and_another_gives_others():
    one, two, other = (batches(2, Walk(noise=0.1), seed=seed)[1] for seed in (3, 3, 4))
    for first, second in zip(one, two, strict=True):
        for field, again in zip(first, second, strict=True):
            np.testing.assert_array_equal(field, again)
    assert not np.array_equal(one[0].observation, other[0].observation)


@pytest.mark.parametrize("num_envs", [1, 34])
def test_expensive_resets_of_few_environments_give_the_bytes_of_all(num_envs, monkeypatch):
    """Here 0, 1 to 3 (few of 34) and more environments end in one step, so that each way of resetting is taken."""
    env = Drawn()
    spaces = Spaces(env.observation_space, env.action_space)
    assert not checks.check_env(env, spaces).expensive_resets
    _, expected = batches(3, env, num_envs=num_envs, seed=3)
    monkeypatch.setattr(checks, "MAX_CHEAP_OPERATIONS", 0)
    assert checks.check_env(env, spaces).expensive_resets
    _, found = batches(3, env, num_envs=num_envs, seed=3)
    ends = np.concatenate([(batch.terminated | batch.truncated).sum(1) for batch in expected])
    assert num_envs == 1 or ({0, 2} < set(ends.tolist()) and ends.max() > 3)
    for first, second in zip(expected, found, strict=True):
        for field, again in zip(first, second, strict=True):
            np.testing.assert_array_equal(field, again)


def test_resets_are_expensive_by_their_loops_and_sizes():
    class Looking(Walk):
        def reset(self, key):
            state, observation = super().reset(key)
            return state, jax.lax.while_loop(lambda seen: seen[0] < 0.5, lambda seen: seen + 0.1, observation)

    class Multiplying(Walk):
        def reset(self, key):
            state, observation = super().reset(key)
            return state, observation + jax.random.normal(key, (512, 512)).sum() * 0

    facts = [
        checks.check_env(env, Spaces(env.observation_space, env.action_space)) for env in (Looking(), Multiplying())
    ]
    assert all(each.expensive_resets for each in facts)


@pytest.mark.parametrize("max_cheap", [200, 0])
def test_two_devices_take_the_same_steps_and_half_of_the_rows_each(max_cheap, monkeypatch):
    monkeypatch.setattr(checks, "MAX_CHEAP_OPERATIONS", max_cheap)
    network = functools.partial(al.default_network, seed=0)
    found = []
    for devices in (1, 2):
        with pool(Walk(noise=0.1), network, seed=5, devices=devices) as actors:
            first = actors.collect()
            for field in (first.observation, first.action, first.reward):
                shards = field.addressable_shards
                assert [shard.data.shape[1] for shard in shards] == [N // devices] * devices
            found.append(first.copy())
            if max_cheap:
                algorithm = al.PPO(minibatch_size=N * T // 4, epochs=2)
                learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, devices=devices)
                learner.update(first)
                assert (actors.act_ahead(learner.device_weights()) is None) is (devices > 1)
                actors.publish(learner.flat_weights())
                # The order of rows in minibatches is another with two devices: later batches differ.
                assert np.isfinite(actors.collect().copy().reward).all()
    for field, again in zip(*found, strict=True):
        if field is not None:
            np.testing.assert_allclose(field, again, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        (Masked(), al.PPO(minibatch_size=64, epochs=2)),
        (MaskedByEntry(), al.PQN(minibatch_size=64, q_lambda=0.5, learning_rate=3e-3)),
    ],
)
def test_only_allowed_actions_are_taken_and_learned(env, algorithm):
    options = {"distribution": "greedy", "layer_norm": True} if isinstance(algorithm, al.PQN) else {}
    network = functools.partial(al.default_network, seed=0, **options)
    with pool(env, network, num_envs=16, seed=2) as actors:
        learner = al.Learner(
            actors.network,
            algorithm,
            action_space=actors.action_space,
            total_steps=16 * T * 30,
            observation_space=actors.observation_space,
        )
        assert actors.uses_masks
        rewards = []
        for _ in range(30):
            batch = actors.collect()
            state = np.asarray(
                batch.observation["state"] if isinstance(env.observation_space, gym.spaces.Dict) else batch.observation
            )
            expected = np.asarray(jax.vmap(jax.vmap(allowed))(state))
            np.testing.assert_array_equal(batch.action_mask, expected)
            final = batch.final_observation
            final = np.asarray(final["state"] if isinstance(final, dict) else final)
            cut = np.asarray(batch.final_row) >= 0
            assert cut.any()
            np.testing.assert_array_equal(
                np.asarray(batch.final_action_mask)[cut], np.asarray(jax.vmap(allowed)(final))[cut]
            )
            expected = expected[:-1]
            assert np.take_along_axis(expected, np.asarray(batch.action)[..., None], -1).all()
            rewards.append(float(np.mean(batch.reward)))
            learner.update(batch)
            actors.publish(learner.flat_weights())
    assert np.mean(rewards[:3]) < 0.7 < np.mean(rewards[-3:])


def test_nested_spaces_count_from_their_start():
    _, (batch,) = batches(1, Numbers(), seed=1)
    number, action = batch.observation["number"], batch.action
    assert number.min() >= 0
    assert number.max() <= 5
    assert (action.max((0, 1)) == [2, 1]).all()
    going = ~batch.terminated
    expected = (number[:-1] + action[..., 0]) % 6
    np.testing.assert_array_equal(number[1:][going], expected[going])
    np.testing.assert_allclose(
        batch.observation["vector"][1:][going], (action + np.array([10, 0]))[going] * np.array([0.1, 1.0]), rtol=1e-6
    )
    np.testing.assert_allclose(batch.reward, action[..., 0] + 10)


@pytest.mark.parametrize("memory", [None, "gru"])
def test_a_batch_on_the_device_and_its_copy_teach_the_same(memory):
    """And the learner computes the log-probabilities that the rollout recorded: nothing is clipped."""
    network = functools.partial(al.default_network, seed=0, memory=memory, normalize_observation=memory is None)
    weights, rows = [], N * T
    for copied in (False, True):
        with pool(Walk(), network, seed=1) as actors:
            algorithm = al.PPO(minibatch_size=rows, epochs=1)
            learner = al.Learner(actors.network, algorithm, action_space=actors.action_space)
            for _ in range(3):
                batch = actors.collect()
                assert isinstance(batch, DeviceTrajectory)
                metrics = learner.update(batch.copy() if copied else batch)
                assert abs(metrics.get("approx_kl", 0.0)) < 1e-6
                actors.publish(learner.flat_weights())
            weights.append(learner.flat_weights())
    np.testing.assert_allclose(*weights, rtol=1e-6, atol=1e-7)


def test_the_state_of_a_memory_at_a_truncation_is_the_episodes_own():
    """The memory counts steps: the value of an episode's last observation is the number of steps before it."""

    def network(observation_space, action_space):
        seen = keras.Input((2,))
        count = Counter()(seen)
        parameters = al.LogStd()(keras.layers.Dense(1, kernel_initializer="zeros")(count))
        value = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(count)
        return keras.Model(seen, {"parameters": parameters, "value": value})

    _, found = batches(3, Walk(), network, seed=0)
    for batch in found:
        cut = batch.truncated
        assert cut.any()
        np.testing.assert_allclose(batch.truncation_value[cut], LIMIT)


def test_a_vector_environment_of_gymnasium_plays_the_same_games():
    factory = resolve_env(Walk())
    with contextlib.closing(factory.make(4, 0)) as env:
        observation, _ = env.reset(seed=3)
        again, _ = env.reset(seed=3)
        np.testing.assert_array_equal(observation, again)
        ended = 0
        for _ in range(30):
            action = env.action_space.sample()
            position = again[:, 0] + action[:, 0]
            again, reward, terminated, truncated, infos = env.step(action)
            np.testing.assert_allclose(reward, action[:, 0], rtol=1e-6)
            done = terminated | truncated
            np.testing.assert_array_equal(terminated, np.abs(position) > 2)
            np.testing.assert_allclose(again[~done, 0], position[~done], rtol=1e-5, atol=1e-6)
            for row in np.flatnonzero(done):
                assert infos["final_obs"][row][0] == pytest.approx(position[row], abs=1e-5)
                assert infos["final_info"]["position"][row] == pytest.approx(position[row], abs=1e-5)
            ended += done.sum()
        assert ended
    network = al.default_network(Masked.observation_space, Masked.action_space, seed=0)
    assert al.evaluate(network, Masked(), episodes=3).lengths.sum()


def test_off_policy_algorithms_learn_from_rows_that_come_to_the_host(tmp_path):
    algorithm = al.SAC(learning_starts=64, buffer_size=2000, minibatch_size=16, updates_per_step=0.1)
    options = {"num_envs": 4, "unroll_length": 8, "hidden_sizes": (8,), "quiet": True, "run_dir": tmp_path / "run"}
    config = al.TrainConfig(env=Walk(), algorithm=algorithm, total_steps=256, **options)
    assert (config.num_actors, config.num_envs, config.max_policy_lag) == (0, 4, 0)
    result = al.train(config)
    assert result.metrics["buffer_rows"] == 252  # but for the last row of each environment, whose next isn't there yet
    assert result.metrics["gradient_steps"] == 19


def made(**changes):
    """An environment with other functions than Walk's."""
    env = Walk()
    fields = {name: getattr(env, name) for name in ("observation_space", "action_space", "reset", "step")}
    return SimpleNamespace(**{**fields, **changes})


def stepping(**changes):
    return made(step=lambda key, state, action: Walk().step(key, state, action)._replace(**changes))


def masked(**changes):
    """Return `Masked` with other attributes."""
    env = Masked()
    names = ("observation_space", "action_space", "reset", "step")
    return SimpleNamespace(**{name: getattr(env, name) for name in names} | changes)


class Remembering(Walk):
    """Keeps its state on itself, as Gymnasium's environments do."""

    def reset(self, key):
        self.state, observation = super().reset(key)
        return self.state, observation


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (made(observation_space=None), "`observation_space` must be a Gymnasium space"),
        (SimpleNamespace(reset=None, step=None, observation_size=3), r"wrap it, al\.jax_envs\.Brax\(env\)"),
        (
            made(observation_space=lambda params: None, step_env=None, is_truncated=None),
            r"wrap it, al\.jax_envs\.Gymnax\(env, params\)",
        ),
        (made(reset=lambda key: jnp.zeros(2)), r"reset` must return \(state, observation\)"),
        (made(step=lambda key, state, action: (state, 0)), r"must return al.Step\(state, .*\). Received: a tuple of 2"),
        (stepping(state={"position": jnp.float32(0)}), "must keep its structure from `reset` to `step`"),
        (stepping(state={"position": jnp.float32(0), "steps": jnp.float32(0)}), r"\['steps'\] doesn't"),
        (stepping(observation=jnp.zeros(3)), r"`observation` of shape \(2,\). Received: shape \(3,\)"),
        (stepping(observation={"a": jnp.zeros(2)}), r"`observation` of shape \(2,\). Received: {'a'"),
        (stepping(reward=jnp.zeros(1)), r"`reward` without a shape. Received: shape=\(1,\)"),
        (stepping(terminated=jnp.zeros(2)), "`terminated` without a shape"),
        (
            made(step=lambda key, state, action: Walk().step(key, state, action) if action[0] > 0 else None),
            "a pure function that JAX can trace",
        ),
        (stepping(truncated=None), "must return `truncated` as a number. Received: None"),
        (stepping(info=None), "must return `info` as a dict. Received: None"),
        (made(action_mask=lambda state: jnp.ones(1, bool)), "`SimpleNamespace.action_mask` must be left out"),
        (masked(action_mask=lambda state: jnp.ones(3, bool)), r"must return 4 entries.*shape=\(3,\)"),
        (masked(action_mask=np.ones(4, bool)), "`SimpleNamespace.action_mask` must be a function of the state"),
        (made(observation_space=gym.spaces.Text(5)), "Text"),
        (Remembering(), "nothing kept on `self`"),
        (stepping(reward=jnp.nan), "`reward` of env `SimpleNamespace` must be finite.* nan in row 0 of environment 0"),
        (
            stepping(observation=jnp.full(2, jnp.inf)),
            "`observation` of .* must be finite.* inf in row 1 of environment 0",
        ),
    ],
)
def test_an_environment_that_breaks_the_protocol_is_one_line(env, message):
    with pytest.raises(EnvError, match=message) as caught, pool(env) as actors:
        actors.collect()
    assert "\n" not in str(caught.value)


def test_the_class_of_an_environment_is_not_taken_for_gymnasiums():
    with pytest.raises(EnvError, match="Give an environment in JAX as an object, or by its name, jax:module:name"):
        resolve_env(Walk).make_one_or_game()


def test_what_breaks_the_protocol_is_one_line_in_actors_too():
    with pytest.raises(EnvError, match="must return `truncated` as a number. Received: None"):
        resolve_env(stepping(truncated=None)).source(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_actors": 2}, "`num_actors` must be left out for an environment in JAX"),
        ({"max_policy_lag": 1}, "`max_policy_lag` must be left out"),
        ({"acting": "device"}, "`acting` must be left out"),
        ({"envs_per_actor": 3}, "`envs_per_actor` must be left out"),
        ({"max_restarts": 3}, "`max_restarts` must be left out"),
        ({"wrappers": ["TimeLimit"]}, "wrappers"),
        ({"vectorization": "threads"}, "use more actors .num_actors."),
        ({"env_kwargs": {"noise": 1}}, "`env_kwargs` must be left out"),
        ({"num_envs": 0}, "`num_envs` must be"),
        ({"devices": 4, "num_envs": 8}, "`devices` must be at most 2"),
        ({"devices": 2, "num_envs": 7}, "`devices` must share the environments evenly"),
    ],
)
def test_settings_of_processes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pool(Walk(), **options)


def test_hindsight_is_refused_by_its_name():
    with pytest.raises(ValueError, match="`hindsight` must be None for an environment in JAX"):
        al.TrainConfig(env=Walk(), algorithm=al.SAC(hindsight="future"))


def test_weights_that_are_not_finite_are_not_taken_for_the_environments_fault():
    with pool(Walk()) as actors:
        actors.collect()
        actors.publish(jnp.full_like(jnp.asarray(actors._group._weights), jnp.nan))
        with pytest.raises(ValueError, match=r"Weights must be finite; .* values of weights\[0\]"):
            actors.collect()


def test_a_method_of_an_environment_can_not_be_called():
    with pool(Walk()) as actors, pytest.raises(EnvError, match="those in JAX are pure functions"):
        actors.call("set_difficulty", 3)


def test_info_keys_that_are_not_there_are_said_once():
    with pytest.warns(UserWarning, match="`Step.info` of env `Walk` has no score of `info_keys`"):
        pool(Walk(), info_keys=("score",)).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pool(Masked()).close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jax:tests.support.jax_envs", "jax:module:name"),
        ("jax:tests.support.jax_envs:Wolk", "did you mean `tests.support.jax_envs:Walk`"),
        ("jax:tests.support.jax_envs:LIMIT", "must be an environment in JAX"),
        ("gymnax:CartPole-v1", "needs the package `gymnax`"),
    ],
)
def test_a_name_of_no_environment_is_one_line(name, message):
    with pytest.raises(EnvError, match=message):
        pool(name)


def test_a_named_environment_gets_its_arguments():
    with pool("jax:tests.support.jax_envs:Walk", env_kwargs={"noise": 0.5}) as actors:
        assert actors.env_name == "jax:tests.support.jax_envs:Walk"
        assert np.isfinite(actors.collect().copy().reward).all()
    with pytest.raises(EnvError, match="can't be called with these `env_kwargs`"):
        pool("jax:tests.support.jax_envs:Walk", env_kwargs={"wind": 0.5})


def test_pictures_are_of_each_environments_state():
    env = resolve_env(Drawn()).source(2, 0, "rgb_array")
    with contextlib.closing(env):
        observation, _ = env.reset(seed=3)
        assert env.metadata["render_fps"] == 7
        for position, picture in zip(observation[:, 0], env.render(), strict=True):
            assert picture.shape == (2, 3, 3)
            assert (picture == np.uint8(100 + 50 * position)).all()
        env.step(np.zeros((2, 1), np.float32))


def test_a_benchmark_on_the_device_measures_rollouts_and_gives_no_advice_about_actors():
    algorithm = al.PPO(minibatch_size=32, epochs=1)
    config = al.TrainConfig(env=Walk(), backend="jax", num_envs=8, unroll_length=T, algorithm=algorithm)
    measured = measure_setting(config, rounds=1, seconds=0.05)
    found = as_json(measured)
    assert found["parts"]["env"]["wall_seconds"] > 0
    assert found["parts"]["acting"]["wall_seconds"] == found["parts"]["copying"]["wall_seconds"] == 0
    update = found["parts"]["update"]["wall_seconds"]
    assert found["batch_seconds"]["roof"] == pytest.approx(found["parts"]["env"]["wall_seconds"] + update)
    assert set(found["expected"]) <= {"an update twice as fast", "rollouts twice as fast"}
    assert found["limit"] in ("learning", "rollouts")
    console = Console(file=io.StringIO(), width=120)
    show(measured, console)
    text = console.file.getvalue()
    assert "on the device, 8 environments x 16 steps" in text
    assert " rollouts " in text
    assert "actor 0" not in text
    assert "other machines" not in text


def test_a_run_is_trained_resumed_evaluated_and_reported(tmp_path):
    options = {"env": "jax:tests.support.jax_envs:Walk", "run_dir": tmp_path / "run", "quiet": True, "backend": "jax"}
    options |= {"num_envs": 8, "unroll_length": T, "hidden_sizes": (8,), "algorithm": al.PPO(minibatch_size=32)}
    evaluate = al.callbacks.Evaluate(200, episodes=3)
    al.train(al.TrainConfig(total_steps=600, **options, callbacks=[evaluate]))
    al.train(al.TrainConfig(total_steps=900, **options, callbacks=[evaluate]), resume=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in rows] == [128 * (row + 1) for row in range(8)]
    assert any("evaluation/return_mean" in row for row in rows)
    assert al.evaluate(tmp_path / "run", episodes=4).lengths.shape == (4,)


@pytest.mark.parametrize("algorithm", [al.PPO(minibatch_size=32), al.PQN(minibatch_size=32)])
def test_learning_gives_the_same_bytes_where_unrolls_and_updates_begin_ahead(algorithm, tmp_path, monkeypatch):
    """PQN's epsilon changes after each update. Nothing is begun for nothing."""
    options = {
        "env": Masked(),
        "quiet": True,
        "num_envs": 8,
        "unroll_length": T,
        "hidden_sizes": (8,),
        "total_steps": 640,
    }
    unrolls, updates, taken, take = [], [], [], Guess.take
    dispatch, begin = DeviceActors._dispatch, al.Learner._begin_update

    def logged_take(self, fits):
        taken.append((found := take(self, fits)) is not None)
        return found

    monkeypatch.setattr(Guess, "take", logged_take)
    monkeypatch.setattr(DeviceActors, "_dispatch", lambda self, weights: unrolls.append(1) or dispatch(self, weights))
    monkeypatch.setattr(al.Learner, "_begin_update", lambda self, *given: updates.append(1) or begin(self, *given))
    ahead = al.train(al.TrainConfig(run_dir=tmp_path / "ahead", algorithm=algorithm, **options))
    count = 640 // (8 * T)
    first_unrolls, first_updates = len(unrolls), len(updates)
    expected = [False, False, *[True] * 2 * (count - 1)]  # an unroll, an update, and so on
    assert taken == expected
    monkeypatch.setattr(DeviceActors, "act_ahead", lambda self, weights: None)
    after = al.train(al.TrainConfig(run_dir=tmp_path / "after", algorithm=algorithm, **options))
    assert (first_unrolls, first_updates) == (len(unrolls) - first_unrolls, count)
    assert len(updates) == 2 * count
    assert taken == [*expected, *[False] * 2 * count]
    for one, other in zip(ahead.network.get_weights(), after.network.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def halve_weights(learner, batch):
    learner.network.set_weights([weight / 2 for weight in learner.network.get_weights()])


def lower_rate(learner, batch):
    learner.optimizer.learning_rate = 1e-5


def clip_rewards(learner, batch):
    return batch._replace(reward=jnp.clip(batch.reward, 0.0, 0.1))


@pytest.mark.parametrize(
    ("change", "rate", "dropped"),
    [
        (lambda learner, batch: None, "linear_1e-3", False),
        (halve_weights, 3e-4, True),
        (lower_rate, 3e-4, True),
        (clip_rewards, 3e-4, True),
        (lambda learner, batch: learner.extend(2000), 3e-4, False),  # nothing depends on it
        (lambda learner, batch: learner.extend(2000), "linear_1e-3", True),
        (lambda learner, batch: learner.update(batch) and None, 3e-4, True),
    ],
)
def test_an_update_that_was_begun_is_dropped_where_something_changes_what_it_learns(change, rate, dropped, monkeypatch):
    def learned(ahead):
        taken, fits = [], al.Learner._fits
        monkeypatch.setattr(al.Learner, "_fits", lambda *given: taken.append(fits(*given)) or taken[-1])
        with pool(Walk(), seed=3) as actors:
            algorithm = al.PPO(minibatch_size=32, learning_rate=rate)
            learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, total_steps=1000)
            weights = weights_for(actors, learner)
            if not ahead:
                learner.meanwhile = bool
            for number in range(4):
                batch = actors.collect()
                if number == 2 and (changed := change(learner, batch)) is not None:
                    batch = changed
                learner.update(batch)
                actors.publish(weights())
        monkeypatch.setattr(al.Learner, "_fits", fits)
        return learner, taken

    learner, taken = learned(ahead=True)
    other, none = learned(ahead=False)
    np.testing.assert_array_equal(learner.flat_weights(), other.flat_weights())
    assert (learner.env_steps, learner.updates, none) == (other.env_steps, other.updates, [])
    assert all(taken) is not dropped


def test_a_schedule_that_is_a_function_is_called_once_for_each_update():
    def rates(ahead):
        counted = itertools.count(1)
        with pool(Walk(), seed=3) as actors:
            algorithm = al.PPO(minibatch_size=32, learning_rate=lambda remaining: 1e-4 * next(counted))
            learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, total_steps=1000)
            weights = weights_for(actors, learner)
            learner.meanwhile = learner.meanwhile if ahead else bool
            found = []
            for _ in range(3):
                found.append(learner.update(actors.collect())["learning_rate"])
                actors.publish(weights())
        return found

    assert rates(ahead=True) == rates(ahead=False)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4 bytes."),
            MemoryError,
            "too small",
        ),
        (KeyboardInterrupt("a signal"), KeyboardInterrupt, "a signal"),
    ],
)
def test_an_unroll_begins_before_the_update_is_waited_for_and_a_failure_there_keeps_the_weights(
    error, raised, message, monkeypatch
):
    events, wait, dispatch = [], jax.block_until_ready, DeviceActors._dispatch

    def fails_once(result):
        events.append("wait")
        if len(events) == 2:
            raise error
        return wait(result)

    with pool(Walk(), seed=3) as actors:
        learner = al.Learner(actors.network, al.PPO(minibatch_size=32), action_space=actors.action_space)
        batch, weights = actors.collect(), weights_for(actors, learner)
        before = learner.flat_weights()
        monkeypatch.setattr(jax, "block_until_ready", fails_once)
        unroll = functools.partial(dispatch, actors._group)
        monkeypatch.setattr(actors._group, "_dispatch", lambda weights: events.append("unroll") or unroll(weights))
        with pytest.raises(raised, match=message):
            learner.update(batch)
        np.testing.assert_array_equal(learner.flat_weights(), before)
        assert (learner.env_steps, learner.updates) == (0, 0)
        learner.update(batch)
        assert events == ["unroll", "wait", "wait"]  # an unroll is begun once
        actors.publish(weights())
        assert (learner.flat_weights() != before).any()
        assert np.isfinite(actors.collect().reward).all()
