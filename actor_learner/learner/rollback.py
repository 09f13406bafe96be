"""The state before an update, for an update that must be undone."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from actor_learner.learner import backend
from actor_learner.system.types import Tensor


class Snapshot:
    """The values of variables at one place in a graph, ahead of the first assignment to one of them.

    A tensor that was read shares the memory of its variable until that is assigned to, so a snapshot costs one copy of
    the state, and no time.
    """

    def __init__(self, variables: Iterable[keras.Variable]) -> None:
        self._variables = list(variables)
        self._values = backend.values_of(self._variables)

    def put_back_where(self, undone: Tensor) -> None:
        """Assign all values where `undone`, a scalar bool, is True; the graph has nothing to do otherwise."""

        def put_back() -> None:
            for variable, value in zip(self._variables, self._values, strict=True):
                variable.assign(value)

        backend.cond(undone, put_back, self._variables)
