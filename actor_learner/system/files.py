"""Atomic writes of files and folders, reads that detect damage, and the folders of caches.

A folder written here has a manifest with the size and the SHA-256 of each file. A read compares files with it before
any parser sees them. Nothing here follows a link, unpickles, or imports what a file names.

Each kind of file that is kept says in which format it is, and which version wrote it. Version 0.1.0 writes format 1 of
everything. A format's number grows when an older version couldn't read the file any more, or would misread it; every
version reads all older formats. A file without a number is one of format 1.
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

from actor_learner.system import __version__
from actor_learner.system.types import Array

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
_MAX_MANIFEST_BYTES = 1 << 20
_DAMAGES = {errno.ENOENT: "is missing", errno.ELOOP: "is a link", errno.EINVAL: "is no plain file"}
_DAMAGES |= dict.fromkeys((errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENXIO), "")  # the last: a socket
_PARTIAL_FOLDER = ".partial-actor-learner-"


class Entry(NamedTuple):
    """A file in a manifest."""

    sha256: str
    size: int


class DamagedError(ValueError):
    """The error for a file or folder that isn't as it was written: it was cut off, changed or written elsewhere."""


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a partial file, then move it to `file`; a failure leaves `file` as it was.

    After the return, the file survives a power cut. Raises OSError naming the file, for example if the disk is full.
    """
    partial = file.with_name(f".partial-{file.name}")
    with _path_in_errors(file):
        partial.unlink(missing_ok=True)  # a killed writer's; or a link, which would lead the new contents elsewhere
        try:
            write(partial)
            _sync(partial)
            os.replace(partial, file)
            _sync(file.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_folder_atomically(
    folder: str | os.PathLike[str], write: Callable[[Path], object], known: Mapping[str, Entry] | None = None
) -> None:
    """Let `write` fill a partial folder, add a manifest, then move it to `folder`.

    A failure, or the end of the process, leaves `folder` as it was; after the return, the new one survives a power cut.
    An existing folder is replaced in one step where the system can swap two folders (Linux and macOS on their usual
    filesystems; elsewhere the old one is in `.replaced-<name>` between two renames). Partial folders of killed writers
    are removed.

    folder: made with its parents; an existing link is itself replaced. write: gets an empty folder and makes files in
    it; subfolders need manifests of their own. known: the entries of files that `write` links, which aren't read again;
    it may fill them in.

    Raises OSError, naming the folder, for example if the disk is full; FileExistsError if the existing folder wasn't
    written by this function, or holds further files.
    """
    folder = Path(os.path.abspath(folder))  # not `resolve`, which follows links
    with _path_in_errors(folder):
        _make_folder(folder.parent)
        _check_replaceable(folder)
        with _partial_folder(folder.parent) as partial:
            write(partial)
            write_manifest(partial, known)
            _sync_tree(partial)
            _put_in_place(partial, folder)
            _sync(folder.parent)


def write_manifest(folder: Path, known: Mapping[str, Entry] | None = None) -> None:
    """Write the size and the SHA-256 of each file of a folder into its `manifest.json`.

    known: entries that aren't computed again.
    """
    files = {name: entry._asdict() for name, entry in (known or {}).items()}
    for name in sorted(set(os.listdir(folder)) - files.keys()):
        if name != MANIFEST and stat.S_ISREG((folder / name).lstat().st_mode):
            with (folder / name).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[name] = {"sha256": digest, "size": (folder / name).stat().st_size}
    text = json.dumps(stamped({"files": files}, MANIFEST_FORMAT), indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def has_manifest(folder: str | os.PathLike[str]) -> bool:
    """Return True if a folder has an entry, of any kind, with the manifest's name."""
    return os.path.lexists(Path(folder) / MANIFEST)


def check_folder(folder: str | os.PathLike[str], leave_out: str | None = None) -> tuple[str, ...]:
    """Compare every file of a folder with the manifest, and return their names; other files must not be read.

    leave_out: how the names of files begin whose contents aren't compared.

    Raises DamagedError if a file is missing, has another size or other contents, or is no plain file; ValueError if
    the system can't read a file now (permissions, too many open files), or if another version wrote the folder.
    """
    listed = _read_manifest(Path(folder))
    for name, entry in listed.items():
        if leave_out is not None and name.startswith(leave_out):
            continue
        with _opened(Path(folder), name, entry) as stream:
            _compare(Path(folder), name, hashlib.file_digest(stream, "sha256").hexdigest(), entry)
    return tuple(listed)


def read_folder(folder: str | os.PathLike[str], *beginnings: str) -> dict[str, bytes]:
    """Return the contents of every file in the manifest, read once and compared with it.

    beginnings: of the names of files to read; none: all.

    If the folder is replaced meanwhile, the contents are the old ones or the new ones, or there is an error: never a
    mixture. Raises as `check_folder` does.
    """
    listed = _read_manifest(Path(folder))
    return {
        name: _read_listed(Path(folder), name, entry)
        for name, entry in listed.items()
        if not beginnings or name.startswith(beginnings)
    }


