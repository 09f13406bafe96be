"""The import of Keras and its backend, without their messages on standard error."""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from actor_learner.system.aborts import kept_if_it_aborts
from actor_learner.system.installation import install_command
from actor_learner.system.machine import learner_cores, suggest_threads

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
"""Keras's backends that this package runs on: the module's name, and the library's."""

TRAINING = "training"
"""The purpose for which `check_installed` names another backend, if that is installed."""

_DEFERRED = {
    "tensorflow": ("jax", "matplotlib", "matplotlib.pyplot", "matplotlib.patches", "scipy.sparse"),
    "jax": ("matplotlib", "matplotlib.pyplot", "matplotlib.patches"),
}
"""What Keras imports for galleries, and TensorFlow for its old Keras and converters: a third of the import's time."""

_freezes_after_import = False


def import_keras() -> None:
    """Import keras, and its backend with it, quietly; do nothing if keras is imported already.

    TensorFlow 2.21 writes to descriptor 2 while it loads, at any log level, and reports a machine without a GPU as an
    error at its first operation. `TF_CPP_MIN_LOG_LEVEL` in the environment is respected.

    Raises ValueError where Keras's floatx isn't float32.
    """
    if "keras" in sys.modules:
        _leave_tensorflow_unloaded()
        check_floatx()
        return
    backend = os.environ["KERAS_BACKEND"] = keras_backend()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.stderr is not None:
        sys.stderr.flush()
    check_installed(backend, TRAINING)
    deferring = _deferring(_DEFERRED[backend])
    with keeping_interrupts(), silent_stderr(), warnings.catch_warnings(), deferring, _without_collector():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401
    _leave_tensorflow_unloaded()
    check_floatx()


class QuietTensorFlow(importlib.abc.MetaPathFinder):
    """Hides what TensorFlow writes to descriptor 2 while it loads, whichever module imports it; see `import_keras`."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_quietly(module: types.ModuleType) -> None:
                with silent_stderr():
                    execute(module)

            spec.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return spec


def use_backend(name: str | None) -> str:
    """Let Keras, which needn't be imported yet, run on a backend; None: on the one that it has. Returns the name.

    Raises ValueError where Keras runs on another one, or `KERAS_BACKEND` names another.
    """
    if name is not None and ("keras" in sys.modules or os.environ.get("KERAS_BACKEND")) and name != keras_backend():
        raise ValueError(
            f"`backend` must be the one that Keras runs on; set KERAS_BACKEND={name} before Keras is imported. "
            f"Received: backend={name!r}, KERAS_BACKEND={keras_backend()}"
        )
    if name is not None:
        os.environ["KERAS_BACKEND"] = name
    return keras_backend()


def _leave_tensorflow_unloaded() -> None:
    """Tell Keras on another backend, which would import TensorFlow to save a layer, that there is none."""
    if keras_backend() != "tensorflow" and "tensorflow" not in sys.modules:
        from keras.src.utils.module_utils import tensorflow

        tensorflow._available = False


def prepare_process(num_actors: int = 0, max_policy_lag: int = 0) -> None:
    """Set the threads and the garbage collection, which can't change once TensorFlow has started."""
    suggest_threads(learner_cores(num_actors, max_policy_lag))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    freeze_what_is_imported()  # TensorFlow's own objects stay: the collector need not walk through them


def check_floatx() -> None:
    """Raise ValueError where Keras, which is imported, makes weights in another type than float32."""
    floatx = sys.modules["keras"].config.floatx() if hasattr(sys.modules["keras"], "config") else "float32"
    if floatx != "float32":
        raise ValueError(
            "Keras's floatx must be float32, in ~/.keras/keras.json or by keras.config.set_floatx; `precision` "
            f"computes in 16 bits over weights in float32. Received: floatx={floatx!r}"
        )


def keras_backend() -> str:
    """Return the name of the backend that Keras runs on, or would run on: `KERAS_BACKEND`, else "tensorflow".

    Raises ValueError for one that isn't among `BACKENDS`.
    """
    keras = sys.modules.get("keras")
    loaded = keras.config.backend() if keras is not None and hasattr(keras, "config") else None
    backend = str(loaded or os.environ.get("KERAS_BACKEND") or "tensorflow")
    if backend not in BACKENDS:
        raise ValueError(
            f"actor_learner runs on Keras's backends {' and '.join(BACKENDS)}; set KERAS_BACKEND to one of them. "
            f"Received: KERAS_BACKEND={backend}"
        )
    return backend


class _DeferredModule(types.ModuleType):
    """A stand-in for a module, which is imported at the first call, or at the first lookup after `_deferring`.

    A function taken from it (`from scipy.sparse import issparse`) imports the module and calls the real one.
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
def _deferring(names: Iterable[str]) -> Iterator[None]:
    """Give stand-ins to the importers of these modules, few of which use them; later importers get the modules."""
    # An importer of a missing module must get an ImportError.
    there = (name for name in names if name not in sys.modules and is_installed(name.partition(".")[0]))
    deferred = {name: _DeferredModule(name) for name in there}
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def is_installed(package: str) -> bool:
    """Return True if a top-level package can be imported, or is already."""
    return sys.modules.get(package) is not None or importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt after Ctrl-C, which TensorFlow's import turns into an ImportError, or ignores."""
    interrupted = False

    def interrupt(signal_number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(signal_number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    if handles := is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector, which would repeatedly scan the import's objects, although all of them stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _freezes_after_import:
            gc.freeze()
        if enabled:
            gc.enable()


def freeze_what_is_imported() -> None:
    """Exclude all objects from garbage collection after the import, for processes that only train."""
    global _freezes_after_import
    _freezes_after_import = True


def import_keras_before(reference: str) -> None:
    """Import keras quietly before the module of "module:name", if it exists, imports it with messages."""
    module, separator, _ = reference.partition(":")
    if separator and importlib.util.find_spec(module.partition(".")[0] or "?") is not None:
        import_keras()


def check_installed(backend: str, purpose: str, instead: str = "") -> None:
    """Raise ImportError, in one line, if a backend or Keras isn't installed. Acting needs neither.

    instead: what else serves the purpose, beginning with a comma.
    """
    for name in (backend, "keras"):
        if importlib.util.find_spec(name) is None:
            version = ".".join(map(str, sys.version_info[:2]))
            install = install_command("actor-learner" if backend == "tensorflow" else f"actor-learner[{backend}]")
            others = [other for other in BACKENDS if importlib.util.find_spec(other)] if purpose == TRAINING else []
            other = f", or use what is installed: KERAS_BACKEND={others[0]}" if others and name == backend else instead
            raise ImportError(
                f"{purpose} needs {BACKENDS[backend]} and Keras (Python 3.11 to 3.13): {install}{other}. "
                f"Received: no {name} in Python {version}"
            )


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Hide native code's output on file descriptor 2, which these libraries can't switch off; see `aborts`."""
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    with kept_if_it_aborts() as sink:
        os.dup2(sink, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
