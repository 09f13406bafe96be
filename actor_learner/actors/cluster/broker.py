"""The broker: a process that talks to Ray, which ends whoever called `ray.init` once the cluster's head is gone."""

from __future__ import annotations

import contextlib
import platform
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol, cast

from actor_learner.actors.cluster.host import NodeHost
from actor_learner.actors.cluster.shares import Node
from actor_learner.config.pool_checks import check_listens
from actor_learner.system.child import Child, ChildEndedError

PROGRAM = "actor_learner.actors.cluster.broker:main"
_NODES_SECONDS = 1.0  # the interval in which the machines are looked for
_SILENT_SECONDS = 20.0  # the silence after which the cluster counts as gone: the broker names its machines each second
_START_POLL_SECONDS, _MESSAGE_POLL_SECONDS = 0.5, 0.1


class Cluster(Protocol):
    """Machines on which hosts can be started. Methods may be called from several threads."""

    def nodes(self) -> Sequence[Node]:
        """Return the machines that are there."""

    def start(self, host: int, content: bytes, cpus: int, node: str | None) -> dict[str, Any] | None:
        """Start a host on a machine (None: the first one that has so many free CPUs); return where it listens.

        Returns None if it was ended meanwhile.
        """

    def end(self, host: int) -> None:
        """End a host, or give up its start."""

    def reserve(self, cpus: int) -> None:
        """Keep these CPUs of the learner's own machine from others."""


class Broker:
    """Passes on to a cluster what the learner asks for, until the learner is gone.

    The learner sends ("start", host, content, cpus, node), ("end", host) and ("reserve", cpus); it gets ("nodes",
    nodes), ("started", host, place) or ("failed", host, text), and ("error", text) once the cluster is gone.
    """

    def __init__(self, connection: Connection, cluster: Cluster) -> None:
        self._connection, self._cluster = connection, cluster
        self._lock = threading.Lock()

    def run(self) -> None:
        threading.Thread(target=self._report_nodes, daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while True:
                request, *arguments = self._connection.recv()
                serve = self._start if request == "start" else getattr(self._cluster, request)
                threading.Thread(target=serve, args=arguments, daemon=True).start()

    def _start(self, host: int, *arguments: Any) -> None:
        try:
            place = self._cluster.start(host, *arguments)
        except Exception as error:
            self._send("failed", host, _last_line(error))
        else:
            if place is not None:
                self._send("started", host, place)

    def _report_nodes(self) -> None:
        while True:
            try:
                nodes = list(self._cluster.nodes())
            except Exception as error:
                self._send("error", _last_line(error))
                return
            self._send("nodes", nodes)
            time.sleep(_NODES_SECONDS)

    def _send(self, *message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(message)


class RayCluster:
    """A Ray cluster. Each host is an actor of Ray's, which Ray never restarts. Raises RuntimeError in one line."""

    def __init__(self, address: str) -> None:
        check_listens(address)
        import ray
        import ray._private.state

        self._ray: Any = ray
        self._state: Any = ray._private.state  # no public function says what is free on each machine
        try:
            ray.init(address, log_to_driver=False, configure_logging=False, include_dashboard=False)
        except Exception as error:
            raise RuntimeError(f"Ray at {address}: {_last_line(error)}") from error
        self._own = ray.get_runtime_context().get_node_id()
        self._actors: dict[int, Any] = {}
        self._ended: set[int] = set()
        self._lock = threading.Lock()

    def nodes(self) -> list[Node]:
        free = self._state.available_resources_per_node()
        nodes = []
        for node in self._ray.nodes():
            if node["Alive"]:
                identity, cpus = node["NodeID"], node["Resources"].get("CPU", 0.0)
                left = free.get(identity, {}).get("CPU", 0.0)
                name, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
                nodes.append(Node(identity, name, address, cpus, left, identity == self._own))
        return nodes

    def start(self, host: int, content: bytes, cpus: int, node: str | None) -> dict[str, Any] | None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": strategy}
        actor = self._ray.remote(RayHost).options(**options).remote(content)
        with self._lock:
            self._actors[host] = actor
        place = actor.listen.remote()
        while True:
            with self._lock:
                if host in self._ended:
                    self._ray.kill(actor)  # `end` may have come before it was known
                    return None
            if self._ray.wait([place], timeout=_START_POLL_SECONDS)[0]:
                return dict(self._ray.get(place, timeout=_START_POLL_SECONDS))

    def end(self, host: int) -> None:
        with self._lock:
            self._ended.add(host)
            actor = self._actors.pop(host, None)
        if actor is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def reserve(self, cpus: int) -> None:
        own = next(node for node in self.nodes() if node.own)
        bundle = {"CPU": cpus, f"node:{own.address}": 0.001}  # a resource that no other machine has
        self._reserved = self._ray.util.placement_group([bundle])


class RayHost:
    """A host in a process of Ray's."""

    def __init__(self, content: bytes) -> None:
        self._host = NodeHost(content)

    def listen(self) -> dict[str, Any]:
        """Return where the learner finds the host."""
        from ray import util

        address: str = cast(Any, util).get_node_ip_address()
        return {"name": platform.node(), "address": address, **self._host.listen(address)}


class BrokerProcess:
    """The learner's side: the broker's process and the connection to it. It ends with the thread that starts it.

    Raises RuntimeError in one line where the cluster is gone, or can't be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._child: Child | None = None
        self._sender: threading.Thread | None = None
        self._outbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._last_heard = 0.0

    def start(self) -> None:
        self._child = Child(PROGRAM, [self._address], name="cluster-broker")
        self._last_heard = time.monotonic()
        self._sender = threading.Thread(target=self._send, args=(self._child,), name="to-broker", daemon=True)
        self._sender.start()

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """Yield what the broker says (see `Broker`), for a short while."""
        assert self._child is not None
        with contextlib.suppress(TimeoutError):
            while True:
                try:
                    message = self._child.receive(_MESSAGE_POLL_SECONDS)
                except ChildEndedError as error:
                    text = f"Ray at {self._address} is gone: the process that talks to it ended: {error}"
                    raise RuntimeError(text) from None
                self._last_heard = time.monotonic()
                if message[0] == "error":
                    raise RuntimeError(message[1])
                yield message
        if time.monotonic() - self._last_heard > _SILENT_SECONDS:
            raise RuntimeError(
                f"Ray at {self._address} has not answered for {_SILENT_SECONDS:g} s; perhaps its head is gone"
            )

    def send(self, *message: Any) -> None:
        """Send a request soon; does nothing where the broker has ended, which is noticed elsewhere. From any thread."""
        self._outbox.put(message)

    def _send(self, child: Child) -> None:
        with contextlib.suppress(OSError):
            while message := self._outbox.get():
                child.connection.send(message)

    def close(self, deadline: float) -> None:
        """End the process, at the latest soon after `deadline`, by `time.monotonic`."""
        self._outbox.put(())
        if self._sender is not None:  # a connection that is closed in the middle of `send` raises a TypeError there
            self._sender.join(max(0.1, deadline - time.monotonic()))
        if self._child is not None:
            self._child.close(max(0.1, deadline - time.monotonic()))


def _last_line(error: BaseException) -> str:
    """Return the last line of an error that Ray passes on, which holds the original exception."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def main(descriptor: str, address: str) -> None:
    """Run the broker. descriptor: number of the connection to the learner."""
    connection = Connection(int(descriptor))
    try:
        cluster = RayCluster(address)
    except Exception as error:
        connection.send(("error", str(error)))
        return
    Broker(connection, cluster).run()
