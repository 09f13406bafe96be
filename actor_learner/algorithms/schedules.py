"""Hyperparameters that change over a run: constants, "linear", callables, Keras schedules.

All are evaluated on the host, once an update, and enter the compiled update as tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schedule = float | str | Callable[[float], float]
"""A constant; "linear" (the default value x what remains) or "linear_1e-3" (1e-3 x what remains), with
"lin_" short for it; a callable of `progress_remaining`, from 1 to 0; or a Keras
`LearningRateSchedule`, which counts env steps."""


def is_schedule(value: Any) -> bool:
    """Whether a hyperparameter's value changes over a run."""
    return isinstance(value, str) or callable(value)


def needs_total_steps(value: Any) -> bool:
    """Whether a value depends on how much of a run remains."""
    return is_schedule(value) and not _counts_env_steps(value)


def check_schedule(name: str, value: Any, default: Any) -> None:
    """Raises ValueError unless `value` is a number, a callable, or "linear" in one of its forms."""
    if isinstance(value, str):
        _linear_initial(name, value, default)
    elif not callable(value) and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ValueError(
            f"`{name}` must be a number, 'linear', 'linear_<value>' or a callable. Received: {name}={value!r}"
        )


def evaluate_schedule(name: str, value: Any, default: Any, *, progress_remaining: float, env_steps: int) -> float:
    """The hyperparameter's value now. progress_remaining: 1 at the first update, towards 0; env_steps: taken so far."""
    if isinstance(value, str):
        return _linear_initial(name, value, default) * progress_remaining
    if _counts_env_steps(value):
        return float(value(env_steps))
    return float(value(progress_remaining)) if callable(value) else float(value)


def _counts_env_steps(value: Any) -> bool:
    """Recognizes a Keras LearningRateSchedule by its class's ancestry, so that keras needn't be loaded."""
    return any(cls.__name__ == "LearningRateSchedule" for cls in type(value).__mro__)


def _linear_initial(name: str, value: str, default: Any) -> float:
    kind, separator, number = value.partition("_")
    if kind not in ("linear", "lin") or (separator and not number) or (not separator and default is None):
        raise _unknown(name, value)
    try:
        return float(number) if separator else float(default)
    except ValueError:
        raise _unknown(name, value) from None


def _unknown(name: str, value: str) -> ValueError:
    return ValueError(f"`{name}` must be a number, 'linear' or 'linear_<initial value>'. Received: {name}={value!r}")
