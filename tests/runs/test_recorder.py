"""What a run writes down: checkpoints of what was learned, and of nothing else."""

from __future__ import annotations

import contextlib
import math

import pytest
from keras.callbacks import EarlyStopping

import actor_learner as al
from actor_learner.runs.checkpoints import RunState, checkpoint_folders
from actor_learner.runs.metrics import read_metrics
from tests.support.counting_env import CountingEnv
from tests.support.curriculum_env import Curriculum
from tests.support.small_disk import mounted
from tests.support.small_networks import same_weights

pytestmark = pytest.mark.usefixtures("without_xla")

UPDATES = 3


def config(run_dir, **changes):
    fields = {
        "env": CountingEnv,
        "algorithm": al.PPO(minibatch_size=None, epochs=1),
        "vectorization": "sync",
        "num_actors": 0,
        "envs_per_actor": 2,
        "unroll_length": 8,
        "total_steps": 1 + (UPDATES - 1) * 16,
        "updates_per_epoch": 1,
        "hidden_sizes": (4,),
        "checkpoint_minutes": None,
        "checkpoint_updates": 1,
        "run_dir": run_dir,
        "quiet": True,
    }
    return al.TrainConfig(**(fields | changes))


class InfiniteInfo(CountingEnv):
    """Episodes of one step, whose `info` has a number that isn't finite in every second one."""

    def __init__(self):
        super().__init__(length=1)

    def step(self, action):
        observation, reward, *ended, _ = super().step(action)
        return observation, reward, *ended, {"margin": math.inf if self.episodes % 2 else 1.0}


def test_what_is_not_finite_in_info_does_not_count(tmp_path):
    result = al.train(config(tmp_path, env=InfiniteInfo, info_keys=("margin",)))
    assert result.metrics["episode/margin"] == 1.0
    assert set(RunState.read(tmp_path / "checkpoints/final").episodes["margin"]) == {1.0}
    al.load_policy(tmp_path)


class OtherWeights(al.callbacks.Callback):
    """Puts other weights in at the end of each epoch, as averages are, and takes them out where another one begins."""

    learned = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.learned is not None:
            self.model.set_weights(self.learned)

    def on_epoch_end(self, epoch, logs=None):
        self.learned = [weight.copy() for weight in self.model.get_weights()]
        self.model.set_weights([weight + 1 for weight in self.learned])


def test_the_last_checkpoint_has_what_was_learned_and_the_result_what_callbacks_left(tmp_path):
    callback = OtherWeights()
    result = al.train(config(tmp_path, callbacks=[callback]))
    saved = RunState.read(tmp_path / "checkpoints/final")
    assert saved.updates == result.metrics["updates"]
    assert same_weights(al.load_network(tmp_path / "checkpoints/final").get_weights(), callback.learned)
    assert same_weights(al.load_network(tmp_path).get_weights(), [weight + 1 for weight in callback.learned])


