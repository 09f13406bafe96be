"""`actor-learner benchmark`: parts and whole of a real system, what is told of them, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import time
from importlib.util import find_spec
from unittest.mock import Mock
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from rich.console import Console

import actor_learner as al
from actor_learner import cli
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.benchmark import devices, text
from actor_learner.benchmark.devices import compare_devices, nvml_reader
from actor_learner.benchmark.from_records import describe_run, read_run_speed
from actor_learner.benchmark.measure import as_json, measure_setting
from actor_learner.benchmark.parts import PARTS, Part, PartProcesses, Stopwatch, Work
from actor_learner.benchmark.text import sentence, show, show_devices
from actor_learner.benchmark.whole import LEARNER, System, without_learning
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from tests.support.counting_env import CountingEnv, FailsAt
from tests.support.processes import children, open_descriptors, patience
from tests.support.run_files import append_metrics, create_run

CONFIG = al.TrainConfig(
    env="CartPole-v1",
    algorithm=al.PPO(epochs=1, minibatch_size=16),
    num_actors=2,
    envs_per_actor=2,
    unroll_length=16,
    max_policy_lag=1,
    hidden_sizes=(8,),
)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Small networks learn without XLA here, whose compilation takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actor_learner.learner.cost.SMALL_FLOPS", 0.0)
        yield


@pytest.fixture(scope="module")
def measured():
    before, descriptors = children(), open_descriptors()
    heard = []
    found = measure_setting(CONFIG, rounds=2, seconds=0.05, say=heard.append)
    assert heard[:2] == ["starting: batches of 64 env steps", "round 1 of 2, of at least 6 updates"]
    assert heard[2].startswith("round 2 of 2, of at least 6 updates; so far ")
    assert children() <= before, "processes are left"
    assert open_descriptors() == descriptors
    return found


@pytest.mark.slow
def test_parts_and_whole_are_measured_in_each_round(measured):
    assert measured.rows == 64
    for each in measured.rounds:
        assert set(each.costs) == {"env", "acting", "copying", "update"}
        assert all(cost.wall > 0 and cost.cpu > 0 for cost in each.costs.values())
        assert each.run.batches >= 3
        assert each.run.rows == 64 * each.run.batches
        assert 0 < each.run.steps <= each.run.rows
    assert measured.ratio == pytest.approx(measured.achieved / measured.roof.steps_per_second)


@pytest.mark.slow
def test_every_process_is_accounted_for(measured):
    shares = measured.shares
    assert list(shares) == [LEARNER, "actor_0", "actor_1"]
    for process, own in shares.items():
        parts = {name: part for name, part in own.items() if name != "cpu"}
        assert sum(parts.values()) == pytest.approx(1.0, abs=0.01)
        known = {"learning", "publishing", "waiting"}
        if process != LEARNER:
            known = {"environments", "acting", "copying", "waiting"}
        assert known | {"other"} == set(parts)
    assert shares[LEARNER]["learning"] > 0
    assert measured.cpu_beside_parts > 0
    assert shares["actor_1"]["environments"] > 0
    assert sum(measured.cores_used.values()) == pytest.approx(1.0)


def shown(show, found):
    console = Console(width=120, file=io.StringIO())
    show(found, console)
    return console.file.getvalue()


def beside(measured, others):
    """The same where other programs took this part of the cores."""
    runs = [each.run._replace(others=others * measured.cores) for each in measured.rounds]
    rounds = [each._replace(run=run) for each, run in zip(measured.rounds, runs, strict=True)]
    return dataclasses.replace(measured, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0.05, 0.15, 0.3])
def test_where_other_programs_take_much_there_is_no_advice(measured, others):
    text = shown(show, beside(measured, others))
    assert ("limited by: " in text) == ("xpected" in text) == (others < 0.2)
    assert (f"Other programs took {others:.0%} of the cores" in text) == (others > 0.1)
    assert text.count("measure again on an idle machine") == (others > 0.1)
    assert ("so the parts can't be told apart" in text) == (others > 0.2)


@pytest.mark.slow
def test_it_is_told_in_json_and_in_words(measured):
    measured = beside(measured, 0.0)
    found = json.loads(json.dumps(as_json(measured)))
    assert found["ratio"] == pytest.approx(found["achieved_steps_per_second"] / found["roof_steps_per_second"])
    assert len(found["rounds"]["ratio"]) == 2
    assert set(found["parts"]) == {"env", "acting", "copying", "update"}
    text = shown(show, measured)
    assert "CartPole-v1, ppo: 2 actors, 4 environments x 16 steps, lag 1" in text
    assert f"{measured.ratio:.0%}" in text
    assert "actor 1" in text
    assert sentence(measured).startswith("limited by: ")
    for change, gain in found["expected"].items():
        assert f"{change} {gain:+.0%}" in text


@pytest.mark.slow
def test_the_timeline_has_a_row_for_each_process(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    spans = measured.rounds[-1].run.spans
    text.draw(spans, "a title", tmp_path / "timeline.svg")
    svg = (tmp_path / "timeline.svg").read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    for colour in ("#0072b2", "#d55e00"):  # learning, environments
        assert colour in svg.lower()
    assert all(f"<!-- {name} -->" in svg for name in ("learner", "actor 0", "actor 1"))
    text.write_trace(spans, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {event["args"]["name"]: event["pid"] for event in events if event["ph"] == "M"}
    assert list(named) == [LEARNER, "actor_0", "actor_1"]
    whole = [event for event in events if event["ph"] == "X"]
    assert len(whole) == len(spans)
    assert min(event["ts"] for event in whole) == 0
    longest = max(spans, key=lambda span: span.end - span.start)
    (event,) = [event for event in whole if event["dur"] == round(1e6 * (longest.end - longest.start), 3)][:1]
    assert (event["name"], event["pid"]) == (longest.name, named[longest.process])


def test_the_policy_stays_the_same_and_with_a_replay_buffer_gradient_steps_begin_at_once():
    """Else the first settings to be measured only collect, and a later one compiles."""
    assert without_learning(CONFIG).algorithm == al.PPO(epochs=1, minibatch_size=16, learning_rate=0.0)
    assert without_learning(CONFIG).on_env_error == "raise"
    config = CONFIG.replace(env="CartPole-v1", algorithm=al.DQN(learning_starts=10_000, minibatch_size=8))
    measured = without_learning(config).algorithm
    assert measured == al.DQN(learning_starts=0, minibatch_size=8, learning_rate=0.0)


class Masked(gym.Env):
    """The action must be the one that is allowed."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._allowed = 0
        return np.zeros(2, np.float32), {"action_mask": self._mask()}

    def step(self, action):
        assert action == self._allowed
        self._allowed = (self._allowed + 1) % 3
        return np.zeros(2, np.float32), 1.0, False, False, {"action_mask": self._mask()}

    def _mask(self):
        return np.eye(3, dtype=np.int8)[self._allowed]


