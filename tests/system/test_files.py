"""Files and folders are whole or not there, whatever ends the writer; damage is found before anything is read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from actor_learner.system import files
from actor_learner.system.files import (
    DamagedError,
    check_folder,
    read_arrays,
    read_folder,
    write_arrays,
    write_atomically,
    write_folder_atomically,
)
from tests.support.damage import damaged

CONTENTS = {"counts.json": b'{"updates": 7}', "empty": b"", "weights": bytes(range(256))}


def fill(folder, contents=CONTENTS):
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def saved(tmp_path):
    write_folder_atomically(tmp_path / "saved", fill)
    return tmp_path / "saved"


def names(folder):
    return sorted(os.listdir(folder))


# Files


def test_a_file_is_whole_or_not_there(tmp_path):
    file = tmp_path / "state"
    write_atomically(file, lambda partial: partial.write_text("first"))

    def fail(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, fail)
    assert file.read_text() == "first"
    assert names(tmp_path) == ["state"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_keeps_what_was_there(saved, tmp_path):
    file = tmp_path / "state"
    file.write_text("first")
    for write, path in ((write_atomically, file), (write_folder_atomically, saved)):
        with pytest.raises(OSError, match=rf"can't save {path}: No space left on device; .* is kept") as error:
            write(path, lambda partial: Path("/dev/full").write_text("second"))
        assert error.value.errno == errno.ENOSPC
    assert file.read_text() == "first"
    assert read_folder(saved) == CONTENTS
    assert names(tmp_path) == ["saved", "state"]


def test_a_link_in_the_way_is_not_written_through(tmp_path):
    """It would lead out of a run directory that came from somebody else."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "run").mkdir()
    for name in (".partial-state", "state"):
        (tmp_path / "run" / name).symlink_to(precious)
    write_atomically(tmp_path / "run" / "state", lambda partial: partial.write_text("new"))
    assert precious.read_text() == "precious"
    assert (tmp_path / "run" / "state").read_text() == "new"
    assert names(tmp_path / "run") == ["state"]


# Folders


def test_a_folder_there_and_back(tmp_path):
    folder = tmp_path / "made" / "with its parents"
    write_folder_atomically(folder, fill)
    assert check_folder(folder) == tuple(CONTENTS)
    assert read_folder(folder) == CONTENTS
    assert names(folder) == sorted([*CONTENTS, "manifest.json"])
    assert names(folder.parent) == [folder.name]


def test_a_folder_is_replaced_as_a_whole(saved):
    write_folder_atomically(saved, lambda folder: fill(folder, {"other": b"1"}))
    assert read_folder(saved) == {"other": b"1"}
    assert names(saved) == ["manifest.json", "other"]
    assert names(saved.parent) == ["saved"]


def test_systems_that_cannot_swap_folders_take_two_steps(saved):
    new = saved.with_name("new")
    write_folder_atomically(new, lambda folder: fill(folder, {"other": b"1"}))
    files._replace_in_two_steps(new, saved)
    assert read_folder(saved) == {"other": b"1"}
    assert names(saved.parent) == ["saved"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError])
def test_a_failure_leaves_the_folder_as_it_was(saved, failure, monkeypatch):
    def fail(folder):
        fill(folder, {"other": b"1"})
        raise failure

    def fail_to_sync(descriptor):
        raise OSError(errno.EIO, "the disk fails")

    with pytest.raises(failure):
        write_folder_atomically(saved, fail)
    assert read_folder(saved) == CONTENTS
    monkeypatch.setattr(os, "fsync", fail_to_sync)
    with pytest.raises(OSError, match="the disk fails"):
        write_folder_atomically(saved, lambda folder: fill(folder, {"other": b"1"}))
    assert read_folder(saved) == CONTENTS
    assert names(saved.parent) == ["saved"]


def test_what_somebody_else_keeps_there_is_never_removed(saved, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("precious")
    with pytest.raises(FileExistsError, match=r"holds something else \('thesis'\), so it isn't replaced; give another"):
        write_folder_atomically(tmp_path / "home", fill)
    with pytest.raises(FileExistsError, match="a file of this name is there"):
        write_folder_atomically(tmp_path / "home" / "thesis", fill)
    assert (tmp_path / "home" / "thesis").read_text() == "precious"
    assert names(tmp_path) == ["home", "saved"]
    (saved / "notes").write_text("precious")
    with pytest.raises(FileExistsError, match="'notes'"):
        write_folder_atomically(saved, fill)
    assert (saved / "notes").read_text() == "precious"


def test_a_link_is_replaced_itself(saved):
    link = saved.with_name("link")
    link.symlink_to(saved)
    write_folder_atomically(link, lambda folder: fill(folder, {"other": b"1"}))
    assert not link.is_symlink()
    assert read_folder(link) == {"other": b"1"}
    assert read_folder(saved) == CONTENTS


WRITE = """
import sys, time
from actor_learner.system.files import write_folder_atomically

def write(folder):
    (folder / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(600)

write_folder_atomically(sys.argv[1], write)
"""


@contextlib.contextmanager
def running(program, folder):
    """A process that writes, killed in the end, and the first line that it printed."""
    with subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True) as writer:
        try:
            yield writer, writer.stdout.readline()
        finally:
            writer.kill()