@pytest.mark.parametrize("fails", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_callback_that_ends_the_run_with_other_weights_leaves_no_checkpoint_of_them(tmp_path, fails):
    """It raises an error, or stops training."""

    class Ends(OtherWeights):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.model.stop_training = epoch == 1
            if fails and epoch == 1:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        al.train(config(tmp_path, callbacks=[Ends()]))
    assert [int(path.name) for path in checkpoint_folders(tmp_path / "checkpoints")] == [1]


class Shrinks(al.callbacks.Callback):
    """Changes the weights at the end of each epoch, for good."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])


def test_weights_that_callbacks_change_for_good_keep_no_checkpoint_from_being_written(tmp_path):
    al.train(config(tmp_path, callbacks=[Shrinks()], total_steps=4 * 16))
    assert [int(path.name) for path in checkpoint_folders(tmp_path / "checkpoints")] == [4, 3, 2]


class CutShort(al.callbacks.Callback):
    """The second update is interrupted when it has changed half of the weights."""

    def on_train_batch_end(self, batch, logs=None):
        self.learned = [weight.copy() for weight in self.model.get_weights()]
        self.learner.update = self.interrupted

    def interrupted(self, trajectory, **options):
        half = len(self.learned) // 2
        self.model.set_weights([weight + (index < half) for index, weight in enumerate(self.learned)])
        raise KeyboardInterrupt


def test_an_update_that_is_cut_short_is_not_saved(tmp_path, caplog):
    callback = CutShort()
    with pytest.raises(KeyboardInterrupt):
        al.train(config(tmp_path, callbacks=[callback]))
    assert RunState.read(tmp_path / "checkpoints/final").updates == 1
    assert same_weights(al.load_network(tmp_path).get_weights(), callback.learned)
    assert "update 2 was cut short; the saved network is that of" in caplog.text
    assert "the run was ended by KeyboardInterrupt" in (tmp_path / "logs/run.log").read_text()


class Improving(CountingEnv):
    """Episodes of one step, each of a higher return than the one before."""

    def __init__(self):
        super().__init__(length=1)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.episodes), *rest


@pytest.mark.thorough
def test_a_run_that_always_improves_keeps_a_few_checkpoints(tmp_path):
    al.train(config(tmp_path, env=Improving, total_steps=8 * 16, keep_checkpoints=1, keep_best_checkpoints=2))
    assert [int(path.name) for path in checkpoint_folders(tmp_path / "checkpoints")] == [8, 7]


@pytest.mark.thorough
def test_a_run_on_a_small_disk_loses_old_checkpoints_but_no_row_of_metrics(tmp_path):
    """Room for four checkpoints of 52 kB, or for two, 40 rows and the result."""
    with mounted(tmp_path, 240):
        al.train(config(tmp_path / "run", env=Improving, total_steps=40 * 16, keep_best_checkpoints=10))
        assert [row["updates"] for row in read_metrics(tmp_path / "run")] == list(range(1, 41))
        assert RunState.read(tmp_path / "run/checkpoints/final").updates == 40
        al.load_policy(tmp_path / "run")


class NoRoom(al.callbacks.Callback):
    """A file where the folder should be stands for a disk that is full; counts how often it is tried."""

    def on_train_batch_end(self, batch, logs=None):
        folder = self.params["run_dir"] / "checkpoints"
        if logs["updates"] == 2:
            folder.rename(folder.with_name("kept"))
            folder.touch()
        elif logs["updates"] == 4:
            folder.unlink()
            folder.with_name("kept").rename(folder)


def test_a_checkpoint_that_failed_waits_for_the_next_that_is_due_and_is_still_the_milestone(tmp_path):
    """Due are the first, and those at 32 and 64 steps; there is room again when the fourth is recorded."""
    options = {"env": Improving, "checkpoint_updates": 10, "milestone_steps": 32, "total_steps": 5 * 16 - 1}
    al.train(config(tmp_path, callbacks=[NoRoom()], **options))
    states = [RunState.read(path) for path in checkpoint_folders(tmp_path / "checkpoints")]
    assert {state.updates: state.milestone for state in states} == {1: False, 4: True, 5: False}


class OfTwoKinds(CountingEnv):
    """Each step costs 1. Of two environments, the episodes of one have 1 step, those of the other have 150."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.length = 1 if seed % 2 else 150
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, -1.0, *rest


def test_a_return_chooses_the_best_once_episodes_of_every_environment_have_ended(tmp_path):
    """Long ones end in the 19th update, when over 100 short ones have ended."""
    stopping = EarlyStopping("episode_return", patience=1000, restore_best_weights=True)
    stop = al.callbacks.StopOnReturn(-1.5)
    callbacks, options = [stopping, stop], {"total_steps": 40 * 16, "keep_checkpoints": 50, "keep_best_checkpoints": 50}
    result = al.train(config(tmp_path, env=OfTwoKinds, callbacks=callbacks, **options))
    best = [state for path in checkpoint_folders(tmp_path / "checkpoints") if (state := RunState.read(path)).best]
    assert (best[-1].updates, best[-1].best_return) == (19, -(99 + 150) / 100)
    assert stopping.best_epoch >= 18
    assert result.metrics["updates"] > 19
    assert result.stopped_by == "StopOnReturn"  # once the long episode isn't among the last 100


class Easier(al.callbacks.Callback):
    """Begins with high rewards, and goes on with low ones."""

    def on_train_begin(self, logs=None):
        self.actors.call("set_difficulty", 5)

    def on_train_batch_end(self, batch, logs=None):
        if logs["updates"] == 15:
            self.actors.call("set_difficulty", 1)


class Reporting(Easier):
    """Is called before the evaluation of the same update."""

    reports = ("difficulty",)


def test_the_easy_phase_of_a_curriculum_is_not_the_best_for_ever(tmp_path):
    options = {"envs_per_actor": 8, "unroll_length": 10, "total_steps": 32 * 80, "keep_best_checkpoints": 50}
    al.train(config(tmp_path, env=Curriculum, callbacks=[Easier()], **options))
    states = [RunState.read(path) for path in checkpoint_folders(tmp_path / "checkpoints")]
    assert {state.best_return for state in states if state.best} == {50.0, 10.0}
    assert states[0].best_return == 10.0
    cases = [(Easier(), None, {5: 50.0, 20: 10.0}), (Reporting(), None, {5: 50.0, 15: 10.0}), (Easier(), {}, {5: 0.0})]
    for easier, given, expected in cases:  # the run's environment with its calls, or another one
        evaluate = al.callbacks.Evaluate(400, episodes=1, env_kwargs=given)
        folder = tmp_path / f"{type(easier).__name__}-{given}"
        al.train(config(folder, env=Curriculum, callbacks=[easier, evaluate], **options))
        evaluated = {row["evaluation/return_mean"] for row in read_metrics(folder) if "evaluation/return_mean" in row}
        assert evaluated == set(expected.values())
        states = [RunState.read(path) for path in checkpoint_folders(folder / "checkpoints")]
        assert {state.updates: state.best_return for state in states if state.best} == expected


class EveryUpdate(al.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.actors.call("set_difficulty", logs["updates"])


class Repeats(al.callbacks.Callback):
    """Sets the same again and again, in turn: the order of the calls changes, and nothing else."""

    def on_train_batch_end(self, batch, logs=None):
        self.actors.call("set_options", {"ab"[logs["updates"] % 2]: 1})


@pytest.mark.parametrize("calls", [EveryUpdate, Repeats])
def test_calls_at_every_update_leave_returns_that_count(tmp_path, calls):
    stop = al.callbacks.StopOnReturn(0.0)
    options = {"envs_per_actor": 8, "unroll_length": 10, "total_steps": 32 * 80, "callbacks": [calls(), stop]}
    result = al.train(config(tmp_path, env=Curriculum, **options))
    assert (result.stopped_by, result.metrics["updates"]) == ("StopOnReturn", 15)


class Harder(al.callbacks.Callback):
    """Takes the mean return of the episodes since its last call."""

    difficulty = 0

    def on_train_batch_end(self, batch, logs=None):
        if self.is_settled() and logs["episode_return"] >= 10 * self.difficulty:
            self.difficulty += 1
            self.actors.call("set_difficulty", self.difficulty)


class Once(al.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if logs["updates"] == 5:
            self.actors.call("set_options", {"calls": "before a window is whole"})


@pytest.mark.parametrize(("others", "levels"), [([], 2), ([Once()], 1), ([Repeats()], 2), ([EveryUpdate()], 0)])
def test_a_curriculum_goes_on_once_the_episodes_since_its_last_call_say_so(tmp_path, others, levels):
    """8 episodes end in an update: 100 in 13 of them, and the call takes effect an update later."""
    harder = Harder()
    options = {"envs_per_actor": 8, "unroll_length": 10, "total_steps": 32 * 80}
    al.train(config(tmp_path, env=Curriculum, callbacks=[harder, *others], **options))
    assert harder.difficulty == levels


def test_evaluations_report_success_and_end_a_run_at_a_return_or_at_a_success_rate(tmp_path):
    evaluations = {"eval_every": 16, "eval_episodes": 3}
    found = al.train(config(tmp_path / "a", **evaluations, stop_at=10.0))
    rate = {"evaluation/is_success": 1.0, "evaluation/is_success_low": 1.0, "evaluation/is_success_high": 1.0}
    assert rate.items() <= found.metrics.items()
    stop = al.callbacks.StopOnReturn(0.9, monitor="evaluation/is_success")
    for result in (found, al.train(config(tmp_path / "b", **evaluations, callbacks=[stop]))):
        assert (result.stopped_by, result.metrics["evaluation/return_mean"]) == ("StopOnReturn", 10.0)
        assert result.metrics["updates"] == 1


class Evaluates(al.callbacks.Callback):
    reports, return_metric = ("mine/return_mean",), "mine/return_mean"

    def on_train_batch_end(self, batch, logs=None):
        logs.update({"mine/return_mean": value} if (value := {2: 1.0, 4: 3.0, 5: 2.0}.get(logs["updates"])) else {})


def test_evaluations_choose_the_best_before_training_does(tmp_path):
    options = {"env": Improving, "checkpoint_updates": None, "total_steps": 9 * 16, "keep_checkpoints": 50}
    al.train(config(tmp_path / "a", callbacks=[Evaluates()], **options, keep_best_checkpoints=5))
    states = [RunState.read(path) for path in checkpoint_folders(tmp_path / "a/checkpoints")]
    assert {state.updates: state.best for state in states} == {9: False, 4: True, 2: True}
    assert states[0].best_return == 3.0
    al.train(config(tmp_path / "none", callbacks=[Evaluates()], **options, keep_best_checkpoints=0))
    assert [int(path.name) for path in checkpoint_folders(tmp_path / "none/checkpoints")] == [9]
    al.train(config(tmp_path / "b", callbacks=[Evaluates()], **options, best_by="training"))
    (state,) = [RunState.read(path) for path in checkpoint_folders(tmp_path / "b/checkpoints")]
    assert (state.best, state.updates, state.best_metric) == (True, 9, "episode_return")
    with pytest.raises(ValueError, match=r"without an al.callbacks.Evaluate. Received: best_by='evaluation'"):
        al.train(config(tmp_path / "c", best_by="evaluation"))
