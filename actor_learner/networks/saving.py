"""Saves networks to files and loads them again."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.system.files import DamagedError, has_manifest, one_line, read_arrays, read_folder, write_atomically
from actor_learner.system.hub import local_path, newest_of
from actor_learner.system.policies import named_policies
from actor_learner.system.types import Array
from actor_learner.system.untrusted import check_network_file

if TYPE_CHECKING:
    import keras

_NAME = "network"
_SUFFIXES = (".keras", ".weights.h5")
NETWORK_FILES = tuple(f"{_NAME}{suffix}" for suffix in _SUFFIXES)
"""The names of a network's file, one of which a folder has."""
_ARRAYS = "actor_learner.npz"
"""In either file: the arrays of `get_weights()`, where a layer gives Keras others to save."""
_ALPHAS = "lora_alpha"
"""Among these arrays: the scale of each layer's adapters, 0 without any. Keras's `build` forgets it."""
_ADVICE = "build it, and give it as `network=` in Python"
_HDF5_OVERHEAD = 8192  # bytes, more than an array or a group takes beside its contents

_obstacles: weakref.WeakKeyDictionary[keras.Model, str] = weakref.WeakKeyDictionary()
"""For each network that was saved before, why Keras can't load it, or "": another try takes as long as saving."""


def save_network(network: keras.Model, directory: str | os.PathLike[str]) -> Path:
    """Save a network as network.keras, or as network.weights.h5 if Keras can't rebuild it from a file.

    A write that fails, for example on a full disk, leaves the previous file as it was. Returns the file: for
    network.weights.h5, `load_network` needs `network=`.
    """
    return _save(network, Path(directory), write_atomically)


def write_network(network: keras.Model, folder: Path, name: str = _NAME) -> Path:
    """Save a network, as `save_network` does, into a folder that `write_folder_atomically` fills, under a name."""
    return _save(network, folder, lambda file, write: write(file), name)


def check_can_be_saved(network: keras.Model, folder: Path) -> None:
    """Save a network in `folder`, delete it, and warn if only its weights can be saved."""
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as directory:
        whole = save_network(network, directory).suffix == ".keras"
    if not whole:
        text = f"Keras can't rebuild network {network.name!r} from a file ({obstacle(network)}), so its weights alone "
        text += "will be saved: al.load_network(run_dir, network=...) reads them into a network that you build."
        if classes := sorted({type(layer).__qualname__ for layer in network._flatten_layers() if _is_own(layer)}):
            text += f" To be saved whole, {' and '.join(classes)} must be in a module other than the script, have a "
            text += "get_config, and be registered by @keras.saving.register_keras_serializable()."
        warnings.warn(text, UserWarning, stacklevel=2)


def obstacle(network: keras.Model) -> str:
    """Return why a network that was saved can't be saved whole, in one line, or an empty string."""
    return _obstacles.get(network, "")


def load_network(path: str | os.PathLike[str], network: keras.Model | None = None) -> keras.Model:
    """Load the Keras model that a run trained, with this package's custom layers registered.

    Args:
        path: a run directory, "hf://owner/name", a saved learner, any directory that holds network.keras, or a file.
        network: a built model of the same shape, which gets the weights and is returned; needed if Keras can't
            rebuild a subclassed model from its file.

    Raises ValueError if there is no network, if it is damaged, or if `network` is needed.
    """
    folder = local_path(path)
    if folder.is_dir() and has_manifest(folder):
        return network_of(read_folder(folder, f"{_NAME}."), network, path=path)
    return _load(network_file(folder), network, path)


def network_of(
    contents: Mapping[str, bytes],
    network: keras.Model | None = None,
    *,
    path: str | os.PathLike[str],
    name: str = _NAME,
) -> keras.Model:
    """Load a network, as `load_network` does, from the contents of a folder's files; messages name `path`."""
    name = _find_file_name(contents.__contains__, path, name)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / name
        file.write_bytes(contents[name])
        return _load(file, network, path)


def network_file(path: Path) -> Path:
    """Return the file of the network in a directory, or `path` itself if it is a file; else raises ValueError."""
    return path if path.is_file() else path / _find_file_name(lambda name: (path / name).exists(), path)


