"""Checks of callbacks before training: the metrics that they monitor, and the learning rate that they set."""

from __future__ import annotations

import difflib
import importlib.util
import re
import string
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras

from actor_learner.runs.meter import direction
from actor_learner.system.installation import install_command

_RATE_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
_JUDGES = ("EarlyStopping", "ModelCheckpoint", "OrbaxCheckpoint", "ReduceLROnPlateau")
_COUNTS = ("env_steps", "updates", "actor_restarts")  # metrics that are integers


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """Raise ValueError for an object that isn't a Keras callback."""
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            hint = f"; pass an object: {callback.__name__}(...)" if isinstance(callback, type) else ""
            raise ValueError(
                f"`callbacks` must hold keras.callbacks.Callback objects{hint}. Received: {callback!r} "
                f"of type {type(callback).__name__}"
            )


def check_rate(callbacks: Iterable[Any], algorithm: Any) -> None:
    """Raise ValueError if a callback sets a learning rate that the algorithm or the optimizer sets too."""
    setting = next((callback for callback in callbacks if isinstance(callback, _RATE_SETTERS)), None)
    if setting is not None and algorithm.rate_source:
        raise ValueError(
            f"{type(setting).__name__} sets the learning rate, which must be a number then, not a schedule or adapted; "
            f"leave one of the two out. Received: {algorithm.rate_source}"
        )


def check_kinds(callbacks: Iterable[Any], algorithm: Any, optimizer: Any) -> None:
    """Raise for callbacks of Keras that can't do their work with this algorithm and optimizer.

    ValueError for SwapEMAWeights with an optimizer that keeps no averages, and for BackupAndRestore with an algorithm
    whose critics, targets and buffer it doesn't keep; ImportError for TensorBoard without its package.
    """
    given = {kind for callback in callbacks for kind in type(callback).__mro__}
    if keras.callbacks.SwapEMAWeights in given and not getattr(optimizer, "use_ema", True):
        raise ValueError(
            "SwapEMAWeights needs an optimizer that keeps averages: pass one with `use_ema=True`, as in "
            "al.PPO(optimizer=keras.optimizers.Adam(1e-3, use_ema=True)). Received: use_ema=False"
        )
    if keras.callbacks.BackupAndRestore in given and algorithm.REPLAYS:
        raise ValueError(
            f"BackupAndRestore keeps no critics, targets or replay buffer, which {type(algorithm).__name__} needs: use "
            "the run's own checkpoints, `resume=True`. Received: a BackupAndRestore"
        )
    if keras.callbacks.TensorBoard in given and importlib.util.find_spec("tensorboard") is None:
        raise ImportError(
            f"keras.callbacks.TensorBoard needs tensorboard: {install_command('actor-learner[tensorboard]')} "
            "(the event files of a run itself don't)"
        )


def check_several(callbacks: Iterable[Any]) -> None:
    """Raise ValueError for a callback that works on one network or optimizer, where several policies learn."""
    of_keras = keras.callbacks
    kinds = (*_RATE_SETTERS, of_keras.SwapEMAWeights, of_keras.BackupAndRestore, of_keras.TensorBoard)
    for callback in callbacks:
        saves_whole = isinstance(callback, of_keras.ModelCheckpoint) and not callback.save_weights_only
        if isinstance(callback, kinds) or saves_whole or getattr(callback, "OF_ONE_POLICY", False):
            kind = type(callback).__name__
            raise ValueError(f"{kind} works on one policy; leave it out beside `policies`. Received: a {kind}")


def watches(callbacks: Iterable[Any]) -> bool:
    """Return whether a callback needs the names of the metrics."""
    return any(
        monitored(callback)
        or isinstance(callback, keras.callbacks.CSVLogger)
        or "{" in str(getattr(callback, "filepath", ""))
        for callback in callbacks
    )


def needed(callback: Any) -> list[str]:
    """Return the metrics without which one of Keras's callbacks isn't called: it would save as if it had the best."""
    kinds = tuple(getattr(keras.callbacks, name) for name in _JUDGES if hasattr(keras.callbacks, name))
    if not isinstance(callback, kinds):
        return []
    named = [name for name in _fields(getattr(callback, "filepath", "")) if name not in ("epoch", "batch")]
    return [*filter(None, [monitored(callback)]), *named]


def _fields(path: str) -> list[str]:
    """Return the names of what a file's name is filled in with."""
    try:
        return [re.split(r"[.\[]", name)[0] for _, name, *_ in string.Formatter().parse(path) if name is not None]
    except ValueError:  # `_check_path` refuses it
        return [path]


def monitored(callback: Any) -> str | None:
    """Return the metric that a callback monitors. A checkpoint of every epoch monitors none."""
    name = getattr(callback, "monitor", None)
    return name if isinstance(name, str) and getattr(callback, "save_best_only", True) else None


def reported(callbacks: Iterable[Any]) -> dict[str, str | None]:
    """Return the metrics that callbacks add, each with its better direction: "max", "min" or None for unknown.

    Raises ValueError for a name that two callbacks add.
    """
    result: dict[str, str | None] = {}
    for callback in callbacks:
        names = getattr(callback, "reports", ())
        if twice := result.keys() & set(names):
            kind = type(callback).__name__
            raise ValueError(
                f"Two callbacks report the same metric; give one of them another name ({kind}(..., name=...)). "
                f"Received: {min(twice)!r} twice"
            )
        result.update(names if isinstance(names, Mapping) else dict.fromkeys(names))
    return result


def resolve_monitors(callbacks: Iterable[Any], names: Collection[str]) -> None:
    """Set the `mode` of callbacks with `mode="auto"`.

    Raises ValueError for a metric that isn't among `names`, in a file's name too, or of which no direction is known.
    """
    callbacks = list(callbacks)
    directions = reported(callbacks)
    for callback in callbacks:
        name = monitored(callback)
        if name is not None and name not in names:
            raise ValueError(_unknown(callback, "monitor", name, names))
        _check_path(callback, names)
        if getattr(callback, "mode", None) != "auto":
            continue
        mode = "min" if name is None else directions.get(name) or direction(name)
        if mode is None:
            raise ValueError(
                f"`mode` of {type(callback).__name__} must be 'max' or 'min', because the better direction of "
                f"{name!r} isn't known. Received: mode='auto'"
            )
        callback.mode = mode


def _check_path(callback: Any, names: Collection[str]) -> None:
    """Raise ValueError for a file's name of a ModelCheckpoint that can't be filled in."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return
    counts = {"epoch", *_COUNTS} if callback.save_freq == "epoch" else {"epoch", "batch", *_COUNTS}
    known = dict.fromkeys(names, 1.0) | dict.fromkeys(counts, 1)
    try:
        callback.filepath.format(**known)
    except KeyError as error:
        raise ValueError(_unknown(callback, "filepath", str(error.args[0]), sorted(known))) from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"`filepath` of ModelCheckpoint: {error}. Received: filepath={callback.filepath!r}") from error


def _unknown(callback: Any, argument: str, name: str, names: Collection[str]) -> str:
    close = [known for known in names if name and name in known] or difflib.get_close_matches(name, names, n=2)
    verb = "be" if argument == "monitor" else "name"
    meant = f" (did you mean {' or '.join(map(repr, close[:2]))}?)" if close else ""
    return (
        f"`{argument}` of {type(callback).__name__} must {verb} a metric of the run{meant}: {', '.join(names)}; "
        f"callbacks may add others by naming them in `reports`. Received: {argument}={name!r}"
    )
