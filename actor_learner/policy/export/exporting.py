"""Exports a Keras network for actors: from the cache of earlier exports, by conversion here, or in another process.

Keras on TensorFlow converts by TensorFlow's converter, Keras on JAX by litert-converter. A helper process with Keras on
TensorFlow converts the network's file where litert-converter is missing, and networks that it can't convert.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import tempfile
import warnings
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

from actor_learner.networks.contract import all_layers, call_network, policy_of, seed_states
from actor_learner.networks.saving import load_network, obstacle, save_network
from actor_learner.policy.export import cache
from actor_learner.policy.export.traced import InexpressibleError
from actor_learner.policy.exported import Conversion, ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.child import NO_GPU, Child, ChildEndedError
from actor_learner.system.fields import check_count
from actor_learner.system.installation import install_command
from actor_learner.system.keras_import import check_installed, import_keras

_logger = logging.getLogger(__name__)
_JAX_CONVERTER = "litert_converter"
CONVERSION_TIMEOUT = 300.0
"""Seconds; on a busy machine, importing TensorFlow takes ten, and converting a large network as many."""


def export_policy(
    network: keras.Model,
    action_space: Space[Any],
    batch_size: int,
    observation_space: Space[Any] | None = None,
    masked: bool = False,
) -> ExportedPolicy:
    """Export a network for a `Policy`, without changing it.

    Of a network with a centralized value, only the policy is exported, if `observation_space` is an agent's own.
    Mixed-precision networks are exported in float32. A graph that LiteRT can't express is exported as a TensorFlow
    graph, with a warning that names the layer.

    Args:
        network: A Keras model that keeps the network contract.
        action_space: Any supported space.
        batch_size: Number of observations of a usual call, at least 1.
        observation_space: Optional if `network.inputs` declares structure, shapes and dtypes.
        masked: True if actions may be masked; without effect if `action_space` has no discrete choice.

    Raises ValueError if the network's outputs or its noise_hold don't fit `action_space`, or without an
    `observation_space` that it needs.
    """
    check_count("batch_size", batch_size)
    has_choices = Spaces(None, action_space).masks.size > 0
    if observation_space is None:
        observation_space = _space_of_inputs(network)
    spaces = Spaces(observation_space, action_space, masked and has_choices)
    return export_network(policy_of(network, spaces.observation), spaces, batch_size)


def export_network(network: keras.Model, spaces: Spaces, batch_size: int) -> ExportedPolicy:
    """Export a network, as `export_policy` does, for known spaces; masked ones must have a discrete choice."""
    if not network.built:
        call_network(network, spaces.observation.zeros(1))
    key = cache.key_of(network, spaces, batch_size)
    here, elsewhere = _own_key(key), key
    for kept in dict.fromkeys((here, elsewhere)):
        if (known := cache.read(kept)) is not None and known.fits(network):
            return known.with_weights(network)
    (exported, fallbacks), is_of_here = _convert(network, spaces, batch_size)
    for fallback in fallbacks:
        slower = "Processes that act by it use TensorFlow, which is many times slower and takes more memory."
        warnings.warn(f"{fallback} {slower}", UserWarning, stacklevel=3)
    cache.write(here if is_of_here else elsewhere, exported)
    return exported


def _own_key(key: str | None) -> str | None:
    """Return the key of what this process converts itself: JAX's converter has one of its own.

    So what TensorFlow acts with doesn't depend on what ran before on JAX.
    """
    if key is None or keras.backend.backend() == "tensorflow" or find_spec(_JAX_CONVERTER) is None:
        return key
    return f"{key}-{_JAX_CONVERTER}-{importlib.metadata.version(_JAX_CONVERTER)}"


def _convert(network: keras.Model, spaces: Spaces, batch_size: int) -> tuple[Conversion, bool]:
    """Convert a network: here (True) if Keras's backend has a converter that can, else in another process."""
    if keras.backend.backend() == "tensorflow":
        from actor_learner.policy.export.litert import convert_network

        return convert_network(network, spaces, batch_size), True
    if find_spec(_JAX_CONVERTER) is not None:
        from actor_learner.policy.export.litert import convert_network

        try:
            return convert_network(network, spaces, batch_size), True
        except InexpressibleError as error:
            check_installed("tensorflow", f"acting with a network that can't be converted on JAX ({error})")
            _logger.info("TensorFlow converts a network in a helper process, which JAX couldn't: %s", error)
    return _convert_elsewhere(network, spaces, batch_size), False


