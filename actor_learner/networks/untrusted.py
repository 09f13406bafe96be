"""Looks through a network's file before Keras does: one of a stranger may name code to run, and files to read.

Keras refuses Python lambdas, imports nothing but itself, and looks further classes up among those that are registered.
What else there is to refuse, some of the versions that this package runs with still let through.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_MODULES = (
    "activations constraints dtype_policies initializers layers losses metrics models ops optimizers quantizers "
    "random regularizers"
).split()
"""Of Keras: what a network may be made of. The others load files, or change how Keras itself works."""

_LAYERS_THAT_LOAD = ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper")
"""They run programs that stand in their configuration, or in a file that it names."""


def check_network_file(file: Path) -> None:
    """Raises ValueError, among others, for a damaged .keras file, and for what a network has no need to name.

    file: network.keras, each part of which is compared with its checksum, or network.weights.h5, which has none.
    """
    if file.suffix != ".keras":
        _check_weights(file)
        return
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged[:100]!r} in it isn't what was written")
        for name in archive.namelist():
            if name.endswith(".json"):
                _check_config(json.loads(archive.read(name)))
            elif name.endswith(".h5"):
                with archive.open(name) as weights:
                    _check_weights(weights)


def _check_config(config: Any) -> None:
    for item in _dicts(config):
        name, module = item.get("class_name"), item.get("module")
        if name in _LAYERS_THAT_LOAD:
            raise ValueError(f"it has a {name}, which could run anything")
        package, _, path = str(module).partition(".")
        if package == "keras" and path and path.removeprefix("src.").split(".")[0] not in _MODULES:
            raise ValueError(f"it names {str(module)[:100]}.{str(name)[:100]}, which is no part of a network")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict in a nested value of JSON."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _check_weights(file: Path | IO[bytes]) -> None:
    """Raises ValueError for an HDF5 file that takes arrays from other files, which it may name freely."""
    import h5py

    def leading_out(name: str, item: Any) -> str | None:
        """The name, which ends the visit, if a link or an array stands for something in another file."""
        if isinstance(item, h5py.Dataset):
            return name if item.external or item.is_virtual else None
        return name if isinstance(item, h5py.ExternalLink) else None

    with h5py.File(file, "r") as weights:
        name = weights.visititems_links(leading_out) or weights.visititems(leading_out)
    if name is not None:
        raise ValueError(f"{str(name)[:100]!r} in it leads to another file")
