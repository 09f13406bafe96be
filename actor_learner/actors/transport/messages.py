"""The messages between the pool and an actor, and the channel that carries them."""

from __future__ import annotations

import enum
import os
import pickle
import select
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

MAX_MESSAGE_BYTES = 16 * 1024  # bytes; far below a socket's buffer, so that sending one never blocks


class Message(enum.IntEnum):
    """The protocol. At any time an actor is starting, idle or in an unroll."""

    START = 0  # pool to actor, once: the orphan reaper has its id, so its environments may start processes
    READY = 1  # actor to pool, once: the environments are made and reset; carries their spaces as JSON
    BEGIN = 2  # pool to actor, once: carries the `ArenaPlan`
    UNROLL = 3  # pool to actor: columns to fill, carries an `Assignment`
    DONE = 4  # actor to pool: every row of the columns is written, carries `Done`; FAILED follows where that says so
    FAILED = 5  # actor to pool: an exception, carries `Failure`; the actor ends
    CLOSE = 6  # pool to actor: close the environments and end
    CALL = 7  # pool to actor, before an UNROLL: methods of the environments to call first, as JSON
    ACT = 8  # actor to pool, in an unroll: act on the actor's step rows by the learner's device
    ACTED = 9  # pool to actor: the rows hold the actions
    CLOSING = 10  # actor to pool, once: it begins to close its environments, whose name this carries


class Assignment(NamedTuple):
    """The columns `[start, stop)` of a block, to be filled by acting with one version of the weights."""

    batch: int
    block: int
    start: int
    stop: int
    version: int
    slot: int
    checksum: int
    opponents: tuple[tuple[int, int, int, float], ...] = ()  # as `environments.opponents.Opponent` lists them
    calls: int = 0  # the calls of environments' methods that come before it


class Done(NamedTuple):
    """The report of complete columns. The times are the actor's since its last unroll, in seconds."""

    batch: int
    env: float
    acting: float
    other: float
    waiting: float
    actor: int = 0
    ended: float = 0.0  # the time of the end, by `time.perf_counter`, which Linux's processes have in common
    failed: bool = False  # True where an environment raised, which ended the unroll early
    core: int = -1  # that the actor ran on in the end; -1: unknown


class Failure(NamedTuple):
    """An exception in an actor."""

    starting: bool  # True before READY, and where the first step broke a rule of Gymnasium
    refused: bool  # True for a call that the environments don't have: another process would fail the same way
    bad_environment: bool  # True where `text` describes a fault of the environment in one line
    summary: str  # one line: type, text, and the last frame in the user's own files
    text: str  # the exception's own text
    traceback: str


_IN_MAILBOX = -1
# The messages of every batch are sent as plain tuples, which take a third of the time to read.
_AS_TUPLES: dict[int, Any] = {Message.UNROLL: Assignment, Message.DONE: Done}


class Channel:
    """One end of a socket pair (unlike a queue, a kill can't leave it locked), and a memory file for large contents."""

    def __init__(self, descriptor: int, mailbox: int) -> None:
        self._connection: Connection[Any, Any] = Connection(descriptor)
        self._mailbox = mailbox
        self._poll = select.poll()  # its own `poll` makes a selector for each call
        self._poll.register(descriptor, select.POLLIN)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message, payload: Any = None) -> None:
        """Send without blocking, since few small messages are outstanding. Raises OSError if the other end is gone.

        Only an actor may send a large message, and waits for an answer before it sends another.
        """
        if message in _AS_TUPLES:
            payload = tuple(payload)
        content = pickle.dumps((int(message), payload), pickle.HIGHEST_PROTOCOL)
        if len(content) > MAX_MESSAGE_BYTES:
            os.ftruncate(self._mailbox, 0)
            write_all(self._mailbox, content)
            content = pickle.dumps((_IN_MAILBOX, len(content)), pickle.HIGHEST_PROTOCOL)
        self._connection.send_bytes(content)

    def receive(self) -> tuple[Message, Any]:
        """Block until the next message and return it. Raises EOFError or OSError if the other end is gone."""
        kind, payload = pickle.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        if kind == _IN_MAILBOX:
            kind, payload = pickle.loads(read_all(self._mailbox, payload))
        if kind in _AS_TUPLES:
            payload = _AS_TUPLES[kind](*payload)
        return Message(kind), payload

    def wait(self, seconds: float) -> bool:
        """Return whether a message, or the end of the other side, arrives within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket and the mailbox; idempotent."""
        if not self._connection.closed:
            self._connection.close()
            os.close(self._mailbox)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content` at the beginning of a file (one system call writes at most 2 GiB)."""
    view, offset = memoryview(content), 0
    while offset < len(view):
        offset += os.pwrite(descriptor, view[offset:], offset)


def read_all(descriptor: int, size: int) -> bytes:
    """Read the first `size` bytes of a file."""
    offset, parts = 0, []
    while size > 0:
        if not (part := os.pread(descriptor, size, offset)):
            raise EOFError(f"The file ends early. Received: {size} bytes missing")
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)