def _convert_elsewhere(network: keras.Model, spaces: Spaces, batch_size: int) -> Conversion:
    """Return a network's conversion by a helper process from the network's file.

    Raises ImportError without TensorFlow, ValueError for a network that Keras can't rebuild from a file there, and
    RuntimeError if the process fails otherwise.
    """
    purpose = "converting this network for actors, which no earlier run has done here,"
    instead = f", or {install_command('actor-learner[jax-export]')}, which converts without it"
    check_installed("tensorflow", purpose, instead)
    with tempfile.TemporaryDirectory(prefix="actor-learner-") as name:
        folder = Path(name)
        if save_network(network, folder).suffix != ".keras":
            raise _cannot_be_rebuilt(network, f"it can't be saved whole, because {obstacle(network)}")
        modules = sorted({type(layer).__module__ for layer in (network, *all_layers(network))})
        environment = {**os.environ, **NO_GPU, "KERAS_BACKEND": "tensorflow"}
        child = Child(f"{__name__}:_main", [folder], name="actor-learner-convert", environment=environment)
        try:
            child.send((modules, spaces.to_json(), batch_size, [np.asarray(one.value) for one in seed_states(network)]))
            fallbacks = child.receive(CONVERSION_TIMEOUT)
        except ChildEndedError as error:
            raise _cannot_be_rebuilt(network, str(error)) from None
        except TimeoutError:
            raise RuntimeError(
                f"Converting network {network.name!r} took more than {CONVERSION_TIMEOUT:g} s."
            ) from None
        finally:
            child.close()
        return Conversion(ExportedPolicy.load(folder / "policy").with_weights(network), fallbacks)


def _cannot_be_rebuilt(network: keras.Model, reason: str) -> ValueError:
    return ValueError(
        "Acting with a network needs its conversion by Keras on TensorFlow, in a process that loads it from a file; "
        f"that failed: {reason}. Received: network={network.name!r}, on {keras.backend.backend()}"
    )


def _main(descriptor: str, name: str) -> None:
    """Convert the network in a folder: the helper's side."""
    connection: Connection[Any, Any] = Connection(int(descriptor))
    modules, spaces, batch_size, seeds = connection.recv()
    import_keras()
    from actor_learner.policy.export.litert import convert_network

    for module in modules:
        if module not in sys.modules:
            importlib.import_module(module)  # registers the user's layers
    network = load_network(name)
    if len(states := seed_states(network)) == len(seeds):  # a layer may have made one that its next build doesn't
        for state, value in zip(states, seeds, strict=True):  # which Keras doesn't save
            state.assign(value.astype(state.dtype))
    conversion = convert_network(network, Spaces.from_json(spaces), batch_size)
    conversion.exported.save(Path(name, "policy"))
    connection.send(conversion.fallbacks)


def _space_of_inputs(network: keras.Model) -> Space[Any]:
    """Return the space of a network's symbolic inputs: dicts and tuples of boxes without bounds."""
    try:
        # A functional model has the nest, any other model that was built by shape has a list.
        return _space_of(network._inputs_struct if hasattr(network, "_inputs_struct") else network.inputs)
    except (AttributeError, TypeError, ValueError):
        expected = "`observation_space` must be given for a network that doesn't declare its inputs"
        raise ValueError(f"{expected}. Received: network={network.name!r}") from None


def _space_of(inputs: Any) -> Space[Any]:
    if isinstance(inputs, dict):
        return Dict([(name, _space_of(part)) for name, part in inputs.items()])
    if isinstance(inputs, (list, tuple)):
        parts = [_space_of(part) for part in inputs]
        return parts[0] if len(parts) == 1 else Tuple(parts)
    dtype, shape = np.dtype(inputs.dtype), tuple(int(size) for size in inputs.shape[1:])
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return Box(low, high, shape, dtype.type)
