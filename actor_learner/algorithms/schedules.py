"""Hyperparameters that may change over a run.

All are evaluated on the host, once an update, and enter the compiled update as tensors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from actor_learner.system.fields import refusal

Schedule = float | str | Callable[[float], float]
"""A constant; "linear" (the default value x the part of the run that remains) or "linear_1e-3" (1e-3 x that part), with
"lin_" short for it; a callable of that part, `progress_remaining`; or a Keras `LearningRateSchedule`, which counts env
steps.

At update k of N, 1 - (k - 1) / N of the run remains, as in CleanRL: 1 at the first update, 1 / N at the last. SB3's is
that of one update later, 1 - k / N, because it counts the rollout: 0 at the last update.
"""


def is_schedule(value: Any) -> bool:
    """Return whether a hyperparameter's value changes over a run."""
    return isinstance(value, str) or callable(value)


def needs_total_steps(value: Any) -> bool:
    """Return whether a value depends on how much of a run remains."""
    return is_schedule(value) and not counts_env_steps(value)


def counts_env_steps(value: Any) -> bool:
    """Return whether a value is a Keras LearningRateSchedule, by its classes' names, without loading keras."""
    return any(cls.__name__ == "LearningRateSchedule" for cls in type(value).__mro__)


def check_schedule(name: str, value: Any, default: Any) -> None:
    """Raise ValueError unless `value` is a number, a callable, or "linear" in one of its forms."""
    if isinstance(value, str):
        _linear_initial(name, value, default)
    elif not callable(value) and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise refusal(name, "a number, 'linear', 'linear_<value>' or a callable", value)


def evaluate_schedule(
    name: str, value: Any, default: Any, *, progress_remaining: float, env_steps: int, least: float = -math.inf
) -> float:
    """Return the hyperparameter's present value.

    progress_remaining: 1 at the first of N updates, 1 / N at the last; env_steps: Taken so far. Raises ValueError
    unless the value is a finite number of at least `least`.
    """
    if isinstance(value, str):
        result: Any = _linear_initial(name, value, default) * progress_remaining
    elif counts_env_steps(value):
        result = value(env_steps)
    else:
        result = value(progress_remaining) if callable(value) else value
    try:
        number = result = float(result)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < least:
        expected = "a finite number" + (f" of at least {least:g}" if math.isfinite(least) else "")
        raise ValueError(
            f"The schedule of `{name}` must give {expected}. "
            f"Received: {name}={result!r} at {env_steps} env steps (progress_remaining={progress_remaining:g})"
        )
    return number


def warn_of_early_end(name: str, value: Any, total_steps: int) -> None:
    """Warn of a Keras schedule that ends in the first half of a run: it was likely meant to count gradient steps."""
    decay_steps = getattr(value, "decay_steps", None) if counts_env_steps(value) else None
    if decay_steps is not None and decay_steps < total_steps / 2:
        warnings.warn(
            f"A Keras schedule given as `{name}` counts env steps, of which there will be {total_steps} "
            f"(inside an optimizer it counts gradient steps). Received: {name} with decay_steps={decay_steps}",
            stacklevel=4,
        )


def _linear_initial(name: str, value: str, default: Any) -> float:
    kind, separator, number = value.partition("_")
    if kind not in ("linear", "lin") or (separator and not number) or (not separator and default is None):
        raise _unknown(name, value)
    try:
        return float(number) if separator else float(default)
    except ValueError:
        raise _unknown(name, value) from None


def _unknown(name: str, value: str) -> ValueError:
    return refusal(name, "a number, 'linear' or 'linear_<initial value>'", value)
