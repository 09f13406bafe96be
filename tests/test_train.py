from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from keras import ops

import actor_learner as al
from actor_learner.algorithms.returns import gae
from actor_learner.build import _return_statistics
from actor_learner.networks.contract import call_network, network_distribution
from actor_learner.runs.metrics import read_metrics
from tests.support.processes import is_alive, wait_until
from tests.support.scripted_envs import BreaksOnce, Deterministic
from tests.support.small_networks import Unserializable

LINUX_ONLY = pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")

pytestmark = pytest.mark.usefixtures("without_xla")


def config(tmp_path, **changes):
    fields = {
        "env": "CartPole-v1",
        "algorithm": al.PPO(minibatch_size=32, epochs=2),
        "num_actors": 2,
        "envs_per_actor": 2,
        "unroll_length": 16,
        "total_steps": 256,
        "run_dir": tmp_path / "run",
        "quiet": True,
    }
    return al.TrainConfig(**(fields | changes))


def same_weights(first, second):
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.xla
def test_a_run_leaves_all_that_it_should(tmp_path):
    result = al.train(config(tmp_path, info_keys=("is_success", "unknown")))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == result.metrics["updates"]
    assert rows[-1]["env_steps"] >= 256
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(set(steps))
    expected = {"env_steps", "time_seconds", "steps_per_second", "episode_return", "episode_length", "policy_lag"}
    expected |= {"actor_restarts", "memory/learner_mb", "memory/actor_0_mb", "memory/actor_1_mb"}
    expected |= {"policy_loss", "value_loss", "approx_kl", "clip_fraction", "entropy", "gradient_norm", "learning_rate"}
    assert expected <= set(rows[-1])
    assert {"time/learning", "time/env", "time/acting", "time/waiting"} <= set(rows[-1])
    assert rows[-1] == pytest.approx(result.metrics)
    stored = json.loads((tmp_path / "run/config.json").read_text())
    assert stored["algorithm"]["minibatch_size"] == 32
    assert stored["chosen"] == {"xla": True, "updates_per_epoch": 1, "action_masks": False}
    assert same_weights(al.load_network(result.run_dir).get_weights(), result.network.get_weights())
    assert al.Learner.load(result.run_dir / "checkpoints/final").env_steps == rows[-1]["env_steps"]
    observation = np.array([0.01, -0.02, 0.03, 0.04], np.float32)
    logits = call_network(result.network, observation[None])["parameters"]
    assert al.load_policy(result.run_dir).act(observation) == int(ops.argmax(logits[0]))


@pytest.mark.parametrize(
    ("lag", "memory"), [(0, None), *(pytest.param(1, memory, marks=pytest.mark.xla) for memory in (None, "gru"))]
)
def test_a_run_repeats_byte_for_byte(tmp_path, lag, memory):
    weights = [
        al.train(
            config(
                tmp_path,
                total_steps=20 * 64,
                max_policy_lag=lag,
                memory=memory,
                seed=3,
                run_dir=tmp_path / name,
                normalize_observation=True,
                vectorization="sync",
            )
        ).network.get_weights()
        for name in "ab"
    ]
    assert same_weights(*weights)


@pytest.mark.parametrize(("env", "lag", "memory"), [("CartPole-v1", 0, "gru"), ("Pendulum-v1", 1, None)])
def test_the_number_of_actors_changes_no_byte(tmp_path, env, lag, memory):
    weights = []
    for actors in (1, 2, 3, 4):
        options = {"num_actors": actors, "num_envs": 4, "envs_per_actor": None, "run_dir": tmp_path / str(actors)}
        options |= {"vectorization": "sync", "total_steps": 640, "max_policy_lag": lag, "normalize_observation": True}
        weights.append(al.train(config(tmp_path, env=env, memory=memory, **options)).network.get_weights())
    assert all(same_weights(weights[0], others) for others in weights[1:])


@pytest.mark.parametrize("memory", [None, "lstm"])
def test_stepping_in_this_process_gives_the_same_bytes_as_one_actor(tmp_path, memory):
    options = {"total_steps": 320, "memory": memory}
    runs = [al.train(config(tmp_path, num_actors=count, run_dir=tmp_path / str(count), **options)) for count in (0, 1)]
    assert same_weights(runs[0].network.get_weights(), runs[1].network.get_weights())
    returns = [run.metrics["episode_return"] for run in runs]
    assert returns[0] == returns[1]


