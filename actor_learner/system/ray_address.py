"""The checks of what is said about a Ray cluster, before anything starts."""

from __future__ import annotations

import importlib.metadata
import socket
from typing import Any

from actor_learner.system.fields import refusal

_OLDEST = (2, 55)
_MAX_PORT = 65535
_CONNECT_SECONDS = 5.0
_INSTALL = "pip install 'actor-learner[ray]'"


def check_address(name: str, address: Any) -> str | None:
    """Return the address. Raises ValueError for one that can't be used, and where Ray isn't installed."""
    if address is None:
        return None
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if isinstance(address, str) and address.startswith("ray://"):
        raise ValueError(
            "A Ray client can't start actors; run on a machine of the cluster, by `ray job submit` for example, with "
            f"{name}='auto'. Received: {name}={address!r}"
        )
    if address != "auto" and not (host and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise refusal(name, "'auto' or 'host:port'", address)
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"A cluster needs Ray: {_INSTALL}. Received: {name}={address!r}") from None
    if not _OLDEST <= tuple(int(part) for part in version.split(".")[:2]) < (3,):
        oldest = ".".join(map(str, _OLDEST))
        raise ValueError(f"A cluster needs Ray {oldest} or later, below 3: {_INSTALL}. Received: Ray {version}")
    return str(address)


def check_listens(address: str | None) -> None:
    """Raise RuntimeError where nobody listens at the address of a cluster: Ray would try for a minute."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise RuntimeError(
            f"No Ray cluster answers there ({error}); `--ray none` (ray_address=None) runs without. "
            f"Received: ray_address={address!r}"
        ) from None
