"""The division of actors among the machines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A machine of the cluster."""

    id: str
    name: str
    address: str
    cpus: float
    free: float  # CPUs that nothing has reserved
    own: bool = False  # True for the learner's own machine


class Placement(NamedTuple):
    """Actors that run on one machine."""

    actors: range
    node: str | None  # the machine's id; None: none has as many free CPUs
    own: bool = False  # True on the learner's own machine


def divide(nodes: Sequence[Node], num_actors: int, actors_per_host: int | None, reserved: int) -> list[Placement]:
    """Return the places of `num_actors` actors, those on the learner's own machine first.

    actors_per_host: Actors of each place but the last one; None: as many as a machine has free CPUs. reserved: CPUs of
    the learner's own machine that are left to the learner.
    """
    placements, first = [], 0
    for node in sorted(nodes, key=lambda node: (not node.own, -node.free, node.name)):
        free = int(node.free) - (reserved if node.own else 0)
        count = min(free if actors_per_host is None else actors_per_host, num_actors - first)
        if 0 < count <= free:
            placements.append(Placement(range(first, first + count), node.id, node.own))
            first += count
    largest = actors_per_host or max((int(node.cpus) for node in nodes), default=0) or num_actors - first
    starts = range(first, num_actors, max(largest, 1))
    return placements + [Placement(range(start, min(start + largest, num_actors)), None) for start in starts]


def describe_room(nodes: Sequence[Node], actors_per_host: int | None, reserved: int) -> str:
    """Return what the machines have for actors, for a message."""
    free = sum(int(node.free) for node in nodes)
    text = f"{free} CPU{_plural(free)} {'are' if free != 1 else 'is'} free"
    text += f" on the cluster's {len(nodes)} machine{_plural(len(nodes))}"
    if reserved and any(node.own for node in nodes):
        text += f", {reserved} of them for the learner"
    if actors_per_host is not None:
        text += f", and `actors_per_host` gives each machine {actors_per_host}"
    return text


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
