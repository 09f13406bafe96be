"""Files and folders that are whole or not there, and of which it shows where they were damaged since.

A folder that is written here carries a manifest with the size and the SHA-256 of each of its files. Whatever is read
back is compared with it before anything looks inside: a parser never meets a file that was cut off or changed.
Nothing here follows a link out of a folder, unpickles, or imports what a file names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1

_LARGEST_MANIFEST = 1 << 20
_DAMAGES = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENXIO)  # the last: a socket
_PARTIAL_FOLDER = ".partial-actor-learner-"


class DamagedError(ValueError):
    """What is to be read isn't what was written: it was cut off or changed, or something else wrote it."""


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside `file`, then puts it in its place; a failure leaves `file` as it was.

    When this returns, the file survives a power cut. Raises OSError naming the file, for example if the disk is full.
    """
    partial = file.with_name(f".partial-{file.name}")
    with _naming(file):
        partial.unlink(missing_ok=True)  # of a killed writer; or a link, which would lead the new contents elsewhere
        try:
            write(partial)
            _sync(partial)
            os.replace(partial, file)
            _sync(file.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_folder_atomically(folder: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Lets `write` fill a folder beside `folder`, adds a manifest, then puts it in its place.

    A failure, or the end of the process, leaves `folder` as it was; when this returns, the new one survives a power
    cut. One that is there already is replaced in a single step where the system can swap two folders (Linux and macOS
    on their usual filesystems; elsewhere, between two renames, the old one stands in `.replaced-<name>`). What a killed
    writer left beside it is removed.

    Args:
        folder: made with its parents if it isn't there; if it is a link, the link itself is replaced.
        write: is given an empty folder and makes files in it. Folders in there need manifests of their own.

    Raises:
        OSError: naming the folder, for example if the disk is full.
        FileExistsError: what is there was not written by this function, or holds further files.
    """
    folder = Path(os.path.abspath(folder))  # without `resolve`: a link is not followed
    with _naming(folder):
        _make_folder(folder.parent)
        _check_replaceable(folder)
        with _partial_folder(folder.parent) as partial:
            write(partial)
            write_manifest(partial)
            _sync_tree(partial)
            _put_in_place(partial, folder)
            _sync(folder.parent)


