"""A host as the learner sees it: its connection, with a thread for each direction."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from actor_learner.actors.cluster import wire
from actor_learner.actors.cluster.wire import BEAT_SECONDS, Buffer, Connection, Frame, Kind, WireError


class Place(NamedTuple):
    """Where a host listens."""

    name: str
    address: str
    port: int
    pid: int
    identity: dict[str, str]


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

    def open(
        self,
        place: Place,
        token: bytes,
        take: Callable[[HostLink, Frame], None],
        lose: Callable[[HostLink, str], None],
    ) -> None:
        """Connect, and start the threads.

        take: Called with each frame but BEAT, to read what follows it. lose: Called with the reason after the last one.
        """
        self.name, self.pid, self._take, self._lose = place.name, place.pid, take, lose
        threading.Thread(target=self._receive, args=(place, token), name=f"from-{place.name}", daemon=True).start()

    @property
    def received(self) -> int:
        """The number of bytes so far."""
        return 0 if self.connection is None else self.connection.bytes_received

    def post(self, frame: Frame, content: Callable[[], tuple[Buffer, ...]] = tuple) -> None:
        """Send a frame soon; `content` returns what follows it, in the thread that sends."""
        self._outbox.put((frame, content))

    def read_columns(self, frame: Frame, max_bytes: int) -> memoryview:
        """Return the columns that follow a frame, which live until the next call. Raises OSError."""
        assert self.connection is not None
        began = time.perf_counter()
        if len(self._staging) < max_bytes:
            self._staging = bytearray(max_bytes)
        if frame.size > max_bytes:
            raise WireError(f"Columns are too large. Received: {frame.size} bytes, at most {max_bytes} are expected")
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

    def _receive(self, place: Place, token: bytes) -> None:
        try:
            self.connection = connection = wire.connect(place.address, place.port, token)
            if self._reason:
                raise OSError(self._reason)
            threading.Thread(target=self._send, args=(connection,), name=f"to-{place.name}", daemon=True).start()
            while True:
                frame = connection.receive()
                if frame.kind is not Kind.BEAT:
                    self._take(self, frame)
        except Exception as error:
            self.end(_reason_of(error))
        if self.connection is not None:
            self.connection.close()
        self._ended.set()
        self._lose(self, self._reason)

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

    def close(self, deadline: float) -> None:
        """Wait until the host has ended, at most until `deadline`, by `time.monotonic`; close the connection."""
        if self.connection is not None:
            self._ended.wait(max(0.0, deadline - time.monotonic()))
        self.end("the pool is closed")


def _reason_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"gave no sign of life for {wire.DEAD_SECONDS:g} s"
    return f"closed the connection ({error})" if isinstance(error, OSError) else f"sent what can't be used ({error})"
