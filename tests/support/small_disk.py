"""A small filesystem in memory, that of a full disk."""

import contextlib
import ctypes
import os

import pytest

_DETACH = 2  # MNT_DETACH


@contextlib.contextmanager
def mounted(folder, kilobytes):
    """Mounts a filesystem of so many kilobytes on a folder; skips the test where that isn't permitted."""
    system = ctypes.CDLL(None)
    options = f"size={kilobytes}k".encode()
    if not hasattr(system, "umount2") or system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options):
        pytest.skip("mounting a filesystem needs Linux and its permission")
    try:
        yield folder
    finally:
        system.umount2(os.fsencode(folder), _DETACH)


def fill(folder):
    """Takes all the room that is left."""
    with (folder / "filler").open("ab", buffering=0) as file:
        size = os.fstatvfs(file.fileno())
        file.write(bytes(size.f_bavail * size.f_frsize))
