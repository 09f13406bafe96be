"""What XLA has compiled, kept for later runs: the same update on the same machine isn't compiled again.

<cache>/actor_learner/xla/<what it was compiled with>/<program>.<digest>   whole programs, native code among it
                                                      <process>-<random>/   links to them, for one process's TensorFlow

TensorFlow fails where a file of its persistent cache is damaged or can't be written. So it gets a folder of its own
with links to those whose digests are right, and whatever it adds is kept once that has worked. All of it is the user's
own (in XDG_CACHE_HOME, else ~/.cache); ACTOR_LEARNER_CACHE names another folder, and an empty one means none. Where
there is no room, or no right to write, there is no cache.
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

MOST_KEPT = 24
"""Programs, of a megabyte or so; the oldest go."""

ROOM = 2**24
"""Bytes that must be free for a new one."""

_DAY = 86_400.0
_VARIABLES = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class CompileCache:
    """The programs in a folder, and the folder that this process's TensorFlow gets. Raises OSError if it can't be.

    folder: of programs that were compiled with the same libraries, flags and processor.
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
            with contextlib.suppress(OSError):  # another process removed it, or there are two of one name
                if _digest(file) == digest:
                    os.link(file, self.path / name)
                else:
                    file.unlink()

    def keep(self) -> None:
        """Keeps what TensorFlow has added to its folder."""
        with contextlib.suppress(OSError):
            for file in self.path.glob("*.pb"):
                kept = self._folder / f"{file.name}.{_digest(file)}"
                if not kept.exists():
                    os.link(file, kept)

    def leave(self) -> None:
        """Lets TensorFlow go on in an empty folder, which isn't kept: something is wrong with this one."""
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
    """Lets this process have a cache, if TensorFlow isn't there yet and there is a folder for it.

    threads: that TensorFlow will be told to use. XLA divides work among as many as there are when it compiles.
    """
    global _active
    folder = _cache_folder()
    taken = "persistent_cache" in os.environ.get("TF_XLA_FLAGS", "")
    if _active is None and folder is not None and not taken and not {"tensorflow", "keras"} & set(sys.modules):
        with contextlib.suppress(OSError):
            _active = CompileCache(folder / _compiled_with(threads))
            _add_flags(_active)


def _add_flags(cache: CompileCache) -> None:
    """TensorFlow reads them with its first operation; by its first program they have gone again."""
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
    """Calls a function that XLA compiles meanwhile, and keeps the program.

    Where TensorFlow fails, it is called again without the cache: it must be one that changes nothing if it fails.
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
        return None  # TensorFlow takes its flags apart at blanks
    return folder


def _compiled_with(threads: int | None = None) -> str:
    """A name for all that programs depend on, besides what is compiled."""
    from importlib.metadata import version

    tensorflow = version("tensorflow")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [tensorflow, sys.version, _processor(), str(cores), *(os.environ.get(name, "") for name in _VARIABLES)]
    parts += [] if threads is None else [str(threads)]
    return f"{tensorflow}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _processor() -> str:
    """What Linux says of the first processor that doesn't change: its model, and what it can do."""
    lines = []
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                break
            if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")):
                lines.append(line)
    return "".join(lines)


def _check_is_ours(folder: Path) -> None:
    """Raises OSError where somebody else could put programs."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError("others can write to the cache")


def _check_room(folder: Path) -> None:
    """Raises OSError where a program may not fit: the disk is full, or what this user may take of it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, ROOM)


def _programs(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.pb.*") if file.is_file() and not file.is_symlink()]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _remove_old(folder: Path) -> None:
    """The oldest programs, and folders that processes which were killed left; others may be at it, too."""
    with contextlib.suppress(OSError):
        for file in sorted(_programs(folder), key=lambda file: file.stat().st_mtime)[:-MOST_KEPT]:
            file.unlink()
        for left in folder.glob("*-*/"):
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)
