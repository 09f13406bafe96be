"""Importing Keras and TensorFlow without what their libraries say on standard error."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

_PUT_OFF = ("matplotlib", "matplotlib.pyplot", "matplotlib.patches", "scipy.sparse")
"""What Keras imports for its galleries, and TensorFlow for its own old Keras: a quarter of what the import takes."""


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
    with keeping_interrupts(), silent_stderr(), warnings.catch_warnings(), _putting_off(_PUT_OFF), _without_collector():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401


class _Later(types.ModuleType):
    """Stands for a module that is imported when something of it is called, or looked up after `_putting_off`.

    Whoever has taken a function out of it (`from scipy.sparse import issparse`) has one that does the same.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is not self:
            return getattr(importlib.import_module(self.__name__), name)
        if (part := sys.modules.get(f"{self.__name__}.{name}")) is not None:
            return part
        return lambda *args, **options: getattr(importlib.import_module(self.__name__), name)(*args, **options)


@contextlib.contextmanager
def _putting_off(names: Iterable[str]) -> Iterator[None]:
    """Whatever imports these modules meanwhile, and few use, gets them on first use; others get them as always."""
    put_off = {name: _Later(name) for name in names if name not in sys.modules and _is_installed(name)}
    sys.modules.update(put_off)
    try:
        yield
    finally:
        for name, module in put_off.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _is_installed(name: str) -> bool:
    """Whether the package that a module is of is there: those that need it mustn't be told that it is."""
    top = name.partition(".")[0]
    return top in sys.modules or importlib.util.find_spec(top) is not None


@contextlib.contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Ctrl-C stays KeyboardInterrupt: within TensorFlow one becomes an ImportError, or nothing comes of it."""
    interrupted = False

    def interrupt(signal_number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(signal_number, frame)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = ours and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """The objects that imports make stay: the collector would look through them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _freezes:
            gc.freeze()
        if enabled:
            gc.enable()


_freezes = False


def freeze_what_is_imported() -> None:
    """Lets the collector never look at what is there after the import: for processes that do nothing but train."""
    global _freezes
    _freezes = True


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
