"""The learner's side of the broker, the process that talks to the cluster."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from actor_learner.system.child import start_python

PROGRAM = "actor_learner.actors.cluster.broker:main"
_SILENT_SECONDS = 20.0  # the silence after which the cluster counts as gone: the broker names its machines each second
_POLL_SECONDS = 0.1


class BrokerProcess:
    """The broker's process and the connection to it; it ends with the thread that starts it.

    Raises RuntimeError in one line where the cluster is gone, or can't be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._sender: threading.Thread | None = None
        self._outbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._heard = 0.0

    def start(self) -> None:
        near, far = socket.socketpair()
        with far:
            arguments = (far.fileno(), self._address)
            self._process = start_python(PROGRAM, arguments, name="cluster-broker", descriptors=(far.fileno(),))
        self._connection = Connection(near.detach())
        self._heard = time.monotonic()
        self._sender = threading.Thread(target=self._send, args=(self._connection,), name="to-broker", daemon=True)
        self._sender.start()

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """Yield what the broker says (see `Broker`), for a short while."""
        assert self._connection is not None
        try:
            while self._connection.poll(_POLL_SECONDS):
                message = self._connection.recv()
                self._heard = time.monotonic()
                if message[0] == "error":
                    raise RuntimeError(message[1])
                yield message
        except (EOFError, OSError):
            raise RuntimeError(f"Ray at {self._address} is gone: {self._end_of_process()}") from None
        if time.monotonic() - self._heard > _SILENT_SECONDS:
            raise RuntimeError(
                f"Ray at {self._address} has not answered for {_SILENT_SECONDS:g} s; perhaps its head is gone"
            )

    def _end_of_process(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"the process that talks to it ended with exit code {self._process.wait(1.0)}"
        return "the process that talks to it closed its connection"

    def send(self, *message: Any) -> None:
        """Send a request soon; does nothing where the broker has ended, which is noticed elsewhere. From any thread."""
        self._outbox.put(message)

    def _send(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while message := self._outbox.get():
                connection.send(message)

    def close(self, deadline: float) -> None:
        """End the process, at the latest soon after `deadline`, by `time.monotonic`."""
        self._outbox.put(())
        if self._sender is not None:  # a connection that is closed in the middle of `send` raises a TypeError there
            self._sender.join(max(0.1, deadline - time.monotonic()))
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
