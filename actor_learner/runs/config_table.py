"""A config.json as a flat table of names and values: for reports, legends and TensorBoard's hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from actor_learner.config.config import RECORDED, TrainConfig
from actor_learner.config.settings import names_of

ASIDE = names_of(TrainConfig, "none") | set(RECORDED)
"""Fields of the config that don't change what is learned, and what config.json records beside the config."""

Value = bool | int | float | str


def flat_config(data: Mapping[str, Any], *, skip: Collection[str] = ()) -> dict[str, Value]:
    """Return the values of a config.json by dotted names: `{"env": "CartPole-v1", "algorithm.gamma": 0.99}`.

    Lists become text with commas, None becomes "none", a callable its name.

    Args:
        data: The config as `read_config` returns it.
        skip: Names to leave out; `ASIDE` holds the fields that don't change what is learned.
    """
    flat: dict[str, Value] = {}
    for name, value in data.items():
        if name in skip:
            continue
        if isinstance(value, Mapping) and set(value) != {"callable"}:
            flat |= {f"{name}.{key}": item for key, item in flat_config(value).items()}
        else:
            flat[name] = _simple(value)
    return flat


def _simple(value: Any) -> Value:
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return str(value["callable"])
    if isinstance(value, list):
        return ",".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    return str(value)
