"""The states of callbacks, in a file of each checkpoint, from which they go on in a resumed run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from actor_learner.config.references import callable_name
from actor_learner.system.files import listed_files, read_arrays, read_file
from actor_learner.system.types import Array

FILE = "callbacks.npz"
_STATES = "states"

_OF_KERAS = {
    "EarlyStopping": ("best", "best_epoch", "wait"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving"),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
}
"""The attributes of Keras's callbacks that `on_train_begin` or a new process resets."""


def arrays_of(callbacks: Iterable[Any]) -> dict[str, Array]:
    """Return the states of callbacks as arrays, none if no callback has one. Raises ValueError for what isn't JSON."""
    states: list[tuple[str, Any]] = []
    arrays: dict[str, Array] = {}
    for callback in callbacks:
        kept = callback.best_weights if isinstance(callback, keras.callbacks.EarlyStopping) else None
        for place, weight in enumerate([] if kept is None else kept):
            arrays[f"{len(states)}/{place}"] = np.asarray(weight)
        states.append((_kind_of(callback), _state_of(callback)))
    try:
        text = json.dumps(states)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`get_state` of a callback must return JSON ({error}). Received: {states}") from error
    return {_STATES: np.frombuffer(text.encode(), np.uint8), **arrays} if any(state for _, state in states) else {}


def restore(callbacks: Iterable[Any], folder: Path) -> None:
    """Give callbacks the states of a checkpoint: to each the first of its class that is left.

    Of Keras's, the first that watched the same metric in the same mode.
    """
    if FILE not in listed_files(folder):
        return
    arrays = read_arrays(read_file(folder, FILE))
    states = dict(enumerate(json.loads(arrays[_STATES].tobytes())))
    for callback in callbacks:
        number = next((number for number, (kind, _) in states.items() if kind == _kind_of(callback)), None)
        state = {} if number is None else states.pop(number)[1]
        if state and hasattr(callback, "set_state"):
            callback.set_state(state)
        elif state:
            vars(callback).update(state)
            if isinstance(callback, keras.callbacks.EarlyStopping):
                kept = [array for name, array in arrays.items() if name.startswith(f"{number}/")]
                callback.best_weights = kept or None


def _state_of(callback: Any) -> dict[str, Any]:
    if hasattr(callback, "get_state"):
        return dict(callback.get_state())
    state = {name: getattr(callback, name) for name in _attributes(callback) if hasattr(callback, name)}
    if getattr(callback, "stopped_epoch", 0):  # a run that it ended waits anew when it is resumed
        state["wait"] = 0
    return {name: value if value is None or isinstance(value, int) else float(value) for name, value in state.items()}


def _attributes(callback: Any) -> Sequence[str]:
    kinds = {getattr(keras.callbacks, kind, None): names for kind, names in _OF_KERAS.items()}
    return next((names for kind, names in kinds.items() if kind and isinstance(callback, kind)), ())


def _kind_of(callback: Any) -> str:
    """Return the class of a callback, and what one of Keras's watches: its best value is of no other metric."""
    watched = "" if not _attributes(callback) else f" of {callback.monitor}, {callback.mode}"
    return callable_name(type(callback)) + watched
