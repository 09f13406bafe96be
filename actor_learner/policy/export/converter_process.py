"""The conversion of a network in another process, where Keras runs on TensorFlow."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras

from actor_learner.networks.contract import all_layers
from actor_learner.networks.saving import save_network
from actor_learner.policy.exported import Conversion, ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.child import start_python
from actor_learner.system.keras_import import check_installed, import_keras

DEADLINE = 300.0
"""Seconds; on a busy machine, importing TensorFlow takes ten, and converting a large network as many."""


def convert_elsewhere(network: keras.Model, spaces: Spaces, batch_size: int) -> Conversion:
    """Return a network's conversion by a helper process from the network's file.

    Raises ImportError without TensorFlow, ValueError for a network that Keras can't rebuild from a file there, and
    RuntimeError if the process fails otherwise.
    """
    purpose = "converting this network for actors, which no earlier run has done here,"
    check_installed("tensorflow", purpose, ", or pip install 'actor-learner[jax-export]', which converts without it")
    with tempfile.TemporaryDirectory(prefix="actor-learner-") as name:
        folder = Path(name)
        if save_network(network, folder).suffix != ".keras":
            raise _cannot_be_rebuilt(network, "it can't be saved whole")
        modules = sorted({type(layer).__module__ for layer in (network, *all_layers(network))})
        request = {"modules": modules, "spaces": spaces.to_json(), "batch_size": batch_size}
        (folder / "request.json").write_text(json.dumps(request))
        with (folder / "errors").open("wb") as errors:
            environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
            process = start_python(
                f"{__name__}:_main", [folder], name="actor-learner-convert", environment=environment, stderr=errors
            )
            try:
                code = process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"Converting network {network.name!r} took more than {DEADLINE:g} s.") from None
            finally:
                process.kill()
                process.wait()
        if (folder / "policy").is_dir():
            exported = ExportedPolicy.load(folder / "policy").with_weights(network)
            return Conversion(exported, json.loads((folder / "fallbacks.json").read_text()))
        lines = (folder / "errors").read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise _cannot_be_rebuilt(network, lines[-1])


def _cannot_be_rebuilt(network: keras.Model, reason: str) -> ValueError:
    return ValueError(
        "Acting with a network needs its conversion by Keras on TensorFlow, in a process that loads it from a file; "
        f"that failed: {reason}. Received: network={network.name!r}, on {keras.backend.backend()}"
    )


def _main(name: str) -> None:
    """Convert the network in a folder: the helper's side."""
    folder = Path(name)
    request = json.loads((folder / "request.json").read_text())
    import_keras()
    from actor_learner.networks.saving import load_network
    from actor_learner.policy.export.litert import convert_network

    for module in request["modules"]:
        if module not in sys.modules:
            importlib.import_module(module)  # registers the user's layers
    spaces = Spaces.from_json(request["spaces"])
    conversion = convert_network(load_network(folder), spaces, request["batch_size"])
    (folder / "fallbacks.json").write_text(json.dumps(conversion.fallbacks))
    conversion.exported.save(folder / "policy")
