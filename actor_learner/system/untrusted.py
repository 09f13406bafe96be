"""Checks files from untrusted sources before a library reads them. This docstring is the threat model.

Anyone may have written a run directory, checkpoint, policy, trajectory or network. Reading one runs no code from it and
opens no file outside it:

- Bytes: `system.files` opens plain files only, follows no link, unpickles nothing, and compares each file with the
  manifest. A manifest shows damage, but proves no origin. Parsers may fail in any way; their callers turn every
  exception into a `DamagedError` of one line.
- Networks: Keras refuses Python lambdas, imports only its own modules, and looks up other classes among the registered
  ones. `check_network_file` refuses what some supported versions of Keras still let through.
- Graphs: TensorFlow graphs can read and write files. `check_graph` refuses operations that do more than compute.
- Text: `reports` escapes it before a terminal or a browser shows it.

A config file can name code, as flags can: `--resume` and `evaluate` import the environment that a run's config.json
names, and functions in its arguments. Only Python's own modules (`os:system`) are refused there.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_KERAS_MODULES = (
    "activations constraints dtype_policies initializers layers losses metrics models ops optimizers quantizers "
    "random regularizers"
).split()
"""The modules that a network consists of. Others load files or change how Keras works."""

_LOADING_LAYERS = ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper")
"""Layers that run a program from their configuration or from a file that it names."""

_IN_MEMORY = ("Assert", "Case", "If", "Random", "StatefulPartitionedCall", "TensorArray", "TruncatedNormal", "While")
"""Names of stateful operations that only compute begin with one of these."""
_OUTSIDE = ("Dataset", "Debug", "File", "Proto", "PyFunc", "Reader", "Remote", "XlaC", "XlaLaunch")
"""Names of operations that reach beyond the graph contain one of these."""


def check_network_file(file: Path) -> None:
    """Raise ValueError, or any error of zipfile, json and h5py, for a damaged or hostile network file.

    The parts of network.keras have checksums; network.weights.h5 has none.
    """
    if file.suffix != ".keras":
        _check_weights(file)
        return
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged[:100]!r} in it differs")
        for name in archive.namelist():
            if name.endswith(".json"):
                _check_config(json.loads(archive.read(name)))
            elif name.endswith(".h5"):
                with archive.open(name) as weights:
                    _check_weights(weights)


def check_graph(definition: Any) -> None:
    """Raise ValueError if a TensorFlow GraphDef has an operation that does more than compute."""
    from tensorflow.python.framework import op_def_registry

    functions = definition.library.function
    used = {node.op for nodes in (definition.node, *(each.node_def for each in functions)) for node in nodes}
    for name in sorted(used - {function.signature.name for function in functions}):
        known = op_def_registry.get(name)
        stateful = known is None or known.is_stateful
        if (stateful and not name.startswith(_IN_MEMORY)) or any(word in name for word in _OUTSIDE):
            raise ValueError(f"its graph has the operation {name[:100]}, which does more than compute")


def _check_config(config: Any) -> None:
    for item in _dicts(config):
        name, module = item.get("class_name"), item.get("module")
        if name in _LOADING_LAYERS:
            raise ValueError(f"it has a {name}, which could run any program")
        package, _, path = str(module).partition(".")
        if package == "keras" and path and path.removeprefix("src.").split(".")[0] not in _KERAS_MODULES:
            raise ValueError(f"it names {str(module)[:100]}.{str(name)[:100]}, which is no part of a network")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _check_weights(file: Path | IO[bytes]) -> None:
    """Raise ValueError for an HDF5 file that takes arrays from other files."""
    import h5py

    def find_outside(name: str, item: Any) -> str | None:
        """Return the name of a link or array that lies in another file, which ends the visit."""
        if isinstance(item, h5py.Dataset):
            return name if item.external or item.is_virtual else None
        return name if isinstance(item, h5py.ExternalLink) else None

    with h5py.File(file, "r") as weights:
        name = weights.visititems_links(find_outside) or weights.visititems(find_outside)
    if name is not None:
        raise ValueError(f"{str(name)[:100]!r} in it leads to another file")
