"""A host as the learner sees it: its connection, with a thread for each direction."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from actor_learner.actors.cluster import wire
from actor_learner.actors.cluster.wire import BEAT_SECONDS, Buffer, Connection, Frame, Kind, WireError
from actor_learner.actors.transport.messages import Assignment


class Place(NamedTuple):
    """Where a host listens."""

    name: str
    address: str
    port: int
    pid: int
    identity: dict[str, str]


class Listener(Protocol):
    """The receiver of what a host sends. Its methods are called in the thread of the host's link."""

    def receive(self, link: HostLink, frame: Frame) -> None:
        """Read what follows a frame of any kind but BEAT."""

    def lost(self, link: HostLink, reason: str) -> None:
        """Learn that the connection is closed. Nothing comes after it."""


class HostLink:
    """A host and the actors that it runs. Frames are sent in the order of `post`, by a thread of their own.

    home: True where the host has CPUs of its own for its actors. machine: where it was asked for; None: anywhere.
    """

    def __init__(self, number: int, share: int, home: bool, machine: str | None) -> None:
        self.number, self.share, self.home, self.machine = number, share, home, machine
        self.name, self.pid = f"number {number}", 0
        self.connection: Connection | None = None
        self.version = 0  # of the weights that were sent last
        self.calls = 0  # calls of environments' methods that were sent
        self.receiving = 0.0  # seconds spent on receiving columns
        self._staging = bytearray()
        self._reason = ""
        self.writing = threading.Lock()  # held while columns are written into the batch
        self._ended = threading.Event()  # nothing is received any more
        self._outbox: queue.SimpleQueue[tuple[Frame, Callable[[], tuple[Buffer, ...]]] | None] = queue.SimpleQueue()

    def open(self, place: Place, token: bytes, listener: Listener) -> None:
        """Connect, and start the threads."""
        self.name, self.pid = place.name, place.pid
        arguments = place, token, listener
        threading.Thread(target=self._receive, args=arguments, name=f"from-{place.name}", daemon=True).start()

    @property
    def received(self) -> int:
        """The number of bytes so far."""
        return 0 if self.connection is None else self.connection.bytes_received

    def post(self, frame: Frame, content: Callable[[], tuple[Buffer, ...]] = tuple) -> None:
        """Send a frame soon; `content` returns what follows it, in the thread that sends."""
        self._outbox.put((frame, content))

    def post_weights(self, assignment: Assignment, read: Callable[[int], Any]) -> None:
        """Send the weights of an assignment unless they were the last ones sent; `read` returns those of a slot."""
        if assignment.version != self.version:
            self.version = assignment.version
            self.post(Frame(Kind.WEIGHTS), lambda: (memoryview(read(assignment.slot)),))

    def read_columns(self, frame: Frame, largest: int) -> memoryview:
        """Return the columns that follow a frame, which live until the next call. Raises OSError."""
        assert self.connection is not None
        began = time.perf_counter()
        if len(self._staging) < largest:
            self._staging = bytearray(largest)
        if frame.size > largest:
            raise WireError(f"Columns are too large. Received: {frame.size} bytes, at most {largest} are expected")
        content = memoryview(self._staging)[: frame.size]
        self.connection.read_into(content)
        self.receiving += time.perf_counter() - began
        return content

    def end(self, reason: str) -> None:
        """Close the connection, so that nothing of this host is taken from here on; the first reason counts."""
        self._reason = self._reason or reason
        self._outbox.put(None)
        if self.connection is not None:
            self.connection.end()

    def _receive(self, place: Place, token: bytes, listener: Listener) -> None:
        try:
            self.connection = connection = wire.connect(place.address, place.port, token)
            if self._reason:
                raise OSError(self._reason)
            threading.Thread(target=self._send, args=(connection,), name=f"to-{place.name}", daemon=True).start()
            while True:
                frame = connection.receive()
                if frame.kind is not Kind.BEAT:
                    listener.receive(self, frame)
        except Exception as error:
            self.end(_reason_of(error))
        if self.connection is not None:
            self.connection.close()
        self._ended.set()
        listener.lost(self, self._reason)

    def _send(self, connection: Connection) -> None:
        try:
            while True:
                try:
                    item = self._outbox.get(timeout=BEAT_SECONDS)
                except queue.Empty:
                    connection.send(Frame(Kind.BEAT))
                    continue
                if item is None:
                    return
                frame, content = item
                connection.send(frame, *content())
        except Exception as error:
            self.end(_reason_of(error))

    def ask_to_close(self) -> None:
        """Tell the host to close its environments and end."""
        self.post(Frame(Kind.CLOSE))

    def close(self, deadline: float) -> None:
        """Wait until the host has ended, at most until `deadline`, by `time.monotonic`; close the connection."""
        if self.connection is not None:
            self._ended.wait(max(0.0, deadline - time.monotonic()))
        self.end("the pool is closed")


def _reason_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"gave no sign of life for {wire.DEAD_SECONDS:g} s"
    return f"closed the connection ({error})" if isinstance(error, OSError) else f"sent what can't be used ({error})"
