"""The order of a batch's rows in minibatches, drawn in a thread while a GPU computes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import numpy as np

from actor_learner.system.types import Array

Order = tuple[Array, int]  # and the number of its minibatches
Draw = Callable[[Array, np.random.Generator], Order]

_THREAD_TIMEOUT = 60.0  # seconds, for a thread that only draws numbers


class OrderAhead:
    """The order that `draw(valid, generator)` gives for a batch all of whose rows are valid, from now on in a thread.

    It draws from a copy of the generator, whose own state changes only where the order is taken.
    """

    def __init__(self, draw: Draw, shape: tuple[int, ...], generator: np.random.Generator) -> None:
        self._draw, self._shape, self._before = draw, shape, generator.bit_generator.state
        self._generator = copy.deepcopy(generator)
        self._order: Order | None = None
        self._thread = threading.Thread(target=self._run, name="order of rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._order = self._draw(np.ones(self._shape, bool), self._generator)

    def take(self, valid: Array, generator: np.random.Generator) -> Order | None:
        """Return the order if `draw` would return it now, and set the generator as after that; else None."""
        self._thread.join(_THREAD_TIMEOUT)
        if self._order is None or valid.shape != self._shape or not valid.all():
            return None
        if generator.bit_generator.state != self._before:  # an update was undone, or had no valid row
            return None
        generator.bit_generator.state = self._generator.bit_generator.state
        return self._order
