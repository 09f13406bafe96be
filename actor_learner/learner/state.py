"""A learner in a folder.

network.keras   the network (network.weights.h5 where Keras can't read it back)
learner.npz     variables of the optimizer (learning rate and step count are among them), of reward scaling and of
                random layers
learner.json    algorithm, action space, counters, random state
manifest.json   size and SHA-256 of each of these, without which nothing is read
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Space

from actor_learner import algorithms
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.off_policy.base import OffPolicy
from actor_learner.learner.rewards import ReturnStatistics
from actor_learner.networks.saving import network_of, write_network
from actor_learner.spaces.kinds import from_json, to_json
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import choices, to_gymnasium, without_mask
from actor_learner.system.files import (
    DamagedError,
    NewerFormatError,
    one_line,
    read_arrays,
    read_folder,
    stamped,
    unstamped,
    write_arrays,
)

Arrays = dict[str, np.ndarray[Any, Any]]
Directory = str | os.PathLike[str]

FORMAT = 1
SEEDS = "seeds"
"""The name of the states of random layers among saved variables."""


@dataclass(frozen=True)
class SavedLearner:
    """The state of a learner. arrays: The contents of its variables, without those of the network."""

    network: keras.Model
    algorithm: Algorithm | OffPolicy
    action_space: Space[Any]
    total_steps: int | None
    sequence_length: int | None
    burn_in: int
    env_steps: int
    updates: int
    random_state: np.random.BitGenerator
    arrays: Arrays
    observation_space: Space[Any] | None = None
    critics: Sequence[keras.Model] = ()
    replay: Mapping[str, Any] = field(default_factory=dict)
    """The counters of an off-policy learner."""
    trained_by: Algorithm | OffPolicy | None = None
    """Of a learner that was read: the algorithm that it was saved with; None if no file can hold it."""
    learning_rate: float | str | None = None
    """Of a learner that was read: the algorithm's; None if that is a callable."""


def write_learner(saved: SavedLearner, folder: Path) -> None:
    """Write a learner's files into a folder that is being filled, for `write_folder_atomically`."""
    if not saved.network.built:
        raise ValueError("A learner can be saved once its network is built: by a call, or by the first update.")
    write_network(saved.network, folder)
    for index, critic in enumerate(saved.critics):
        write_network(critic, folder, name=f"critic-{index}")
    write_arrays(folder / "learner.npz", saved.arrays)
    description = {
        "algorithm": algorithms.to_json(saved.algorithm),
        "learning_rate": rate if isinstance(rate := saved.algorithm.learning_rate, float | int | str) else None,
        "action_space": to_json(saved.action_space),
        "total_steps": saved.total_steps,
        "sequence_length": saved.sequence_length,
        "burn_in": saved.burn_in,
        "env_steps": saved.env_steps,
        "updates": saved.updates,
        "random_state": saved.random_state.state,
    }
    if saved.observation_space is not None:
        description["observation_space"] = to_json(saved.observation_space)
    if saved.replay:
        description |= {"critics": len(saved.critics), "replay": dict(saved.replay)}
    (folder / "learner.json").write_text(json.dumps(stamped(description, FORMAT), indent=2) + "\n", encoding="utf-8")


def read_learner(
    directory: Directory,
    *,
    algorithm: Algorithm | OffPolicy | None,
    network: keras.Model | None,
    critics: Callable[[Any, Any], keras.Model] | None = None,
) -> SavedLearner:
    """Return the learner in a folder; see `Learner.load`."""
    if not (Path(directory) / "learner.json").is_file():
        raise ValueError(f"There is no learner (learner.json) there. Received: directory={str(directory)!r}")
    contents = read_folder(directory, "network.", "learner.", "critic-")
    with _reading(directory):
        state = unstamped(Path(directory) / "learner.json", json.loads(contents["learner.json"]), FORMAT)
        description = _read_description(state)
        arrays = read_arrays(contents["learner.npz"])
    network = network_of(contents, network, path=directory)
    if algorithm is None:
        algorithm = description["trained_by"] = _algorithm(description["algorithm"], directory)
    elif description["algorithm"] is not None:
        with contextlib.suppress(ValueError):  # of another version
            description["trained_by"] = _algorithm(description["algorithm"], directory)
    description["algorithm"] = algorithm
    description.setdefault("learning_rate", description.get("trained_by", algorithm).learning_rate)
    spaces = description.get("observation_space"), description["action_space"]
    models = [
        network_of(contents, critics and _built(critics(*spaces), *spaces), path=directory, name=f"critic-{index}")
        for index in range(description.pop("critics", 0))
    ]
    return SavedLearner(network=network, arrays=arrays, critics=models, **description)


