"""Every callback that Keras exports, in real runs: each means what its documentation says, with updates as batches.

The runs are shared, because each has to be compiled: a callback is in one where it disturbs no other.
"""

import contextlib
import csv
import http.server
import importlib.util
import io
import json
import re
import threading
import urllib.parse
from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import keras
import numpy as np
import pytest
from keras.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, ReduceLROnPlateau, SwapEMAWeights

import actor_learner as al
from actor_learner.callbacks import Evaluate, StopOnReturn, state
from actor_learner.callbacks.checks import check_rate
from actor_learner.callbacks.dispatch import RunCallbacks
from actor_learner.runs.checkpoints import RunState
from actor_learner.runs.meter import metric_names
from actor_learner.runs.metrics import read_metrics
from actor_learner.system.files import write_arrays, write_folder_atomically
from actor_learner.system.installation import install_command
from tests.support.curriculum_env import Curriculum

pytestmark = pytest.mark.usefixtures("without_xla")

EPOCHS, UPDATES = 5, 3
"""Of a run, and updates in an epoch."""
ROWS = 32
ALGORITHM = al.A2C(optimizer=keras.optimizers.SGD(0.1), normalize_advantage=True)

NOT_ONE = {"Callback": "the base of all of them", "CallbackList": "what Keras calls them by"}


def test_none_of_keras_list_is_missing():
    """Each name in snake case begins that of a test."""
    exported = {name for name in dir(keras.callbacks) if isinstance(getattr(keras.callbacks, name), type)}
    assert NOT_ONE.keys() < exported
    tests = [name.replace("_", "") for name in globals() if name.startswith("test_")]
    for name in exported - NOT_ONE.keys():
        assert any(test.startswith(f"test{name.lower()}") for test in tests), name


def config(tmp_path, callbacks, **changes):
    fields = {
        "env": "CartPole-v1",
        "vectorization": "sync",
        "algorithm": ALGORITHM,
        "num_actors": 0,
        "envs_per_actor": 2,
        "unroll_length": ROWS // 2,
        "total_steps": EPOCHS * UPDATES * ROWS,
        "updates_per_epoch": UPDATES,
        "hidden_sizes": (4,),
        "run_dir": tmp_path / "run",
        "quiet": True,
        "callbacks": callbacks,
    }
    return al.TrainConfig(**(fields | changes))


def trainable(network):
    return np.concatenate([variable.numpy().ravel() for variable in network.trainable_variables])


def saved(path):
    return trainable(keras.models.load_model(path))


def checkpoint(run_dir):
    return al.Learner.load(run_dir / "checkpoints/final", algorithm=ALGORITHM)


class Watch(al.callbacks.Callback):
    """Keeps the network's weights, and the actors', as they are at each hook."""

    def __init__(self):
        super().__init__()
        self.calls, self.epochs, self.batches, self.acted, self.seen = [], [], [], [], []

    def on_train_begin(self, logs=None):
        self.params_then = dict(self.params)

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(f"begin {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"end {batch}")
        self.batches.append(trainable(self.model))
        self.acted.append(self.actors._group._actor._roles[0].policy._weights.copy())

    def on_update(self, batch, metrics):
        of_envs = zip(self.actors.ended_envs.tolist(), self.actors.episodes["length"].tolist(), strict=True)
        self.seen.append((metrics, int(batch.valid.sum()), list(of_envs)))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"over {epoch}")
        self.epochs.append((trainable(self.model), dict(logs)))


