"""The conversion of a network in another process, where Keras runs on TensorFlow."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras

from actor_learner.networks.contract import all_layers
from actor_learner.networks.saving import obstacle, save_network
from actor_learner.policy.exported import Conversion, ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.child import NO_GPU, Child, ChildEndedError
from actor_learner.system.installation import install_command
from actor_learner.system.keras_import import check_installed, import_keras

CONVERSION_TIMEOUT = 300.0
"""Seconds; on a busy machine, importing TensorFlow takes ten, and converting a large network as many."""


def convert_elsewhere(network: keras.Model, spaces: Spaces, batch_size: int) -> Conversion:
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
            child.send((modules, spaces.to_json(), batch_size))
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
    modules, spaces, batch_size = connection.recv()
    import_keras()
    from actor_learner.networks.saving import load_network
    from actor_learner.policy.export.litert import convert_network

    for module in modules:
        if module not in sys.modules:
            importlib.import_module(module)  # registers the user's layers
    conversion = convert_network(load_network(name), Spaces.from_json(spaces), batch_size)
    conversion.exported.save(Path(name, "policy"))
    connection.send(conversion.fallbacks)
