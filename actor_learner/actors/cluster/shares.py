"""The division of actors among the machines of a cluster, and their hosts: which starts where, which replaces which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actor_learner.actors.cluster.link import HostLink

HOME_SECONDS = 1.5  # how long the actors of a lost host wait for CPUs of their own before they share another host's
MAX_RETRY_SECONDS = 60.0  # the longest time between two attempts to start a host with CPUs of its own
SHARED_CPUS_SECONDS = 10.0  # how long they wait for that one before they try a third one
LOSSES_IN_A_ROW = 3  # hosts that one share loses, without a finished unroll between, until it is given up
FAILED_FIRST_STARTS, FAILED_STARTS = 3, 10  # the same for hosts that can't be started: when the pool begins, and later


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


class Loss(NamedTuple):
    """The loss of a host whose actors no other one has taken over yet."""

    host: str
    text: str
    since: float


@dataclass
class HostShare:
    """Actors that one host runs."""

    actors: range
    node: str | None  # the machine that they were placed on; None: any that has enough CPUs
    link: HostLink | None = None  # the host that runs them
    starting: dict[int, HostLink] = field(default_factory=dict)  # hosts that are being started for them, by number
    loss: Loss | None = None
    losses: int = 0  # in a row
    failures: int = 0  # of starts, in a row
    failed_on: set[str | None] = field(default_factory=set)  # the machines of these
    home_at: float | None = None  # the time to ask for CPUs of its own
    shared_cpus_at: float | None = None  # the time from which on CPUs that others use will do

    @property
    def waits(self) -> bool:
        """True where another host may run the actors until there are CPUs of their own."""
        return self.node is None or self.loss is not None or self.link is not None

    @property
    def label(self) -> str:
        first, last = self.actors[0], self.actors[-1]
        return f"actor {first}" if first == last else f"actors {first} to {last}"


class Shares:
    """Finds a host for each share. Its methods are called with the group's lock held.

    start: Has a host started for a share on so many CPUs (0: beside others) of a machine (None: of any). end: ends one.
    """

    def __init__(
        self, start: Callable[[HostShare, HostLink, int, str | None], None], end: Callable[[int], None]
    ) -> None:
        self.all: list[HostShare] = []
        self.nodes: Sequence[Node] = ()
        self.began = False  # True once all shares had a host
        self._start, self._end = start, end
        self._hosts = 0  # so far: the next one's number
        self._owners: dict[int, HostShare] = {}

    def add(self, actors: range, node: str | None) -> None:
        """Add a share and have its host started. node: None: no machine has the CPUs; it doesn't wait for them."""
        now = time.monotonic()
        share = HostShare(actors, node)
        self.all.append(share)
        self._owners.update(dict.fromkeys(actors, share))
        if node is None:
            share.home_at = share.shared_cpus_at = now
        else:
            self._request(share, len(actors), node)
            share.shared_cpus_at = now + SHARED_CPUS_SECONDS  # something else may have taken the CPUs meanwhile

    def of(self, actor: int) -> HostShare | None:
        """Return the share of an actor; None if it runs on the learner's own machine."""
        return self._owners.get(actor)

    def starting(self, host: int) -> HostLink | None:
        """Return the host of this number while it is being started."""
        return next((share.starting[host] for share in self.all if host in share.starting), None)

    def links(self) -> Iterator[HostLink]:
        """Yield all hosts, those that are being started included."""
        for share in self.all:
            yield from ([share.link] if share.link is not None else [])
            yield from share.starting.values()

    def share_of(self, link: HostLink) -> HostShare:
        return self.all[link.share]

    def is_needed(self, link: HostLink) -> bool:
        """Return whether to adopt a host that is ready; end it if another one came before it."""
        share = self.share_of(link)
        needed = link.number in share.starting and (link.home or share.link is None)
        if not needed:
            share.starting.pop(link.number, None)
            self._dismiss(link, "isn't needed any more")
        return needed

    def adopt(self, link: HostLink) -> HostShare:
        """Give a host that is ready its share. A host without CPUs of its own goes once there is one with them."""
        share = self.share_of(link)
        share.starting.pop(link.number, None)
        share.failures = 0
        share.failed_on.clear()
        earlier, share.link = share.link, link
        if earlier is not None:
            self._dismiss(earlier, "gave its actors to a host with CPUs of their own")
        share.shared_cpus_at = None
        if link.home:
            share.home_at = None
        for other in list(share.starting.values()):
            if link.home or not other.home:
                del share.starting[other.number]
                self._dismiss(other, "isn't needed any more")
        return share

    def _dismiss(self, link: HostLink, reason: str) -> None:
        link.end(reason)
        self._end(link.number)

    def lose(self, link: HostLink, reason: str) -> str | None:
        """Replace a host that is gone or can't be started. Returns what to tell if there were too many in a row."""
        share = self.share_of(link)
        had_actors = share.link is link
        if share.starting.pop(link.number, None) is None and not had_actors:
            return None  # it was dismissed
        now, text = time.monotonic(), f"Host {link.name}, with {share.label}, {reason}"
        if had_actors:
            share.link, share.loss = None, Loss(link.name, text, now)
            share.losses += 1
            share.home_at, share.shared_cpus_at = now, now + HOME_SECONDS
        else:
            share.failures += 1
            share.failed_on.add(link.machine)
            if link.home:
                share.home_at = now + min(share.failures * HOME_SECONDS, MAX_RETRY_SECONDS)
            elif share.link is None:
                share.shared_cpus_at = now
        if share.losses >= LOSSES_IN_A_ROW:
            return f"{text}, after {share.losses - 1} others that filled no columns either"
        if share.link is None and share.failures >= (FAILED_STARTS if self.began else FAILED_FIRST_STARTS):
            return f"{text}, after {share.failures - 1} others"
        return None

    def start_where_due(self) -> None:
        """Start the hosts whose time has come: with CPUs of their own, or beside others."""
        now = time.monotonic()
        for share in self.all:
            if share.home_at is not None and share.home_at <= now and not (share.node is None and self._is_placing()):
                share.home_at = None
                if not any(other.home for other in share.starting.values()):
                    self._request(share, len(share.actors), None)
            if share.shared_cpus_at is not None and share.shared_cpus_at <= now:
                share.shared_cpus_at = None
                if share.link is None and (node := self._other_machine(share)) is not None:
                    self._request(share, 0, node)
                    share.shared_cpus_at = now + SHARED_CPUS_SECONDS

    def _is_placing(self) -> bool:
        """Return whether a host is still being started on a machine that was chosen for it, with CPUs to spare."""
        return any(share.node is not None and share.link is None and not share.failures for share in self.all)

    def _other_machine(self, share: HostShare) -> str | None:
        """Return a machine for a share: one where a host runs, rather than the one whose host may just be lost."""
        used = {other.link.name for other in self.all if other is not share and other.link is not None}
        lost = share.loss.host if share.loss is not None else None
        asked = {other.machine for other in share.starting.values()}

        def merit(node: Node) -> tuple[bool, ...]:
            return node.id in asked, node.id in share.failed_on, node.name == lost, node.name not in used, node.own

        return min(self.nodes, key=merit).id if self.nodes else None

    def _request(self, share: HostShare, cpus: int, node: str | None) -> None:
        number, self._hosts = self._hosts, self._hosts + 1
        link = share.starting[number] = HostLink(number, self.all.index(share), cpus > 0, node)
        self._start(share, link, cpus, node)


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


def reservable(nodes: Sequence[Node], num_actors: int, actors_per_host: int | None, wanted: int) -> int:
    """Return the CPUs to leave to the learner: those that it wants, or none if only then each actor has a CPU."""

    def fit(reserved: int) -> bool:
        places = divide(nodes, num_actors, actors_per_host, reserved)
        return all(place.node is not None for place in places)

    return 0 if fit(0) and not fit(wanted) else wanted


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
