"""An environment that tells in its observation what happened to it; actors import it, so nothing heavy here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class CountingEnv(gym.Env):
    """Observation: [steps in this episode, the last action, episodes before]; reward: the step's number.

    Every third episode is cut off (truncated) after `length` steps, the others end (terminated).
    """

    def __init__(self, length=4):
        self.observation_space = Box(-np.inf, np.inf, (3,))
        self.action_space = Discrete(2)
        self.length = length
        self.episodes = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return self._observation(-1), {}

    def step(self, action):
        self.steps += 1
        ended, cut = self.steps == self.length, self.episodes % 3 == 2
        info = {"is_success": not cut} if ended else {}
        return self._observation(action), float(self.steps), ended and not cut, ended and cut, info

    def _observation(self, action):
        return np.array([self.steps, action, self.episodes], np.float32)


class BrokenLater(CountingEnv):
    def step(self, action):
        if self.episodes == 2:
            raise ZeroDivisionError("a bad day")
        return super().step(action)


class FailsAt(CountingEnv):
    """Raises in one step of its first episode, once in all processes: `folder` says that it has."""

    def __init__(self, folder, step):
        super().__init__(1000)
        self.folder, self.failing = folder, step

    def step(self, action):
        if self.steps + 1 == self.failing:
            try:
                self.folder.mkdir()
            except FileExistsError:
                pass
            else:
                raise ZeroDivisionError("a state that the simulator can't take")
        return super().step(action)


class NotANumberLater(CountingEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.episodes == 2 else reward, *rest


class SeesGpu(CountingEnv):
    """Reports whether its process may use a GPU."""

    def step(self, action):
        *others, info = super().step(action)
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "" and os.environ.get("JAX_PLATFORMS") == "cpu"
        return *others, {**info, "sees_gpu": float(not hidden)}


class TalkingEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        print("héllo")
        os.write(2, b"to the other stream\nand without an end")
        return super().reset(seed=seed)


class FloodingEnv(CountingEnv):
    def step(self, action):
        os.write(1, b"x" * 50_000 + b"\n")
        return super().step(action)


class SlowEnv(CountingEnv):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class UnevenEnv(CountingEnv):
    """Slow in the first environment that makes the folder `directory`, fast in all others."""

    def __init__(self, fast, slow, directory):
        super().__init__()
        self.seconds = None
        self.fast, self.slow, self.directory = fast, slow, directory

    def reset(self, *, seed=None, options=None):
        if self.seconds is None:
            try:  # whoever comes first makes the folder
                self.directory.mkdir()
                self.seconds = self.slow
            except FileExistsError:
                self.seconds = self.fast
        return super().reset(seed=seed, options=options)

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class ClosingEnv(CountingEnv):
    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def close(self):
        Path(self.directory, f"{os.getpid()}").touch()


class ClosingLate(ClosingEnv):
    """Closes after some seconds; with fewer than none, not at all."""

    def __init__(self, directory, seconds):
        super().__init__(directory)
        self.seconds = seconds

    def close(self):
        time.sleep(max(0.0, self.seconds))
        if self.seconds < 0:
            raise ZeroDivisionError("a bad day")
        super().close()


class NeverReset(ClosingEnv):
    def reset(self, **options):
        raise ZeroDivisionError("a bad day")


class LeanEnv(CountingEnv):
    """Says in its observation what heavy modules its process has loaded, and how many command-line arguments it has."""

    def _observation(self, action):
        heavy = {"tensorflow", "keras", "jax", "torch"} & set(sys.modules)
        return np.array([len(heavy), len(sys.argv), 0], np.float32)
