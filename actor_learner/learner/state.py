"""A learner in a folder: what is written there, and a learner that goes on from it.

network.keras   the network (network.weights.h5 where Keras can't read it back)
learner.npz     variables of the optimizer (learning rate and step count are among them) and of reward scaling
learner.json    algorithm, action space, counters, random state
manifest.json   size and SHA-256 of each of these, without which nothing is read
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from actor_learner import algorithms
from actor_learner.learner.rewards import RewardScaling
from actor_learner.networks.saving import network_of, write_network
from actor_learner.spaces.kinds import from_json, to_json
from actor_learner.spaces.structure import to_gymnasium
from actor_learner.system.files import DamagedError, one_line, read_arrays, read_folder, write_arrays

if TYPE_CHECKING:
    import keras

    from actor_learner.algorithms.base import Algorithm
    from actor_learner.learner.learner import Learner

FORMAT = 1

_OPTIMIZER, _REWARD_SCALING = "optimizer", "reward_scaling"


def write_learner(learner: Learner, folder: Path) -> None:
    """Writes a learner's files into a folder that is being filled, for `write_folder_atomically`."""
    if not learner.network.built:
        raise ValueError("A learner can be saved once its network is built: by a call, or by the first update.")
    write_network(learner.network, folder)
    write_arrays(folder / "learner.npz", _arrays(learner))
    text = json.dumps(_description(learner), indent=2) + "\n"
    (folder / "learner.json").write_text(text, encoding="utf-8")


def load_learner(
    cls: type[Learner],
    directory: str | os.PathLike[str],
    *,
    algorithm: Algorithm | None,
    network: keras.Model | None,
    device: str,
) -> Learner:
    """The learner in a folder, made by `cls`; see `Learner.load`."""
    if not (Path(directory) / "learner.json").is_file():
        raise ValueError(f"There is no learner (learner.json) there. Received: directory={str(directory)!r}")
    contents = read_folder(directory)
    try:
        state = _read_description(contents["learner.json"])
        arrays = read_arrays(contents["learner.npz"])
    except Exception as error:  # a folder of a stranger may hold anything
        raise DamagedError(
            f"This isn't what `Learner.save` writes ({one_line(error)}). Received: directory={str(directory)!r}"
        ) from error
    learner = cls(
        network_of(contents, network, path=directory),
        algorithm or _algorithm(state["algorithm"], directory),
        action_space=state["action_space"],
        total_steps=state["total_steps"],
        device=device,
    )
    learner.env_steps, learner.updates = state["env_steps"], state["updates"]
    learner._rng = np.random.Generator(state["random_state"])
    _restore(learner, arrays, directory)
    return learner


def _description(learner: Learner) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "algorithm": algorithms.to_json(learner.algorithm),
        "action_space": to_json(learner.action_space),
        "total_steps": learner.total_steps,
        "env_steps": learner.env_steps,
        "updates": learner.updates,
        "random_state": learner._rng.bit_generator.state,
    }


def _read_description(content: bytes) -> dict[str, Any]:
    """What `_description` wrote, the action space and the random state as objects again."""
    state = json.loads(content)
    if state["format"] != FORMAT:
        raise ValueError(f"it was written by another version: format={state['format']!r}")
    for name in ("env_steps", "updates"):
        if type(state[name]) is not int or state[name] < 0:
            raise ValueError(f"{name}={state[name]!r}")
    bits = np.random.PCG64(0)
    bits.state = state["random_state"]
    return {
        **{name: state[name] for name in ("algorithm", "total_steps", "env_steps", "updates")},
        "action_space": to_gymnasium(from_json(state["action_space"])),
        "random_state": bits,
    }


def _algorithm(description: dict[str, Any] | None, directory: str | os.PathLike[str]) -> Algorithm:
    """The saved algorithm. Its name is looked up in a table: nothing is imported."""
    try:
        return algorithms.from_json(description)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"The saved algorithm is none of this version ({one_line(error)}); "
            f"give it: Learner.load(directory, algorithm=...). Received: directory={str(directory)!r}"
        ) from error


def _arrays(learner: Learner) -> dict[str, np.ndarray[Any, Any]]:
    groups = {_OPTIMIZER: learner.optimizer.variables}
    if learner._reward_scaling is not None:
        groups[_REWARD_SCALING] = learner._reward_scaling.variables
    return {
        f"{group}/{index}": ops.convert_to_numpy(variable)
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }


def _restore(learner: Learner, arrays: Mapping[str, np.ndarray[Any, Any]], directory: str | os.PathLike[str]) -> None:
    """Puts saved arrays into the variables of the optimizer and of reward scaling; each must have its place."""
    if (returns := arrays.get(f"{_REWARD_SCALING}/0")) is not None:
        learner._reward_scaling = RewardScaling(returns.size, learner.algorithm.gamma)
    places = {
        f"{group}/{index}": variable
        for group, variables in (
            (_OPTIMIZER, learner.optimizer.variables),
            (_REWARD_SCALING, learner._reward_scaling.variables if learner._reward_scaling else ()),
        )
        for index, variable in enumerate(variables)
    }
    saved = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    expected = {name: (tuple(variable.shape), str(variable.dtype)) for name, variable in places.items()}
    if saved != expected:
        wrong = sorted(name for name in saved.keys() | expected if saved.get(name) != expected.get(name))[0]
        raise ValueError(
            f"The saved state doesn't fit this algorithm and network: {wrong} is {saved.get(wrong)}, not "
            f"{expected.get(wrong)}. Received: directory={str(directory)!r}"
        )
    for name, variable in places.items():
        variable.assign(arrays[name])
