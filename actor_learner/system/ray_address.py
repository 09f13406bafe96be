"""The checks of what is said about a Ray cluster, before anything starts."""

from __future__ import annotations

import importlib.metadata
import socket
from typing import Any

from actor_learner.system.fields import check_count, check_number, refusal

_OLDEST = (2, 55)
_MOST_PORT = 65535
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
    if address != "auto" and not (host and port.isdecimal() and 0 < int(port) <= _MOST_PORT):
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


def check_cluster(ray_address: Any, actors_per_host: Any, ray_wait: Any, *, num_actors: int, acting: str) -> None:
    """Raise ValueError for options of a cluster that can't be used, or that have none."""
    check_address("ray_address", ray_address)
    check_count("actors_per_host", actors_per_host, 1, optional=True)
    check_number("ray_wait", ray_wait, least=0, optional=True)
    if ray_address is None:
        for name, value in {"actors_per_host": actors_per_host, "ray_wait": ray_wait}.items():
            if value is not None:
                raise ValueError(f"`{name}` needs `ray_address` (--ray ADDRESS). Received: {name}={value!r}")
        return
    if not num_actors:
        raise ValueError(
            f"A cluster needs actors: num_actors of at least 1. Received: ray_address={ray_address!r}, num_actors=0"
        )
    if acting == "device":
        raise ValueError(
            "acting='device' needs all actors on the learner's machine. "
            f"Received: acting='device', ray_address={ray_address!r}"
        )
