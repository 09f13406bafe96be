"""The checks of a pool's settings: how many environments each actor has, what it reports, where its actors run."""

from __future__ import annotations

import importlib.metadata
import itertools
import socket
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from actor_learner.algorithms.exploration import PROCESSES, Process
from actor_learner.config.references import resolve_recorded
from actor_learner.system.fields import refusal
from actor_learner.system.files import one_line
from actor_learner.system.installation import install_command
from actor_learner.system.machine import require_memory

DEVICES = ("auto", "cpu", "gpu")
"""The devices that a learner computes on."""
ACTING = ("actors", "device")
"""The places where the policy runs: in the actors, or on the learner's device."""

TF32_CAPABILITY = 8
"""The first compute capability of NVIDIA's GPUs with TF32: Ampere's."""
MIN_ACTOR_BYTES = 20_000_000
"""Bytes that an actor needs at least; 24 MB with one CartPole-v1 environment."""
DEFAULT_ENVS_PER_ACTOR = 8
_RAY = "actor-learner[ray]"
_OLDEST_RAY = (2, 55)
_MAX_PORT = 65535
_RAY_CONNECT_SECONDS = 5.0


def check_tf32(device: str) -> None:
    """Raise ValueError for a CPU, which has no TF32. device: A name of `DEVICES`, or one that a backend resolved."""
    if "cpu" in device.lower():
        raise ValueError(
            "TF32 is arithmetic of NVIDIA's GPUs; on a CPU use precision='float32' or 'bfloat16'. "
            f"Received: tf32 on {device}"
        )


def env_counts(num_actors: int, envs_per_actor: int | None, num_envs: int | None, *, equal: bool) -> tuple[int, ...]:
    """Return the number of environments of each actor; there may be fewer actors, which a warning says.

    num_envs: all environments, to be split as evenly as possible; None: `envs_per_actor` for each actor. equal: every
    actor must have as many.

    Raises ValueError if both are given.
    """
    actors = max(num_actors, 1)
    if num_envs is None:
        return (envs_per_actor or DEFAULT_ENVS_PER_ACTOR,) * actors
    if envs_per_actor is not None:
        received = f"num_envs={num_envs}, envs_per_actor={envs_per_actor}"
        raise ValueError(f"`num_envs` and `envs_per_actor` exclude each other. Received: {received}")
    text, received = "", f"num_actors={num_actors}, num_envs={num_envs}"
    if actors > num_envs:
        text = f"{num_envs} environments can keep only {num_envs} actors busy, so only these are started"
        actors = num_envs
    elif equal and num_envs % actors:
        used = num_envs // actors * actors
        text = f"With `asynchronous` all actors have as many environments, so {used} are used"
        num_envs = used
    if text:
        warnings.warn(f"{text}. Received: {received}", UserWarning, stacklevel=5)
    return tuple(num_envs // actors + (actor < num_envs % actors) for actor in range(actors))


def find_exploration(value: Any) -> Process:
    """Return a process of noise by its name, or the one that is given. Raises ValueError if it gives no noise."""
    is_named = isinstance(value, str) and ":" in value
    process = resolve_recorded(value, "exploration") if is_named else PROCESSES.get(str(value), value)
    expected = f"{', '.join(map(repr, PROCESSES))} or a function (generator, size) that yields `size` numbers a step"
    try:
        first = np.asarray(next(iter(process(np.random.default_rng(0), 2))), np.float32)
    except Exception as error:
        reason = f", {type(error).__name__}: {one_line(error)}" if callable(process) else ""
        raise refusal("exploration", f"{expected} (module:function at a shell{reason})", value) from error
    if first.shape != (2,) or not np.isfinite(first).all():
        raise refusal("exploration", f"{expected}, not {first.tolist()} for a size of 2", value)
    return process  # type: ignore[no-any-return]


def check_memory(num_actors: int) -> None:
    """Raise MemoryError if so many actors can't fit into memory, however small they are."""
    what = f"So many actors, of at least {MIN_ACTOR_BYTES / 1e6:.0f} MB each, don't fit"
    require_memory(what, num_actors * MIN_ACTOR_BYTES, f"num_actors={num_actors}", "lower `num_actors`")


def check_shared_envs(devices: int, num_envs: int) -> None:
    """Raise ValueError if devices can't share the environments evenly."""
    if num_envs % devices:
        received = f"devices={devices}, num_envs={num_envs}"
        raise ValueError(f"`devices` must share the environments evenly; change `num_envs`. Received: {received}")


def first_envs(env_counts: Sequence[int]) -> list[int]:
    """Return the number of each actor's first environment, which is that of its first column in lock-step, too."""
    return list(itertools.accumulate(env_counts[:-1], initial=0))


def check_info_keys(value: Any) -> tuple[str, ...]:
    """Return the entries of `info` to report as a tuple of strings."""
    keys = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(isinstance(key, str) for key in keys):
        raise refusal("info_keys", "a sequence of strings", value)
    if {"return", "length"} & set(keys):
        raise refusal("info_keys", "without return and length, which are always reported", keys)
    if any(part.startswith("_") for key in keys for part in key.split("/")):
        raise refusal("info_keys", "without an underscore at the start, as flags have", keys)
    return keys


def check_sequences(sequence_length: int | None, burn_in: int, unroll_length: int, longest: int) -> int:
    """Return the rows of a sequence that a network with memory learns from. Raises ValueError if they don't fit.

    longest: Those where none are asked for.
    """
    length = sequence_length or longest
    if unroll_length % length:
        raise refusal("sequence_length", f"a divisor of `unroll_length`, {unroll_length}", sequence_length)
    if burn_in >= length:
        raise refusal("burn_in", f"below the {length} rows of a sequence", burn_in)
    return length


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
        raise ValueError(f"A cluster needs Ray: {install_command(_RAY)}. Received: {name}={address!r}") from None
    if not _OLDEST_RAY <= tuple(int(part) for part in version.split(".")[:2]) < (3,):
        oldest = ".".join(map(str, _OLDEST_RAY))
        raise ValueError(
            f"A cluster needs Ray {oldest} or later, below 3: {install_command(_RAY)}. Received: Ray {version}"
        )
    return str(address)


def check_listens(address: str | None) -> None:
    """Raise RuntimeError where nobody listens at the address of a cluster: Ray would try for a minute."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_RAY_CONNECT_SECONDS).close()
    except OSError as error:
        raise RuntimeError(
            f"No Ray cluster answers there ({error}); `--ray none` (ray_address=None) runs without. "
            f"Received: ray_address={address!r}"
        ) from None
