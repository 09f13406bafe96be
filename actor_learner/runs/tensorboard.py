"""TensorBoard's event files: scalars over env steps, hyperparameters and histograms, beside metrics.jsonl.

TensorFlow, which is loaded where a run learns, has the format's messages and its record writer; neither the package
`tensorboard` nor an operation of `tf.summary` is needed to write. What is written is a copy: metrics.jsonl has it all.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.runs.config_table import Value
from actor_learner.system.files import one_line

PREFIX = "events.out.tfevents."
"""How the names of event files begin."""

_FLUSH_SECONDS = 2.0  # TensorBoard itself looks every 5 seconds
_MOST_WAITING = 10_000
_BUCKETS = 30
_FLOAT32 = 1  # tensorflow.DataType
_UNKNOWN, _SUCCESS = 0, 1  # tensorboard.hparams.Status

_log = logging.getLogger("actor_learner")


class EventFile:
    """Appends to an event file in `folder`, which is made with the first row.

    Rows are written every two seconds. While they can't be (a full disk), the last 10,000 wait and follow in a file of
    their own: a reader takes files by the order of their names.

    Args:
        folder: of the run.
        hyperparameters: for TensorBoard's table of them.
    """

    def __init__(self, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        self._folder = folder
        self._waiting = deque[bytes]([_hyperparameters(hyperparameters)], maxlen=_MOST_WAITING)
        self._written_at = time.monotonic()
        self._writer: Any = None
        self._file = Path()
        self._size = 0
        self._failed = False

    def append(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Adds the finite ones of a row of metrics."""
        event = _event(env_steps)
        add = event.summary.value.add
        for name, value in row.items():
            if isinstance(value, int | float) and math.isfinite(value):
                add(tag=name, simple_value=value)
        self._waiting.append(event.SerializeToString())
        if time.monotonic() - self._written_at >= _FLUSH_SECONDS:
            self.flush()

    def append_histograms(self, env_steps: int, arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> None:
        """Adds a histogram of each named array, 30 buckets of equal width."""
        event = _event(env_steps)
        for name, values in arrays:
            finite = np.asarray(values, np.float64)[np.isfinite(values)]
            if finite.size:
                _fill(event.summary.value.add(tag=name).histo, finite)
        self._waiting.append(event.SerializeToString())

    def flush(self) -> None:
        """Writes what waits. A failure is said once, and tried again with later rows."""
        import tensorflow as tf

        self._written_at = time.monotonic()
        if not self._waiting:
            return
        try:
            if self._writer is None:
                self._open()
            for event in self._waiting:
                self._writer.write(event)
            self._writer.flush()
            self._size = self._file.stat().st_size
        except (OSError, tf.errors.OpError) as error:
            self._give_up_file()
            if not self._failed:
                _log.warning("TensorBoard's event file can't be written (%s); training goes on", one_line(error))
            self._failed = True
        else:
            self._failed = False
            self._waiting.clear()

    def close(self, *, finished: bool) -> None:
        """Ends the file. `finished`: the run has taken all its steps."""
        self._waiting.append(_session_end(_SUCCESS if finished else _UNKNOWN))
        self.flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> None:
        """A new file, whose name follows those of all that are there, whatever the clock says."""
        import tensorflow as tf

        there = [_timestamp(file.name) for file in self._folder.glob(f"{PREFIX}*")]
        stamp = max([int(time.time()), *(stamp + 1 for stamp in there)])
        self._file, self._size = self._folder / f"{PREFIX}{stamp:010}.{os.uname().nodename}.{os.getpid()}", 0
        self._writer = tf.io.TFRecordWriter(str(self._file))
        version = _event(0)
        version.file_version = "brain.Event:2"
        self._writer.write(version.SerializeToString())

    def _give_up_file(self) -> None:
        """Leaves no half record behind: a reader would wait for its other half for ever."""
        import tensorflow as tf

        if self._writer is None:
            return
        with contextlib.suppress(OSError, tf.errors.OpError):
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
    import tensorflow as tf

    return tf.compat.v1.Event(wall_time=time.time(), step=env_steps)


def _fill(histogram: Any, values: np.ndarray[Any, Any]) -> None:
    counts, edges = np.histogram(values, _BUCKETS)
    histogram.min, histogram.max = values.min(), values.max()
    histogram.num, histogram.sum, histogram.sum_squares = values.size, values.sum(), np.square(values).sum()
    histogram.bucket_limit.extend(edges[1:])
    histogram.bucket.extend(counts)


def _hyperparameters(values: Mapping[str, Value]) -> bytes:
    """The event with which a session begins.

    Its message belongs to the package `tensorboard`: `SessionStartInfo`, with a `map<string, google.protobuf.Value>` as
    field 1, which is what `google.protobuf.Struct` consists of, and the start in seconds as field 5, a double.
    """
    from google.protobuf.struct_pb2 import Struct

    hparams = Struct()
    hparams.update(values)
    info = hparams.SerializeToString() + _key(5, _FIXED64) + struct.pack("<d", time.time())
    return _session_event("_hparams_/session_start_info", 3, info)


def _session_end(status: int) -> bytes:
    """`SessionEndInfo`: the status as field 1, an enum, the end in seconds as field 2, a double."""
    info = _key(1, _VARINT) + _varint(status) + _key(2, _FIXED64) + struct.pack("<d", time.time())
    return _session_event("_hparams_/session_end_info", 4, info)


def _session_event(tag: str, field: int, info: bytes) -> bytes:
    """An event of the plugin "hparams": an `HParamsPluginData`, of which `field` says what `info` is."""
    event = _event(0)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "hparams"
    value.metadata.plugin_data.content = _key(field, _BYTES) + _varint(len(info)) + info
    value.tensor.dtype = _FLOAT32  # empty: what counts is the metadata
    value.tensor.tensor_shape.dim.add(size=0)
    return bytes(event.SerializeToString())


_VARINT, _FIXED64, _BYTES = 0, 1, 2  # protobuf's wire types


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Protobuf's form of a number: seven bits a byte, the lowest first; the eighth says that more follow."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
