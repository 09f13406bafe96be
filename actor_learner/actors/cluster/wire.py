"""The connection between the learner and a host: frames of a fixed header and bytes. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import enum
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

Buffer = bytes | bytearray | memoryview

BEAT_SECONDS = 1.0  # the interval in which each side sends something
DEAD_SECONDS = 5.0  # the silence after which the other side counts as dead
MAX_JSON_BYTES = 1 << 20
_MAX_PART_BYTES = 1 << 20  # of one system call: each has the deadline, not the whole frame
TOKEN_BYTES = 32
_LEARNER, _HOST = b"learner", b"host"


class Kind(enum.IntEnum):
    """What a frame says."""

    BEAT = 0  # either way: "I live"
    READY = 1  # host to learner, once: all actors have reset their environments; their spaces as JSON
    BEGIN = 2  # learner to host, once: the exported policy, see `pack`
    WEIGHTS = 3  # learner to host: the next version of the weights, float32
    ASSIGN = 4  # learner to host: an actor, a batch, a block; to be filled by the weights that were sent last
    STOP = 5  # learner to host: end the unrolls in a block early
    CALL = 6  # learner to host: calls of the environments' methods, as JSON
    REPLACE = 7  # learner to host: replace an actor's process
    DONE = 8  # host to learner: the content of an actor's columns, see `Columns`
    RESTARTS = 9  # host to learner: actors that were replaced, as JSON
    LINES = 10  # host to learner: what actors printed, as JSON
    FAILED = 11  # host to learner: the error that ended its actors, as JSON
    CLOSE = 12  # learner to host: end


class Frame(NamedTuple):
    """A frame's header. The times are an actor's, in seconds."""

    kind: Kind
    actor: int = 0
    batch: int = 0
    block: int = 0
    size: int = 0  # bytes that follow
    env: float = 0.0
    acting: float = 0.0
    other: float = 0.0
    waiting: float = 0.0


_HEADER = struct.Struct("!B3xiqqQ4d")


class WireError(OSError):
    """What arrived is no frame of this protocol, or the other end has ended."""


class Connection:
    """One end of a connection. Frames are sent by one thread and received by another.

    Every call raises OSError where the other side is gone, or silent for `DEAD_SECONDS`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.bytes_received = 0
        connected.settimeout(DEAD_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: bytes that nobody acknowledges end the connection
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * DEAD_SECONDS))

    def send(self, frame: Frame, *parts: Buffer) -> None:
        """Send a frame with these parts, whose size it needn't have."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        header = _HEADER.pack(*frame._replace(size=sum(map(len, views))))
        for view in (memoryview(header), *views):
            while view:
                sent = self._socket.send(view[:_MAX_PART_BYTES])
                view = view[sent:]

    def send_json(self, kind: Kind, value: Any) -> None:
        self.send(Frame(kind), json.dumps(value).encode())

    def receive(self) -> Frame:
        """Return the next header."""
        kind, *rest = _HEADER.unpack(self.read(_HEADER.size, _HEADER.size))
        try:
            return Frame(Kind(kind), *rest)
        except ValueError:
            raise WireError(f"A frame can't be read. Received: kind={kind}") from None

    def read(self, size: int, max_bytes: int) -> bytearray:
        """Return the `size` bytes that follow a header. Raises WireError, before it allocates them, if too many."""
        if size > max_bytes:
            raise WireError(f"A frame is too large. Received: {size} bytes, at most {max_bytes} are expected")
        content = bytearray(size)
        self.read_into(memoryview(content))
        return content

    def read_into(self, view: memoryview) -> None:
        """Fill a view with the next bytes."""
        while view:
            if not (count := self._socket.recv_into(view)):
                raise WireError("The other end closed the connection")
            self.bytes_received += count
            view = view[count:]

    def read_json(self, frame: Frame) -> Any:
        """Return what follows a header as JSON."""
        content = self.read(frame.size, MAX_JSON_BYTES)
        try:
            return json.loads(content)
        except ValueError as error:
            raise WireError(f"A frame's JSON can't be read: {error}") from None

    def end(self) -> None:
        """End the connection for both sides and for threads that wait on it; from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def connect(address: str, port: int, token: bytes) -> Connection:
    """Return a connection to a host that has this token. Raises OSError."""
    connection = Connection(socket.create_connection((address, port), timeout=DEAD_SECONDS))
    try:
        challenge = connection.read(TOKEN_BYTES, TOKEN_BYTES)
        own = secrets.token_bytes(TOKEN_BYTES)
        connection._socket.sendall(_response(token, challenge, _LEARNER) + own)
        _check(connection, _response(token, own, _HOST))
    except BaseException:
        connection.close()
        raise
    return connection


def accept(connected: socket.socket, token: bytes) -> Connection:
    """Return the connection to a learner that has this token; else close it and raise OSError."""
    connection = Connection(connected)
    try:
        challenge = secrets.token_bytes(TOKEN_BYTES)
        connected.sendall(challenge)
        _check(connection, _response(token, challenge, _LEARNER))
        other = connection.read(TOKEN_BYTES, TOKEN_BYTES)
        connected.sendall(_response(token, other, _HOST))
    except BaseException:
        connection.close()
        raise
    return connection


def _response(token: bytes, challenge: Buffer, side: bytes) -> bytes:
    return hmac.digest(token, bytes(challenge) + side, "sha256")


def _check(connection: Connection, expected: bytes) -> None:
    if not hmac.compare_digest(connection.read(len(expected), len(expected)), expected):
        raise WireError("The other end doesn't have this run's token")


def pack(contents: Mapping[str, bytes]) -> list[bytes]:
    """Return named contents as the parts of one frame, for `unpack`."""
    head = json.dumps([[name, len(content)] for name, content in contents.items()]).encode()
    return [struct.pack("!I", len(head)), head, *contents.values()]


def unpack(content: Buffer) -> dict[str, bytes]:
    """Return what `pack` joined. Raises WireError."""
    view, contents = memoryview(content), {}
    try:
        (size,) = struct.unpack("!I", view[:4])
        start, sizes = 4 + size, json.loads(bytes(view[4 : 4 + size]))
        for name, length in sizes:
            contents[name] = bytes(view[start : start + length])
            start += length
    except (ValueError, TypeError, struct.error) as error:
        raise WireError(f"A policy can't be read: {error}") from None
    if start != len(view) or any(length < 0 for _, length in sizes):
        raise WireError("A policy can't be read: its sizes don't fit")
    return contents