def write_manifest(folder: Path) -> None:
    """Writes down the size and the SHA-256 of each file in a folder, in `manifest.json` there."""
    files = {}
    for name in sorted(os.listdir(folder)):
        if name != MANIFEST and stat.S_ISREG((folder / name).lstat().st_mode):
            with (folder / name).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[name] = {"sha256": digest, "size": (folder / name).stat().st_size}
    text = json.dumps({"format": MANIFEST_FORMAT, "files": files}, indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def has_manifest(folder: str | os.PathLike[str]) -> bool:
    """Whether something with the manifest's name is there, whatever it is."""
    return os.path.lexists(Path(folder) / MANIFEST)


def check_folder(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Compares every file of a folder with the manifest.

    A file that the system can't read now (permissions, a failing disk, too many open files) isn't damaged for that, nor
    is what another version wrote: both are a plain ValueError, here and in `read_folder`.

    Returns:
        The names of the files. Others may stand beside them; they were not checked, and must not be read.

    Raises:
        DamagedError: naming what is missing, has another size or other contents, or is no plain file in the folder.
    """
    listed = _read_manifest(Path(folder))
    for name, entry in listed.items():
        with _opened(Path(folder), name, entry) as stream:
            _compare(Path(folder), name, hashlib.file_digest(stream, "sha256").hexdigest(), entry)
    return tuple(listed)


def read_folder(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """The contents of every file that the manifest lists, each read once and then compared with it.

    A folder that is replaced meanwhile gives the old one, the new one or the error: never some files of each.

    Raises DamagedError as `check_folder` does.
    """
    contents = {}
    for name, entry in _read_manifest(Path(folder)).items():
        with _opened(Path(folder), name, entry) as stream:
            contents[name] = stream.read()
        _compare(Path(folder), name, hashlib.sha256(contents[name]).hexdigest(), entry)
    return contents


def write_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays as an .npz file; `read_arrays` and `np.load` read it. Raises ValueError for arrays of objects."""
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read_arrays(content: bytes) -> dict[str, Array]:
    """The arrays of an .npz file that `write_arrays` wrote, with memory of their own.

    Nothing is unpickled or decompressed, so that no file needs more memory than its own size.

    Raises DamagedError if the file was cut off or changed, or holds anything but plain arrays.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > len(content):
                raise ValueError("its arrays are larger than the file")
            return {_array_name(info): read_array(archive.read(info)) for info in archive.infolist()}  # checks sums
    except Exception as error:  # zipfile and NumPy raise a dozen kinds
        raise DamagedError(f"it is no whole .npz file of plain arrays ({one_line(error)})") from error


def read_array(content: bytes) -> Array:
    """The array of an .npy file, with memory of its own; nothing is unpickled.

    Raises ValueError, among others, for whatever else it is.
    """
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array is in another version of the format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("an array holds objects, which aren't unpickled")
    flat = np.frombuffer(stream.read(), dtype).copy()  # memory that is the caller's, and may be written to
    return flat.reshape(shape, order="F" if fortran_order else "C")


def parse_json(text: str | bytes) -> Any:
    r"""What JSON stands for. Half a character (`"\ud800"`), which nothing can write or draw, is replaced by "?".

    Raises ValueError as `json.loads` does.
    """
    value = json.loads(text)
    if (b"\\ud" if isinstance(text, bytes) else "\\ud") in text.lower():  # type: ignore[operator]
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def one_line(error: BaseException) -> str:
    """What an exception says, on a line that is short enough to be part of another message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


class _Entry(NamedTuple):
    sha256: str
    size: int


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Makes one line of whatever goes wrong with a write."""
    try:
        yield
    except OSError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error  # of a file in this folder
        said = reason.strerror or str(reason)
        if "\n" in said and error.errno:  # HDF5 tells all that it knows
            said = os.strerror(error.errno)
        raise OSError(error.errno, f"can't save {path}: {said}; what was saved before is kept") from error


def _sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems can't do it for folders
            raise
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _make_folder(folder: Path) -> None:
    """Makes a folder and its parents, which survive a power cut, too."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _check_replaceable(folder: Path) -> None:
    """A folder that holds anything else than what we wrote is somebody's: it must not be removed."""
    if folder.is_symlink() or not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, "a file of this name is there")
    ours = {MANIFEST}
    with contextlib.suppress(DamagedError):
        ours |= _read_manifest(folder).keys()
    if others := sorted(set(os.listdir(folder)) - ours):
        raise FileExistsError(
            errno.EEXIST, f"the folder holds something else ({others[0]!r}), so it isn't replaced; give another name"
        )


@contextlib.contextmanager
def _partial_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`; whatever stands under its name afterwards is removed.

    It is locked, which tells it from what a killed writer left: a lock dies with its owner.
    """
    _remove_leftovers(parent)
    while True:
        partial = parent / f"{_PARTIAL_FOLDER}{secrets.token_hex(4)}"
        partial.mkdir()
        lock = os.open(partial, os.O_RDONLY)
        _lock(lock, fcntl.LOCK_EX)
        if partial.exists():
            break
        os.close(lock)  # another writer took it for a leftover before it was locked
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    for leftover in parent.glob(f"{_PARTIAL_FOLDER}*"):
        with contextlib.suppress(OSError):  # it is gone already, or isn't ours
            descriptor = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(leftover)
            finally:
                os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Whether the lock was taken: another process may have it, and some network filesystems know none."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True


def _put_in_place(partial: Path, folder: Path) -> None:
    """Moves `partial` to `folder`; what was there then stands in `partial`, or is gone."""
    if folder.is_symlink():
        folder.unlink()
    try:
        partial.rename(folder)  # nothing is there, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _swap(partial, folder):
            _replace_in_two_steps(partial, folder)


def _swap(first: Path, second: Path) -> bool:
    """Swaps two folders in one step. Returns whether the system and the filesystem could."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        rename = getattr(library, "renamex_np", None)
        return rename is not None and rename(*names, 2) == 0  # RENAME_SWAP
    rename = getattr(library, "renameat2", None)
    return rename is not None and rename(-100, names[0], -100, names[1], 2) == 0  # AT_FDCWD, RENAME_EXCHANGE


def _replace_in_two_steps(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f".replaced-{folder.name}")
    shutil.rmtree(replaced, ignore_errors=True)  # of a writer that was killed after its second rename
    folder.rename(replaced)
    try:
        partial.rename(folder)
    except OSError:
        replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _damaged(folder: Path, problem: str) -> DamagedError:
    return DamagedError(f"The folder is damaged: {problem}. Received: folder={str(folder)!r}")


def _unreadable(folder: Path, name: str, error: OSError) -> ValueError:
    return ValueError(f"{name!r} can't be read ({one_line(error)}). Received: folder={str(folder)!r}")


def _open_plain(folder: Path, name: str) -> io.BufferedReader:
    """Opens a plain file: no link, and no pipe or device, which could wait or give bytes for ever.

    Raises DamagedError if it isn't one, ValueError if it can't be read.
    """
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise _damaged(folder, f"{name!r} is missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _damaged(folder, f"{name!r} is a link") from None
        if error.errno in _DAMAGES:
            raise _damaged(folder, f"{name!r} can't be read ({one_line(error)})") from error
        raise _unreadable(folder, name, error) from error
    except ValueError as error:
        raise _damaged(folder, f"{name!r} can't be read ({one_line(error)})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _damaged(folder, f"{name!r} is no plain file")
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def _opened(folder: Path, name: str, entry: _Entry) -> Iterator[io.BufferedReader]:
    """A listed file of the right size. Raises DamagedError for what is wrong with it, before or while it is read."""
    with _open_plain(folder, name) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != entry.size:
            raise _damaged(folder, f"{name!r} has {size} bytes instead of {entry.size}")
        try:
            yield stream
        except OSError as error:
            raise _unreadable(folder, name, error) from error


def _compare(folder: Path, name: str, sha256: str, entry: _Entry) -> None:
    if sha256 != entry.sha256:
        raise _damaged(folder, f"{name!r} isn't what was written: its SHA-256 differs")


def _read_manifest(folder: Path) -> dict[str, _Entry]:
    """What the manifest lists.

    Raises DamagedError if there is none, or if it isn't as `write_manifest` writes it; ValueError if another version
    wrote it, or if it can't be read.
    """
    with _open_plain(folder, MANIFEST) as stream:
        try:
            content = stream.read(_LARGEST_MANIFEST + 1)
        except OSError as error:
            raise _unreadable(folder, MANIFEST, error) from error
    try:
        manifest = json.loads(content.decode("utf-8"))
        listed = {name: _Entry(entry["sha256"], entry["size"]) for name, entry in manifest["files"].items()}
        known = manifest["format"] == MANIFEST_FORMAT
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(folder, f"{MANIFEST!r} is no manifest ({one_line(error)})") from error
    if not known:
        raise ValueError(f"{MANIFEST!r} was written by another version. Received: folder={str(folder)!r}")
    for name in listed:
        if name in ("", ".", "..", MANIFEST) or os.path.basename(name) != name or "\0" in name:
            raise _damaged(folder, f"{MANIFEST!r} lists {name[:100]!r}, which is no plain file name")
    return listed


def _array_name(info: zipfile.ZipInfo) -> str:
    if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename[:100]!r} is no plain array")
    return info.filename.removesuffix(".npy")