@pytest.fixture(scope="module")
def masked():
    """What part processes are told about an environment with masks."""
    with al.ActorPool(Masked, num_actors=0, envs_per_actor=2, unroll_length=4) as actors:
        return work_of(actors, Masked)


def work_of(actors, env, **kwargs):
    from actor_learner.actors.actor import Startup

    startup = Startup(2, (), None, seed=3, actor=0)
    return Work(startup, resolve_env(env, kwargs).dumps(), actors.exported, actors.layout)


@pytest.mark.slow
def test_a_masked_environment_gets_what_it_allows(masked):
    arena = Arena.create()
    arena.reserve(masked.layout.size)
    part = Part(masked, arena)
    readings = {name: part.measure(name, 0.01) for name in PARTS}
    part.close()
    assert all(reading.steps > 0 and reading.cost.wall > 0 for reading in readings.values())
    assert readings["copying"].steps % 4 == 0
    columns = arena.array(masked.layout.fields["reward"][0], (4, 2), np.dtype(np.float32))
    np.testing.assert_array_equal(columns, 1.0)
    arena.close()


@pytest.mark.slow
def test_an_environment_that_fails_midway_is_one_line_and_leaves_nothing(tmp_path):
    failing = {"folder": tmp_path / "failed", "step": 100}
    with al.ActorPool(CountingEnv, num_actors=0, envs_per_actor=2, unroll_length=4) as actors:
        work = work_of(actors, FailsAt, **failing)
    before, descriptors = children(), open_descriptors()
    alone = PartProcesses(resolve_env(FailsAt, failing), [work.startup], work.exported, work.layout, patience(30))
    with alone, pytest.raises(EnvError, match="failed while it was measured alone: .*can't take") as error:
        alone.measure("env", 5.0)
    assert "\n" not in str(error.value)
    assert children() <= before
    assert open_descriptors() == descriptors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "message"),
    [(signal.SIGKILL, "alone ended: it was killed by SIGKILL"), (signal.SIGSTOP, "connection, but goes on$")],
)
def test_a_part_process_that_dies_or_gives_up_its_connection_is_one_line(masked, sent, message, monkeypatch):
    if sent == signal.SIGSTOP:
        monkeypatch.setattr("actor_learner.system.child._END_SECONDS", 0.1)
    with PartProcesses(resolve_env(Masked), [masked.startup], masked.exported, masked.layout, patience(30)) as alone:
        alone._children[0]._process.send_signal(sent)
        if sent == signal.SIGSTOP:
            alone._children[0].connection.close()
        with pytest.raises(RuntimeError, match=message):
            alone.measure("acting", 0.1)


