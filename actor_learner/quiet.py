"""Importing Keras and TensorFlow without what their libraries say on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator


def import_keras() -> None:
    """Imports keras, and TensorFlow with it, quietly; does nothing if that has happened already.

    TensorFlow 2.21 writes to descriptor 2 while it loads, whatever its log level is, and reports at its first
    operation, as an error, that a machine has no GPU. `TF_CPP_MIN_LOG_LEVEL` in the environment is respected.
    """
    if "keras" in sys.modules:
        return
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.stderr is not None:
        sys.stderr.flush()
    with silent_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Discards what native code writes to file descriptor 2: these libraries have no switch for it."""
    try:
        saved = os.dup(2)
    except OSError:  # Standard error is closed: nothing to silence.
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)
