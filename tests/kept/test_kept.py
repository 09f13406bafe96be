"""What released versions kept on disk: it is read, it acts, and runs go on. `tests/kept/make.py` makes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import actor_learner as al
from tests.kept.make import FRAMES, frames

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if path.name[0].isdigit())
of_each_version = pytest.mark.parametrize("kept", VERSIONS, ids=lambda path: path.name)


@pytest.mark.skipif(".dev" in al.__version__, reason="a development version isn't released")
def test_what_this_version_writes_is_kept():
    assert al.__version__ in [path.name for path in VERSIONS], "python -m tests.kept.make"


@of_each_version
def test_every_file_says_its_format_and_its_version(kept):
    files = list(kept.rglob("*.json"))
    assert {file.name for file in files} >= {"config.json", "run.json", "learner.json", "policy.json", "manifest.json"}
    for file in files:
        content = json.loads(file.read_text("utf-8"))
        assert content["format"] >= 1, file
        assert content["actor_learner"] == kept.name, file


@of_each_version
def test_a_buffer_and_a_trajectory_are_read(kept):
    trajectory, made = al.load_trajectory(kept / "trajectory.npz"), frames()
    for name, values in made._asdict().items():
        np.testing.assert_array_equal(getattr(trajectory, name), values, err_msg=name)
    buffer = al.ReplayBuffer.load(kept / "buffer")
    assert (buffer.spaces.observation_space, buffer.priority_exponent) == (FRAMES, 0.6)
    drawn = buffer.sample(200)
    assert set(drawn.reward) == set(made.reward.flat)
    seen = {image.tobytes() for image in made.observation[:-1].reshape(-1, *FRAMES.shape)}
    assert {image.tobytes() for image in drawn.observation} == seen


@of_each_version
@pytest.mark.parametrize(("run", "longest"), [("ppo", 500), ("sac", 200)])
def test_a_policy_plays(kept, run, longest):
    evaluation = al.evaluate(kept / run, episodes=1)
    assert np.isfinite(evaluation.mean)
    assert 1 <= evaluation.mean_length <= longest


@of_each_version
@pytest.mark.parametrize(("run", "more"), [("ppo", 32), ("sac", 16)])
def test_a_run_goes_on(kept, run, more, tmp_path, without_xla):
    folder = tmp_path / run
    shutil.copytree(kept / run, folder, symlinks=True)
    before = rows_of(folder)
    steps = before[-1]["env_steps"] + more
    result = al.train(al.load_config(folder / "config.json", run_dir=folder, total_steps=steps), resume=True)
    assert rows_of(folder)[:-1] == before
    assert result.metrics["env_steps"] == steps
    if run == "sac":
        assert result.metrics["gradient_steps"] == before[-1]["gradient_steps"] + more
        assert result.metrics["buffer_rows"] > more


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