def _find_file_name(exists: Callable[[str], bool], path: str | os.PathLike[str], name: str = _NAME) -> str:
    if (found := next(filter(exists, _file_names(name)), None)) is None:
        none = f"There is no network ({name}.keras) there; a run writes it when it ends"
        expected = named_policies(Path(path)) or none + newest_of(path)
        raise ValueError(f"{expected}. Received: path={str(path)!r}")
    return found


def _file_names(name: str) -> list[str]:
    return [f"{name}{suffix}" for suffix in _SUFFIXES]


def _load(file: Path, network: keras.Model | None, path: str | os.PathLike[str]) -> keras.Model:
    import keras

    from actor_learner.networks import attention, layers, memory, step  # noqa: F401 - registers classes

    try:
        check_network_file(file)
        arrays = _read_arrays(file)
    except Exception as error:  # zipfile and h5py raise many kinds
        raise DamagedError(f"The network can't be read: {one_line(error)}. Received: path={str(path)!r}") from error
    if network is not None:
        try:
            with _without_optimizer(network):
                network.load_weights(file)
            _set_arrays(network, arrays)
        except Exception as error:
            reason = f"The saved weights don't fit this network ({one_line(error)})"
            raise ValueError(f"{reason}. Received: path={str(path)!r}") from error
        return network
    if file.suffix != ".keras":
        reason = "Only the weights of this network were saved"
        raise ValueError(f"{reason}; {_ADVICE}. Received: path={str(path)!r}")
    try:
        return _set_arrays(keras.saving.load_model(file, compile=False), arrays)
    except Exception as error:  # layers, h5py and TensorFlow raise anything
        reason = f"Keras can't rebuild this network ({one_line(error)})"
        raise ValueError(f"{reason}; {_ADVICE}. Received: path={str(path)!r}") from error


def _save(
    network: keras.Model, folder: Path, put: Callable[[Path, Callable[[Path], object]], object], name: str = _NAME
) -> Path:
    whole, weights = (folder / file for file in _file_names(name))
    if not _obstacles.get(network):
        try:
            put(whole, functools.partial(_write_whole, network))
        except OSError:
            raise
        except Exception as error:  # get_config, from_config and build of a subclassed model may raise anything
            if network in _obstacles:
                raise
            _obstacles[network] = " ".join(str(error).split())[:240] or type(error).__name__
        else:
            _obstacles[network] = ""
            weights.unlink(missing_ok=True)
            return whole
    put(weights, functools.partial(_write_weights, network))
    whole.unlink(missing_ok=True)
    return weights


def _write_whole(network: keras.Model, file: Path) -> None:
    import keras

    with _without_optimizer(network), _temporary_files_in(file.parent):
        keras.saving.save_model(network, file)
    if content := _arrays_content(network):
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(_ARRAYS, content)
    if network not in _obstacles:
        _check_reads_back(network, file)


def _write_weights(network: keras.Model, file: Path) -> None:
    """Reserves the space before it writes: on a full disk, HDF5 may crash the process."""
    import h5py

    content = _arrays_content(network)
    with _without_optimizer(network):
        arrays = [*network.weights, *getattr(getattr(network, "optimizer", None), "variables", ())]
        size = sum(variable.numpy().nbytes for variable in arrays)
        groups = len(arrays) + len(list(network._flatten_layers()))
        with file.open("wb") as stream:
            stream.write(bytes(size + len(content) + _HDF5_OVERHEAD * (groups + 1)))
            stream.flush()
            os.fsync(stream.fileno())
        network.save_weights(file)
    if content:
        with h5py.File(file, "a") as store:
            store[_ARRAYS] = np.frombuffer(content, np.uint8)


def _arrays_content(network: keras.Model) -> bytes:
    """Return the network's arrays as an .npz file, nothing where Keras saves them as they are."""
    if not any(map(_may_save_others, network._flatten_layers())):
        return b""
    stream, arrays = io.BytesIO(), map(np.asarray, network.get_weights())
    alphas = np.array([getattr(layer, _ALPHAS, None) or 0 for layer in network._flatten_layers()])
    # NumPy's files have no bfloat16.
    named = {
        f"arr_{place}": array.astype(np.float32) if array.dtype.kind == "V" else array
        for place, array in enumerate(arrays)
    }
    np.savez(stream, **named | ({_ALPHAS: alphas} if alphas.any() else {}))  # type: ignore[arg-type]
    return stream.getvalue()


