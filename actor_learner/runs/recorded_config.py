"""A run's config.json: its entries by type, also as a flat table, and the versions and machine that it records.

The file may be damaged, older or edited. The table is for reports, legends and TensorBoard's hyperparameters.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from actor_learner.config.config import RECORDED, TrainConfig
from actor_learner.config.pool_checks import DEFAULT_ENVS_PER_ACTOR
from actor_learner.config.references import marked_name
from actor_learner.config.settings import names_of
from actor_learner.system import __version__
from actor_learner.system.machine import available_cores, machine


def algorithm_title(name: str) -> str:
    """Return the name of an algorithm for headings, without the module of one's own: "PPO" of "ppo"."""
    name = name.rpartition(":")[2]
    return {"crossq": "CrossQ"}.get(name, name.upper())


class RecordedConfig(dict[str, Any]):
    """The entries of a config.json. `TrainConfig.from_json` makes a config of them."""

    def integer(self, *path: str) -> int | None:
        """Return the integer at nested names, such as `integer("finished", "env_steps")`; None if there is none.

        true isn't one, though Python counts it as 1.
        """
        value: Any = self
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if type(value) is int else None

    @property
    def env(self) -> str:
        """The environment's id, or its callable as "module:name"; "" if that isn't recorded."""
        env = self.get("env")
        return str((env.get("callable") if isinstance(env, Mapping) else env) or "")

    @property
    def algorithm(self) -> str:
        """The algorithm's name, without the module of one's own algorithm; "" if that isn't recorded."""
        algorithm = self.get("algorithm")
        name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        return str(name or "").rpartition(":")[2]

    @property
    def algorithm_title(self) -> str:
        """The algorithm's name for headings: "PPO"."""
        return algorithm_title(self.algorithm)

    @property
    def cores(self) -> int:
        """The cores that the run could use; those of this process if that isn't recorded."""
        cores = self.integer("machine", "cores")
        return cores if cores is not None and cores > 0 else available_cores()

    @property
    def num_envs(self) -> int | None:
        """The environments of all actors; None if that isn't recorded."""
        if (total := self.integer("num_envs")) is not None:
            return total
        actors, envs = self.integer("num_actors"), self.integer("envs_per_actor")
        if envs is None and "num_envs" in self:
            envs = DEFAULT_ENVS_PER_ACTOR
        return None if actors is None or envs is None else max(actors, 1) * envs

    @property
    def envs_per_actor(self) -> int | None:
        """The environments of the first actor, which has the most; None if that isn't recorded."""
        total, actors = self.num_envs, self.integer("num_actors")
        return None if total is None or actors is None else -(-total // max(actors, 1))

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that the run chose by rule, such as `updates_per_epoch`."""
        chosen = self.get("chosen")
        return dict(chosen) if isinstance(chosen, Mapping) else {}

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The updates after which a resume changed hyperparameters, each with {name: [before, now]} as "changed"."""
        found = self.get("changes")
        kept = [each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict)]
        return [each for each in kept if isinstance(each.get("changed"), dict) and type(each.get("updates")) is int]

    @property
    def finished_steps(self) -> int:
        """The steps after which the run finished; 0 if it hasn't."""
        return (self.integer("finished", "env_steps") or 0) + (self.integer("finished", "offline_steps") or 0)

    @property
    def all_steps(self) -> int | None:
        """The planned steps: env steps, and gradient steps offline; None if that isn't recorded."""
        steps = self.integer("total_steps")
        return None if steps is None else steps + (self.integer("offline_steps") or 0)


WITHOUT_EFFECT = names_of(TrainConfig, "none") | set(RECORDED)
"""Fields of the config that don't change what is learned, and what config.json records beside the config."""


def change_text(change: Mapping[str, Any]) -> str:
    """Return an entry of `RecordedConfig.changes` as a text: "learning_rate 0.001 to 0.0001"."""
    pairs = ((name, each) for name, each in change["changed"].items() if isinstance(each, list) and len(each) == 2)
    return ", ".join(f"{name} {_simple(before)} to {_simple(now)}" for name, (before, now) in pairs)


Value = bool | int | float | str


def flat_config(data: Mapping[str, Any], *, skip: Collection[str] = ()) -> dict[str, Value]:
    """Return the values of a config.json by dotted names: `{"env": "CartPole-v1", "algorithm.gamma": 0.99}`.

    Lists become text with commas, None becomes "none", a callable its name.

    Args:
        data: The config as `read_config` returns it.
        skip: Names to leave out; `WITHOUT_EFFECT` holds the fields that don't change what is learned.
    """
    flat: dict[str, Value] = {}
    for name, value in data.items():
        if name in skip:
            continue
        if isinstance(value, Mapping) and len(value) == 1 and isinstance(next(iter(value.values())), list):
            value = value.get("tuple", value)
        if isinstance(value, Mapping) and not marked_name(value):
            flat |= {f"{name}.{key}": item for key, item in flat_config(value).items()}
        else:
            flat[name] = _simple(value)
    return flat


def _simple(value: Any) -> Value:
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if name := marked_name(value):
        return name
    if isinstance(value, list):
        return ",".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    return str(value)


PACKAGES = ("tensorflow", "jax", "keras", "ai-edge-litert", "gymnasium", "numpy")
"""The packages whose arithmetic decides what is learned, where they are installed."""
_TIMEOUT_SECONDS = 5.0


def provenance() -> dict[str, Any]:
    """Return versions, machine and git commit of this process."""
    versions = {"actor-learner": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"versions": versions, "machine": machine(), "git": git_commit()}


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """Return the commit of a folder (default: the working directory), and whether tracked files differ from it.

    Returns None without a repository, a commit or git, and if git takes too long.
    """
    # No monitor: it would be a program that the repository names (see `system.untrusted`).
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)} if done.returncode == 0 and commit else None