def listed_files(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of the files in the manifest. Raises as `check_folder` does."""
    return tuple(_read_manifest(Path(folder)))


def read_file(folder: str | os.PathLike[str], name: str) -> bytes:
    """Return the contents of one file in the manifest, compared with it. Raises as `check_folder` does."""
    listed = _read_manifest(Path(folder))
    if name not in listed:
        raise damaged(Path(folder), f"{name!r} is missing")
    return _read_listed(Path(folder), name, listed[name])


def link_file(earlier: Path, name: str, folder: Path) -> Entry | None:
    """Link a file of an earlier folder into one that is being filled. Returns its entry.

    None: it isn't there, or the filesystem has no links.
    """
    with contextlib.suppress(OSError, ValueError):
        entry = _read_manifest(earlier).get(name)
        if entry is not None and (earlier / name).stat().st_size == entry.size:
            os.link(earlier / name, folder / name, follow_symlinks=False)
            return entry
    return None


def write_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz file, for `read_arrays` and `np.load`. Raises ValueError for arrays of objects."""
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read_arrays(content: bytes) -> dict[str, Array]:
    """Return copies of the arrays in an .npz file that `write_arrays` wrote.

    Nothing is unpickled or decompressed, so that no file needs more memory than its own size. Raises DamagedError if
    the file was cut off or changed, or holds anything but plain arrays.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > len(content):
                raise ValueError("its arrays are larger than the file")
            return {_array_name(info): read_array(archive.read(info)) for info in archive.infolist()}  # checks sums
    except Exception as error:  # zipfile and NumPy raise a dozen types
        raise DamagedError(f"it is no intact .npz file of plain arrays ({one_line(error)})") from error


def read_array(content: bytes) -> Array:
    """Return a copy of the array in an .npy file, without unpickling. Raises ValueError, among others, otherwise."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array is in another version of the format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("an array holds objects, which aren't unpickled")
    flat = np.frombuffer(stream.read(), dtype).copy()  # writable
    return flat.reshape(shape, order="F" if fortran_order else "C")


def parse_json(text: str | bytes) -> Any:
    r"""Parse JSON as `json.loads` does, with "?" for half a character (`"\ud800"`), which can't be printed."""
    value = json.loads(text)
    if (b"\\ud" if isinstance(text, bytes) else "\\ud") in text.lower():  # type: ignore[operator]
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def one_line(error: BaseException) -> str:
    """Return an exception's first line, cut to 200 characters, for use in another message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


@contextlib.contextmanager
def _path_in_errors(path: Path) -> Iterator[None]:
    """Raise any OSError of a write again, in one line that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error  # a file of this folder
        text = reason.strerror or str(reason)
        if "\n" in text and error.errno:  # HDF5's messages have many lines
            text = os.strerror(error.errno)
        raise OSError(error.errno, f"can't save {path}: {text}; what was saved before is kept") from error


def _sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's entries, are on the disk."""
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
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that holds anything but files that this module wrote."""
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
    """Make a folder in `parent`, lock it, and remove it, or the folder that replaced it, afterwards.

    A lock ends with its owner, so partial folders without one are leftovers.
    """
    _remove_leftovers(parent)
    while True:
        partial = parent / f"{_PARTIAL_FOLDER}{secrets.token_hex(4)}"
        partial.mkdir()
        lock = os.open(partial, os.O_RDONLY)
        with contextlib.suppress(OSError):  # the filesystem has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if partial.exists():
            break
        os.close(lock)  # another writer removed the folder before it was locked
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    for leftover in parent.glob(f"{_PARTIAL_FOLDER}*"):
        with contextlib.suppress(OSError):  # already removed, locked, or another user's
            descriptor = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover)
            finally:
                os.close(descriptor)


def _put_in_place(partial: Path, folder: Path) -> None:
    """Move `partial` to `folder`; an earlier folder is afterwards at `partial`, or removed."""
    if folder.is_symlink():
        folder.unlink()
    try:
        partial.rename(folder)  # succeeds unless a folder with entries is there
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _swap(partial, folder):
            _replace_in_two_steps(partial, folder)


def _swap(first: Path, second: Path) -> bool:
    """Swap two folders in one step, and return whether the system and the filesystem can do that."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        rename = getattr(library, "renamex_np", None)
        return rename is not None and rename(*names, 2) == 0  # RENAME_SWAP
    rename = getattr(library, "renameat2", None)
    return rename is not None and rename(-100, names[0], -100, names[1], 2) == 0  # AT_FDCWD, RENAME_EXCHANGE


def _replace_in_two_steps(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f".replaced-{folder.name}")
    shutil.rmtree(replaced, ignore_errors=True)  # left by a writer killed after its second rename
    folder.rename(replaced)
    try:
        partial.rename(folder)
    except OSError:
        replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def damaged(folder: Path, problem: str) -> DamagedError:
    """Return the error for a folder of which a file is missing, or isn't as it was written."""
    return DamagedError(f"The folder is damaged: {problem}. Received: folder={str(folder)!r}")


def _unreadable(folder: Path, name: str, error: OSError) -> ValueError:
    return ValueError(f"{name!r} can't be read ({one_line(error)}). Received: folder={str(folder)!r}")


def cache_folder(name: str) -> Path | None:
    """Return the folder of a cache, in XDG_CACHE_HOME, else in ~/.cache; ACTOR_LEARNER_CACHE names another folder.

    None: caches are disabled, by an empty ACTOR_LEARNER_CACHE.
    """
    if (named := os.environ.get("ACTOR_LEARNER_CACHE")) is not None:
        return Path(named, name).absolute() if named else None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "actor_learner", name)
    return folder if folder.is_absolute() else None


