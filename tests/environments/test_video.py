"""Episodes in videos and windows, and environments that have neither."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

import actor_learner as al
from actor_learner.environments import video
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.teams import PolicyOf, environments_of
from actor_learner.environments.video import check_recorded, in_a_window, recorded
from actor_learner.evaluate import evaluate
from actor_learner.policy.policy import Policy
from tests.support.hunt_game import Hunt
from tests.support.processes import patience

LENGTH = 4
NEEDS_MOVIEPY = pytest.mark.skipif(find_spec("moviepy") is None, reason="needs moviepy")


class Drawn(gym.Env):
    """Draws itself in the mode that it is asked for, if it knows it."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own form
    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2)
    shown = 0

    def __init__(self, render_mode=None, **kwargs):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.render_mode == "human":
            Drawn.shown += 1
        return np.zeros(2, np.float32), 1.0, False, self.count == LENGTH, {}

    def render(self):
        return np.full((32, 48, 3), 20 * self.count, np.uint8)


class DrawnVector(VectorEnv):
    """Whole vector environments alone."""

    def __init__(self, num_envs, render_mode=None):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": 10}
        self.num_envs, self.render_mode, self.count = num_envs, render_mode, 0
        self.single_observation_space, self.single_action_space = Box(-1, 1, (2,)), Discrete(2)
        self.zeros = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.zeros, {}

    def step(self, actions):
        ended, none = self.count == LENGTH, np.zeros(self.num_envs, bool)
        self.count = 0 if ended else self.count + 1
        truncated = np.full(self.num_envs, self.count == LENGTH)
        return self.zeros, np.full(self.num_envs, float(not ended)), none, truncated, {}

    def render(self):
        return tuple(np.full((32, 48, 3), 20 * self.count, np.uint8) for _ in range(self.num_envs))


class Blind(Drawn):
    def __init__(self):
        super().__init__(render_mode=None)


@pytest.fixture(scope="module")
def policy():
    import keras

    observation = keras.Input((2,))
    parameters, value = keras.layers.Dense(2)(observation), keras.layers.Dense(1)(observation)
    return Policy.from_network(keras.Model(observation, (parameters, value)), Discrete(2))


def frames(file):
    from moviepy import VideoFileClip

    with VideoFileClip(str(file)) as clip:
        return clip.n_frames, clip.size


@NEEDS_MOVIEPY
@pytest.mark.slow
@pytest.mark.parametrize("env", [Drawn, DrawnVector])
def test_a_video_of_each_episode(env, policy, tmp_path):
    evaluation = evaluate(
        policy, recorded(resolve_env(env, check_pickle=False), tmp_path / "videos", 2), episodes=2, num_envs=1
    )
    assert evaluation.lengths.tolist() == [LENGTH, LENGTH]
    files = sorted((tmp_path / "videos").iterdir())
    assert [file.name for file in files] == ["evaluation-episode-0.mp4", "evaluation-episode-1.mp4"]
    for file in files:
        count, size = frames(file)
        assert count == LENGTH + 1
        assert size == [48, 32]