def _built(critic: keras.Model, observation_space: Any, action_space: Any) -> keras.Model:
    """Return a critic that was called once, so that its weights have a place."""
    if not critic.built:
        spaces = Spaces(without_mask(observation_space), action_space)
        observation, size = spaces.observation.zeros(1), sum(math.prod(leaf.shape) for leaf in spaces.action.leaves)
        critic(observation if choices(action_space) else (observation, np.zeros((1, size), np.float32)))
    return critic


def read_critics(directory: Directory) -> list[keras.Model]:
    """Return the critics of a saved learner, none if its algorithm has none. Raises ValueError as `load_network`."""
    contents = read_folder(directory, "critic-")
    return [network_of(contents, path=directory, name=f"critic-{index}") for index in range(len(contents))]


def read_variables(directory: Directory) -> Arrays:
    """Return what a saved learner's algorithm trained beside models, by "variables/0". Raises as `read_learner`."""
    contents = read_folder(directory, "learner.npz")
    with _reading(directory):
        arrays = read_arrays(contents["learner.npz"])
    return {name: array for name, array in arrays.items() if name.startswith("variables/")}


def read_return_statistics(directory: Directory) -> ReturnStatistics | None:
    """Return the statistics by which a saved learner scales rewards, None if it doesn't. Raises as `read_learner`."""
    contents = read_folder(directory, "learner.")
    with _reading(directory):
        arrays = read_arrays(contents["learner.npz"])
        if "reward_scaling/0" not in arrays:
            return None
        return ReturnStatistics(*(float(arrays[f"reward_scaling/{index}"]) for index in (1, 2, 3)))


@contextlib.contextmanager
def _reading(directory: Directory) -> Iterator[None]:
    """Say of any error that this is no saved learner: the folder may come from anywhere."""
    try:
        yield
    except NewerFormatError:
        raise
    except Exception as error:
        text = f"This isn't what `Learner.save` writes ({one_line(error)}). Received: directory={str(directory)!r}"
        raise DamagedError(text) from error


def _read_description(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of learner.json, the action space and the random state as objects."""
    for name in ("env_steps", "updates"):
        if type(state[name]) is not int or state[name] < 0:
            raise ValueError(f"{name}={state[name]!r}")
    bits = np.random.PCG64(0)
    bits.state = state["random_state"]
    others: dict[str, Any] = {}
    if (space := state.get("observation_space")) is not None:
        others["observation_space"] = to_gymnasium(from_json(space))
    if "replay" in state:
        others |= {"critics": int(state["critics"]), "replay": dict(state["replay"])}
    return {
        **others,
        **{name: state[name] for name in ("algorithm", "total_steps", "env_steps", "updates")},
        **{name: state[name] for name in ("sequence_length", "burn_in")},
        "action_space": to_gymnasium(from_json(state["action_space"])),
        "random_state": bits,
    }


def _algorithm(description: dict[str, Any] | None, directory: Directory) -> Algorithm | OffPolicy:
    """Return the saved algorithm. Its name is looked up in a table: nothing is imported."""
    try:
        return algorithms.from_json(description)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"The saved algorithm is none of this version ({one_line(error)}); "
            f"give it: Learner.load(directory, algorithm=...). Received: directory={str(directory)!r}"
        ) from error


def restore(variables: Mapping[str, keras.Variable], arrays: Arrays, directory: Directory) -> None:
    """Assign saved arrays to the variables of their names. Raises ValueError unless each fits one variable.

    Integers may be of another type: backends count in different ones.
    """
    saved = {name: (array.shape, _type_name(array.dtype)) for name, array in arrays.items()}
    expected = {name: (tuple(one.shape), _type_name(one.value.dtype)) for name, one in variables.items()}
    if saved != expected:
        wrong = sorted(name for name in saved.keys() | expected if saved.get(name) != expected.get(name))[0]
        raise ValueError(
            f"The saved state doesn't fit this algorithm and network: {wrong} is {saved.get(wrong)}, not "
            f"{expected.get(wrong)}. Received: directory={str(directory)!r}"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name].astype(variable.dtype))


def _type_name(dtype: Any) -> str:
    name: str = keras.backend.standardize_dtype(dtype)  # of the value: JAX holds a float64 variable in float32
    return "an integer" if name.startswith(("int", "uint")) else name