def _may_save_others(layer: keras.layers.Layer) -> bool:
    """Return True for a layer whose saved arrays may not be its weights: merged adapters, or methods of its own."""
    methods = type(layer).save_own_variables, type(layer).load_own_variables
    return getattr(layer, "lora_enabled", False) or not all(each.__module__.startswith("keras.") for each in methods)


def _read_arrays(file: Path) -> dict[str, Array]:
    """Return the arrays of `_arrays_content`, none where the file has none."""
    import h5py

    if file.suffix == ".keras":
        with zipfile.ZipFile(file) as archive:
            content = archive.read(_ARRAYS) if _ARRAYS in archive.namelist() else b""
    else:
        with h5py.File(file, "r") as store:
            content = store[_ARRAYS][()].tobytes() if _ARRAYS in store else b""
    return dict(read_arrays(content)) if content else {}


def _set_arrays(network: keras.Model, arrays: Mapping[str, Array]) -> keras.Model:
    """Give a network the arrays, unless its layers have others, such as no adapters."""
    weights = [array for name, array in arrays.items() if name != _ALPHAS]
    if weights and [array.shape for array in weights] == [tuple(weight.shape) for weight in network.weights]:
        network.set_weights(weights)
        for layer, alpha in zip(network._flatten_layers(), arrays.get(_ALPHAS, ()), strict=False):
            if alpha:
                layer.lora_alpha = alpha.item()
    return network


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Make Keras put its folder for assets in `folder`: where it is killed or fails, it leaves the folder behind."""
    previous = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = previous


@contextlib.contextmanager
def _without_optimizer(network: keras.Model) -> Iterator[None]:
    """Detaches a learner's optimizer: it has its own file, and Keras would warn about weights without one."""
    optimizer = getattr(network, "optimizer", None)
    detach = optimizer is not None and not network.compiled
    if detach:
        network.optimizer = None
    try:
        yield
    finally:
        if detach:
            network.optimizer = optimizer


def _check_reads_back(network: keras.Model, file: Path) -> None:
    """Raise ValueError if a copy from the file differs, or if only this script could load it."""
    import keras

    loaded = _set_arrays(keras.saving.load_model(file, compile=False), _read_arrays(file))
    before, after = network.get_weights(), loaded.get_weights()
    same = len(before) == len(after) and all(map(functools.partial(np.array_equal, equal_nan=True), before, after))
    if not same:
        raise ValueError("a copy from the file has other weights")
    if _outputs_differ(network, loaded):
        raise ValueError("a copy from the file has the same weights and other outputs")
    if "__main__" in {type(layer).__module__ for layer in network._flatten_layers()}:
        raise ValueError("only this script could load it")


def _outputs_differ(network: keras.Model, copy: keras.Model) -> bool:
    """Return True if a network and its copy give different outputs for rows drawn at random.

    False if the network doesn't say what it takes, or takes no such rows.
    """
    import keras

    from actor_learner.networks.contract import seed_states

    generator = np.random.default_rng(0)

    def draw(tensor: Any) -> Array:
        rows = generator.normal(size=[2, *(size or 1 for size in tensor.shape[1:])])
        return (rows if keras.backend.is_float_dtype(tensor.dtype) else rows > 0).astype(tensor.dtype)

    found = []
    try:
        inputs = getattr(network, "_inputs_struct", None)
        if inputs is None:
            inputs = keras.KerasTensor(network.get_build_config()["input_shape"])
        rows = keras.tree.map_structure(draw, inputs)
        values = [state.value for state in seed_states(network)]
        for model in (network, copy):
            with keras.StatelessScope(list(zip(seed_states(model), values, strict=True))):
                found.append([np.asarray(output) for output in keras.tree.flatten(model(rows, training=False))])
    except Exception:  # layers raise anything for numbers that aren't observations
        return False
    return not all(np.allclose(a, b, 1e-4, 1e-5, equal_nan=True) for a, b in zip(*found, strict=True))


def _is_own(layer: keras.layers.Layer) -> bool:
    """Return True for a layer of the user's own class."""
    return type(layer).__module__.partition(".")[0] not in ("keras", "actor_learner")