def test_a_stopwatch_leaves_out_what_it_waited_for_a_core_but_not_sleep():
    stopwatch = Stopwatch()
    before = time.process_time()  # os.times counts in ticks of 10 ms
    while time.process_time() - before < 0.05:
        pass
    cost = stopwatch.cost()
    assert cost.cpu >= 0.04
    assert cost.wall >= cost.cpu * 0.5


@pytest.mark.thorough
def test_devices_are_compared_by_the_same_work():
    """The CPU twice: what is compared, and how, doesn't depend on which devices these are."""
    config = CONFIG.replace(algorithm=al.A2C(), num_actors=1, hidden_sizes=(320, 320), max_policy_lag=0)
    found = compare_devices(config, {"cpu": "cpu", "again": "cpu"}, rounds=1, seconds=0.02)
    found = json.loads(json.dumps(found))
    assert list(found["devices"]) == ["cpu", "again"]
    best = max(found["devices"], key=lambda name: found["devices"][name]["achieved_steps_per_second"])
    assert found["fastest"] == best
    assert found["achieved_steps_per_second"] == found["devices"][best]["achieved_steps_per_second"]
    assert set(found["acting"]) == {"cpu", "again"}
    assert found["gpu_busy"] == {"cpu": None, "again": None}
    text = shown(show_devices, found)
    assert f"{best} is faster here." in text
    assert "Acting on again would" in text


class Nvml:
    """The functions of the driver's library, which return 0 where they succeed."""

    def __init__(self, failing=""):
        self._failing = failing

    def __getattr__(self, name):
        def call(*arguments):
            if name == "nvmlDeviceGetUtilizationRates":
                arguments[1]._obj.gpu = 37
            return int(name == self._failing)

        return call


def test_the_driver_says_how_busy_its_gpu_is_where_there_are_both(monkeypatch):
    monkeypatch.setattr("actor_learner.benchmark.devices.first_bus_id", lambda: b"0000:3b:00.0")
    monkeypatch.setattr("ctypes.CDLL", lambda name: Nvml())
    assert nvml_reader()() == 0.37
    for failing in ("nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUtilizationRates"):
        monkeypatch.setattr("ctypes.CDLL", lambda name, failing=failing: Nvml(failing))
        assert nvml_reader() is None
    monkeypatch.setattr("ctypes.CDLL", Mock(side_effect=OSError))
    assert nvml_reader() is None


# A run's own records.


@pytest.fixture
def run(tmp_path):
    config = al.TrainConfig(run_dir=tmp_path / "run", num_actors=2, max_policy_lag=1)
    run = create_run(config)
    data = json.loads(run.config.read_text())
    run.config.write_text(json.dumps({**data, "machine": {"cores": 4}}))
    return run


