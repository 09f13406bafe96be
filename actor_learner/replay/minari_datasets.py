"""Minari's datasets: their episodes, and new ones that are written while episodes are played.

A dataset's name is `minari:NAMESPACE/NAME-v0` where it could be another thing, too. Minari keeps datasets in a folder
of its own (MINARI_DATASETS_PATH). Nothing is downloaded. The extra `minari` brings Minari.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from actor_learner.system.fields import close_match, refusal
from actor_learner.system.files import DamagedError, one_line
from actor_learner.system.installation import install_command

PREFIX = "minari:"
_DATA, _METADATA = "data", "metadata.json"  # the names of Minari's folder and file of a dataset


def is_name(value: Any) -> bool:
    """Return whether a value names a dataset, rather than a folder."""
    return isinstance(value, str) and value.startswith(PREFIX)


def find_dataset(name: str, argument: str = "dataset") -> Any:
    """Return the `minari.MinariDataset` of a name, with or without the prefix.

    Raises ValueError, of `argument`, if Minari has none of this name, ImportError without Minari.
    """
    minari = _import_minari()
    folder = _folder(name, argument)
    if not (folder / _DATA / _METADATA).is_file():
        known = [str(file.parents[1].relative_to(_root())) for file in _root().rglob(f"{_DATA}/{_METADATA}")]
        similar = close_match(name.removeprefix(PREFIX), known)
        expected = f"a dataset that Minari has on this machine{similar}; `minari download NAME` fetches one"
        raise refusal(argument, expected, name)
    with _reading(name, argument):
        metadata = minari.dataset.minari_storage.MinariStorage.read_raw_metadata(folder / _DATA)
        if not {"observation_space", "action_space"} <= metadata.keys():  # Minari would build the environment it names
            raise ValueError("it doesn't say of which spaces it is")
        return minari.load_dataset(name.removeprefix(PREFIX))


def check_dataset(dataset: Any) -> Any:
    """Return a `minari.MinariDataset`, or that of a name. Raises as `find_dataset`, and for anything else."""
    if isinstance(dataset, str):
        return find_dataset(dataset)
    if not all(hasattr(dataset, name) for name in ("iterate_episodes", "observation_space", "action_space")):
        raise refusal("dataset", "the name of a Minari dataset, or a minari.MinariDataset", dataset)
    return dataset


def count_steps(dataset: Any) -> list[int]:
    """Return the number of steps of each of a dataset's episodes, at least one. Raises ValueError as `episodes` does"""
    with _reading(dataset.spec.dataset_id):
        found = dataset.storage.get_episode_metadata(dataset.episode_indices)
        steps = [int(metadata["total_steps"]) for metadata in found]
    if not steps:
        raise refusal("dataset", "one with an episode", dataset.spec.dataset_id)
    return steps


