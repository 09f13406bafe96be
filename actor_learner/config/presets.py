"""Settings by environment id and algorithm, from presets.toml; benchmarks/learning/learning.md has their results."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actor_learner.config.config import DEFAULT_NETWORK_FIELDS, TrainConfig
from actor_learner.config.references import algorithm_class, algorithm_reference
from actor_learner.config.settings import names_of
from actor_learner.system.fields import close_match


def _read_presets() -> dict[str, dict[str, dict[str, Any]]]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    bases = tables.pop("bases")

    def fields(table: Mapping[str, Any]) -> dict[str, Any]:
        base = fields(bases[table["base"]]) if "base" in table else {}
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        return {name: value for name, value in (base | own).items() if name != "base"}

    return {env: {name: fields(table) for name, table in by_name.items()} for env, by_name in tables.items()}


PRESETS = _read_presets()
"""Environment -> algorithm -> flat fields. An id that ends in `*` covers all ids with that prefix."""


def preset(env: str, **changes: Any) -> TrainConfig:
    """Return the preset for `env`, with `changes` to fields of the config or of its algorithm, flat.

    Keys of `env_kwargs` are changed one by one; the others keep the preset's values.

    `algorithm` may be a name ("a2c"), which takes that algorithm's preset, or an instance, which is used as it is, with
    the preset's other fields. A `network` or `init_from` replaces the preset's settings of the default network.

    Raises ValueError for an environment without a preset, and for unknown fields.

    Example:
        >>> import actor_learner as al
        >>> config = al.preset("CartPole-v1", learning_rate=3e-4, num_actors=4)
    """
    algorithm = changes.get("algorithm") or "ppo"
    fields = preset_fields(env, algorithm)
    if fields is None:
        raise unknown_preset(env, algorithm)
    return TrainConfig.from_fields({"env": env, **over_preset(fields_below(fields, changes), changes)})


def preset_fields(preset: object, algorithm: object = "ppo", env: object = None) -> dict[str, Any] | None:
    """Return the fields that the preset of an environment sets, flat, or None if there is none.

    A subclass of an algorithm takes the preset of its nearest ancestor that has one. An instance of an on-policy one
    without a preset takes PPO's, for its fields of the config. Another environment `env` gets the
    preset's `env_kwargs` only if its own preset has the same ones: others may not take them.
    """
    by_algorithm = _by_algorithm(preset) if isinstance(preset, str) else {}
    kind: type[Any] = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
    names = [*map(algorithm_reference, kind.__mro__)]
    if not (isinstance(algorithm, str) or kind.OWN_DISTRIBUTION):
        names.append("ppo")
    fields = next((by_algorithm[name] for name in names if name in by_algorithm), None)
    if fields is None or env in (None, preset):
        return fields
    own = preset_fields(env, algorithm) or {}
    same = own.get("env_kwargs") == fields.get("env_kwargs")
    return {name: value for name, value in fields.items() if same or name != "env_kwargs"}


def _by_algorithm(env: str) -> dict[str, dict[str, Any]]:
    """Return the presets of an environment by algorithm: its own over those of its prefix.

    An id without a version is that of the newest one with a preset.
    """
    env = _newest(env)
    prefixes = (name for name in PRESETS if name.endswith("*") and env.startswith(name[:-1]))
    return {**PRESETS.get(next(prefixes, ""), {}), **PRESETS.get(env, {})}


def _newest(env: str) -> str:
    versions = [name for name in PRESETS if re.fullmatch(re.escape(env) + r"-v\d+", name)]
    return max(versions, key=lambda name: int(name.rpartition("-v")[2]), default=env)


def with_preset(env: str, algorithm: object) -> str | None:
    """Return the newest version of an environment, if that has a preset and `env` has none."""
    newest = _newest(re.sub(r"-v\d+$", "", env))
    return newest if preset_fields(newest, algorithm) and not preset_fields(env, algorithm) else None


def fields_below(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that still count below `changes`.

    A network replaces the fields of the default network, an algorithm's instance all hyperparameters,
    `envs_per_actor` the number of all environments, another number of these or another lag the number of actors, an
    optimizer its learning rate and its clipping, and no memory what only matters to one.
    """
    dropped: set[str] = set()
    if changes.get("envs_per_actor") is not None:
        dropped = {"num_envs"}
    sizes = ("envs_per_actor", "num_envs", "max_policy_lag")
    if any(changes.get(name) not in (None, fields.get(name)) for name in sizes):
        dropped |= {"num_actors"}
    if "max_policy_lag" in changes and any(each.get("max_policy_lag") in (0, 1) for each in (fields, changes)):
        dropped |= {"asynchronous"}  # at which lag nothing runs freely
    if changes.get("memory", "the preset's") is None:
        dropped |= {"memory_size", "sequence_length", "burn_in"}
    if changes.get("network") is not None or changes.get("init_from") is not None:
        dropped |= {*DEFAULT_NETWORK_FIELDS}
    if not isinstance(changes.get("optimizer"), str | None):
        dropped |= {"learning_rate", "max_grad_norm"}
    if not isinstance(changes.get("algorithm"), str | None):
        dropped |= fields.keys() - names_of(TrainConfig)
    return {name: value for name, value in fields.items() if name not in dropped}


def over_preset(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `changes` over a preset's fields, with the keys of both `env_kwargs`."""
    merged = {**fields, **changes}
    if fields.get("env_kwargs") and isinstance(merged["env_kwargs"], Mapping):
        merged["env_kwargs"] = {**fields["env_kwargs"], **merged["env_kwargs"]}
    return merged


def unknown_preset(env: object, algorithm: object) -> ValueError:
    """Return the error for an environment without a preset, with the close match and all environments with one."""
    known = [name for name in PRESETS if preset_fields(name, algorithm) is not None]
    label = algorithm if isinstance(algorithm, str) else type(algorithm).__name__
    return ValueError(
        f"There is no preset of this name for {label}{close_match(str(env), known)}; there are "
        f"{', '.join(known) or 'none'}. Received: preset={env!r}"
    )