@pytest.mark.slow
def test_what_a_killed_writer_left_is_removed_and_a_living_one_left_alone(saved):
    with running(WRITE, saved.with_name("another")) as (_, said):
        assert said == "writing\n"
        with running(WRITE, saved) as (_, said):
            assert said == "writing\n"
        assert len(names(saved.parent)) == 3
        write_folder_atomically(saved.with_name("third"), fill)
        (partial,) = saved.parent.glob(".partial-*")
        assert names(partial) == ["half"]  # of the living one
        assert read_folder(saved) == CONTENTS
    write_folder_atomically(saved.with_name("third"), fill)
    assert names(saved.parent) == ["saved", "third"]


WRITE_ON = """
import itertools, sys
from actor_learner.system.files import write_folder_atomically

def write(folder, number):
    for name in "abc":
        (folder / name).write_text(str(number))

for number in itertools.count(1):
    write_folder_atomically(sys.argv[1], lambda folder: write(folder, number))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_a_whole_folder_is_there(tmp_path):
    """The last one whose write returned, or the one that was being put in its place."""
    folder = tmp_path / "saved"
    for moment in np.linspace(0, 0.05, 5):
        with running(WRITE_ON, folder) as (writer, _):
            time.sleep(moment)
            writer.send_signal(signal.SIGKILL)
            finished = [1, *map(int, writer.stdout.read().split())]
        (number,) = set(read_folder(folder).values())
        assert int(number) in (finished[-1], finished[-1] + 1)


@pytest.mark.slow
def test_a_reader_never_sees_files_of_two_writes(tmp_path):
    folder, seen = tmp_path / "saved", set()
    with running(WRITE_ON, folder) as (_, said):
        assert said == "1\n"
        while len(seen) < 4:
            try:
                (number,) = set(read_folder(folder).values())
            except DamagedError as error:  # it was replaced meanwhile
                assert "missing" not in str(error)  # noqa: PT017
                continue
            seen.add(number)


# Damage


@pytest.mark.parametrize("name", [*CONTENTS, "manifest.json"])
def test_a_file_cut_at_any_length_is_found(saved, name):
    whole = (saved / name).read_bytes()
    for length in range(len(whole)):
        (saved / name).write_bytes(whole[:length])
        if name == "manifest.json" and length == len(whole) - 1:
            continue  # the newline at its end
        with pytest.raises(DamagedError, match=f"'{name}'"):
            check_folder(saved)
        with pytest.raises(DamagedError, match=f"'{name}'"):
            read_folder(saved)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_flipped_bits_are_found(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "flipped bits"
    if not folder.exists():
        write_folder_atomically(folder, fill)
    name = data.draw(st.sampled_from(["counts.json", "weights", "manifest.json"]))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(damaged(whole)))
    try:
        found = read_folder(folder)
    except ValueError as error:  # a changed `format` is a newer version's
        found = str(error)
    finally:
        (folder / name).write_bytes(whole)
    if name == "manifest.json" and not isinstance(found, str):
        assert found == CONTENTS  # a manifest that means the same
    else:
        assert "\n" not in found


def manifest(**listed):
    return json.dumps({"format": 1, "files": listed})


ENTRY = {"sha256": "0" * 64, "size": 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no manifest"),
        ("[]", "is no manifest"),
        ("[" * 100_000, "is no manifest"),
        ('{"format": 1}', "is no manifest"),
        (manifest(weights={"size": 256}), "is no manifest"),
        (" " * (1 << 21) + manifest(), "is no manifest"),
        (manifest(weights={**ENTRY, "size": "256"}), "has 256 bytes instead of 256"),
        (manifest(weights={"sha256": None, "size": 256}), "its SHA-256 differs"),
        (manifest(missing=ENTRY), "'missing' is missing"),
        (manifest(**{"../precious": ENTRY}), r"lists '\.\./precious', which is no plain file name"),
        (manifest(**{"a/b": ENTRY}), "no plain file name"),
        (manifest(**{"..": ENTRY}), "no plain file name"),
        (manifest(**{"manifest.json": ENTRY}), "no plain file name"),
        (manifest(**{"a\0b": ENTRY}), "no plain file name"),
        (manifest(**{"\ud800": ENTRY}), "can't be read"),
        (manifest(**{"x" * 10_000: ENTRY}), "can't be read"),
    ],
)
def test_a_manifest_of_a_stranger(saved, content, message):
    (saved / "manifest.json").write_text(content)
    for read in (check_folder, read_folder):
        with pytest.raises(DamagedError, match=message) as error:
            read(saved)
        assert "\n" not in str(error.value)
        assert f"Received: folder={str(saved)!r}" in str(error.value)


def test_a_manifest_of_a_newer_version_is_not_damaged(saved):
    (saved / "manifest.json").write_text('{"format": 2, "files": {}}')
    with pytest.raises(ValueError, match="manifest.json is in format 2, .* Received: file=") as error:
        read_folder(saved)
    assert not isinstance(error.value, DamagedError)


def test_no_manifest(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DamagedError, match=r"'manifest.json' is missing\. Received: folder="):
            check_folder(folder)


@pytest.mark.parametrize("name", ["weights", "manifest.json"])
def test_what_is_no_plain_file_is_not_read(saved, name):
    """A link leads out of the folder, a pipe would wait for ever, a device gives bytes for ever."""
    file = saved / name
    file.rename(saved.parent / "elsewhere")
    file.symlink_to(saved.parent / "elsewhere")
    with pytest.raises(DamagedError, match=f"'{name}' is a link"):
        check_folder(saved)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DamagedError, match=f"'{name}' is no plain file"):
        check_folder(saved)
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedError, match=f"'{name}'"):
        check_folder(saved)


def test_what_the_manifest_does_not_list_is_not_read(saved):
    (saved / ".DS_Store").write_text("of a file browser")
    (saved / "folder").mkdir()
    assert check_folder(saved) == tuple(CONTENTS)
    assert read_folder(saved) == CONTENTS


# Arrays

ARRAYS = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8).map("field/{}".format),
    hypothesis_numpy.arrays(
        st.one_of(*(getattr(hypothesis_numpy, f"{kind}_dtypes")() for kind in ("boolean", "integer", "floating"))),
        hypothesis_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(arrays=ARRAYS)
def test_arrays_there_and_back(tmp_path_factory, arrays):
    file = tmp_path_factory.getbasetemp() / "arrays.npz"
    write_arrays(file, {name: np.asarray(array, order="F") for name, array in arrays.items()})
    again = read_arrays(file.read_bytes())
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (again[name].dtype, again[name].shape) == (array.dtype, array.shape)
        assert again[name].tobytes() == array.tobytes()
        assert again[name].flags.writeable


class Hostile:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_pickle_is_not_opened(tmp_path):
    mark = tmp_path / "executed"
    array = np.empty(1, object)
    array[0] = Hostile(mark)
    with (tmp_path / "file").open("wb") as stream:
        np.savez(stream, array)
    pickled = pickle.dumps(Hostile(mark))
    for content in ((tmp_path / "file").read_bytes(), pickled, b"\x93NUMPY\x01\x00" + pickled):
        with pytest.raises(DamagedError, match="no intact .npz file of plain arrays") as error:
            read_arrays(content)
        assert "\n" not in str(error.value)
    assert not mark.exists()
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(tmp_path / "file", {"a": array})


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path.read_bytes()


def npy(header, data=b""):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", b"1234"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", b"1234"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", b"12345678"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"12345678"),
        npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}", b"12345678"),
        npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1,)}"),
        npy("__import__('os').abort()"),
        npy("(" * 5000),
    ],
)
def test_what_is_no_array_is_refused(tmp_path, content):
    with pytest.raises(DamagedError, match="no intact .npz file of plain arrays") as error:
        read_arrays(archive(tmp_path / "file", a=content))
    assert "\n" not in str(error.value)


def test_no_file_needs_more_memory_than_its_size(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(10_000_000))
    with pytest.raises(DamagedError, match="no plain array|larger than the file"):
        read_arrays((tmp_path / "bomb.npz").read_bytes())


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damaged_arrays_are_refused_or_right(tmp_path_factory, data):
    arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b/0": np.array([True, False])}
    file = tmp_path_factory.getbasetemp() / "damaged.npz"
    if not file.exists():
        write_arrays(file, arrays)
    try:
        again = read_arrays(data.draw(damaged(file.read_bytes())))
    except DamagedError:
        return
    assert again.keys() <= arrays.keys()  # `Trajectory` and `Learner` compare with what they expect
    for name in again:
        np.testing.assert_array_equal(again[name], arrays[name], strict=True)


@pytest.mark.parametrize("text", ['{"a\\ud800": "\\uD834\\uDD1E"}', b'{"a\\uD800": "\\ud834\\udd1e"}'])
def test_half_characters_in_json_are_replaced_and_whole_ones_stay(text):
    assert files.parse_json(text) == {"a?": "\U0001d11e"}
