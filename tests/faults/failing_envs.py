"""Environments that fail in the ways that environments do."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


def actor_name():
    """`actor-N`, as `ps` shows it."""
    with open("/proc/self/cmdline") as file:
        return next(word for word in file.read().split("\0") if word.startswith("actor-"))


class QuietEnv(gym.Env):
    """Nothing ever happens, at once or `seconds` later."""

    def __init__(self, seconds=0.0, size=2):
        self.observation_space = Box(-1, 1, (size,))
        self.action_space = Discrete(2)
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        time.sleep(self.seconds)
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


class FailingEnv(QuietEnv):
    """Does something bad at its `after`-th step in actor 1; the others go on."""

    def __init__(self, how, after=10):
        super().__init__()
        self.how, self.after, self.steps = how, after, 0

    def step(self, action):
        self.steps += 1
        if actor_name() == "actor-1" and self.steps == self.after:
            FAILURES[self.how]()
        return super().step(action)


class FailOnceEnv(FailingEnv):
    """Does it in the first process of actor 1, and `then` in the next; the file `marker` says that it has."""

    def __init__(self, how, marker, then="nothing"):
        super().__init__(then if os.path.exists(marker) else how)
        self.marker = marker

    def step(self, action):
        if actor_name() == "actor-1" and self.steps + 1 == self.after:
            with open(self.marker, "w"):
                pass
        return super().step(action)


class LateEnv(QuietEnv):
    """Stands still in actor 1's first step until there is a file."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def step(self, action):
        while actor_name() == "actor-1" and not self.file.exists():
            time.sleep(0.01)
        return super().step(action)


class FailingStartEnv(QuietEnv):
    """Raises in `__init__` or `reset` in actor 1."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self._fail_in("__init__")

    def reset(self, *, seed=None, options=None):
        self._fail_in("reset")
        return super().reset(seed=seed)

    def _fail_in(self, where):
        if where == self.where and actor_name() == "actor-1":
            raise_error()


class DifferentSpacesEnv(QuietEnv):
    """Has another observation space in actor 1."""

    def __init__(self):
        super().__init__()
        if actor_name() == "actor-1":
            self.observation_space = Box(-2, 2, (2,))


def raise_error():
    print("the last words")
    raise ZeroDivisionError("a bad day")


def segfault():
    ctypes.string_at(0)


def close_everything():
    os.closerange(3, 100)
    time.sleep(600)


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise_error()


FAILURES = {
    "raise": raise_error,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": segfault,
    "close": close_everything,
    "thread": leave_a_thread,
    "hang": lambda: time.sleep(600),
    "nothing": lambda: None,
}


class SimulatorEnv(QuietEnv):
    """Has a simulator: a child process that sleeps, and whose number is written to `directory`.

    how: what the environment itself does at its second step.
    """

    def __init__(self, directory, how):
        super().__init__()
        self.how, self.steps = how, 0
        self.simulator = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
        for pid in (os.getpid(), self.simulator.pid):
            with open(os.path.join(directory, str(pid)), "w"):
                pass

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.how == "sleep":
            time.sleep(300)
        if self.steps == 2 and self.how == "spin":
            pow(3, 1 << 30)  # in C, without a look at signals
        if self.steps == 2 and self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)


class MixedEnv(SimulatorEnv):
    """Each actor is in another state when its caller dies."""

    def __init__(self, directory):
        states = {"actor-1": "sleep", "actor-2": "spin", "actor-3": "stop"}
        super().__init__(directory, states.get(actor_name(), "nothing"))
