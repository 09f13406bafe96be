from __future__ import annotations

import json
import shutil
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
from actor_learner.learner.rewards import ReturnStatistics
from actor_learner.networks.contract import call_network
from actor_learner.runs.metrics import read_metrics
from tests.support.processes import is_alive, patience, wait_until
from tests.support.scripted_envs import BreaksOnce, Deterministic
from tests.support.small_networks import same_weights

LINUX_ONLY = pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
WITHOUT_GPU = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")

pytestmark = pytest.mark.usefixtures("without_xla")

SCALING = al.PPO(minibatch_size=32, epochs=2, normalize_reward=True)


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


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_whose_first_actions_lie_on_their_bounds_warns(tmp_path):
    narrow = {
        "wrappers": "gymnasium.wrappers:RescaleAction",
        "wrapper_kwargs": [{"min_action": -0.1, "max_action": 0.1}],
    }
    with pytest.warns(UserWarning, match="9.% of the numbers in the first batch's actions lie on a bound"):
        al.train(config(tmp_path, env="Pendulum-v1", **narrow, num_actors=0, total_steps=64))


@pytest.mark.xla
def test_a_run_leaves_all_that_it_should(tmp_path):
    result = al.train(config(tmp_path, info_keys=("is_success", "unknown")))
    rows = rows_of(tmp_path / "run")
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
    assert stored["chosen"] == {"xla": True, "updates_per_epoch": 1, "action_masks": False, "precision": "float32"}
    assert same_weights(al.load_network(result.run_dir).get_weights(), result.network.get_weights())
    assert al.Learner.load(result.run_dir / "checkpoints/final").env_steps == rows[-1]["env_steps"]
    observation = np.array([0.01, -0.02, 0.03, 0.04], np.float32)
    logits = call_network(result.network, observation[None])["parameters"]
    assert al.load_policy(result.run_dir).act(observation) == int(ops.argmax(logits[0]))


