"""Networks in files. What files have in common, whoever writes them, is in `files`; its names are here, too."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actor_learner.networks.untrusted import check_network_file
from actor_learner.system.files import (
    DamagedError,
    check_folder,
    has_manifest,
    one_line,
    read_folder,
    write_atomically,
    write_folder_atomically,
)

if TYPE_CHECKING:
    import keras

__all__ = [
    "DamagedError",
    "check_can_be_saved",
    "check_folder",
    "load_network",
    "network_file",
    "network_of",
    "save_network",
    "write_atomically",
    "write_folder_atomically",
    "write_network",
]


_NAMES = ("network.keras", "network.weights.h5")
_HDF5_OVERHEAD = 8192  # bytes, more than what an array or a group takes beside its contents

_can_be_rebuilt: weakref.WeakKeyDictionary[keras.Model, bool] = weakref.WeakKeyDictionary()
"""What was found out about a network when it was first saved: reading it back each time would take as long again."""


def save_network(network: keras.Model, directory: str | os.PathLike[str]) -> Path:
    """Saves a network as network.keras, or as network.weights.h5 where Keras can't read it back.

    The file is complete or isn't there: a full disk leaves what was there before.

    Returns:
        The file. Its name tells a caller whether `load_network` will need `network=`.
    """
    return _save(network, Path(directory), write_atomically)


def write_network(network: keras.Model, folder: Path) -> Path:
    """`save_network` into a folder that is being filled, for `write_folder_atomically`."""
    return _save(network, folder, lambda file, write: write(file))


def check_can_be_saved(network: keras.Model, folder: Path) -> None:
    """Warns, before anything is learned, if only the weights of a network can be saved; tries it in `folder`."""
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as directory:
        whole = save_network(network, directory).suffix == ".keras"
    if not whole:
        warnings.warn(
            f"Keras can't rebuild network {network.name!r} from a file, so its weights alone will be saved: "
            "al.load_network(run_dir, network=...) reads them into a network that you build.",
            UserWarning,
            stacklevel=2,
        )


def load_network(path: str | os.PathLike[str], network: keras.Model | None = None) -> keras.Model:
    """The Keras model that a run trained, custom layers of this package registered.

    Args:
        path: a run directory, a saved learner, any directory that holds network.keras, or a file.
        network: a built model of the same shape, which gets the weights and is returned; needed where a
            subclassed model can't be rebuilt from its file.

    Raises ValueError if there is no network, if it was damaged, or if it needs `network`.
    """
    folder = Path(path)
    if folder.is_dir() and has_manifest(folder):
        return network_of(read_folder(folder), network, path=path)
    return _load(network_file(folder), network, path)


def network_of(
    contents: Mapping[str, bytes], network: keras.Model | None = None, *, path: str | os.PathLike[str]
) -> keras.Model:
    """`load_network` from the contents of a folder's files; `path` is what messages call it."""
    names = [name for name in _NAMES if name in contents]
    if not names:
        raise ValueError(
            f"There is no network (network.keras) there; a run writes it when it ends. Received: path={str(path)!r}"
        )
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / names[0]
        file.write_bytes(contents[names[0]])
        return _load(file, network, path)


def _load(file: Path, network: keras.Model | None, path: str | os.PathLike[str]) -> keras.Model:
    import keras

    from actor_learner.networks import layers  # noqa: F401 - registers them with Keras

    try:
        check_network_file(file)
    except Exception as error:  # zipfile and h5py raise a dozen kinds
        raise DamagedError(f"The network can't be read: {one_line(error)}. Received: path={str(path)!r}") from error
    if network is not None:
        try:
            with _without_optimizer(network):
                network.load_weights(file)
        except Exception as error:
            raise ValueError(
                f"The saved weights don't fit this network ({one_line(error)}). Received: path={str(path)!r}"
            ) from error
        return network
    if file.suffix != ".keras":
        raise ValueError(
            "Keras couldn't save this network whole; build it, and give it as `network=` in Python. "
            f"Received: path={str(path)!r}"
        )
    try:
        return keras.saving.load_model(file, compile=False)
    except Exception as error:  # layers, h5py and TensorFlow raise whatever they like
        raise ValueError(
            f"Keras can't rebuild this network ({one_line(error)}); build it, and give it as `network=` in Python. "
            f"Received: path={str(path)!r}"
        ) from error


def _save(network: keras.Model, folder: Path, put: Callable[[Path, Callable[[Path], object]], object]) -> Path:
    whole, weights = (folder / name for name in _NAMES)
    if _can_be_rebuilt.get(network, True):
        try:
            put(whole, functools.partial(_write_whole, network))
        except OSError:
            raise
        except Exception:  # a subclassed model may fail in get_config, from_config or build, with whatever it likes
            if network in _can_be_rebuilt:
                raise
            _can_be_rebuilt[network] = False
        else:
            _can_be_rebuilt[network] = True
            weights.unlink(missing_ok=True)
            return whole
    put(weights, functools.partial(_write_weights, network))
    whole.unlink(missing_ok=True)
    return weights


def _write_whole(network: keras.Model, file: Path) -> None:
    import keras

    with _without_optimizer(network), _temporary_files_in(file.parent):
        keras.saving.save_model(network, file)
    if network not in _can_be_rebuilt:
        _check_reads_back(network, file)


def _write_weights(network: keras.Model, file: Path) -> None:
    """Makes sure that there is room first: where a disk is full, HDF5 may take the process down with it."""
    with _without_optimizer(network):
        optimizer = getattr(network, "optimizer", None)
        arrays = [*network.weights, *(optimizer.variables if optimizer else ())]
        size = sum(variable.numpy().nbytes for variable in arrays)
        groups = len(arrays) + len(list(network._flatten_layers()))
        with file.open("wb") as stream:
            stream.write(bytes(size + _HDF5_OVERHEAD * (groups + 1)))
            stream.flush()
            os.fsync(stream.fileno())
        network.save_weights(file)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Keras makes a folder for assets, and leaves it behind where it is killed or fails: it is to do so here."""
    previous = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = previous


@contextlib.contextmanager
def _without_optimizer(network: keras.Model) -> Iterator[None]:
    """Keras would save a learner's optimizer with the network, and warn where it loads weights without one.

    Its variables are in a file of the learner's own.
    """
    optimizer = getattr(network, "optimizer", None)
    if network.compiled or optimizer is None:
        yield
        return
    network.optimizer = None
    try:
        yield
    finally:
        network.optimizer = optimizer


def _check_reads_back(network: keras.Model, file: Path) -> None:
    import keras

    copy = keras.saving.load_model(file, compile=False)
    before, after = network.get_weights(), copy.get_weights()
    same = len(before) == len(after) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True)
    )
    if not same or "__main__" in _class_modules(network):
        raise ValueError("a model of this class can't be rebuilt from its file")


def _class_modules(network: keras.Model) -> set[str]:
    """Modules of the classes of a network and its layers: one in __main__ is found by the same script only."""
    return {type(layer).__module__ for layer in network._flatten_layers()}


def network_file(path: Path) -> Path:
    """The file of the network in a run directory, in any directory, or at `path` itself.

    Raises ValueError if there is none.
    """
    if path.is_file():
        return path
    for name in _NAMES:
        if (path / name).exists():
            return path / name
    raise ValueError(
        f"There is no network (network.keras) there; a run writes it when it ends. Received: path={str(path)!r}"
    )
