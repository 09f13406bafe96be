"""TensorBoard's event files: scalars over env steps, hyperparameters and histograms, beside metrics.jsonl.

A file is a sequence of records, each a serialized message with its length and checksums. The messages are described
here, so that writing needs neither TensorFlow nor the package `tensorboard`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.runs.recorded_config import Value
from actor_learner.system.files import one_line

PREFIX = "events.out.tfevents."
"""The beginning of the names of event files."""
_FLUSH_SECONDS = 2.0  # TensorBoard reads every 5 seconds
_MAX_WAITING = 10_000
_BUCKETS = 30
_FLOAT32 = 1  # tensorflow.DataType
_CRC_CHUNK = 512  # bytes at once: a table of half a megabyte
_UNKNOWN, _SUCCESS = 0, 1  # tensorboard.hparams.Status

_log = logging.getLogger("actor_learner")


class EventFile:
    """Appends to an event file in `folder`, which is created with the first row.

    Rows are written every two seconds. While that fails (a full disk), the last 10,000 wait and follow in a new file:
    a reader takes files by the order of their names. `hyperparameters` fill TensorBoard's table.
    """

    def __init__(self, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        self._folder = folder
        self._waiting = deque[bytes]([_session_start(hyperparameters)], maxlen=_MAX_WAITING)
        self._written_at = time.monotonic()
        self._writer: Any = None
        self._file, self._size, self._failed = Path(), 0, False

    def append(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Add the finite numbers of a row of metrics."""
        event = _event(env_steps)
        add = event.summary.value.add
        for name, value in row.items():
            if isinstance(value, int | float) and math.isfinite(value):
                add(tag=name, simple_value=value)
        self._waiting.append(event.SerializeToString())
        if time.monotonic() - self._written_at >= _FLUSH_SECONDS:
            self.flush()

    def append_histograms(self, env_steps: int, arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> None:
        """Add a histogram of each named array, 30 buckets of equal width."""
        event = _event(env_steps)
        for name, values in arrays:
            finite = np.asarray(values, np.float64)[np.isfinite(values)]
            if finite.size:
                counts, edges = np.histogram(finite, _BUCKETS)
                histogram = event.summary.value.add(tag=name).histo
                histogram.min, histogram.max, histogram.sum = finite.min(), finite.max(), finite.sum()
                histogram.num, histogram.sum_squares = finite.size, np.square(finite).sum()
                histogram.bucket_limit.extend(edges[1:])
                histogram.bucket.extend(counts)
        self._waiting.append(event.SerializeToString())

    def flush(self) -> None:
        """Write the waiting rows. After a failure, which is logged once, they are tried again with later rows."""
        self._written_at = time.monotonic()
        if not self._waiting:
            return
        try:
            if self._writer is None:
                self._open()
            for event in self._waiting:
                self._writer.write(_record(event))
            self._writer.flush()
            self._size = self._file.stat().st_size
        except OSError as error:
            self._give_up_file()
            if not self._failed:
                _log.warning("TensorBoard's event file can't be written (%s); training goes on", one_line(error))
            self._failed = True
        else:
            self._failed = False
            self._waiting.clear()

    def close(self, *, finished: bool) -> None:
        """End the file. finished: True if the run has taken all its steps."""
        data = _message("HParamsPluginData")()
        data.session_end_info.status = _SUCCESS if finished else _UNKNOWN
        data.session_end_info.end_time_secs = time.time()
        self._waiting.append(_session_event("_hparams_/session_end_info", data))
        self.flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> None:
        """Open a file whose name follows those of all others, whatever the time is."""
        others = [_timestamp(file.name) for file in self._folder.glob(f"{PREFIX}*")]
        stamp = max([int(time.time()), *(other + 1 for other in others)])
        self._file, self._size = self._folder / f"{PREFIX}{stamp:010}.{os.uname().nodename}.{os.getpid()}", 0
        self._writer = self._file.open("wb")
        version = _event(0)
        version.file_version = "brain.Event:2"
        self._writer.write(_record(version.SerializeToString()))

    def _give_up_file(self) -> None:
        """Cuts off an incomplete record, for whose end a reader would wait forever."""
        if self._writer is None:
            return
        with contextlib.suppress(OSError):
            self._writer.close()
        self._writer = None
        with contextlib.suppress(OSError):
            if self._size:
                os.truncate(self._file, self._size)
            else:
                self._file.unlink()


def _timestamp(name: str) -> int:
    number = name.removeprefix(PREFIX).partition(".")[0]
    return int(number) if number.isdecimal() and len(number) <= 10 else 0


def _event(env_steps: int) -> Any:
    return _message("Event")(wall_time=time.time(), step=env_steps)


def _session_start(hyperparameters: Mapping[str, Value]) -> bytes:
    from google.protobuf.struct_pb2 import Struct

    hparams = Struct()
    hparams.update(hyperparameters)
    data = _message("HParamsPluginData")()
    data.session_start_info.MergeFromString(hparams.SerializeToString())  # both begin with a map<string, Value>
    data.session_start_info.start_time_secs = time.time()
    return _session_event("_hparams_/session_start_info", data)


def _session_event(tag: str, data: Any) -> bytes:
    event = _event(0)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "hparams"
    value.metadata.plugin_data.content = data.SerializeToString()
    value.tensor.dtype = _FLOAT32  # empty: the metadata has it all
    value.tensor.tensor_shape.dim.add(size=0)
    return bytes(event.SerializeToString())


_MESSAGES = {
    "Event": "double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5",
    "Summary": "repeated Value value = 1",
    "Value": "string tag = 1; float simple_value = 2; Histogram histo = 5; Tensor tensor = 8; Metadata metadata = 9",
    "Histogram": "double min = 1; double max = 2; double num = 3; double sum = 4; double sum_squares = 5; "
    "repeated double bucket_limit = 6; repeated double bucket = 7",
    "Tensor": "int32 dtype = 1; Shape tensor_shape = 2",
    "Shape": "repeated Dimension dim = 2",
    "Dimension": "int64 size = 1",
    "Metadata": "PluginData plugin_data = 1",
    "PluginData": "string plugin_name = 1; bytes content = 2",
    "HParamsPluginData": "SessionStartInfo session_start_info = 3; SessionEndInfo session_end_info = 4",
    "SessionStartInfo": "double start_time_secs = 5",
    "SessionEndInfo": "int32 status = 1; double end_time_secs = 2",
}
"""The fields that a run writes of TensorFlow's Event, and of the messages of TensorBoard's plugin "hparams"."""


@functools.cache
def _message(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


@functools.cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="events.proto")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for repeated, kind, field_name, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+)", fields):
            field = message.field.add(name=field_name, number=int(number))
            if repeated:
                field.label = field.LABEL_REPEATED
            if kind in _MESSAGES:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{kind}"
            else:
                field.type, field.options.packed = getattr(field, f"TYPE_{kind.upper()}"), bool(repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _record(data: bytes) -> bytes:
    """Return a record of TensorFlow's format TFRecord: length, its checksum, the data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _masked_crc(data: bytes) -> int:
    """Return the CRC-32C of data (RFC 3720, appendix B.4), rotated and shifted as TFRecord wants it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for start in range(0, len(data), _CRC_CHUNK):
        part = np.frombuffer(data[start : start + _CRC_CHUNK], np.uint8).copy()
        head = min(4, part.size)
        part[:head] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)[:head]
        after = np.arange(part.size - 1, -1, -1)  # the bytes that follow each
        crc = int(np.bitwise_xor.reduce(table[after, part])) ^ crc >> 8 * head
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc_table() -> np.ndarray[Any, Any]:
    """Return `[n, 256]`: what a byte with n bytes after it adds to the checksum, which is a sum without carry."""
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = row >> np.uint32(1) ^ (row & np.uint32(1)) * np.uint32(0x82F63B78)
    rows = [row]
    for _ in range(_CRC_CHUNK - 1):
        rows.append(rows[-1] >> 8 ^ row[rows[-1] & 0xFF])
    return np.stack(rows)
