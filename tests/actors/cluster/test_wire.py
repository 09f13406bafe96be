"""The connection: what arrives is what was sent, and bytes that aren't ours harm nothing."""

from __future__ import annotations

import random
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from actor_learner.actors.cluster import wire
from actor_learner.actors.cluster.codec import ColumnCodec, stack_axis
from actor_learner.actors.cluster.wire import Connection, Frame, Kind, WireError
from actor_learner.actors.transport.batches import Block, BlockLayout
from actor_learner.spaces.trajectory import TrajectorySpec

TOKEN = b"t" * 32


def connected():
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    server.close()
    return near, far


@pytest.fixture
def pair():
    near, far = map(Connection, connected())
    yield near, far
    near.close()
    far.close()


def test_frames_and_their_contents_arrive(pair):
    near, far = pair
    content = np.arange(5, dtype=np.float32)
    near.send(Frame(Kind.DONE, 3, 2**40, 1, 0, 0.5, 1.5, 2.5, 3.5), memoryview(content), b"", b"ab")
    near.send_json(Kind.LINES, [[0, "é"]])
    frame = far.receive()
    assert frame == Frame(Kind.DONE, 3, 2**40, 1, 22, 0.5, 1.5, 2.5, 3.5)
    assert far.read(22, 22) == content.tobytes() + b"ab"
    assert far.read_json(far.receive()) == [[0, "é"]]


def test_too_large_a_frame_is_refused_before_it_is_allocated(pair):
    near, far = pair
    near._socket.sendall(wire._HEADER.pack(int(Kind.LINES), 0, 0, 0, 2**62, 0, 0, 0, 0))
    with pytest.raises(WireError, match=f"{2**62} bytes, at most {wire.MAX_JSON_BYTES} are expected"):
        far.read_json(far.receive())


def test_silence_and_the_end_are_errors(pair, monkeypatch):
    near, far = pair
    far._socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        far.receive()
    near.end()
    with pytest.raises(WireError, match="closed the connection"):
        far.receive()


@pytest.mark.parametrize(("ours", "theirs", "works"), [(TOKEN, TOKEN, True), (TOKEN, b"u" * 32, False)])
def test_both_sides_need_the_token(ours, theirs, works):
    server = socket.create_server(("127.0.0.1", 0))
    found = []

    def answer():
        accepted, _ = server.accept()
        try:
            found.append(wire.accept(accepted, theirs))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    if works:
        wire.connect("127.0.0.1", server.getsockname()[1], ours).close()
    else:
        with pytest.raises(OSError, match="closed the connection|reset"):
            wire.connect("127.0.0.1", server.getsockname()[1], ours)
    thread.join(10)
    server.close()
    assert isinstance(found[0], Connection if works else WireError)


def read_all(connection):
    while True:
        connection.read(min(connection.receive().size, 2**16), 2**16)


def test_random_bytes_end_the_connection_and_nothing_else():
    chance = random.Random(0)
    for trial in range(1000):
        near, far = connected()
        content = chance.randbytes(chance.randrange(1, 300))
        if trial % 2:  # a kind that exists, and nonsense after it
            content = bytes([chance.randrange(13)]) + content
        near.sendall(content)
        near.close()
        connection = Connection(far)
        with pytest.raises(WireError):
            read_all(connection)
        connection.close()


@given(content=st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_a_policy_of_random_bytes_is_refused(content):
    with pytest.raises(WireError):
        wire.unpack(content)


def test_a_policy_is_unpacked_as_it_was_packed():
    contents = {"a": b"12", "b": b""}
    assert wire.unpack(b"".join(wire.pack(contents))) == contents


ROWS = 7
FIELDS = {"observation/image": ((4, 5, 5), np.dtype(np.uint8)), "observation/x": ((3,), np.dtype(np.float32))}
LAST = {"observation/image": ((5, 5, 4), np.dtype(np.uint8))}


def layout(fields, columns):
    action = {"action": ((), np.dtype(np.int64))}
    return BlockLayout.of(TrajectorySpec(fields, action, ROWS, columns, 2, ((6,),)), ("score",))


def fill(block, rng, stacked):
    for array in block.arrays.values():
        array[...] = rng.integers(0, 2 if array.dtype == bool else 200, array.shape)
    images = block.arrays["observation/image"]
    axis = stack_axis(images.shape[2:], images.dtype) + 2
    frames = np.moveaxis(images, axis, 2)
    for row in range(1, ROWS + 1):
        goes_on = rng.random(frames.shape[1]) < stacked
        frames[row, goes_on, :-1] = frames[row - 1, goes_on, 1:]


@pytest.mark.parametrize("fields", [FIELDS, LAST], ids=["frames first", "frames last"])
@pytest.mark.parametrize("stacked", [0.0, 0.5, 0.9, 1.0])
def test_columns_are_decoded_as_they_were_encoded(fields, stacked):
    rng = np.random.default_rng(0)
    here, there = layout(fields, 2), layout(fields, 9)
    source, target = Block.allocate(here), Block.allocate(there)
    fill(source, rng, stacked)
    columns = ColumnCodec(there)
    content = b"".join(bytes(part) for part in ColumnCodec(here).encode(source, 0, 2))
    assert len(content) <= columns.max_bytes(2)
    if stacked == 1.0:
        images = source.arrays["observation/image"].nbytes
        assert len(content) < columns.max_bytes(2) - 0.6 * images
    columns.decode(content, target, 4, 6)
    for name, array in target.arrays.items():
        expected = source.arrays[name]
        if name == "policy_version":
            continue
        found = array[4:6] if len(array) == 9 and array.shape[0] != ROWS else array[:, 4:6]
        np.testing.assert_array_equal(found, expected, err_msg=name)
    for part in (content[:-1], content + b"x", b""):
        with pytest.raises(WireError, match="can't be read"):
            columns.decode(part, target, 4, 6)
