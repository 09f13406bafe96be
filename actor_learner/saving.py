"""Files that are whole or not there: networks, and anything else that is written in one go."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside `file`, then puts it in its place; a failure leaves `file` as it was.

    Raises OSError naming the file, for example if the disk is full.
    """
    partial = file.with_name(f".partial-{file.name}")
    try:
        write(partial)
        os.replace(partial, file)
    except OSError as error:
        raise OSError(
            error.errno, f"can't save {file}: {error.strerror or error}; what was saved before is kept"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def save_network(network: keras.Model, directory: str | os.PathLike[str]) -> Path:
    """Saves a network as network.keras, or as network.weights.h5 where Keras can't read it back.

    The file is complete or isn't there: a full disk leaves what was there before.

    Returns:
        The file. Its name tells a caller whether `load_network` will need `network=`.
    """
    import keras

    directory = Path(directory)
    whole, weights = directory / "network.keras", directory / "network.weights.h5"

    def write_whole(partial: Path) -> None:
        keras.saving.save_model(network, partial)
        _check_reads_back(network, partial)

    try:
        write_atomically(whole, write_whole)
    except OSError:
        raise
    except Exception:  # a subclassed model may fail in get_config, from_config or build, with whatever it likes
        write_atomically(weights, network.save_weights)
        whole.unlink(missing_ok=True)
        return weights
    weights.unlink(missing_ok=True)
    return whole


def check_can_be_saved(network: keras.Model) -> None:
    """Warns, before anything is learned, if only the weights of a network can be saved."""
    with tempfile.TemporaryDirectory() as directory:
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
        path: a run directory, any directory that holds network.keras, or a file.
        network: a built model of the same shape, which gets the weights and is returned; needed where a
            subclassed model can't be rebuilt from its file.

    Raises ValueError if there is no network, or if it needs `network`.
    """
    import keras

    import actor_learner.networks  # noqa: F401 - registers its layers with Keras

    file = network_file(Path(path))
    if network is not None:
        network.load_weights(file)
        return network
    if file.suffix != ".keras":
        raise ValueError(
            "Keras couldn't save this network whole; build it and give it: load_network(path, network=...). "
            f"Received: path={str(path)!r}"
        )
    try:
        return keras.saving.load_model(file, compile=False)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"Keras can't rebuild this network ({reason[:200]}); build it and give it: "
            f"load_network(path, network=...). Received: path={str(path)!r}"
        ) from error


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
    for name in ("network.keras", "network.weights.h5"):
        if (path / name).exists():
            return path / name
    raise ValueError(f"There is no network (network.keras) there. Received: path={str(path)!r}")