class DrawnGame(Hunt):
    """A Parallel game of eight steps that draws itself."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 48, 3), 20 * self.steps, np.uint8)


@NEEDS_MOVIEPY
@pytest.mark.slow
def test_a_parallel_game_in_a_video(tmp_path):
    game = Hunt()
    policies = {}
    for name, agent in {"hunter": "hunter_0", "prey": "prey"}.items():
        observation, action = game.observation_space(agent), game.action_space(agent)
        observation = observation["observation"] if name == "hunter" else observation
        network = al.default_network(observation, action, hidden_sizes=(4,), seed=0)
        policies[name] = Policy.from_network(network, action, observation_space=observation)
    factory = resolve_env(recorded(resolve_env(DrawnGame), tmp_path / "videos", 2), check_pickle=False)
    rule = PolicyOf(("hunter", "prey"), {"hunter_*": "hunter", "*": "prey"})
    with contextlib.closing(dataclasses.replace(factory, policy_of=rule).make(3)) as vector_env:
        environments = environments_of(vector_env, "hunt")
        for part in environments.values():
            part.reset(0)
        for _ in range(20):
            actions = [
                policy.act(part.observation[0], action_mask=part.action_mask)
                for policy, part in zip(policies.values(), environments.values(), strict=True)
            ]
            environments["prey"].vector_env.games.offer(actions)
            for part, action in zip(environments.values(), actions, strict=True):
                part.step(action)
    files = sorted((tmp_path / "videos").iterdir())
    assert [frames(file)[0] for file in files] == [9, 9]


def test_a_window(policy):
    Drawn.shown = 0
    evaluate(policy, in_a_window(resolve_env(Drawn)), episodes=1, num_envs=1)
    assert Drawn.shown == LENGTH
    env = resolve_env(Drawn, wrappers=[gym.wrappers.TimeLimit], wrapper_kwargs=[{"max_episode_steps": 1}])
    assert evaluate(
        policy, in_a_window(resolve_env(env, check_pickle=False)), episodes=1, num_envs=1
    ).lengths.tolist() == [1]


@NEEDS_MOVIEPY
@pytest.mark.slow
def test_an_id_is_drawn_by_its_single_environment(tmp_path):
    """CartPole-v1 has a vector environment of its own."""
    pytest.importorskip("pygame", reason="needs pygame")
    env = recorded(resolve_env("CartPole-v1", {"max_episode_steps": 3}), tmp_path, 1)()
    assert isinstance(env, gym.wrappers.RecordVideo)
    assert env.spec.max_episode_steps == 3
    env.close()


@NEEDS_MOVIEPY
@pytest.mark.slow
@pytest.mark.parametrize(
    "color", [pytest.param({}, marks=pytest.mark.thorough), {"grayscale": False, "img_height": 85}]
)
def test_a_game_of_ale_is_drawn_as_the_policy_sees_it(color, tmp_path):
    """Its single environments observe something else, and draw other games than those that are played."""
    pytest.importorskip("ale_py", reason="needs ale_py")
    frame_limit = {"max_num_frames_per_episode": 80, "noop_max": 1}
    env = recorded(resolve_env("ALE/Breakout-v5", {"episodic_life": True, **frame_limit, **color}), tmp_path, 1)(
        num_envs=1
    )
    assert env.metadata["render_fps"] == 15
    observation, _ = env.reset(seed=0)
    shown = env.env.render()[0]
    newest = observation[0, -1] if color else np.repeat(observation[0, -1][..., None], 3, axis=-1)
    np.testing.assert_array_equal(shown[::5, ::4], newest)
    np.testing.assert_array_equal(shown[4::5, 3::4], newest)
    steps = 0
    while not env.step(np.array([0]))[3][0]:
        steps += 1
    env.close()
    assert frames(tmp_path / "evaluation-episode-0.mp4")[0] == steps + 2
    with pytest.raises(ValueError, match=r"`ALE/Breakout-v5` has no window"):
        in_a_window(resolve_env("ALE/Breakout-v5"))(num_envs=1)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda env: recorded(resolve_env(env, check_pickle=False), "videos", 1), marks=NEEDS_MOVIEPY),
        lambda env: in_a_window(resolve_env(env, check_pickle=False)),
    ],
)
def test_without_a_renderer_it_is_one_line(make, policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gym.register("Blind-v0", entry_point=f"{__name__}:Blind")
    try:
        for env, name in ((Blind, "Blind"), ("Blind-v0", "Blind-v0"), (lambda: Drawn("ansi"), "lambda")):
            with pytest.raises(ValueError) as caught:
                evaluate(policy, make(env), episodes=1, num_envs=1)
            assert name in str(caught.value)
            assert "render_mode" in str(caught.value)
            assert "Received: render_mode=" in str(caught.value)
            assert "\n" not in str(caught.value)
    finally:
        del gym.registry["Blind-v0"]
    assert list(tmp_path.iterdir()) == []


class Physics(Drawn):
    mujoco_renderer = None


@pytest.mark.parametrize(("working", "chosen"), [(("egl", "osmesa"), "egl"), (("osmesa",), "osmesa"), ((), None)])
@pytest.mark.parametrize("fault", [subprocess.TimeoutExpired, subprocess.CalledProcessError])
def test_mujoco_is_drawn_without_a_display_or_it_is_one_line(working, chosen, fault, monkeypatch):
    for name in video.DISPLAYS:
        monkeypatch.delenv(name, raising=False)

    def run(command, env, check, timeout, **options):
        if env["MUJOCO_GL"] not in working:
            raise fault(timeout, command)

    monkeypatch.setattr(video.subprocess, "run", run)
    monkeypatch.setattr(video.os, "environ", dict(os.environ))
    if chosen is None:
        with pytest.raises(EnvError, match="`Physics` can't be drawn: MuJoCo needs a display, EGL or OSMesa"):
            check_recorded(resolve_env(Physics))
        return
    check_recorded(resolve_env(Physics))
    assert video.os.environ["MUJOCO_GL"] == chosen


OWN_DRAWING = """
import sys
import gymnasium, mujoco
from actor_learner.environments import factory, video

class Arm(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = gymnasium.spaces.Box(-1, 1), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        if render_mode is not None:
            self.renderer = mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8)

    def render(self):
        return self.renderer.render()

try:
    from mujoco.egl import GLContext
    GLContext(8, 8)
except Exception:
    sys.exit("no EGL")
env = video.recorded(factory.resolve_env(Arm), sys.argv[1], 1)()
print(env.render().shape)
"""


@pytest.mark.slow
@NEEDS_MOVIEPY
@pytest.mark.skipif(find_spec("mujoco") is None, reason="needs mujoco")
def test_an_environment_that_draws_by_mujoco_itself_needs_no_display(tmp_path):
    variables = {name: value for name, value in os.environ.items() if name not in video.DISPLAYS}
    command = [sys.executable, "-c", OWN_DRAWING, tmp_path]
    done = subprocess.run(command, env=variables, timeout=patience(120), capture_output=True, text=True)
    if "no EGL" in done.stderr:
        pytest.skip("needs EGL")
    assert done.stdout == "(8, 8, 3)\n", done.stderr