@contextlib.contextmanager
def listening():
    """A server, and what was posted to it."""
    received = []

    class Receive(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            received.append((self.path, json.loads(urllib.parse.parse_qs(body)["data"][0])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receive) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run with every callback that only looks, and one that sets the rate: 0.1, and 0 from epoch 3 on."""
    folder = tmp_path_factory.mktemp("keras")
    calls = []
    hooks = {
        hook: lambda *args, hook=hook, **kwargs: calls.append((hook, *(a for a in args if isinstance(a, int))))
        for hook in ("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin")
    }
    hooks["on_train_batch_end"] = lambda batch, logs: calls.append(("on_train_batch_end", batch))
    best = ModelCheckpoint(folder / "best.keras", "explained_variance", save_best_only=True)
    history, watch, printed = keras.callbacks.History(), Watch(), io.StringIO()
    lambdas = keras.callbacks.LambdaCallback(**hooks)
    with listening() as (address, received):
        callbacks = [
            lambdas,
            best,
            ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=4),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch < 3 else 0.0),
            keras.callbacks.BackupAndRestore(folder / "backup"),
            keras.callbacks.CallbackList([history, keras.callbacks.TerminateOnNaN()]),
            keras.callbacks.RemoteMonitor(root=address),
            keras.callbacks.ProgbarLogger(),
            watch,
        ]
        if importlib.util.find_spec("tensorboard"):
            callbacks.append(keras.callbacks.TensorBoard(folder / "tensorboard", update_freq="batch"))
        if importlib.util.find_spec("orbax"):
            callbacks.append(keras.callbacks.OrbaxCheckpoint(str(folder / "orbax"), max_to_keep=None))
        with contextlib.redirect_stdout(printed):
            result = al.train(config(folder, callbacks, quiet=False))
    rows = read_metrics(result.run_dir)
    return SimpleNamespace(**locals())


def test_the_metrics_that_may_be_monitored_are_those_of_the_rows(run):
    names = metric_names(run.watch.config, run.watch.learner._update.metric_names)
    found, possible = set().union(*run.rows), set(names) - {"undone"}
    assert found <= possible
    later = {"cpu/learner", "cpu/others", "cpu/pressure"}  # after ten seconds
    assert possible - found <= {"episode/is_success", *later}  # CartPole has no success


def test_params_are_keras_and_logs_the_rows_of_metrics_jsonl(run):
    """Logs of an epoch are those of its last update; what has no value yet isn't there."""
    params = run.watch.params_then
    assert (params["epochs"], params["steps"], params["verbose"]) == (EPOCHS, UPDATES, 1)
    assert params["run_dir"] == run.result.run_dir
    assert params["actors"] is run.watch.actors
    assert params["config"] is run.watch.config
    assert run.watch.actors.network is run.watch.learner.network is run.watch.model
    for (_, logs), row in zip(run.watch.epochs, run.rows[UPDATES - 1 :: UPDATES], strict=True):
        assert logs == pytest.approx(row)


def test_a_callback_sees_each_batch_and_the_episodes_of_each_environment(run):
    for (metrics, valid, _), row in zip(run.watch.seen, run.rows, strict=True):
        assert (metrics["updates"], metrics["loss"]) == (row["updates"], row["loss"])
        assert metrics["env_steps"] == sum(rows for _, rows, _ in run.watch.seen[: int(row["updates"])])
        assert 0 < valid <= ROWS
    for env in (0, 1):
        lengths = [length for *_, ended in run.watch.seen for of_env, length in ended if of_env == env]
        assert 0 < sum(lengths) <= run.rows[-1]["env_steps"]


def test_lambda_callback_is_called_in_keras_order(run):
    expected = [("on_train_begin",)]
    for epoch in range(EPOCHS):
        expected.append(("on_epoch_begin", epoch))
        for batch in range(UPDATES):
            expected += [("on_train_batch_begin", batch), ("on_train_batch_end", batch)]
        expected.append(("on_epoch_end", epoch))
    assert run.calls == [*expected, ("on_train_end",)]


def test_model_checkpoint_keeps_the_best(run):
    """Its mode was resolved: it is to be large."""
    assert run.best.mode == "max"
    values = [logs["explained_variance"] for _, logs in run.watch.epochs]
    assert run.best.best == max(values)
    np.testing.assert_array_equal(saved(run.folder / "best.keras"), run.watch.epochs[int(np.argmax(values))][0])


def test_model_checkpoint_keeps_milestones_between_epochs(run):
    names = {path.name for path in run.folder.glob("*.weights.h5")}
    assert names == {"2-1.weights.h5", "3-2.weights.h5", "4-3.weights.h5"}  # after 4, 8 and 12 updates
    run.result.network.load_weights(run.folder / "3-2.weights.h5")
    np.testing.assert_array_equal(trainable(run.result.network), run.watch.batches[7])


class Slower(keras.callbacks.Callback):
    """Sets the learning rate after each update."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 1e-5


@pytest.mark.parametrize("rate", [1e-3, "linear_1e-3"])
def test_a_callback_sets_the_rate_and_is_warned_once_where_a_schedule_does(tmp_path, rate, caplog):
    algorithm = al.PPO(minibatch_size=32, epochs=1, learning_rate=rate)
    al.train(config(tmp_path, [Slower()], algorithm=algorithm))
    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert (rates[1] == pytest.approx(1e-5)) == (rate == 1e-3)
    assert caplog.text.count("the schedule learning_rate='linear_1e-3' sets it anew") == (rate != 1e-3)


def test_learning_rate_scheduler_sets_the_rate_of_the_compiled_update(run):
    assert [row["learning_rate"] for row in run.rows] == pytest.approx([0.1] * 9 + [0.0] * 6)
    changed = [bool((a != b).any()) for a, b in zip(run.watch.batches, run.watch.batches[1:], strict=False)]
    assert changed == [True] * 8 + [False] * 6


def test_csv_logger_has_a_column_for_each_metric(run):
    """Also for those that had no value in the first epoch, from which it would take its columns."""
    with open(run.folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(EPOCHS)]
    assert {"episode_return", "episode/is_success", "loss"} <= set(rows[0])
    assert [row["episode/is_success"] for row in rows] == ["NA"] * EPOCHS
    assert [float(row["loss"]) for row in rows] == [logs["loss"] for _, logs in run.watch.epochs]


def test_history_has_every_epoch(run):
    assert run.history.epoch == list(range(EPOCHS))
    assert run.history.history["loss"] == [logs["loss"] for _, logs in run.watch.epochs]
    assert run.result.network.history is run.history


def test_remote_monitor_posts_every_epoch(run):
    assert [path for path, _ in run.received] == ["/publish/epoch/end/"] * EPOCHS
    assert [data["epoch"] for _, data in run.received] == list(range(EPOCHS))
    assert [data["env_steps"] for _, data in run.received] == [ROWS * UPDATES * (n + 1) for n in range(EPOCHS)]


def test_progbar_logger_shows_epochs_and_updates(run):
    text = run.printed.getvalue()
    assert "Epoch 1/5" in text
    assert "Epoch 5/5" in text
    assert "3/3" in text


def test_tensorboard_has_an_axis_of_its_own(run):
    """Epochs, and batches counted on through them; the run's own event files have env steps."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard/train"), size_guidance={"tensors": 0})
    events.Reload()
    assert [event.step for event in events.Tensors("epoch_loss")] == list(range(EPOCHS))
    assert [event.step for event in events.Tensors("batch_loss")] == list(range(1, EPOCHS * UPDATES + 1))


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_without_the_package_tensorboard_is_refused_before_training(tmp_path):
    with pytest.raises(ImportError, match=re.escape(install_command("actor-learner[tensorboard]"))):
        al.train(config(tmp_path, [keras.callbacks.TensorBoard(tmp_path)]))
    assert not (tmp_path / "run/config.json").exists()


def test_orbax_checkpoint_saves_epochs(run):
    pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint")
    assert {path.name for path in (run.folder / "orbax").iterdir()} == {str(epoch) for epoch in range(EPOCHS)}


def test_a_run_that_is_complete_has_no_backup_and_names_its_callbacks(run):
    assert not (run.folder / "backup").exists()
    stored = json.loads((run.result.run_dir / "config.json").read_text())["callbacks"]
    assert {"callable": "keras.src.callbacks.model_checkpoint:ModelCheckpoint"} in stored


class Explodes(gym.wrappers.TimeLimit):
    """CartPole that pays infinitely much, in effect, from some step on."""

    def __init__(self, explodes_at=10**9):
        super().__init__(gym.make("CartPole-v1").unwrapped, 500)
        self.explodes_at, self.count = explodes_at, 0

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.count += 1
        return observation, 1e30 if self.count > self.explodes_at else reward, *rest


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that a callback ends in its second epoch: the third update of that wasn't finite."""
    folder, watch = tmp_path_factory.mktemp("ended"), Watch()
    backup, nan = keras.callbacks.BackupAndRestore(folder / "backup"), keras.callbacks.TerminateOnNaN(raise_error=True)
    with pytest.raises(RuntimeError, match="NaN or Inf loss encountered") as caught:
        al.train(config(folder, [backup, nan, watch], env=Explodes, env_kwargs={"explodes_at": 5 * ROWS // 2}))
    return SimpleNamespace(**locals())


def test_terminate_on_nan_hears_of_an_update_that_was_undone_and_is_named(ended):
    """For the others it is no batch."""
    assert ended.watch.calls[-3:] == ["begin 1", "end 1", "begin 2"]
    named, saved = ended.caught.value.__notes__
    assert named == "In the callback TerminateOnNaN, on_train_batch_end."
    assert saved == f"The run is saved in {ended.folder / 'run'}; --resume (resume=True) goes on from there."
    log = (ended.folder / "run/logs/run.log").read_text()
    assert "the run ended: RuntimeError: NaN or Inf loss encountered" in log
    assert "In the callback TerminateOnNaN, on_train_batch_end." in log
    rows = read_metrics(ended.folder / "run")
    assert [row.get("undone", 0) for row in rows] == [0] * 5 + [1]
    assert checkpoint(ended.folder / "run").updates == 5
    np.testing.assert_array_equal(trainable(al.load_network(ended.folder / "run")), ended.watch.batches[-1])


def test_terminate_on_nan_ends_a_run_whose_algorithm_reports_no_single_loss(pieces):
    """SAC's are `critic_loss` and `policy_loss`; Keras looks at `loss`."""
    callbacks = begin(pieces, keras.callbacks.TerminateOnNaN())
    callbacks.update_ended({"undone": 1.0, "critic_loss": float("inf")})
    assert pieces[1].network.stop_training


def test_backup_and_restore_goes_on_with_the_epoch_and_the_weights_that_it_has_kept(ended):
    """The first epoch was whole. The actors act by what was restored: else `approx_kl` would not be 0."""
    backup, watch = keras.callbacks.BackupAndRestore(ended.folder / "backup", delete_checkpoint=False), Watch()
    result = al.train(config(ended.folder, [backup, watch], env=Explodes, run_dir=ended.folder / "second", seed=1))
    assert watch.calls[0] == "epoch 1"
    assert watch.calls[-1] == f"over {EPOCHS - 1}"
    rows = read_metrics(result.run_dir)
    assert [row["updates"] for row in rows] == list(range(UPDATES + 1, EPOCHS * UPDATES + 1))
    assert [row["env_steps"] for row in rows] == [ROWS * row["updates"] for row in rows]
    assert {row["policy_lag"] for row in rows} == {0.0}
    assert abs(rows[0]["approx_kl"]) < 1e-6
    np.testing.assert_array_equal(watch.acted[0], ended.watch.batches[UPDATES - 1])
    resumed = Watch()
    longer = config(ended.folder, [backup, resumed], env=Explodes, run_dir=result.run_dir, seed=1)
    al.train(longer.replace(total_steps=longer.total_steps + ROWS), resume=True)
    assert resumed.calls[:2] == [f"epoch {EPOCHS}", "begin 0"]  # from the run's checkpoint, not from the backup
    done = longer.replace(run_dir=ended.folder / "third", total_steps=UPDATES * ROWS, callbacks=[backup])
    with pytest.raises(ValueError, match=r"holds a run that has finished all its epochs: .* Received: \d epochs of 1"):
        al.train(done)


class Score(al.callbacks.Callback):
    """Says that the second epoch was the best."""

    reports: ClassVar = {"score": "max"}

    def on_train_batch_end(self, batch, logs=None):
        if self.learner.updates % UPDATES == 0:
            logs["score"] = [1.0, 3.0, 2.0, 1.0, 0.0][self.learner.updates // UPDATES - 1]


def test_early_stopping_leaves_the_best_weights_everywhere(tmp_path):
    stopping, watch = EarlyStopping("score", patience=2, restore_best_weights=True), Watch()
    result = al.train(config(tmp_path, [stopping, watch, Score()]))
    assert (stopping.mode, stopping.best_epoch, stopping.stopped_epoch) == ("max", 1, 3)
    assert result.metrics["updates"] == 4 * UPDATES
    best = watch.epochs[1][0]
    assert (watch.epochs[3][0] != best).any()
    np.testing.assert_array_equal(trainable(result.network), best)
    np.testing.assert_array_equal(trainable(al.load_network(tmp_path / "run")), best)
    fresh = al.Policy.from_network(result.network, gym.spaces.Discrete(2))
    policy = al.load_policy(tmp_path / "run")
    np.testing.assert_array_equal(policy.exported.weights, fresh.exported.weights)
    np.testing.assert_array_equal(trainable(checkpoint(tmp_path / "run").network), watch.epochs[3][0])
    assert [row.get("score") for row in read_metrics(tmp_path / "run")][2::3] == [1.0, 3.0, 2.0, 1.0]


def test_reduce_lr_on_plateau_lowers_the_rate_of_the_compiled_update(averaged):
    """Env steps never get fewer: after one epoch of patience, the rate is halved at each epoch's end."""
    rates = [row["learning_rate"] for row in averaged.rows]
    assert rates == pytest.approx(np.repeat([0.1, 0.1, 0.05, 0.025, 0.0125], UPDATES))


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run whose optimizer keeps averages, which are put in at each epoch's end and for evaluations."""
    folder, watch = tmp_path_factory.mktemp("averaged"), Watch()
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    evaluate = Evaluate(4 * ROWS, episodes=3)
    callbacks = [
        evaluate,
        ReduceLROnPlateau("env_steps", mode="min", factor=0.5, patience=1),
        SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
        watch,
    ]
    result = al.train(config(folder, callbacks, algorithm=al.A2C(optimizer=optimizer, normalize_advantage=True)))
    rows = read_metrics(result.run_dir)
    return SimpleNamespace(**locals())


def test_swap_ema_weights_evaluates_saves_and_leaves_the_averages(averaged):
    average = averaged.watch.batches[0]
    averages = [average := 0.5 * average + 0.5 * raw for raw in averaged.watch.batches]
    for epoch in range(EPOCHS):
        np.testing.assert_allclose(
            saved(averaged.folder / f"{epoch + 1}.keras"), averages[3 * epoch + 2], rtol=1e-5, atol=1e-6
        )
    for before, published in zip(averaged.watch.batches, averaged.watch.acted[1:], strict=False):
        np.testing.assert_allclose(before, published, rtol=1e-5, atol=1e-6)  # actors go on by the weights themselves
    np.testing.assert_array_equal(trainable(averaged.result.network), averaged.watch.epochs[-1][0])
    np.testing.assert_allclose(averaged.evaluate._policy._weights, averages[-1], rtol=1e-5, atol=1e-6)


def test_evaluate_writes_into_the_rows_and_into_the_logs_of_the_epoch(averaged):
    """Every 128 of the 480 env steps, and after the last update."""
    evaluated = [row["updates"] for row in averaged.rows if "evaluation/return_mean" in row]
    assert evaluated == [4, 8, 12, 15]
    assert [("evaluation/return_mean" in logs) for _, logs in averaged.watch.epochs] == [False, True, True, True, True]
    last = al.evaluate(averaged.result.network, "CartPole-v1", episodes=3, vectorization="sync")
    assert averaged.rows[-1]["evaluation/return_mean"] == last.mean
    assert averaged.rows[-1]["evaluation/length_mean"] == last.mean_length
    assert {"callable": "actor_learner.callbacks.evaluate:Evaluate"} in json.loads(
        (averaged.result.run_dir / "config.json").read_text()
    )["callbacks"]


class Harder(al.callbacks.Callback):
    """Calls a method of the environments after the second update."""

    calls = 0

    def on_train_batch_end(self, batch, logs=None):
        if logs["updates"] == 2:
            self.calls += 1
            self.actors.call("set_difficulty", 5)

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


def keepers():
    """Callbacks that have something to keep."""
    stopping = EarlyStopping("env_steps", mode="min", patience=100, restore_best_weights=True)
    return [Harder(), stopping, ReduceLROnPlateau("env_steps", mode="min", patience=100)]


def states(callbacks):
    harder, stopping, plateau = callbacks
    weights = [weight.tolist() for weight in stopping.best_weights]
    return harder.calls, stopping.best, stopping.wait, stopping.best_epoch, weights, plateau.best, plateau.wait


def test_stop_on_return_ends_a_run_and_the_one_that_goes_on_makes_its_calls_again(tmp_path):
    """20 steps of 2 environments are 4 episodes of 10 steps: with difficulty 5 from the third update on, 50 each."""
    first = keepers()
    stop = StopOnReturn(40, episodes=1)
    hard = config(tmp_path, [*first, stop], env=Curriculum, unroll_length=20, total_steps=4000, info_keys=())
    result = al.train(hard)
    assert result.metrics["episode_return"] == pytest.approx(40.0)  # 8 episodes of 0, then of 50
    assert result.metrics["updates"] == 10
    assert RunState.read(tmp_path / "run/checkpoints/final").calls == [["set_difficulty", [5]]]
    found = [
        al.evaluate(tmp_path / "run", episodes=2, **given).mean for given in ({}, {"calls": False}, {"env_kwargs": {}})
    ]
    assert found == [50.0, 0.0, 0.0]
    patient, seen, second = StopOnReturn(40, episodes=5), [], keepers()  # 4 in a batch
    hooks = {"on_train_batch_begin": lambda batch, logs: seen.append(states(second))}
    result = al.train(hard.replace(callbacks=[patient, *second, LambdaCallback(**hooks)]), resume=True)
    calls, best, wait, *others, plateaus_wait = states(first)
    assert seen[0] == (calls, best, wait - 1, *others, plateaus_wait - 1)  # the last epoch was cut short, and goes on
    assert (calls, wait) == (1, 3)
    assert result.metrics["updates"] == 12
    assert result.metrics["episode_return"] == pytest.approx((8 * 0 + 40 * 50) / 48)


@pytest.fixture(scope="module")
def pieces():
    """What callbacks are checked against before a run."""
    with al.ActorPool("CartPole-v1", num_actors=0, envs_per_actor=2, unroll_length=4) as actors:
        yield actors, al.Learner(actors.network, al.A2C(), action_space=actors.action_space)


class Overwriting(al.callbacks.Callback):
    reports: ClassVar = {"env_steps": "max"}


class OverwritingLoss(al.A2C):
    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        return loss, {**metrics, "episode_return": loss}


def test_a_loss_does_not_replace_a_metric_of_the_run(tmp_path):
    with pytest.raises(ValueError, match="Metrics of a loss must have other names .* Received: 'episode_return'"):
        al.train(config(tmp_path, [], algorithm=OverwritingLoss()))
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        (Overwriting, {}, "a callback reports must have other names than the run's own. Received: 'env_steps'"),
        (EarlyStopping, {"monitor": "return"}, r"metric of the run \(did you mean 'episode_return'\?\): env_"),
        (EarlyStopping, {}, "did you mean .*loss.* Received: monitor='val_loss'"),
        (EarlyStopping, {"monitor": "entropy"}, "`mode` of EarlyStopping .* 'entropy' isn't known. Rec"),
        (ReduceLROnPlateau, {"monitor": "clip_fraction"}, "policy_loss.* Received: monitor='clip_fraction'"),
        (ModelCheckpoint, {"filepath": "{episode_retrun}.keras"}, "`filepath` of .*did you mean 'episode_return' or"),
        (ModelCheckpoint, {"filepath": "{batch}.keras"}, "Received: filepath='batch'"),
        (ModelCheckpoint, {"filepath": "{loss:d}.keras"}, "code 'd' .* Received: filepath='{loss:d}.keras'"),
        (ModelCheckpoint, {"filepath": "{.keras"}, "`filepath` of ModelCheckpoint: .* Received: filepath='{.keras'"),
        (SwapEMAWeights, {}, "needs an optimizer that keeps averages: .* Received: use_ema=False"),
        (StopOnReturn, {"threshold": 1, "monitor": "evaluation/return_mean"}, "Received: monitor='evaluation"),
        (StopOnReturn, {"threshold": "5"}, "`threshold` must be .* Received: "),
        (StopOnReturn, {"threshold": float("nan")}, "`threshold` must be .* Received: "),
        (StopOnReturn, {"threshold": 1, "episodes": 0}, "`episodes` must be .* Received: "),
        (Evaluate, {"every_steps": 0}, "Received: every_steps=0"),
        (Evaluate, {"every_steps": 10, "episodes": True}, "Received: episodes=True"),
        (Evaluate, {"every_steps": 10, "video": -1}, "Received: video=-1"),
        (Evaluate, {"every_steps": 10, "seed": "3"}, "Received: seed='3'"),
        (Evaluate, {"every_steps": 10, "name": ""}, "Received: name=''"),
    ],
)
def test_what_cannot_work_is_refused_before_training(pieces, kind, kwargs, message):
    with pytest.raises(ValueError, match=message) as caught:
        begin(pieces, kind(**kwargs))
    assert "\n" not in str(caught.value)


def begin(pieces, callback, **params):
    actors, learner = pieces
    params = {"epochs": 2, "steps": 2, "verbose": 0, **params}
    return RunCallbacks(
        [callback], actors=actors, learner=learner, config=al.TrainConfig(num_actors=0), params=params, batch_rows=8
    )


class Adds(al.callbacks.Callback):
    reports = ("named",)

    def on_train_batch_end(self, batch, logs=None):
        logs.update(self.added)

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self.added_to_epoch, learning_rate=0.5)


def test_an_epoch_without_the_metric_is_none_to_callbacks_that_decide_by_it(pieces, tmp_path, caplog):
    monitor = {"monitor": "evaluation/x", "mode": "max", "save_best_only": True}
    best, now_and_then = (
        ModelCheckpoint(tmp_path / name, **monitor, save_freq=freq)
        for name, freq in (("best.keras", "epoch"), ("batch.keras", 1))
    )
    named = ModelCheckpoint(tmp_path / "{evaluation/x:.1f}-{updates:02d}.keras")
    never, plateau = EarlyStopping("episode/is_success"), ReduceLROnPlateau("evaluation/x", mode="max", patience=1)
    adds, network = Adds(), pieces[1].network
    adds.reports = ("evaluation/x",)
    callbacks = begin(pieces, keras.callbacks.CallbackList([best, now_and_then, named, never, plateau, adds]))
    callbacks.next_update(first=True)
    weights = network.get_weights()
    for values in ({"evaluation/x": 5.0}, {}, {}):
        adds.added, adds.added_to_epoch = values, {}
        callbacks.update_ended({"updates": 1, "loss": 1.0})
        callbacks.epoch_ended({"updates": 1, "loss": 1.0})
        network.set_weights([weight + 1 for weight in network.get_weights()])
    callbacks.end({}, interrupted=False)
    network.set_weights(weights)
    assert {path.name for path in tmp_path.iterdir()} == {"best.keras", "batch.keras", "5.0-01.keras"}
    for name in ("best.keras", "batch.keras"):
        np.testing.assert_array_equal(saved(tmp_path / name), trainable(network))
    assert plateau.wait == 0
    assert "EarlyStopping did nothing: there was no value of 'episode/is_success' that counts." in caplog.text


def test_a_state_goes_to_a_callback_that_watches_the_same(tmp_path):
    monitors = ("loss", "min"), ("score", "max"), ("score", "min")
    loss, score, _ = before = [EarlyStopping(monitor, mode=mode) for monitor, mode in monitors]
    loss.best, score.best, score.best_weights = 1.0, 5.0, [np.ones(2)]
    own = al.callbacks.Callback()
    own.best_weights = np.ones(3)  # of one's own, and no list
    arrays = state.arrays_of([own, *before[:2]])
    write_folder_atomically(tmp_path / "states", lambda folder: write_arrays(folder / state.FILE, arrays))
    after = [EarlyStopping(monitor, mode=mode) for monitor, mode in reversed(monitors)]
    state.restore(after, tmp_path / "states")
    assert [callback.best for callback in after] == [None, 5.0, 1.0]
    assert after[1].best_weights[0].tolist() == [1.0, 1.0]


class Reports(Evaluate):
    def __init__(self):
        super().__init__(10)
        self.reports |= {"mine/episode_return": "max", "evaluation/return_std": "min"}


def test_what_a_callback_reports_stays_and_is_no_mean_over_episodes_of_training(pieces):
    callbacks = begin(pieces, callback := Reports())
    names = {"mine/episode_return": "max", "evaluation/return_std": "min", "evaluation/return_mean": "max"}
    assert names.items() <= callback.reports.items()
    callbacks.meter = SimpleNamespace(is_settled=lambda episodes: False)
    assert (callbacks.counts("mine/episode_return"), callbacks.counts("episode_return")) == (True, False)


@pytest.mark.parametrize(
    ("added", "added_to_epoch", "dropped"),
    [
        ({"named": 1, "loss": 2.0, "more": 3}, {"late": 4}, "loss"),
        ({"more": 3}, {}, "more"),
        ({}, {"named": 4}, "named"),
        ({"named": 1}, {}, None),
    ],
)
def test_what_logs_drop_is_warned_of_once(pieces, caplog, added, added_to_epoch, dropped):
    adds = Adds()
    adds.added, adds.added_to_epoch = added, added_to_epoch
    callbacks, metrics = begin(pieces, adds), {"updates": 1.0, "loss": 1.0}
    for _ in range(2):
        callbacks.update_ended(metrics)
        callbacks.epoch_ended(metrics)
    assert metrics == {"updates": 1.0, "loss": 1.0, **({"named": 1.0} if "named" in added else {})}
    said = [record.getMessage() for record in caplog.records]
    assert [text[: text.index(" into")] for text in said] == ([f"A callback put {dropped!r}"] if dropped else [])


def test_auto_mode_is_resolved_for_every_callback_that_monitors(pieces):
    modes = dict.fromkeys(("episode_return", "episode_length", "episode/is_success", "explained_variance"), "max")
    modes |= dict.fromkeys(("loss", "value_loss", "policy_loss"), "min")
    for monitor, mode in modes.items():
        callbacks = EarlyStopping(monitor), ReduceLROnPlateau(monitor), EarlyStopping(monitor, mode="min")
        for callback in callbacks:
            begin(pieces, callback)
        assert [callback.mode for callback in callbacks] == [mode, mode, "min"]
    begin(pieces, keras.callbacks.ModelCheckpoint("x.keras"))  # of every epoch: it monitors nothing


def test_finding_out_what_there_is_to_monitor_learns_nothing(pieces):
    actors, learner = pieces
    state, before = learner._rng.bit_generator.state, trainable(learner.network)
    assert {"loss", "entropy", "explained_variance", "learning_rate"} <= set(learner.trace(actors.blank_trajectory()))
    assert learner._rng.bit_generator.state == state
    np.testing.assert_array_equal(trainable(learner.network), before)
    assert int(learner.optimizer.iterations.numpy()) == learner.updates


def falling(optimizer):
    return optimizer(keras.optimizers.schedules.CosineDecay(1e-3, 100))


@pytest.mark.parametrize(
    ("fields", "received"),
    [
        ({"learning_rate": "linear"}, "learning_rate='linear'"),
        ({"desired_kl": 0.01}, "desired_kl=0.01"),
        ({"optimizer": falling(keras.optimizers.Adam)}, "optimizer=Adam with a schedule"),
    ],
)
def test_who_sets_the_learning_rate_beside_a_schedule_is_refused(fields, received):
    algorithm = al.PPO(**fields)
    check_rate([], algorithm)
    for callback in (keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate), ReduceLROnPlateau()):
        said = rf"{type(callback).__name__} sets the learning rate, .* Received: {received}"
        with pytest.raises(ValueError, match=said):
            check_rate([callback], algorithm)


def test_evaluate_refuses_other_spaces_before_training_and_records_videos(pieces, tmp_path):
    other = Evaluate(8, env="Acrobot-v1")
    with pytest.raises(ValueError, match="`env` has other spaces"):
        begin(pieces, other).begin()
    vectors = Evaluate(8, env=lambda num_envs: gym.make_vec("CartPole-v1", num_envs), max_episode_steps=5)
    with pytest.raises(ValueError, match="`max_episode_steps` needs single environments"):
        begin(pieces, vectors).begin()
    pytest.importorskip("moviepy", reason="needs moviepy")
    pytest.importorskip("pygame", reason="needs pygame")
    options = {"name": "wide", "deterministic": False, "max_episode_steps": 5}
    evaluate = Evaluate(1, env="CartPole-v1", episodes=2, video=1, **options)
    callbacks = begin(pieces, evaluate, run_dir=tmp_path)
    callbacks.begin()
    learner = pieces[1]
    learner.update(pieces[0].collect())
    metrics = {"updates": 1.0}
    callbacks.update_ended(metrics)
    assert set(metrics) == {"updates", "wide/return_mean", "wide/return_std", "wide/length_mean"}
    assert metrics["wide/length_mean"] == 5.0
    assert len(list(tmp_path.glob(f"videos/{learner.env_steps:010}/*.mp4"))) == 1
    first = evaluate.evaluation.returns
    learner.env_steps += 8
    callbacks.update_ended({"updates": 2.0})
    np.testing.assert_array_equal(evaluate.evaluation.returns, first)  # the same episodes each time


def test_an_evaluation_changes_what_it_names_of_the_runs_environment_and_can_stop_the_run(tmp_path):
    wrapping = {"wrappers": ["gymnasium.wrappers:TimeLimit"], "wrapper_kwargs": {"TimeLimit": {"max_episode_steps": 5}}}
    run = {"env": Curriculum, "env_kwargs": {"difficulty": 1}, "info_keys": (), **wrapping}
    bare = Evaluate(2 * ROWS, episodes=2, wrappers=(), name="bare")
    short = Evaluate(2 * ROWS, episodes=2, wrapper_kwargs={"TimeLimit": {"max_episode_steps": 3}}, name="short")
    result = al.train(config(tmp_path, [bare, short], stop_at=10, **run))
    assert {f"{name}/return_mean": result.metrics[f"{name}/return_mean"] for name in ("bare", "short")} == {
        "bare/return_mean": 10.0,
        "short/return_mean": 3.0,
    }
    assert (result.stopped_by, result.metrics["updates"], result.metrics["episode_return"]) == ("StopOnReturn", 2, 5.0)
    typo = Evaluate(8, wrapper_kwargs={"TimeLimits": {}})
    with pytest.raises(ValueError, match="TimeLimits"):
        al.train(config(tmp_path, [typo], overwrite=True, **run))


def test_a_video_of_what_draws_nothing_is_refused_before_training(pieces, tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy")
    evaluate = Evaluate(8, env=lambda: gym.make("CartPole-v1"), video=1)
    callbacks = begin(pieces, evaluate, run_dir=tmp_path)
    with pytest.raises(ValueError, match="has no renderer for pictures"):
        callbacks.begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_without_the_package_wandb_is_refused_in_one_line():
    with pytest.raises(
        ImportError, match=rf"^WandB needs wandb: {re.escape(install_command('actor-learner[wandb]'))}$"
    ):
        al.callbacks.WandB()


def test_wandb_logs_every_update_offline_and_ends_the_run_of_a_training_that_failed(pieces, tmp_path):
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    runs = []
    for _ in range(2):
        callbacks = begin(pieces, al.callbacks.WandB("project", mode="offline"), run_dir=tmp_path)
        callbacks.begin()
        runs.append(wandb.run)
    assert runs[0] is not runs[1]
    assert wandb.run.config["env"] == "CartPole-v1"
    learner = pieces[1]
    for loss in (2.0, 1.0):
        learner.update(pieces[0].collect())
        callbacks.update_ended({"loss": loss, "updates": float(learner.updates)})
    assert wandb.run.summary["loss"] == 1.0
    assert wandb.run.summary["_step"] == learner.env_steps
    callbacks.end({}, interrupted=False)
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


class Spoils(al.callbacks.Callback):
    """Puts NaN into the network: where a run ends, or after its first update."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self.spoil)

    def spoil(self, *_, **__):
        self.model.set_weights([np.full_like(weight, np.nan) for weight in self.model.get_weights()])


def test_weights_that_are_not_finite_are_not_what_is_saved(tmp_path, caplog):
    result = al.train(config(tmp_path, [Spoils("on_train_end")]))
    assert "a callback left weights that are not finite; the saved network is that of" in caplog.text
    kept = trainable(al.load_network(result.run_dir / "checkpoints/final"))
    assert np.isfinite(np.concatenate([np.ravel(weight) for weight in kept])).all()
    for network in (result.network, al.load_network(result.run_dir)):
        np.testing.assert_array_equal(trainable(network), kept)
    steps, value = result.metrics["env_steps"], result.metrics["episode_return"]
    assert repr(result) == f"Result(run_dir={str(result.run_dir)!r}, env_steps={steps:.6g}, episode_return={value:.6g})"


def test_without_finite_weights_nothing_is_saved(tmp_path, caplog):
    with pytest.raises(ValueError, match="Weights must be finite"):
        al.train(config(tmp_path, [Spoils("on_train_batch_end")], checkpoint_minutes=None))
    assert "and there is no checkpoint: no network is saved" in caplog.text
    assert not (tmp_path / "run/network.keras").exists()


def test_weights_set_as_the_first_epoch_begins_reach_the_actors(tmp_path):
    class Scale(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                self.model.set_weights([2.0 * weight for weight in self.model.get_weights()])

    al.train(config(tmp_path, [Scale()], total_steps=ROWS))
    assert abs(read_metrics(tmp_path / "run")[0]["approx_kl"]) < 1e-6