@pytest.mark.parametrize(("env", "bound"), [("CartPole-v1", 1e-5), ("Pendulum-v1", 1e-5)])
@pytest.mark.parametrize("normalize", [False, True])
def test_actors_and_learner_agree_on_log_probabilities(env, bound, normalize):
    """At initialization, and after training; the first minibatch's ratio is 1 within the same bound."""

    def network(observation_space, action_space):
        return al.default_network(observation_space, action_space, normalize_observation=normalize)

    with al.ActorPool(env, network, num_actors=2, envs_per_actor=2, unroll_length=64) as actors:
        learner = al.Learner(actors.network, al.PPO(), action_space=actors.action_space)
        distribution = network_distribution(actors.network, learner.spaces)
        for _ in range(5):
            trajectory = actors.collect()
            flat = {
                name: getattr(trajectory, name)[:64].reshape(-1, *getattr(trajectory, name).shape[2:])
                for name in ("observation", "action", "valid", "behaviour_log_prob")
            }
            parameters = call_network(actors.network, flat["observation"])["parameters"]
            log_prob = ops.convert_to_numpy(distribution.log_prob(parameters, (flat["action"],)))
            std = 1.0
            if env == "Pendulum-v1":
                std = min(1.0, float(np.exp(ops.convert_to_numpy(parameters)[:, 1:]).min()))
            difference = np.abs(log_prob - flat["behaviour_log_prob"])[flat["valid"]]
            assert difference.max() <= bound / std
            assert np.abs(np.expm1(difference)).max() <= bound / std
            learner.update(trajectory)
            actors.publish(learner.get_weights())


def episodes_of(mode):
    """{episode: (rewards, advantages)} of env 0's whole episodes that lie inside one unroll."""

    def make(num_envs, seed):
        return SyncVectorEnv([Deterministic] * num_envs, autoreset_mode=mode)

    found = {}
    with al.ActorPool(make, num_actors=1, envs_per_actor=2, unroll_length=40) as actors:
        for _ in range(2):
            trajectory = actors.collect()
            value = call_network(actors.network, trajectory.observation.reshape(-1, 2))["value"]
            advantage = gae(
                trajectory.reward,
                ops.reshape(value, (41, 2)),
                trajectory.terminated,
                trajectory.truncated,
                trajectory.truncation_value,
                trajectory.valid,
                gamma=0.99,
                gae_lambda=0.95,
            )
            valid = trajectory.valid[:, 0]
            for episode in np.unique(trajectory.observation[:-1, 0, 0]):
                rows = (trajectory.observation[:-1, 0, 0] == episode) & valid
                ends = (trajectory.terminated | trajectory.truncated)[rows, 0]
                whole = trajectory.observation[:-1][rows][0, 0, 1] == 0 and ends.sum() == 1
                if whole:
                    found[int(episode)] = (trajectory.reward[rows, 0], ops.convert_to_numpy(advantage)[rows, 0])
    return found


def test_the_three_autoreset_modes_give_equal_returns_and_advantages():
    by_mode = [episodes_of(mode) for mode in AutoresetMode]
    common = set.intersection(*(set(episodes) for episodes in by_mode))
    assert len(common) >= 8
    for episode in common:
        rewards, advantages = zip(*(episodes[episode] for episodes in by_mode), strict=True)
        for other in (1, 2):
            np.testing.assert_array_equal(rewards[0], rewards[other])
            np.testing.assert_allclose(advantages[0], advantages[other], rtol=1e-5, atol=1e-5)


class Recorder(al.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append("train_begin")
        assert self.params["epochs"] == 2
        assert self.params["steps"] == 2
        assert self.actors.network is self.model
        assert self.learner.network is self.model
        assert self.config.env == "CartPole-v1"

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch_begin {epoch}")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"batch_end {batch} version {self.actors.version}")
        assert "policy_loss" in logs

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"epoch_end {epoch}")

    def on_train_end(self, logs=None):
        self.calls.append("train_end")


def test_callbacks_are_called_in_keras_order_and_before_publishing(tmp_path):
    recorder = Recorder()
    al.train(config(tmp_path, vectorization="sync", total_steps=4 * 64, updates_per_epoch=2, callbacks=[recorder]))
    assert recorder.calls == [
        "train_begin",
        "epoch_begin 0",
        "batch_end 0 version 0",
        "batch_end 1 version 1",
        "epoch_end 0",
        "epoch_begin 1",
        "batch_end 0 version 2",
        "batch_end 1 version 3",
        "epoch_end 1",
        "train_end",
    ]


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ZeroDivisionError("in the callback")


def test_an_exception_in_a_callback_saves_and_leaves_nothing_running(tmp_path):
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        al.train(config(tmp_path, callbacks=[Fails()]))
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == 1
    al.load_policy(tmp_path / "run").act(np.zeros(4, np.float32))