def row(number, **more):
    shares = {"learning": 0.4, "collecting": 0.6, "env": 0.6, "acting": 0.2, "other": 0.1, "waiting": 0.1}
    times = {f"time/{name}": share for name, share in shares.items()}
    return {"env_steps": 1000 * number, "time_seconds": 10.0 + number, "updates": number, **times, **more}


@pytest.mark.slow
def test_a_run_tells_from_its_own_records(run, capsys):
    for number in range(1, 6):
        append_metrics(run, row(number, **{"cpu/learner": 0.5, "cpu/actor_0": 0.45, "cpu/actor_1": 0.45}))
    found = read_run_speed(run.path)
    assert found["achieved_steps_per_second"] == pytest.approx(1000.0)
    assert found["parts"]["env"] == {"wall": pytest.approx(0.6), "cpu": pytest.approx(0.3)}
    assert found["roof_steps_per_second"] == pytest.approx(1000 / 0.9)
    assert found["ratio"] == pytest.approx(0.9)
    assert found["limit"] == "environments"
    assert found["limited_by"].startswith("limited by: environments")
    assert any("alone" in line for line in found["unknown"])
    assert cli.main(["benchmark", str(run.path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ratio"] == pytest.approx(0.9)
    assert printed["command"] == f"actor-learner benchmark {run.path} --json"
    assert cli.main(["benchmark", str(run.path)]) == 0
    text = capsys.readouterr().out
    assert "achieved 1,000 steps/s, roof at least 1,111: 90% at most" in text
    assert "not known: what each part takes alone" in text


@pytest.mark.slow
def test_the_rows_that_only_fill_a_replay_buffer_tell_nothing(run):
    for number in range(1, 6):
        append_metrics(run, row(number, gradient_steps=0.0, env_steps=number))
    for number in range(6, 10):
        append_metrics(run, row(number, gradient_steps=float(number)))
    assert read_run_speed(run.path)["achieved_steps_per_second"] == pytest.approx(1000.0)


@pytest.mark.slow
def test_beside_other_programs_the_records_of_a_run_tell_no_roof(run):
    for number in range(1, 6):
        append_metrics(run, row(number, **{"cpu/others": 2.5, "cpu/pressure": 0.5}))
    found = read_run_speed(run.path)
    assert (found["ratio"], found["expected"]) == (None, {})
    *_, advice, gap, _ = describe_run(found).splitlines()
    assert advice.startswith("limited by: other programs; they use 2.5 of 4 cores")
    assert "Expected" not in advice
    assert gap.startswith("not known: what each part takes alone")
    assert not any("other programs" in line for line in found["unknown"])


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--trace=x.json", "--num-actors 1 2", "--json --compare-devices cpu"])
def test_beside_the_directory_of_a_run_no_flag_is_ignored(words, run, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["benchmark", str(run.path), *words.split()]) == 2
    flag = words.removeprefix("--json ").partition(" ")[0].partition("=")[0]
    assert capsys.readouterr().err == (
        "actor-learner: error: The directory of a run can only be combined with `--json`. Received: " + flag + "\n"
    )


@pytest.mark.slow
def test_a_short_run_says_what_it_does_not_know(run):
    append_metrics(run, row(1))
    append_metrics(run, row(2))
    with pytest.raises(ValueError, match="from the third update on. Received: 2 updates"):
        read_run_speed(run.path)
    append_metrics(run, row(3))
    assert any("CPU time" in line for line in read_run_speed(run.path)["unknown"])


# The command.


@pytest.mark.slow
def test_the_command_measures_and_writes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.chdir(tmp_path)
    words = "benchmark --preset none --num-actors 0 --envs-per-actor 2 --unroll-length 8 --epochs 1 --hidden-sizes 8"
    words += " --rounds 1 --seconds 0.02 --minibatch-size 16 --json --output timeline.PNG --trace trace.json"
    assert cli.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["env"] == "CartPole-v1"
    assert found["num_actors"] == 0
    assert found["command"] == f"actor-learner {words}"
    assert {"versions", "machine", "date", "limit", "cores"} <= found.keys()
    assert sorted(os.listdir()) == ["timeline.PNG", "trace.json"]


@pytest.mark.slow
def test_a_measurement_that_is_ended_tells_what_it_has(monkeypatch, capsys):
    run, calls = System.run, iter([False, True])

    def run_until_it_is_ended(self, seconds):
        if next(calls):
            raise SystemExit(143)  # as SIGTERM does
        return run(self, seconds)

    monkeypatch.setattr(System, "run", run_until_it_is_ended)
    words = "benchmark --preset none --num-actors 0 --envs-per-actor 2 --unroll-length 8 --epochs 1 --hidden-sizes 8"
    with pytest.raises(SystemExit, match="143"):
        cli.main([*words.split(), *"--rounds 3 --seconds 0.02 --minibatch-size 16 --json".split()])
    told = capsys.readouterr()
    assert len(json.loads(told.out)["rounds"]["steps_per_second"]) == 1
    assert "round 2 of 3, of at least 6 updates; so far " in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("CartPol-v1", "did you mean `CartPole-v1`"),
        ("--rounds 0", "`--rounds` must be an integer of at least 1. Received: --rounds 0"),
        ("--seconds 0", "`--seconds` must be a number of seconds above 0. Received: --seconds 0.0"),
        ("--output picture.txt", "ends in .png, .svg, .pdf"),
        ("--trace nowhere/trace.json", "in a folder that can be written"),
        ("--num-actors 1 -2", "`--num-actors` must be an integer of at least 0"),
        pytest.param(
            "--num-actors 1 2 --output x.svg",
            "can't be combined with several `--num-actors`",
            marks=pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib"),
        ),
        ("--compare-devices cpu --trace x", "`--trace` can't be combined with `--compare-devices`"),
        ("--total-steps 5", "There is no such flag"),
        (".", "holds no run"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["benchmark", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("actor-learner: error: ")
    assert said in line
    assert os.listdir() == []


def test_a_gpu_that_is_not_there_is_one_line(capsys):
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    assert cli.main(["benchmark", "--compare-devices", "gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("actor-learner: error: `--compare-devices gpu` needs a GPU")
    assert devices.present(["cpu", "gpu"]) == (["cpu"], ["gpu"])


def test_a_folder_named_like_the_environment_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("CartPole-v1")
    assert not cli.benchmark._is_run("CartPole-v1")
    assert cli.benchmark._is_run("./CartPole-v1")
    (tmp_path / "CartPole-v1" / "config.json").touch()
    assert cli.benchmark._is_run("CartPole-v1")


@pytest.mark.slow
def test_several_numbers_of_actors_are_measured_one_after_the_other(capsys):
    words = "benchmark --preset none --num-workers 0 --num-actors 1 0 --envs-per-actor 2 --unroll-length 8 --epochs 1"
    words += " --hidden-sizes 8 --rounds 1 --seconds 0.02 --minibatch-size 16 --json"
    assert cli.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["num_actors"] for each in found["settings"]] == [1, 0]
    assert found["command"] == found["settings"][1]["command"] == f"actor-learner {words}"
    fastest = max(found["settings"], key=lambda each: each["achieved_steps_per_second"])
    assert found["num_actors"] == fastest["num_actors"]


def test_it_takes_what_changes_the_speed_on_this_machine_and_nothing_of_a_run():
    given = cli.parse(["benchmark", "--backend", "tensorflow", "--sequence-length", "4", "--actor-timeout", "9"])
    assert (given.backend, given.sequence_length, given.actor_timeout) == ("tensorflow", 4, 9.0)
    for flag in ("--run-dir", "--ray", "--max-restarts", "--total-steps", "--keep-checkpoints", "--quiet"):
        with pytest.raises(ValueError, match="no such flag"):
            cli.parse(["benchmark", flag])


def test_sigterm_and_sighup_end_it_in_order(monkeypatch):
    handlers = []
    monkeypatch.setattr(cli.benchmark, "_check", lambda arguments: handlers.append(signal.getsignal(signal.SIGTERM)))
    monkeypatch.setattr(cli.benchmark, "_measure_several", lambda arguments: 0)
    assert cli.main(["benchmark", "--num-actors", "1", "2"]) == 0
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        handlers[0](signal.SIGTERM, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
