"""A cache of XLA's programs: later runs on the same machine don't compile the same update again.

<cache>/actor_learner/xla/<digest of versions>/<program>.<digest>    programs, with native code
                                               <process>-<random>/   links to them, for one process's TensorFlow

TensorFlow fails on a damaged or unwritable file of its persistent cache. So each process gives it a folder of links to
the programs with the right digest, and keeps what TensorFlow adds once the program has run. The cache is in
XDG_CACHE_HOME, else in ~/.cache; ACTOR_LEARNER_CACHE names another folder, and an empty value disables the cache. A
disk without room, or a folder that can't be written, disables it, too.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actor_learner.system.machine import allowed_cores

MOST_KEPT = 24
"""The number of programs, of about a megabyte each, beyond which the oldest are removed."""

ROOM = 2**24
"""Bytes that must be free for a new program."""

_DAY = 86_400.0
_VARIABLES = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class CompileCache:
    """The programs in a folder, and the folder for this process's TensorFlow. Raises OSError if it can't be used.

    folder: the folder of programs compiled with the same libraries, flags and processor.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_is_ours(folder)
        _remove_old(folder)
        self._folder = folder
        self.flags_before: str | None = None
        self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        self._process = os.getpid()
        atexit.register(self._close)
        _check_room(self.path)
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


def begin(threads: int | None = None) -> None:
    """Start this process's cache, if TensorFlow isn't loaded yet and there is a folder for the cache.

    threads: the number that TensorFlow will be set to; XLA compiles for it.
    """
    global _active
    folder = _cache_folder()
    taken = "persistent_cache" in os.environ.get("TF_XLA_FLAGS", "")
    if _active is None and folder is not None and not taken and not {"tensorflow", "keras"} & set(sys.modules):
        with contextlib.suppress(OSError):
            _active = CompileCache(folder / _compiled_with(threads))
            _add_flags(_active)


def _add_flags(cache: CompileCache) -> None:
    """Set TensorFlow's flags, which it reads at its first operation; `call` removes them before the first program."""
    cache.flags_before = os.environ.get("TF_XLA_FLAGS")
    flags = [cache.flags_before] if cache.flags_before else []
    flags += [f"--tf_xla_persistent_cache_directory={cache.path}"]
    flags += ["--tf_xla_persistent_cache_device_types=CPU"]
    os.environ["TF_XLA_FLAGS"] = " ".join(flags)


def _restore_flags(cache: CompileCache) -> None:
    os.environ.pop("TF_XLA_FLAGS", None)
    if cache.flags_before is not None:
        os.environ["TF_XLA_FLAGS"] = cache.flags_before


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that XLA compiles, and keep the program.

    After a failure in TensorFlow, the function is called again without the cache, so a failed call must have no effect.
    """
    if _active is None:
        return function(*arguments)
    _restore_flags(_active)
    try:
        result = function(*arguments)
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        _active.leave()
        return function(*arguments)
    _active.keep()
    return result


def _cache_folder() -> Path | None:
    if (named := os.environ.get("ACTOR_LEARNER_CACHE")) is not None:
        folder = Path(named, "xla").absolute() if named else None
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "actor_learner", "xla")
    if folder is None or not folder.is_absolute() or re.search(r"\s", str(folder)):
        return None  # TensorFlow splits its flags at blanks
    return folder


def _compiled_with(threads: int | None = None) -> str:
    """Return a name for the versions, flags, threads and processor that programs depend on."""
    from importlib.metadata import version

    tensorflow = version("tensorflow")
    parts = [
        tensorflow,
        sys.version,
        _processor(),
        str(allowed_cores()),
        *(os.environ.get(name, "") for name in _VARIABLES),
    ]
    parts += [] if threads is None else [str(threads)]
    return f"{tensorflow}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _processor() -> str:
    """Return the constant entries of the first processor in /proc/cpuinfo: its model and its features."""
    lines = []
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                break
            if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")):
                lines.append(line)
    return "".join(lines)


def _check_is_ours(folder: Path) -> None:
    """Raise OSError if another user could add programs."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError("others can write to the cache")


def _check_room(folder: Path) -> None:
    """Raise OSError if a program may not fit: the disk, or this user's quota, is full."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, ROOM)


def _programs(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.pb.*") if file.is_file() and not file.is_symlink()]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _remove_old(folder: Path) -> None:
    """Remove the oldest programs and the folders of killed processes; other processes may do so at the same time."""
    with contextlib.suppress(OSError):
        for file in sorted(_programs(folder), key=lambda file: file.stat().st_mtime)[:-MOST_KEPT]:
            file.unlink()
        for leftover in folder.glob("*-*/"):
            if time.time() - leftover.stat().st_mtime > _DAY:
                shutil.rmtree(leftover, ignore_errors=True)