@pytest.mark.parametrize("lag", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_number_of_actors_changes_no_byte(tmp_path, lag):
    options = {"num_envs": 4, "envs_per_actor": None, "vectorization": "sync", "normalize_observation": True}
    options |= {"env": "Pendulum-v1", "max_policy_lag": lag, "algorithm": SCALING, "total_steps": 320, "seed": 3}
    runs = [al.train(config(tmp_path, num_actors=count, run_dir=tmp_path / str(count), **options)) for count in (1, 3)]
    for run in runs[1:]:
        assert same_weights(runs[0].network.get_weights(), run.network.get_weights())
        assert all(runs[0].metrics.get(name) == run.metrics.get(name) for name in ("loss", "episode_return"))


def episodes_of(mode):
    """{episode: (rewards, advantages)} of env 0's whole episodes that lie inside one unroll."""

    def make(num_envs, seed):
        return SyncVectorEnv([Deterministic] * num_envs, autoreset_mode=mode)

    found = {}
    with al.ActorPool(make, num_actors=0, envs_per_actor=2, unroll_length=40) as actors:
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


@pytest.mark.thorough
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
    rows = rows_of(tmp_path / "run")
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
    rows = rows_of(tmp_path / "run")
    assert [row.get("undone", 0) for row in rows] == [0, 1, 0, 0, 0]
    assert rows[1]["env_steps"] == rows[0]["env_steps"]
    assert rows[-1]["learning_rate"] == pytest.approx(0.5e-3)
    assert all(np.isfinite(weights).all() for weights in result.network.get_weights())
    (incident,) = (tmp_path / "run/incidents").iterdir()
    assert al.Learner.load(incident).updates == 1
    assert "update 2 was undone" in caplog.text
    assert str(incident) in caplog.text


@pytest.mark.thorough
def test_a_run_that_can_only_explode_ends_with_the_explanation_and_is_saved(tmp_path):
    with pytest.raises(
        RuntimeError, match=r"^3 updates in a row were not finite .*max_undone_updates=3\nThe run is saved in"
    ):
        al.train(exploding(tmp_path, 0, 10**9, max_undone_updates=3))
    assert len(list((tmp_path / "run/incidents").iterdir())) == 3
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == 0
    al.load_policy(tmp_path / "run")


class StopAtOnce(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


@pytest.fixture(scope="module")
def normalized(tmp_path_factory):
    """What a run with observation normalization left, for others to start from."""
    folder = tmp_path_factory.mktemp("normalized")
    return al.train(config(folder, normalize_observation=True, num_actors=0, total_steps=64))


def test_a_run_that_learned_nothing_replaces_none(tmp_path, normalized):
    """Its updates were all undone, or it was stopped before the first."""
    shutil.copytree(normalized.run_dir, tmp_path / "run", symlinks=True)
    files = [tmp_path / "run" / name for name in ("config.json", "network.keras", "metrics.jsonl")]
    before = [file.read_bytes() for file in files]
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        al.train(exploding(tmp_path, 0, 10**9, max_undone_updates=2, overwrite=True))
    assert before == [file.read_bytes() for file in files]
    al.train(config(tmp_path, num_actors=0, callbacks=[StopAtOnce()], overwrite=True))
    assert before == [file.read_bytes() for file in files]


class Beginning(al.callbacks.Callback):
    """Keeps what a run begins with, and stops."""

    def on_train_begin(self, logs=None):
        self.model.stop_training = True
        self.weights = {weight.path: weight.numpy().copy() for weight in self.model.weights}


@pytest.mark.parametrize("most", [None, 10])
def test_training_goes_on_from_another_runs_network(tmp_path, normalized, most):
    """Of its statistics as many observations may be taken over as one likes."""
    begins = Beginning()
    changes = {"init_from": normalized.run_dir, "init_from_count": most, "callbacks": [begins], "num_actors": 0}
    al.train(config(tmp_path, **changes))
    assert len(begins.weights) == len(normalized.network.weights)
    for weight in normalized.network.weights:
        capped = most if most and weight.path.endswith("/count") else weight
        np.testing.assert_array_equal(begins.weights[weight.path], capped)
    assert int(begins.model.optimizer.iterations) == begins.learner.env_steps == 0


def test_a_network_of_ones_own_by_a_callable_is_wrapped_in_normalization(tmp_path):
    """It may take the number of actions from the space, of a NumPy integer, which Keras refuses."""

    def network(observation_space, action_space):
        x = keras.Input(observation_space.shape)
        return keras.Model(x, (keras.layers.Dense(action_space.n)(x), keras.layers.Dense(1)(x)))

    changes = {"network": network, "normalize_observation": True, "num_actors": 0, "callbacks": [StopAtOnce()]}
    result = al.train(config(tmp_path, **changes))
    assert any(isinstance(layer, al.ObservationNormalization) for layer in result.network.layers)
    assert result.network.output_shape == [(None, 2), (None, 1)]


def no_callback():
    return None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"callbacks": [keras.callbacks.History]}, r"objects; pass an object: History\(...\). Received: <class"),
        ({"callbacks": ["tests.test_train:config"]}, r"called without arguments \(missing .*Received: callback="),
        ({"callbacks": ["tests.test_train:no_callback"]}, "a function that returns a Keras callback, not None"),
        ({"callbacks": ["tests.nowhere:make"]}, "`callback`: can't import 'tests.nowhere'"),
        ({"callbacks": ["os:getcwd"]}, "the module not one of Python's own. Received: callback='os:getcwd'"),
        ({"env": "CartPol-v1"}, "CartPole-v1"),
        pytest.param({"device": "gpu"}, "needs a GPU", marks=WITHOUT_GPU),
        pytest.param({"precision": "tf32"}, "TF32 is .* Received: tf32 on /CPU:0$", marks=WITHOUT_GPU),
    ],
)
def test_what_is_refused_leaves_no_run(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        al.train(config(tmp_path, num_actors=0, **changes))
    assert {file.name for file in tmp_path.glob("run/*")} <= {"logs"}


@WITHOUT_GPU
@pytest.mark.slow
def test_a_gpu_that_isnt_there_is_one_line(tmp_path):
    """TensorFlow would say in nine lines that it finds no driver."""
    command = [sys.executable, "-m", "actor_learner", "train", "--device", "gpu", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(120), check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("actor-learner: error: `--device gpu` needs a GPU")


def test_training_in_a_thread_leaves_signal_handlers_alone(tmp_path):
    results = []
    options = config(tmp_path, num_actors=0, callbacks=[StopAtOnce()])
    thread = threading.Thread(target=lambda: results.append(al.train(options)))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join(timeout=patience(120))
    assert results[0].run_dir == tmp_path / "run"
    assert signal.getsignal(signal.SIGINT) is before


SCRIPT = """
import signal, sys
import actor_learner as al
from actor_learner.learner import cost
cost.SMALL_FLOPS = 0.0  # a signal is the same without XLA, which would compile each run
hangup = signal.getsignal(signal.SIGHUP)
class Say(al.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("training", flush=True)
for run_dir in sys.argv[1:]:
    try:
        al.train(al.TrainConfig(
            run_dir=run_dir, total_steps=100_000_000, unroll_length=16, quiet=True, callbacks=[Say()]
        ))
    except BaseException as end:
        print(type(end).__name__, getattr(end, "code", None), flush=True)
        assert signal.getsignal(signal.SIGHUP) == hangup
        hangup = signal.SIG_DFL
        signal.signal(signal.SIGHUP, hangup)
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
    """One run after the other in a process, which only the last one ends; no actor outlives its run.

    `nohup` has hang-ups ignored, which they are until the first run has ended.
    """
    runs = [tmp_path / number.name for number in ENDS]
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", SCRIPT, *runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def said_of_the_end():
        return next(line for line in process.stdout if line != "training\n")

    try:
        for number, end in ENDS.items():
            assert process.stdout.readline() == "training\n"
            children = descendants_of(process.pid)
            assert len(children) >= 2
            if number == signal.SIGTERM:
                process.send_signal(signal.SIGHUP)
                assert [process.stdout.readline() for _ in range(10)] == ["training\n"] * 10
            process.send_signal(number)
            assert said_of_the_end() == f"{end}\n"
            assert wait_until(lambda children=children: not any(map(is_alive, children)))
        _, errors = process.communicate(timeout=patience(60))
    finally:
        process.kill()
        process.wait(timeout=patience(10))
    assert process.returncode == -signal.SIGINT, errors
    for run in runs:
        rows = read_metrics(run)
        assert al.Learner.load(run / "checkpoints/final").updates == rows[-1]["updates"]
        al.load_policy(run).act(np.zeros(4, np.float32))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """A run that scaled rewards, and the statistics by which it did in the end."""
    run = al.train(config(tmp_path_factory.mktemp("scaled"), algorithm=SCALING, num_actors=0)).run_dir
    scaling = al.Learner.load(run / "checkpoints/final")._reward_scaling
    return run, [float(scaling.mean), float(scaling.variance), float(scaling.count)]


class FirstScaling(al.callbacks.Callback):
    """Keeps the statistics after the first update, and stops."""

    def on_train_batch_end(self, batch, logs=None):
        scaling = self.learner._reward_scaling
        self.found = [float(value) for value in (scaling.mean, scaling.variance, scaling.count)]
        self.model.stop_training = True


def test_rewards_are_scaled_as_in_the_run_to_start_from(tmp_path, scaled, recwarn):
    run, (mean, variance, count) = scaled
    first, begins = FirstScaling(), Beginning()
    changes = {"init_from": run, "algorithm": SCALING, "num_actors": 0}
    stopped = al.train(config(tmp_path, callbacks=[first], **changes))
    assert stopped.stopped_by == "FirstScaling"
    assert "FirstScaling stopped the run at " in (stopped.run_dir / "logs/run.log").read_text()
    assert count >= 256
    assert first.found[2] == count + first.learner.env_steps
    np.testing.assert_allclose(first.found[:2], [mean, variance], rtol=0.5)
    al.train(config(tmp_path, callbacks=[begins], init_from_count=10, run_dir=tmp_path / "capped", **changes))
    assert begins.learner._return_statistics == ReturnStatistics(mean, variance, 10)
    assert not [warning for warning in recwarn if "init_from" in str(warning.message)]


@pytest.mark.parametrize("place", ["", "network.keras", "checkpoints/final", "checkpoints/final/network.keras"])
def test_statistics_are_found_beside_the_network(scaled, place):
    run, expected = scaled
    found = _return_statistics(al.TrainConfig(init_from=run / place, algorithm=SCALING))
    assert [found.mean, found.variance, found.count] == expected


def test_one_line_says_that_only_one_of_two_runs_scales_rewards(tmp_path, scaled, normalized):
    with pytest.warns(UserWarning, match=r"^`init_from` has no statistics of scaled .* normalize_reward=True, init_fr"):
        assert _return_statistics(al.TrainConfig(init_from=normalized.run_dir, algorithm=SCALING)).count == 0
    with pytest.warns(UserWarning, match=r"^`init_from` scaled rewards, this .* normalize_reward=False, init_from="):
        assert _return_statistics(al.TrainConfig(init_from=scaled[0])).count == 0


HANGUP = """
import pty, os, sys, signal, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-m", "actor_learner.cli", "train", "--run-dir", sys.argv[1],
                              "--num-actors", "1", "--total-steps", "100000000"])
while not os.path.exists(sys.argv[1] + "/metrics.jsonl"):
    os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.thorough
@LINUX_ONLY
def test_closing_the_terminal_loses_nothing(tmp_path):
    run, timeout = tmp_path / "run", patience(120)
    done = subprocess.run([sys.executable, "-c", HANGUP, run], capture_output=True, text=True, timeout=timeout)
    assert done.stdout.strip() == str(128 + signal.SIGHUP), done.stderr
    assert al.Learner.load(run / "checkpoints/final").updates == len(read_metrics(run))
    al.load_policy(run)