def episodes(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `ReplayBuffer.add_episode` for each of a dataset's episodes; reads one at a time.

    An episode whose last step is neither terminated nor truncated was cut off there. Warns of terminations before the
    last step, which are left out.

    Raises DamagedError for what Minari can't read.
    """
    name, read, warned = dataset.spec.dataset_id, None, False
    while True:
        with _reading(name):
            read = dataset.iterate_episodes() if read is None else read
            episode = next(read, None)
            if episode is None:
                return
            arguments = {key: getattr(episode, key) for key in ("observations", "actions", "rewards")}
            arguments["terminated"] = bool(episode.terminations[-1])
            within = int(np.sum(episode.terminations[:-1]))
        if within and not warned:
            where = f"episode {episode.id} of {name!r} has {within} before its last step"
            warnings.warn(f"Terminations are left out but for an episode's last step. Received: {where}", stacklevel=3)
            warned = True
        yield arguments


@contextlib.contextmanager
def recording(name: str) -> Iterator[functools.partial[_Recorder]]:
    """Give a wrapper for an environment, whose episodes become a new dataset when the `with` block has ended.

    If the block raises, no dataset is left. Images are stored without loss; `info` isn't stored.

    Raises ValueError, of `record`, if there is such a dataset already, or for a name that Minari doesn't take;
    ImportError without Minari.
    """
    minari = _import_minari()
    if not is_name(name):
        raise refusal("record", f"{PREFIX}NAME", name)
    folder, identity = _folder(name, "record"), name.removeprefix(PREFIX)
    if os.path.lexists(folder):
        raise refusal("record", "a new name: a dataset is never replaced", name)
    metadata = {"dataset_id": identity, "minari_version": minari.__version__, "description": "made by actor-learner"}
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=_root()) as partial:
        place = Path(partial, "dataset")
        yield functools.partial(_Recorder, data=place / _DATA, metadata=metadata)
        namespace = minari.dataset.minari_dataset.parse_dataset_id(identity)[0]
        if namespace is not None and namespace not in minari.namespace.list_local_namespaces():
            minari.namespace.create_namespace(namespace)
        os.rename(place, folder)


class _Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Appends each episode that ends to a dataset that it begins."""

    def __init__(self, env: gym.Env[Any, Any], data: Path, metadata: Mapping[str, Any]) -> None:
        super().__init__(env)
        from minari.dataset.minari_storage import MinariStorage

        data.parent.mkdir()
        spaces = {name: getattr(env, name) for name in ("observation_space", "action_space")}
        try:
            self._storage = MinariStorage.new(data, **spaces, env_spec=_storable_spec(env), jpeg_encoding=False)
        except NotImplementedError as error:
            raise ValueError(f"`record` needs spaces that Minari stores: {one_line(error)}") from error
        self._storage.update_metadata(dict(metadata))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._seed, self._observations = seed, [copy.deepcopy(observation)]
        self._steps: list[tuple[Any, ...]] = []
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        taken = copy.deepcopy(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._observations.append(copy.deepcopy(observation))
        self._steps.append((taken, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            self._write()
        return observation, reward, terminated, truncated, info

    def _write(self) -> None:
        from minari.data_collector import EpisodeBuffer

        actions, rewards, terminations, truncations = map(list, zip(*self._steps, strict=True))
        episode = EpisodeBuffer(
            seed=self._seed,
            observations=_by_leaf(self.observation_space, self._observations),
            actions=_by_leaf(self.action_space, actions),
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
        )
        self._storage.update_episodes([episode])
        self._seed, self._observations, self._steps = None, self._observations[-1:], []  # of a next life


def _by_leaf(space: gym.Space[Any], steps: list[Any]) -> Any:
    """Return the values of all steps, nested as the space is."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _by_leaf(part, [step[key] for step in steps]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_by_leaf(part, [step[index] for step in steps]) for index, part in enumerate(space.spaces))
    return steps


def _storable_spec(env: gym.Env[Any, Any]) -> Any:
    """Return how Gymnasium makes the environment; None if that can't be stored."""
    with contextlib.suppress(Exception):  # whatever Gymnasium can't turn into JSON
        if env.spec is not None and env.spec.to_json():
            return env.spec
    return None


def _import_minari() -> Any:
    if any(importlib.util.find_spec(name) is None for name in ("minari", "h5py")):
        raise ImportError(f"Minari's datasets need minari: {install_command('actor-learner[minari]')}")
    import minari
    import minari.namespace

    return minari


def _root() -> Path:
    """Return the folder of all datasets."""
    return Path(_import_minari().storage.get_dataset_path())


def _folder(name: str, argument: str) -> Path:
    """Return the folder of a dataset. Raises ValueError for a name that Minari doesn't take."""
    identity = name.removeprefix(PREFIX)
    try:
        _import_minari().dataset.minari_dataset.parse_dataset_id(identity)
    except (ValueError, TypeError) as error:  # the second: no version
        raise refusal(argument, f"{PREFIX}NAME-v0, or {PREFIX}NAMESPACE/NAME-v0", name) from error
    return _root() / identity


@contextlib.contextmanager
def _reading(name: str, argument: str = "dataset") -> Iterator[None]:
    """Turn any error of a read into a DamagedError that names the dataset."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # Minari and h5py raise a dozen types
        what = f"This Minari dataset can't be read ({type(error).__name__}: {one_line(error)})"
        raise DamagedError(f"{what}. Received: {argument}={name!r}") from error
