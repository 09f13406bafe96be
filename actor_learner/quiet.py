"""Importing Keras and TensorFlow without what their libraries say on standard error."""

from __future__ import annotations

import contextlib
import importlib.util
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
    check_tensorflow("training")
    with silent_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401


def import_keras_before(reference: str) -> None:
    """Imports keras, as `import_keras` does, ahead of what "module:name" stands for, if there is such a module.

    Whoever writes an algorithm or a network imports keras, which would not be quiet.
    """
    module, separator, _ = reference.partition(":")
    if separator and importlib.util.find_spec(module.partition(".")[0] or "?") is not None:
        import_keras()


def check_tensorflow(purpose: str) -> None:
    """Raises ImportError, in one line, where TensorFlow or Keras isn't installed: to act, policies need neither."""
    for name in ("tensorflow", "keras"):
        if importlib.util.find_spec(name) is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise ImportError(
                f"{purpose} needs TensorFlow and Keras (Python 3.11 to 3.13): pip install actor-learner. "
                f"Received: no {name} in Python {version}"
            )


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