def test_stop_training_ends_the_run(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    assert al.train(config(tmp_path, callbacks=[Stop()])).metrics["updates"] == 1


def test_what_is_no_callback_is_refused_and_leaves_no_run(tmp_path):
    with pytest.raises(ValueError, match=r"keras.callbacks.Callback objects. Received: 'EarlyStopping'"):
        al.train(config(tmp_path, callbacks=["EarlyStopping"]))
    assert not (tmp_path / "run/config.json").exists()


def test_an_actor_that_fails_names_itself_and_the_run_is_saved(tmp_path):
    class Breaks(Deterministic):
        def step(self, action):
            if self.episode == 12:
                raise OSError("the simulator is gone")
            return super().step(action)

    with pytest.raises(al.ActorError, match="the simulator is gone") as caught:
        al.train(config(tmp_path, env=Breaks, total_steps=10_000, on_env_error="raise"))
    assert caught.value.actor in (0, 1)
    assert "in step" in caught.value.traceback
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates >= 1


def test_a_replaced_actor_stands_in_the_metrics_and_in_the_log(tmp_path):
    result = al.train(
        config(tmp_path, env=BreaksOnce, env_kwargs={"marker": tmp_path / "broken"}, num_actors=1, total_steps=128)
    )
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (causes,) = (row["actor_restart_causes"] for row in rows if "actor_restart_causes" in row)
    assert "the simulator is gone" in causes[0]
    assert rows[-1]["actor_restarts"] == result.metrics["actor_restarts"] == 1
    assert "actor_restart_causes" not in result.metrics
    log = (tmp_path / "run/logs/run.log").read_text()
    assert "the simulator is gone" in log
    assert "in step" in log  # the traceback


class Explodes(Deterministic):
    """Pays so much, in some of its steps, that the loss is infinite."""

    def __init__(self, first, last):
        super().__init__()
        self.exploding, self.count = range(first, last), 0

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.count += 1
        return observation, 1e30 if self.count in self.exploding else reward, *rest


def exploding(tmp_path, first, last, **changes):
    fields = {"env": Explodes, "env_kwargs": {"first": first, "last": last}, "num_actors": 0, "total_steps": 128}
    return config(tmp_path, **fields, **changes)


def test_an_update_that_is_not_finite_is_undone_and_the_run_goes_on(tmp_path, caplog):
    algorithm = al.PPO(minibatch_size=32, epochs=2, learning_rate=1e-3)
    result = al.train(exploding(tmp_path, 20, 25, algorithm=algorithm, undone_rate_factor=0.5))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row.get("undone", 0) for row in rows] == [0, 1, 0, 0, 0]
    assert rows[1]["env_steps"] == rows[0]["env_steps"]
    assert rows[-1]["learning_rate"] == pytest.approx(0.5e-3)
    assert all(np.isfinite(weights).all() for weights in result.network.get_weights())
    (incident,) = (tmp_path / "run/incidents").iterdir()
    assert al.Learner.load(incident).updates == 1
    assert "update 2 was undone" in caplog.text
    assert str(incident) in caplog.text


def test_a_run_that_can_only_explode_ends_with_the_explanation_and_is_saved(tmp_path):
    with pytest.raises(
        RuntimeError, match=r"^3 updates in a row were not finite .*max_undone_updates=3\nThe run is saved in"
    ):
        al.train(exploding(tmp_path, 0, 10**9, max_undone_updates=3))
    assert len(list((tmp_path / "run/incidents").iterdir())) == 3
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == 0
    al.load_policy(tmp_path / "run")


def test_a_run_that_learned_nothing_replaces_none(tmp_path):
    al.train(config(tmp_path, total_steps=64, num_actors=0))
    before = (tmp_path / "run/config.json").read_bytes(), (tmp_path / "run/network.keras").read_bytes()
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        al.train(exploding(tmp_path, 0, 10**9, max_undone_updates=2, overwrite=True))
    assert before == ((tmp_path / "run/config.json").read_bytes(), (tmp_path / "run/network.keras").read_bytes())


@pytest.fixture(scope="module")
def normalized(tmp_path_factory):
    """What a run with observation normalization left, for others to start from."""
    return al.train(config(tmp_path_factory.mktemp("normalized"), normalize_observation=True))


def test_training_goes_on_from_another_runs_network(tmp_path, normalized):
    first = normalized
    before = [weight.copy() for weight in first.network.get_weights()]

    class Compare(al.callbacks.Callback):
        def on_train_begin(self, logs=None):
            assert same_weights(before, self.model.get_weights())
            assert int(self.model.optimizer.iterations) == 0
            assert self.learner.env_steps == 0

    second = al.train(config(tmp_path, init_from=first.run_dir, run_dir=tmp_path / "second", callbacks=[Compare()]))
    assert not same_weights(before, second.network.get_weights())


