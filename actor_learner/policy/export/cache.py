"""A cache of exported policies: a network of a known architecture isn't converted again.

<cache>/actor_learner/policies/<key>/    an exported policy without weights, as `ExportedPolicy.save` writes it

The key is a digest of everything that the graphs depend on: the network's config without initializers, the shapes of
its weights, spaces, batch size, versions, and the source of this package's networks and conversion. A network has no
key if its config doesn't tell what it computes: with code of the user's (a layer, a function, an operation), and with
layers that keep numbers elsewhere (an adapted `Normalization`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from actor_learner.networks.contract import all_layers
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import cache_folder, own_folder

MAX_KEPT = 64
"""Exports of up to some megabytes each; the oldest ones beyond are removed."""

_CACHE = "policies"
_PACKAGES = ("keras", "ai-edge-litert")
_SOURCES = ("networks", "policy", "spaces")
_OPAQUE = {"Lambda", "TFSMLayer", "JaxLayer", "FlaxLayer", "TorchModuleWrapper", "function", "__lambda__"}
_OPAQUE |= {"Normalization", "Discretization", "IntegerLookup", "StringLookup", "TextVectorization"}
"""Classes, as configs name them, whose config doesn't tell what they compute."""
_OWN_MODULES = {f"actor_learner.networks.{name}" for name in ("attention", "layers", "memory", "step")}
"""The modules of this package's layers."""
_NAME_ENTRIES = {"name", "keras_history", "input_layers", "output_layers"}
"""Entries of a config that name layers."""


def key_of(network: keras.Model, spaces: Spaces, batch_size: int) -> str | None:
    """Return the name of a network's folder in the cache; None without a cache, or if it can't be cached."""
    if cache_folder(_CACHE) is None or not all(_is_known(layer) for layer in (network, *all_layers(network))):
        return None
    try:
        config = _normalize_config(keras.saving.serialize_keras_object(network), _layer_numbers(network, spaces))
        description = {
            "config": config,
            "weights": [[list(weight.shape), str(weight.dtype)] for weight in network.weights],
            "spaces": spaces.to_json(),
            "batch_size": batch_size,
            "versions": [importlib.metadata.version(name) for name in _PACKAGES],
            "source": _source_digest(),
        }
        text = json.dumps(description, sort_keys=True, default=np.ndarray.tolist)
    except Exception:  # `get_config` may raise and return anything
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_known(layer: keras.layers.Layer) -> bool:
    """Return whether all code that a layer runs itself is Keras's or this package's."""
    parts = [layer, *getattr(layer, "operations", ())]
    activation = getattr(layer, "activation", None)  # a config leaves out a lambda
    modules = [getattr(activation, "__module__", "keras"), *(type(part).__module__ for part in parts)]
    return all(map(_is_of_keras, modules))


def _is_of_keras(module: str) -> bool:
    """Return whether a module is Keras's or this package's, whose versions and source are in the key."""
    return module.partition(".")[0] in ("keras", "builtins") or module in _OWN_MODULES


def _layer_numbers(network: keras.Model, spaces: Spaces) -> dict[str, str]:
    """Return what stands for the layers' names, which Keras counts on: their numbers, but for inputs of nested leaves.

    Those are matched with the leaves by their names.
    """
    layers = [network, *all_layers(network)]
    keep = () if spaces.observation.plain else keras.layers.InputLayer
    names = dict.fromkeys(layer.name for layer in layers if not isinstance(layer, keep))
    return {name: f"layer {number}" for number, name in enumerate(names)}


def _normalize_config(part: Any, numbers: Mapping[str, str]) -> Any:
    """Return a part of a config without initializers, and with numbers where it names a layer.

    Raises ValueError if it holds code that it doesn't show.
    """
    if isinstance(part, dict):
        if part.get("class_name") in _OPAQUE or not _is_of_keras(str(part.get("module") or "keras")):
            raise ValueError(part["class_name"])
        kept = {name: value for name, value in part.items() if not str(name).endswith("initializer")}
        return {
            name: _number_names(value, numbers) if name in _NAME_ENTRIES else _normalize_config(value, numbers)
            for name, value in kept.items()
        }
    return [_normalize_config(item, numbers) for item in part] if isinstance(part, (list, tuple)) else part


def _number_names(part: Any, numbers: Mapping[str, str]) -> Any:
    """Return a part of a config that names layers, with their numbers."""
    if isinstance(part, (list, tuple)):
        return [_number_names(item, numbers) for item in part]
    if isinstance(part, dict) and "class_name" not in part:
        return {name: _number_names(value, numbers) for name, value in part.items()}
    return numbers.get(part, part) if isinstance(part, str) else _normalize_config(part, numbers)


@functools.cache
def _source_digest() -> str:
    """Return a digest of the code that graphs are made of."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    for file in sorted(file for folder in _SOURCES for file in (package / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read(key: str | None) -> ExportedPolicy | None:
    """Return a cached policy, without weights; None if there is none that can be read."""
    folder = cache_folder(_CACHE)
    if key is None or folder is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        exported = ExportedPolicy.load(own_folder(folder) / key)
        os.utime(folder / key)
        return exported
    return None


def write(key: str | None, exported: ExportedPolicy) -> None:
    """Keep a policy, without its weights; a disk without room keeps none."""
    folder = cache_folder(_CACHE)
    if key is None or folder is None or exported.fallback:
        return
    with contextlib.suppress(OSError):
        own_folder(folder)
        replace(exported, weights=np.zeros(0, np.float32)).save(folder / key)
        entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for entry in entries[:-MAX_KEPT]:
            shutil.rmtree(entry, ignore_errors=True)
