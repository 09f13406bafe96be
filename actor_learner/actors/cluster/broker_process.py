"""The learner's side of the broker, the process that talks to the cluster."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from actor_learner.system.child import Child, ChildEndedError

PROGRAM = "actor_learner.actors.cluster.broker:main"
_SILENT_SECONDS = 20.0  # the silence after which the cluster counts as gone: the broker names its machines each second
_POLL_SECONDS = 0.1


class BrokerProcess:
    """The broker's process and the connection to it; it ends with the thread that starts it.

    Raises RuntimeError in one line where the cluster is gone, or can't be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._child: Child | None = None
        self._sender: threading.Thread | None = None
        self._outbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._heard = 0.0

    def start(self) -> None:
        self._child = Child(PROGRAM, [self._address], name="cluster-broker")
        self._heard = time.monotonic()
        self._sender = threading.Thread(target=self._send, args=(self._child,), name="to-broker", daemon=True)
        self._sender.start()

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """Yield what the broker says (see `Broker`), for a short while."""
        assert self._child is not None
        with contextlib.suppress(TimeoutError):
            while True:
                try:
                    message = self._child.receive(_POLL_SECONDS)
                except ChildEndedError as error:
                    text = f"Ray at {self._address} is gone: the process that talks to it ended: {error}"
                    raise RuntimeError(text) from None
                self._heard = time.monotonic()
                if message[0] == "error":
                    raise RuntimeError(message[1])
                yield message
        if time.monotonic() - self._heard > _SILENT_SECONDS:
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