def test_a_network_of_ones_own_by_a_callable_is_wrapped_in_normalization(tmp_path):
    def network(observation_space, action_space):
        x = keras.Input(observation_space.shape)
        actor = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(al.parameter_size(action_space))])
        critic = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        return keras.Model(x, (actor(x), critic(x)))

    result = al.train(config(tmp_path, network=network, normalize_observation=True))
    assert any(isinstance(layer, al.ObservationNormalization) for layer in result.network.layers)


def test_a_network_of_ones_own_may_take_the_number_of_actions_from_the_space(tmp_path):
    """Keras refuses NumPy's integers, which Gymnasium has there."""

    def network(observation_space, action_space):
        x = keras.Input(observation_space.shape)
        return keras.Model(x, (keras.layers.Dense(action_space.n)(x), keras.layers.Dense(1)(x)))

    assert al.train(config(tmp_path, network=network)).network.output_shape == [(None, 2), (None, 1)]


def deterministic_environments(num_envs):
    return SyncVectorEnv([Deterministic] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_batches_whose_rows_only_reset_are_passed_over(tmp_path):
    one = {"num_actors": 1, "envs_per_actor": 1, "unroll_length": 1, "total_steps": 24, "max_policy_lag": 1}
    result = al.train(config(tmp_path, env=deterministic_environments, algorithm=al.A2C(), **one))
    rows = read_metrics(result.run_dir)
    assert [row["env_steps"] for row in rows] == list(range(1, 25))
    assert all("loss" in row for row in rows)


def test_a_network_that_keras_cannot_save_is_said_at_the_start_and_keeps_its_weights(tmp_path):
    said = []

    class Note(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            said.extend(str(warning.message) for warning in caught)

    with pytest.warns(UserWarning, match="weights alone") as caught:
        result = al.train(config(tmp_path, network=Unserializable(2), callbacks=[Note()]))
    assert any("its weights alone will be saved" in line for line in said)
    with pytest.raises(ValueError, match="network="):
        al.load_network(result.run_dir)
    rebuilt = Unserializable(2)
    rebuilt(np.zeros((1, 4), np.float32))
    loaded = al.load_network(result.run_dir, network=rebuilt)
    assert same_weights(loaded.get_weights(), result.network.get_weights())


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match="needs a GPU"):
        al.train(config(tmp_path, device="gpu"))
    assert not (tmp_path / "run").exists()


def test_a_refused_env_leaves_no_run_directory(tmp_path):
    with pytest.raises(ValueError, match="CartPole-v1"):
        al.train(config(tmp_path, env="CartPol-v1"))
    assert not (tmp_path / "run").exists()


def test_training_in_a_thread_leaves_signal_handlers_alone(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(al.train(config(tmp_path))))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join(timeout=120)
    assert results[0].metrics["env_steps"] >= 256
    assert signal.getsignal(signal.SIGINT) is before


SCRIPT = """
import signal, sys
import actor_learner as al
from actor_learner.learner import cost
print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True)
cost.SMALL_FLOPS = 0.0  # a signal is the same without XLA, which would compile each run
class Say(al.callbacks.Callback):
    said = False
    def on_train_batch_end(self, batch, logs=None):
        if not self.said:
            print("training", flush=True)
        self.said = True
for run_dir in sys.argv[1:]:
    try:
        al.train(al.TrainConfig(
            run_dir=run_dir, total_steps=100_000_000, unroll_length=16, quiet=True, callbacks=[Say()]
        ))
    except BaseException as end:
        print(type(end).__name__, getattr(end, "code", None), flush=True)
        if run_dir == sys.argv[-1]:
            raise
"""

ENDS = {
    signal.SIGTERM: f"SystemExit {128 + signal.SIGTERM}",
    signal.SIGHUP: f"SystemExit {128 + signal.SIGHUP}",
    signal.SIGINT: "KeyboardInterrupt None",
}


def descendants_of(pid):
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


@LINUX_ONLY
def test_a_signal_ends_the_run_with_everything_saved(tmp_path):
    """One run after the other in a process, which only the last one ends; no actor outlives its run."""
    runs = [tmp_path / number.name for number in ENDS]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "False\n"
        for number, end in ENDS.items():
            assert process.stdout.readline() == "training\n"
            children = descendants_of(process.pid)
            assert len(children) >= 2
            process.send_signal(number)
            assert process.stdout.readline() == f"{end}\n"
            assert wait_until(lambda children=children: not any(map(is_alive, children)), 5)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=10)
    assert process.returncode == -signal.SIGINT, errors
    for run in runs:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert al.Learner.load(run / "checkpoints/final").updates == rows[-1]["updates"]
        assert math.isfinite(al.evaluate(run, episodes=1).mean)


