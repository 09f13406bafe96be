"""`precision="auto"`: TF32 for convolutions where the GPU has it, recorded, and kept where the run is resumed."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.build import in_tf32
from actor_learner.runs.directory import RunDirectory, read_config
from tests.support.counting_env import CountingEnv

FRAME = Box(0, 255, (8, 8, 1), np.uint8)


class Frames(gym.Env):
    """Shows noise, for ever."""

    observation_space, action_space = FRAME, Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, FRAME.shape, np.uint8), {}

    def step(self, action):
        return self.np_random.integers(0, 256, FRAME.shape, np.uint8), 1.0, False, False, {}


@pytest.fixture
def with_tf32(monkeypatch):
    """This machine as one whose GPU has TF32."""
    monkeypatch.setattr("actor_learner.learner.backend.has_tf32", lambda device: True)
    monkeypatch.setattr("actor_learner.learner.base.check_tf32", lambda device: None)


def run(folder, steps, **changes):
    options = {"num_actors": 0, "envs_per_actor": 2, "unroll_length": 8, "hidden_sizes": (4,), "run_dir": folder}
    options |= {"algorithm": al.PPO(minibatch_size=8, epochs=1), "total_steps": steps, "quiet": True}
    return al.TrainConfig(**(options | changes))


def chosen(folder):
    return read_config(folder).chosen["precision"]


@pytest.mark.slow
def test_what_it_became_is_recorded_and_kept(tmp_path, with_tf32, monkeypatch):
    frames, vectors = tmp_path / "frames", tmp_path / "vectors"
    al.train(run(frames, 16, env=Frames))
    al.train(run(vectors, 16, env=CountingEnv))
    assert (chosen(frames), chosen(vectors)) == ("tf32", "float32")
    al.train(run(frames, 32, env=Frames), resume=True)
    assert chosen(frames) == "tf32"
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"^The run learned in TF32, .* goes on in float32. Received: device='auto'$"):
        al.train(run(frames, 48, env=Frames), resume=True)
    assert chosen(frames) == "float32"


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_its_precision(tmp_path, with_tf32):
    al.train(run(tmp_path, 16, env=Frames, precision=None))
    path = RunDirectory(tmp_path).config
    recorded = json.loads(path.read_text())
    del recorded["chosen"]["precision"]
    path.write_text(json.dumps(recorded))
    al.train(run(tmp_path, 32, env=Frames), resume=True)
    assert (read_config(tmp_path)["precision"], chosen(tmp_path)) == (None, "float32")


def test_convolutions_in_float32_are_learned_in_tf32_unless_another_precision_was_chosen(with_tf32):
    frames = al.default_network(FRAME, Discrete(2), hidden_sizes=(4,))
    vectors = al.default_network(Box(-1, 1, (2,)), Discrete(2), hidden_sizes=(4,))
    auto = al.TrainConfig()
    assert in_tf32(auto, frames)
    assert not in_tf32(auto, vectors)
    assert in_tf32(auto, vectors, "tf32")
    assert not in_tf32(auto, frames, "float32")
    assert not in_tf32(al.TrainConfig(precision="float32"), frames)
    assert in_tf32(al.TrainConfig(precision="tf32"), vectors)
