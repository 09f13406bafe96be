"""Variables that an update uses beside its state: what becomes of them would be told nowhere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

_REMEDY = "return it, or the model that it belongs to, from the algorithm's `models`"


def check_unchanged(name: str, before: Any, now: Any) -> None:
    """Raise ValueError for a variable that has another value than the one that an update holds as a constant."""
    if not np.array_equal(before, now):
        raise ValueError(
            "A variable that isn't the learner's was changed after an update read it, which has the old value as a "
            f"constant on JAX: {_REMEDY}. Received: {name!r}"
        )


def report(name: str, *, assigned: bool, trainable: bool) -> None:
    """Raise ValueError for a variable that an update assigns, and warn of one that it should train."""
    if assigned:
        raise ValueError(
            "An update assigns a variable that isn't the learner's, which would be neither undone nor saved, and would "
            f"stay as it is on JAX: {_REMEDY}; `keras.random` needs a SeedGenerator from there, or a layer's. "
            f"Received: {name!r}"
        )
    if trainable:
        warnings.warn(
            f"A trainable variable that no optimizer steps is part of the update: {_REMEDY}, or make its `trainable` "
            f"False. Received: {name!r}",
            stacklevel=2,
        )
