"""Noise of off-policy actors that isn't white: a process is a function (generator, size) that yields `[size]` a step.

A process begins anew with each episode of its environment, and where it has ended. Its numbers stand for the standard
normals of actions, so their standard deviation should be 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from actor_learner.system.types import Array

Process: TypeAlias = Callable[[np.random.Generator, int], Iterable[Any]]

_PINK_STEPS = 1000
_THETA = 0.15  # DDPG's


def pink(generator: np.random.Generator, size: int) -> Iterator[Array]:
    """Yield 1,000 steps of pink noise (arXiv:2206.04415): white noise, of which low frequencies are amplified."""
    frequency = np.fft.rfftfreq(_PINK_STEPS)
    frequency[0] = frequency[1]
    gain = frequency**-0.5
    gain /= math.sqrt(np.mean(np.square([*gain, *gain[1:-1]])))  # the variance of each step is 1
    spectrum = np.fft.rfft(generator.standard_normal((_PINK_STEPS, size)), axis=0)
    yield from np.fft.irfft(spectrum * gain[:, None], _PINK_STEPS, axis=0)


def ornstein_uhlenbeck(generator: np.random.Generator, size: int) -> Iterator[Array]:
    """Yield an Ornstein-Uhlenbeck process, with DDPG's theta (arXiv:1509.02971), whose variance is 1 at each step."""
    value = generator.standard_normal(size)
    while True:
        yield value
        value = (1 - _THETA) * value + math.sqrt(1 - (1 - _THETA) ** 2) * generator.standard_normal(size)


PROCESSES: dict[str, Process] = {"pink": pink, "ou": ornstein_uhlenbeck}