def own_folder(folder: Path) -> Path:
    """Make a folder that only this user can write to. Raises OSError if that isn't so, or if it can't be made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError("others can write to the cache")
    return folder


def open_plain(file: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """Open a plain file, and return its descriptor; with O_CREAT in `flags`, create it with `mode`.

    A link could lead anywhere, and a pipe or device could block or never end: both raise OSError.
    """
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no plain file")
    return descriptor


@contextlib.contextmanager
def _opened(folder: Path, name: str, entry: Entry | None = None) -> Iterator[io.BufferedReader]:
    """Open a file of a folder; raise DamagedError if it isn't as listed, ValueError if it can't be read."""
    try:
        stream = os.fdopen(open_plain(folder / name), "rb")
    except OSError as error:
        if error.errno not in _DAMAGES:
            raise _unreadable(folder, name, error) from error
        problem = _DAMAGES[error.errno] or f"can't be read ({one_line(error)})"
        raise damaged(folder, f"{name!r} {problem}") from error
    except ValueError as error:
        raise damaged(folder, f"{name!r} can't be read ({one_line(error)})") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if entry is not None and size != entry.size:
            raise damaged(folder, f"{name!r} has {size} bytes instead of {entry.size}")
        try:
            yield stream
        except OSError as error:
            raise _unreadable(folder, name, error) from error


def _read_listed(folder: Path, name: str, entry: Entry) -> bytes:
    with _opened(folder, name, entry) as stream:
        content = stream.read()
    _compare(folder, name, hashlib.sha256(content).hexdigest(), entry)
    return content


def _compare(folder: Path, name: str, sha256: str, entry: Entry) -> None:
    if sha256 != entry.sha256:
        raise damaged(folder, f"{name!r} isn't what was written: its SHA-256 differs")


def _read_manifest(folder: Path) -> dict[str, Entry]:
    """Return the manifest's entries. Raises as `check_folder` does."""
    with _opened(folder, MANIFEST) as stream:
        content = stream.read(_MAX_MANIFEST_BYTES + 1)
    try:
        manifest = unstamped(folder / MANIFEST, json.loads(content.decode("utf-8")), MANIFEST_FORMAT)
        listed = {name: Entry(entry["sha256"], entry["size"]) for name, entry in manifest["files"].items()}
    except NewerFormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(folder, f"{MANIFEST!r} is no manifest ({one_line(error)})") from error
    for name in listed:
        if name in ("", ".", "..", MANIFEST) or os.path.basename(name) != name or "\0" in name:
            raise damaged(folder, f"{MANIFEST!r} lists {name[:100]!r}, which is no plain file name")
    return listed


def _array_name(info: zipfile.ZipInfo) -> str:
    if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename[:100]!r} is no plain array")
    return info.filename.removesuffix(".npy")


_KEYS = ("format", "actor_learner")


class NewerFormatError(ValueError):
    """The error for a file in a format that only a newer version reads; the file isn't damaged."""


def stamped(content: Mapping[str, Any], newest: int) -> dict[str, Any]:
    """Return a file's content with the number of its format, and the version that writes it, in front."""
    return {**dict(zip(_KEYS, (newest, __version__), strict=True)), **content}


def unstamped(file: Path, content: Mapping[str, Any], newest: int) -> dict[str, Any]:
    """Return a file's content without what `stamped` adds.

    newest: the number of the newest format that this version reads.

    Raises NewerFormatError for a higher number, ValueError for what is no number of a format.
    """
    number = content.get(_KEYS[0], 1)
    if type(number) is not int or number < 1:
        raise ValueError(f"`format` must be a number from 1 on. Received: format={str(number)[:20]}")
    if number > newest:
        writer = ascii(content.get(_KEYS[1])).strip("'")[:20]  # one line, whoever wrote it
        raise NewerFormatError(
            f"{file.name} is in format {number}, and actor-learner {__version__} reads formats up to {newest}: install "
            f"the version that wrote it, or a newer one ({writer}). Received: file={str(file)!r}"
        )
    return {name: value for name, value in content.items() if name not in _KEYS}