@LINUX_ONLY
def test_an_ignored_hangup_stays_ignored(tmp_path):
    metrics = tmp_path / "run/metrics.jsonl"
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ},
    )
    try:
        assert process.stdout.readline() == "True\n"
        assert process.stdout.readline() == "training\n"
        process.send_signal(signal.SIGHUP)
        assert wait_until(metrics.exists, 60)
        updates = len(metrics.read_text().splitlines())
        assert wait_until(lambda: len(metrics.read_text().splitlines()) >= updates + 10, 60)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()


def test_statistics_taken_over_can_be_capped(tmp_path, normalized):
    seen = []

    class Count(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(float(self.model.get_layer("observation_normalization").count))
            self.model.stop_training = True

    changes = {"init_from": normalized.run_dir, "init_from_count": 10, "callbacks": [Count()]}
    al.train(config(tmp_path, run_dir=tmp_path / "second", **changes))
    assert seen == [10.0]


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """A run that scaled rewards, and the statistics by which it did in the end."""
    algorithm = al.PPO(minibatch_size=32, epochs=2, normalize_reward=True)
    run = al.train(config(tmp_path_factory.mktemp("scaled"), algorithm=algorithm)).run_dir
    scaling = al.Learner.load(run / "checkpoints/final")._reward_scaling
    return run, [float(scaling.mean), float(scaling.variance), float(scaling.count)]


class FirstScaling(al.callbacks.Callback):
    """Keeps the statistics after the first update, and stops."""

    def on_train_batch_end(self, batch, logs=None):
        scaling = self.learner._reward_scaling
        self.found = [float(value) for value in (scaling.mean, scaling.variance, scaling.count)]
        self.model.stop_training = True


@pytest.mark.parametrize("most", [None, 10])
def test_rewards_are_scaled_as_in_the_run_to_start_from(tmp_path, scaled, most, recwarn):
    run, (mean, variance, count) = scaled
    first, algorithm = FirstScaling(), al.PPO(minibatch_size=32, epochs=2, normalize_reward=True)
    changes = {"init_from": run, "init_from_count": most, "algorithm": algorithm, "callbacks": [first]}
    al.train(config(tmp_path, **changes))
    assert count >= 256
    assert first.found[2] == (most or count) + first.learner.env_steps
    if most is None:
        np.testing.assert_allclose(first.found[:2], [mean, variance], rtol=0.5)
    assert not [warning for warning in recwarn if "init_from" in str(warning.message)]


@pytest.mark.parametrize("place", ["", "network.keras", "checkpoints/final", "checkpoints/final/network.keras"])
def test_statistics_are_found_beside_the_network(scaled, place):
    run, expected = scaled
    found = _return_statistics(al.TrainConfig(init_from=run / place, algorithm=al.PPO(normalize_reward=True)))
    assert [found.mean, found.variance, found.count] == expected


def test_one_line_says_that_only_one_of_two_runs_scales_rewards(tmp_path, scaled, normalized):
    scales = al.PPO(normalize_reward=True)
    with pytest.warns(UserWarning, match=r"^`init_from` has no statistics of scaled .* normalize_reward=True, init_fr"):
        assert _return_statistics(al.TrainConfig(init_from=normalized.run_dir, algorithm=scales)).count == 0
    with pytest.warns(UserWarning, match=r"^`init_from` scaled rewards, this .* normalize_reward=False, init_from="):
        assert _return_statistics(al.TrainConfig(init_from=scaled[0])).count == 0


HANGUP = """
import pty, os, sys, signal, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-m", "actor_learner.cli", "train", "--run-dir", sys.argv[1],
                              "--total-steps", "100000000"])
while not os.path.exists(sys.argv[1] + "/metrics.jsonl"):
    os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@LINUX_ONLY
def test_closing_the_terminal_loses_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGUP, str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == str(128 + signal.SIGHUP), done.stderr
    rows = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == len(rows)
    al.load_policy(tmp_path / "run")


def test_a_run_that_is_stopped_before_its_first_update_leaves_what_was_there(tmp_path):
    first = al.train(config(tmp_path))

    class StopAtOnce(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.stop_training = True

    al.train(config(tmp_path, callbacks=[StopAtOnce()], overwrite=True))
    rows = [json.loads(line) for line in (first.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1] == pytest.approx(first.metrics)
