"""A cache of XLA's programs: later runs on the same machine don't compile the same update again.

<cache>/actor_learner/xla/<digest of versions>/<program>.<digest>    programs, with native code
                                               <process>-<random>/   links to them, for one process's TensorFlow
                                               jax/                  JAX's own cache

TensorFlow fails on a damaged or unwritable file of its persistent cache. So each process gives it a folder of links to
the programs with the right digest, and keeps what TensorFlow adds once the program has run. See `files.cache_folder`
for the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actor_learner.system.files import cache_folder, own_folder
from actor_learner.system.machine import allowed_cores
from actor_learner.system.memory import tells_of_no_memory

MAX_KEPT = 24  # programs of about a megabyte each; the oldest ones beyond are removed
MIN_FREE_BYTES = 2**24  # bytes that must be free for a new program
_MAX_LEFTOVER_SECONDS = 86_400.0
MAX_KEPT_BY_JAX = 1024  # files; many are of single operations
_JAX_KEEPS_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""XLA's flag that also sets xla_gpu_exclude_nondeterministic_ops, and switches off its choice of kernels by timing."""
_VARIABLES = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class CompileCache:
    """The programs in a folder, and the folder for this process's TensorFlow. Raises OSError if it can't be used.

    folder: the folder of programs compiled with the same libraries, flags and processor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = own_folder(folder)
        self.folder_of_jax = folder / "jax"
        _remove_old(folder)
        self.flags_before = os.environ.get("TF_XLA_FLAGS")
        self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        self._process = os.getpid()
        atexit.register(self._close)
        with tempfile.TemporaryFile(dir=self.path) as room:  # raises OSError if the disk, or this user's quota, is full
            os.posix_fallocate(room.fileno(), 0, MIN_FREE_BYTES)
        for file in _programs(folder):
            name, _, digest = file.name.rpartition(".")
            with contextlib.suppress(OSError):  # another process removed it, or two have the same name
                if _digest(file) == digest:
                    os.link(file, self.path / name)
                else:
                    file.unlink()

    def keep(self) -> None:
        """Keep the programs that TensorFlow has added to its folder."""
        with contextlib.suppress(OSError):
            for file in self.path.glob("*.pb"):
                program = self._folder / f"{file.name}.{_digest(file)}"
                if not program.exists():
                    os.link(file, program)

    def leave(self) -> None:
        """Replace TensorFlow's folder with an empty one, whose programs aren't kept, after a failure."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.path, ignore_errors=True)
            elsewhere = tempfile.mkdtemp()
            atexit.register(shutil.rmtree, elsewhere, ignore_errors=True)
            self.path.symlink_to(elsewhere)

    def _close(self) -> None:
        if os.getpid() == self._process:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.unlink(missing_ok=True)


_active: CompileCache | None = None


def use_deterministic_ops(device: str) -> None:
    """Let XLA compile deterministic operations alone for GPUs, and time none to choose one. device: of `DEVICES`.

    XLA reads its flags once. Raises ValueError where TensorFlow or JAX has started without this one.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if device == "cpu" or DETERMINISTIC in flags:
        return
    if started := _started_backend():
        raise ValueError(
            f"`deterministic_ops` must be set before {started} starts: set XLA_FLAGS={DETERMINISTIC}, or pass a "
            f"callable as `network`. Received: deterministic_ops=True after {started} has started"
        )
    os.environ["XLA_FLAGS"] = " ".join([*flags, DETERMINISTIC])


def _started_backend() -> str | None:
    """Return the name of the backend that has started in this process, None if none has."""
    bridge, context = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("tensorflow.python.eager.context")
    if bridge is not None and bridge.backends_are_initialized():
        return "JAX"
    return "TensorFlow" if context is not None and context.context()._initialized else None


def begin(threads: int | None = None) -> None:
    """Start this process's cache, if no backend has started yet and there is a folder for the cache.

    threads: the number that the backend will be set to; XLA compiles for it.
    """
    global _active
    folder = _cache_folder()
    taken = "persistent_cache" in os.environ.get("TF_XLA_FLAGS", "")
    if _active is None and folder is not None and not taken and _started_backend() is None:
        with contextlib.suppress(OSError):
            _active = CompileCache(folder / _compiled_with(threads))
            # TensorFlow reads its flags at its first operation; `call` removes these before the first program.
            flags = f"--tf_xla_persistent_cache_directory={_active.path} --tf_xla_persistent_cache_device_types=CPU"
            os.environ["TF_XLA_FLAGS"] = f"{_active.flags_before} {flags}" if _active.flags_before else flags
            for name, value in {"JAX_COMPILATION_CACHE_DIR": str(_active.folder_of_jax), **_JAX_KEEPS_ALL}.items():
                os.environ.setdefault(name, value)
            if "jax._src.xla_bridge" in sys.modules:  # JAX reads the variables when it is imported
                _configure_jax()


def _configure_jax() -> None:
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        for name in map(str.lower, _JAX_KEEPS_ALL):
            jax.config.update(name, type(getattr(jax.config, name))(os.environ[name.upper()]))


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that XLA compiles, and keep the program.

    After a failure in TensorFlow, the function is called again without the cache, so a failed call must have no effect;
    not where memory ran out.
    """
    if _active is None:
        return function(*arguments)
    os.environ.pop("TF_XLA_FLAGS", None)
    if _active.flags_before is not None:
        os.environ["TF_XLA_FLAGS"] = _active.flags_before
    try:
        result = function(*arguments)
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow") or tells_of_no_memory(
            f"{type(error).__name__}: {error}"
        ):
            raise
        _active.leave()
        return function(*arguments)
    _active.keep()
    return result


def _cache_folder() -> Path | None:
    folder = cache_folder("xla")
    return None if folder is None or re.search(r"\s", str(folder)) else folder  # TensorFlow splits its flags at blanks


def _compiled_with(threads: int | None = None) -> str:
    """Return a name for the versions, flags, threads and processor that programs depend on."""
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for name in ("tensorflow", "jaxlib"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(version(name))
    parts = [*versions, sys.version, _processor(), str(allowed_cores())]
    parts += [os.environ.get(name, "") for name in _VARIABLES]
    parts += [] if threads is None else [str(threads)]
    return f"{'-'.join(versions)}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _processor() -> str:
    """Return the constant entries of the first processor in /proc/cpuinfo: its model and its features."""
    constant = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return "".join(line for line in itertools.takewhile(str.strip, file) if line.startswith(constant))


def _programs(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.pb.*") if file.is_file() and not file.is_symlink()]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _remove_old(folder: Path) -> None:
    """Remove the oldest programs and the folders of killed processes; other processes may do so at the same time."""
    with contextlib.suppress(OSError):
        by_jax = [file for file in folder.glob("jax/*") if file.is_file()]
        for files, most in ((_programs(folder), MAX_KEPT), (by_jax, MAX_KEPT_BY_JAX)):
            for file in sorted(files, key=lambda file: file.stat().st_mtime)[:-most]:
                file.unlink()
        for leftover in folder.glob("*-*/"):
            if time.time() - leftover.stat().st_mtime > _MAX_LEFTOVER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
