"""The search for the fastest setting: its parts as functions, and one real search at the command line."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from multiprocessing import Pipe
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import actor_learner as al
from actor_learner import cli
from actor_learner.benchmark import tune
from actor_learner.benchmark.trial_worker import MeasuringProcess, Setting, Throughput, serve
from actor_learner.benchmark.tune import (
    Trial,
    actor_counts,
    batches,
    candidates,
    choose,
    successive_halving,
    thread_counts,
)
from actor_learner.cli.train import train_config
from actor_learner.learner.replay import ReplayLearner
from tests.support.processes import children, patience

SCORES = st.lists(st.integers(0, 1000), min_size=1, max_size=70, unique=True)


def halving_of(scores, measured=None):
    """What comes out for competitors with these scores, and who was in each round."""
    rounds = []

    def measure(remaining, left):
        rounds.append((list(remaining), left))
        return {one: scores[one] for one in remaining if measured is None or one in measured}

    return successive_halving(range(len(scores)), measure), rounds


@given(SCORES, st.sets(st.integers(0, 69)))
def test_the_best_wins_the_others_follow_by_how_far_they_went_and_who_has_no_score_drops_out(scores, measured):
    ranking, _ = halving_of(scores)
    assert [scores[one] for one in ranking] == sorted(scores, reverse=True)
    ranking, _ = halving_of(scores, measured)
    assert set(ranking) == measured & set(range(len(scores)))


@given(SCORES)
def test_each_round_has_the_better_half_of_the_one_before(scores):
    _, rounds = halving_of(scores)
    for (before, left), (after, left_after) in itertools.pairwise(rounds):
        assert len(after) == math.ceil(len(before) / 2)
        assert min(scores[one] for one in after) > max(scores[one] for one in set(before) - set(after))
        assert left_after == left - 1
    assert rounds[-1][1] == 1
    assert sum(len(remaining) for remaining, _ in rounds) <= 2 * len(scores) + len(rounds)


@given(st.integers(1, 300), st.integers(1, 130), st.integers(1, 600))
def test_actors_divide_the_environments(num_envs, cores, most):
    counts = actor_counts(num_envs, cores, most)
    assert counts == sorted(set(counts))
    assert all(num_envs % count == 0 and 1 <= count <= most for count in counts)
    assert counts[0] == 1
    assert len(counts) <= most.bit_length() + 3
    if num_envs % cores == 0 and cores <= most:
        assert cores in counts


def test_settings_for_two_cores_and_for_many():
    assert actor_counts(16, 2, 8) == [1, 2, 4, 8]
    assert actor_counts(48, 6, 24) == [1, 2, 4, 6, 8, 16, 24]
    assert actor_counts(7, 4, 16) == [1, 7]
    assert [thread_counts(cores) for cores in (1, 2, 8, 64)] == [[1], [1, 2], [1, 4, 8], [1, 4, 16, 64]]


def candidates_of(config, cores=2, allow=(), lags=(0, 1)):
    return candidates(config, cores, allow=allow, lags=lags, threads=thread_counts(cores), most_actors=4 * cores)


def test_what_is_learned_stays_what_it_is():
    config = al.TrainConfig(num_actors=2, envs_per_actor=8, unroll_length=128)
    found = candidates_of(config)
    assert {(setting.num_actors * setting.envs_per_actor, setting.unroll_length) for setting in found} == {(16, 128)}
    assert {setting[0] for setting in found} == {1, 2, 4, 8}
    assert {setting[3:5] for setting in found} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert {setting.acting for setting in found} == {"actors"}
    assert len(set(found)) == len(found) == 16
    assert [setting.num_actors for setting in found[:4]] == [2, 1, 4, 8]


def order_of(waits):
    """The order in which settings of two cores are measured first, with environments that wait or compute."""
    found, measured = candidates_of(al.TrainConfig(num_actors=2, envs_per_actor=8)), []
    search = tune.Search(Path("config.toml"), found, math.inf, lambda stage, detail: None)

    def measure(trial, seconds):
        measured.append(trial.setting.num_actors)
        trial.measured.append(Throughput(1, 1.0, waits=waits))

    search._measure = measure
    search.measure(found, 4)
    return measured


def test_where_environments_wait_more_actors_are_measured_first():
    assert order_of(waits=False)[:4] == [2, 1, 4, 8]
    assert order_of(waits=True)[:3] == [2, 4, 8]


def test_a_config_that_no_file_can_hold_is_refused():
    with pytest.raises(ValueError, match=r"^`config` must be one that a file can hold.*config='builtins:abs'"):
        tune.tune(al.TrainConfig(env_kwargs={"goals": [abs]}))


def test_what_is_allowed_is_tried_too():
    config = al.TrainConfig(num_actors=2, envs_per_actor=4, unroll_length=6)
    assert set(batches(config, ("envs",))) == {(8, 6), (16, 6), (4, 6), (32, 6), (2, 6)}
    assert set(batches(config, ("unroll_length",))) == {(8, 6), (8, 12), (8, 3), (8, 24)}
    assert set(batches(config, ("envs", "unroll_length"))) == {(8, 6), (4, 12), (16, 3), (2, 24)}
    assert len(candidates_of(config, allow=("envs",))) > len(candidates_of(config))


def trials_of(rates):
    return {setting: Trial(setting, [Throughput(rate, 2.0)] if rate else []) for setting, rate in rates.items()}


def test_of_settings_that_are_as_fast_the_simplest_is_taken():
    before, fast, lagging = Setting(2, 8, 128, 0, 2), Setting(1, 16, 128, 0, 1), Setting(1, 16, 128, 1, 1)
    assert choose([lagging, fast], trials_of({before: 500, fast: 990, lagging: 1000}), before) == fast
    assert choose([lagging, fast], trials_of({before: 500, fast: 900, lagging: 1000}), before) == lagging
    assert choose([fast], trials_of({before: 990, fast: 1000}), before) == before
    assert choose([fast], trials_of({before: 0, fast: 1000}), before) == fast
    assert choose([fast], trials_of({before: 0, fast: 0}), before) is None


def test_what_can_not_be_measured_is_left_out(monkeypatch):
    monkeypatch.setattr("actor_learner.system.machine.available_memory", lambda: 50_000_000)
    small, large = Setting(2, 2, 8, 0, 1), Setting(4, 1, 8, 0, 1)
    search = tune.Search(Path("config.toml"), [small, large], 0.0, lambda stage, detail: None)
    assert search.trials[small].failure is None
    assert "lower `num_actors`. Received: num_actors=4" in search.trials[large].failure


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal_of(capsys, *argv):
    before = children()
    assert cli.main(["tune", *argv]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert children() == before
    return line.removeprefix("actor-learner: error: ")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--budget", "0"], "`--budget` must be a number of seconds above 0. Received: --budget 0.0"),
        (["--allow", "epochs"], "`--allow` must be of envs, unroll_length. Received: --allow epochs"),
        (["--output", "."], "`--output` must be a new file, since none is overwritten. Received: --output ."),
        (["--output", "a/b"], "`--output` must be a file in a folder that can be written. Received: --output a/b"),
        (["--output", "/dev/null/tuned.toml"], "`--output` must be a file in a folder that can be written."),
        (["--most-actors", "0"], "`--most-actors` must be an integer of at least 1, or none. Received: --most-"),
        pytest.param(
            ["--budget", "0.5", "--learner-threads", "1"],
            "`--budget` is too short for one measurement",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refusals_leave_nothing(argv, line, in_an_empty_folder, capsys):
    assert refusal_of(capsys, *argv).startswith(line)
    assert os.listdir() == []


def test_a_file_that_is_there_stays(in_an_empty_folder, capsys):
    (in_an_empty_folder / "CartPole-v1-tuned.toml").write_text("mine")
    assert refusal_of(capsys).endswith("Received: --output CartPole-v1-tuned.toml")
    assert (in_an_empty_folder / "CartPole-v1-tuned.toml").read_text() == "mine"


def tuning_of(*trials):
    return tune.Tuning(trials, trials[0], al.TrainConfig(), 1.0)


def test_what_was_not_measured_is_told_with_the_verdict():
    first, *rest = map(Trial, candidates_of(al.TrainConfig(num_actors=2, envs_per_actor=8)))
    first.measured.append(Throughput(100, 1.0))
    rest[0].measured.append(Throughput(90, 1.0))
    found = tuning_of(first, *rest)
    assert (
        cli.tune._verdict(found) == "The current setting is the fastest of the 2 measured, or as fast as the fastest."
    )
    assert "14 of 16 settings weren't measured, among them all with 4, 8 actors; about --budget 10 m" in "".join(
        cli.tune._notes(found)
    )
    for trial in rest[:-1]:
        trial.measured.append(Throughput(90, 1.0))
    assert f"1 of 16 settings weren't measured, among them {rest[-1].setting}; a" in "".join(cli.tune._notes(found))


def test_actors_that_leave_the_learner_no_core_are_told_how_many_do(monkeypatch):
    monkeypatch.setattr("actor_learner.system.machine.available_cores", lambda: 3)
    trials = [Trial(Setting(actors, 1, 8, 1, 1), [Throughput(100, 1.0)]) for actors in (3, 2)]
    notes = ["".join(cli.tune._notes(tuning_of(trial, *trials))) for trial in trials]
    assert ["no core of its own; --num-actors 2 does" in note for note in notes] == [True, False]


FOUND = Trial(Setting(1, 2, 8, 0, 1), [Throughput(100, 1.0)])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_was_found_is_told_although_it_cannot_be_written(flags, in_an_empty_folder, monkeypatch, capsys):
    def search(config, **options):
        Path("CartPole-v1-tuned.toml").write_text("mine")
        return tuning_of(FOUND, Trial(Setting(2, 1, 8, 0, 1), [Throughput(99, 1.0)]))

    monkeypatch.setattr(tune, "tune", search)
    assert cli.main(["tune", *flags]) == 2
    printed = capsys.readouterr()
    assert "100" in printed.out
    assert "Next" not in printed.out
    assert printed.err.startswith("actor-learner: error: ")
    assert Path("CartPole-v1-tuned.toml").read_text() == "mine"


@pytest.mark.slow
def test_a_search_at_the_shell(in_an_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(tune, "_MAX_SECONDS", 0.2)
    monkeypatch.setenv("ACTOR_LEARNER_CACHE", str(in_an_empty_folder / "cache"))
    before = children()
    own = ["--preset", "none", "--num-actors", "1", "--envs-per-actor", "2", "--unroll-length", "16", "--gamma", "0.9"]
    fixed = ["--hidden-sizes", "8", "--learner-threads", "1", "--max-policy-lag", "0", "--minibatch-size", "16"]
    assert cli.main(["tune", *own, *fixed, "--budget", "250", "--json"]) == 0
    printed = capsys.readouterr()
    assert list((in_an_empty_folder / "cache").rglob("*.pb.*"))
    assert not list((in_an_empty_folder / "cache").glob("xla/*/*/")), "a process hasn't tidied up"
    found = json.loads(printed.out)
    assert printed.err.splitlines() == ["starting Keras", "round 1 of 2", "round 2 of 2"]
    assert {trial["num_actors"] for trial in found["trials"]} == {1, 2}
    assert {trial["acting"] for trial in found["trials"]} == {"actors", "device"}
    assert found["trials"][0] == found["best"]
    assert all(trial["steps_per_second"] > 0 and trial["failure"] is None for trial in found["trials"])
    rates = {(trial["num_actors"], trial["acting"]): trial["steps_per_second"] for trial in found["trials"]}
    assert found["best"]["steps_per_second"] >= 0.98 * max(rates.values())
    assert found["ratio"] == found["best"]["steps_per_second"] / rates[1, "actors"]
    config = train_config(cli.parse(["train", "--config", found["config"]]))
    assert config == al.TrainConfig(
        algorithm=al.PPO(gamma=0.9, minibatch_size=16),
        num_actors=found["best"]["num_actors"],
        envs_per_actor=2 // found["best"]["num_actors"],
        unroll_length=16,
        max_policy_lag=0,
        hidden_sizes=(8,),
        learner_threads=1,
        acting=found["best"]["acting"],
    )
    assert children() == before


def answers_to(config, *requests, seconds=0.0):
    """What a measuring process answers, here in this one."""
    near, far = Pipe()
    with near, far:
        for setting in requests:
            near.send((setting, seconds))
        thread = threading.Thread(target=serve, args=(config, far))
        thread.start()
        found = [near.recv() for _ in requests]
        near.close()
        thread.join(patience(30))
    return found


COUNTING = al.TrainConfig(env="tests.support.counting_env:CountingEnv", hidden_sizes=(4,))


def test_one_learner_measures_all_settings_of_a_batch_and_failures_are_answers(without_xla):
    config = COUNTING.replace(algorithm=al.PPO(minibatch_size=8))
    requests = [Setting(1, 2, 8, 1, 1), Setting(2, 1, 8, 0, 1), Setting(1, 2, 10**9, 0, 1)]
    first, second, third = answers_to(config, *requests)
    assert first.steps == second.steps == 16
    assert min(first.seconds, second.seconds) > 0
    assert third[0] == "MemoryError"
    assert third[1].startswith("Too little shared memory for the batches")


def test_a_setting_of_a_replay_buffer_is_judged_with_its_gradient_steps(without_xla, monkeypatch):
    taken = []
    learn = ReplayLearner._learn
    monkeypatch.setattr(ReplayLearner, "_learn", lambda self, *given: taken.append(given[3]) or learn(self, *given))
    dqn = al.DQN(minibatch_size=8, learning_starts=10_000, updates_per_step=0.5)
    answers_to(COUNTING.replace(algorithm=dqn), Setting(1, 2, 8, 0, 1))
    assert set(taken) == {8}


def test_an_environment_that_fails_midway_is_one_line(without_xla):
    (answer,) = answers_to(COUNTING.replace(env="tests.support.counting_env:BrokenLater"), Setting(1, 1, 64, 0, 1))
    assert answer[0] == "ActorError"
    assert "\n" not in answer[1]


@pytest.mark.slow
def test_a_process_that_dies_says_its_last_words(tmp_path):
    (tmp_path / "config.toml").write_text('env = "CartPole-v1"\nbudgie = 1\n')
    process = MeasuringProcess(tmp_path / "config.toml", 1)
    try:
        process.ask(Setting(1, 1, 8, 0, 1), 0.0)
        with pytest.raises(RuntimeError, match="The process that measures ended: ValueError: .*no such field"):
            process.answer(patience(200.0))
    finally:
        process.close()
