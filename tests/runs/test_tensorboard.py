"""TensorBoard's event files: what stands in them, also by TensorBoard's own reader, and on a disk that is full."""

import logging
import math
import os
import resource
import signal

import numpy as np
import pytest

import actor_learner as al
from actor_learner.runs import tensorboard
from actor_learner.runs.metrics import read_metrics
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, flat_config
from actor_learner.runs.tensorboard import EventFile
from tests.support.event_reading import events_of, scalars_of

pytestmark = pytest.mark.usefixtures("without_xla")

STALE = f"{tensorboard.PREFIX}1.host.1"
HYPERPARAMETERS = {"env": "CartPole-v1", "algorithm.gamma": 0.99, "seed": 3, "normalize_observation": True}


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(tensorboard, "_FLUSH_SECONDS", 0.0)


def test_rows_there_and_back(tmp_path):
    file = EventFile(tmp_path, HYPERPARAMETERS)
    file.append(256, {"loss": 0.5, "episode_return": math.nan, "policy_lag": 0})
    assert not list(tmp_path.iterdir()), "nothing is written before it is time"
    file.append(512, {"loss": math.inf, "episode_return": 20.0})
    file.close(finished=True)
    assert scalars_of(tmp_path) == {"loss": [(256, 0.5)], "policy_lag": [(256, 0.0)], "episode_return": [(512, 20.0)]}
    assert events_of(tmp_path)[0].file_version == "brain.Event:2"


def test_histograms_count_every_finite_value(tmp_path):
    file = EventFile(tmp_path, {})
    values = np.array([[0.0, 1.0, 1.0], [3.0, np.nan, np.inf]], np.float32)
    file.append_histograms(64, [("layer/kernel", values), ("empty", np.zeros(0)), ("constant", np.full(4, 2.0))])
    file.close(finished=True)
    (event,) = [event for event in events_of(tmp_path) if event.step == 64]
    kernel, constant = (value.histo for value in event.summary.value)
    assert (kernel.min, kernel.max, kernel.num, kernel.sum, kernel.sum_squares) == (0, 3, 4, 5, 11)
    assert (kernel.bucket[0], kernel.bucket[10], kernel.bucket[-1], sum(kernel.bucket)) == (1, 2, 1, 4)
    assert list(kernel.bucket_limit) == pytest.approx(list(np.linspace(0.1, 3, 30)))
    assert sum(constant.bucket) == constant.num == 4


def test_rows_wait_while_the_folder_cannot_be_written_and_follow(tmp_path, caplog, at_once):
    folder = tmp_path / "later"
    file = EventFile(folder, HYPERPARAMETERS)
    with caplog.at_level(logging.WARNING, "actor_learner"):
        for step in (1, 2, 3):
            file.append(step, {"loss": float(step)})
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text
    folder.mkdir()
    file.append(4, {"loss": 4.0})
    assert scalars_of(folder) == {"loss": [(step, float(step)) for step in (1, 2, 3, 4)]}


@pytest.fixture
def file_size_limit():
    """Sets how long a file may become, which fails in the midst of a write as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (before[1] if size is None else size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, kept)


def test_a_disk_that_is_full_leaves_no_half_row_and_loses_none(tmp_path, at_once, file_size_limit):
    file = EventFile(tmp_path, {})
    file.append(0, {"loss": 0.0})
    (first,) = tmp_path.iterdir()
    whole = first.read_bytes()
    file_size_limit(len(whole) + 10)
    for step in (1, 2):
        file.append(step, {"loss": float(step)})
    file_size_limit(None)
    assert first.read_bytes() == whole
    file.append(3, {"loss": 3.0})
    file.close(finished=False)
    assert scalars_of(tmp_path) == {"loss": [(step, float(step)) for step in range(4)]}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_file_follows_those_that_are_there_whatever_the_clock_says(tmp_path):
    later = tmp_path / f"{tensorboard.PREFIX}9999999990.host.1"
    later.touch()
    for name in ("odd", "-5.host"):
        (tmp_path / f"{tensorboard.PREFIX}{name}").touch()
    EventFile(tmp_path, {}).close(finished=True)
    assert any(name.startswith(f"{tensorboard.PREFIX}9999999991.") for name in os.listdir(tmp_path))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return al.TrainConfig(
        algorithm=al.PPO(minibatch_size=None, epochs=1),
        num_actors=0,
        envs_per_actor=4,
        unroll_length=16,
        total_steps=256,
        hidden_sizes=(8,),
        histogram_updates=2,
        run_dir=tmp_path_factory.mktemp("trained") / "run",
        overwrite=True,
        quiet=True,
    )


@pytest.fixture(scope="module")
def trained(config):
    """A run that has taken the place of another."""
    config.run_dir.mkdir()
    (config.run_dir / STALE).touch()
    (config.run_dir / "metrics.jsonl").touch()
    al.train(config)
    return config.run_dir


def test_a_run_writes_what_its_metrics_are_and_histograms_of_the_weights_when_asked_for(trained):
    """The event files of the run that it has replaced are gone."""
    rows, scalars = read_metrics(trained), scalars_of(trained)
    names = {name for row in rows for name in row} - {"env_steps"}
    assert scalars.keys() == names
    for name in names:
        expected = [(row["env_steps"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        np.testing.assert_allclose(scalars[name], expected, rtol=1e-6, err_msg=name)
    values = [(event.step, value) for event in events_of(trained) for value in event.summary.value]
    found = [(step, value.tag) for step, value in values if value.histo.num]
    assert {step for step, _ in found} == {row["env_steps"] for row in rows if not row["updates"] % 2}
    assert any("kernel" in tag for _, tag in found)
    assert not (trained / STALE).exists()


def test_tensorboards_own_reader_agrees(trained, config):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata", reason="needs tensorboard")
    accumulator = accumulators.EventAccumulator(str(trained), size_guidance={"scalars": 0})
    accumulator.Reload()
    last = read_metrics(trained)[-1]
    scalars = accumulator.Scalars("loss")
    assert scalars[-1].step == last["env_steps"]
    assert scalars[-1].value == pytest.approx(last["loss"], rel=1e-6)
    content = accumulator.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
    start = hparams.parse_session_start_info_plugin_data(content)
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == flat_config(config.to_json(), skip=WITHOUT_EFFECT)
    assert start.start_time_secs > 1e9
    end = hparams.parse_session_end_info_plugin_data(
        accumulator.SummaryMetadata(hparams.SESSION_END_INFO_TAG).plugin_data.content
    )
    assert end.status == 1
    assert end.end_time_secs >= start.start_time_secs
