"""What XLA compiled is kept, checked, and never in the way."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner.system import compile_cache
from actor_learner.system.compile_cache import CompileCache

PROGRAM = "xla_compile_cache__1__2__XLA_CPU_JIT.pb"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def kept(folder, content=b"program"):
    """A cache that has kept one program."""
    cache = CompileCache(folder)
    (cache.path / PROGRAM).write_bytes(content)
    cache.keep()
    return next(folder.glob("*.pb.*"))


def names(cache):
    return [file.name for file in cache.path.iterdir()]


def test_what_one_process_keeps_the_next_one_has(folder):
    kept(folder)
    assert names(CompileCache(folder)) == [PROGRAM]
    assert (CompileCache(folder).path / PROGRAM).read_bytes() == b"program"


@pytest.mark.parametrize("damage", [b"", b"progra", b"Program", b"program "])
def test_a_damaged_program_is_removed(folder, damage):
    file = kept(folder)
    file.write_bytes(damage)
    assert names(CompileCache(folder)) == []
    assert not file.exists()


def test_of_two_good_programs_of_one_name_one_is_used(folder):
    kept(folder)
    other = b"the same, compiled again"
    (folder / f"{PROGRAM}.{hashlib.sha256(other).hexdigest()}").write_bytes(other)
    assert names(CompileCache(folder)) == [PROGRAM]


def test_a_program_that_another_process_removes_meanwhile_is_left_out(folder, monkeypatch):
    file = kept(folder)
    monkeypatch.setattr(compile_cache, "_programs", lambda folder: [folder / f"gone.pb.{0:064}", file])
    assert names(CompileCache(folder)) == [PROGRAM]


def test_only_the_newest_are_kept(folder, monkeypatch):
    monkeypatch.setattr(compile_cache, "MAX_KEPT", 2)
    cache = CompileCache(folder)
    for age in range(4):
        file = cache.path / f"{age}.pb"
        file.write_bytes(b"%d" % age)
        os.utime(file, (1e9 - age, 1e9 - age))
    cache.keep()
    assert sorted(names(CompileCache(folder))) == ["0.pb", "1.pb"]


def test_folders_of_processes_that_were_killed_are_removed_a_day_later(folder):
    old, young = CompileCache(folder).path, CompileCache(folder).path
    os.utime(old, (1e9, 1e9))
    CompileCache(folder)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        CompileCache(folder)


def test_where_there_is_no_room_there_is_no_cache(folder, monkeypatch):
    monkeypatch.setattr(compile_cache, "MIN_FREE_BYTES", 2**62)
    with pytest.raises(OSError, match="."):
        CompileCache(folder)


def test_where_tensorflow_fails_it_goes_on_without_what_was_kept(folder, monkeypatch):
    import tensorflow as tf

    kept(folder)
    cache = CompileCache(folder)
    monkeypatch.setattr(compile_cache, "_active", cache)
    calls = []

    def function(number):
        calls.append(names(cache))
        if calls[-1]:
            raise tf.errors.OutOfRangeError(None, None, "Read less bytes than requested")
        return number

    assert compile_cache.call(function, 3) == 3
    assert calls == [[PROGRAM], []]


def test_an_error_of_the_caller_is_raised_at_once(folder, monkeypatch):
    monkeypatch.setattr(compile_cache, "_active", CompileCache(folder))
    calls = []

    def function():
        calls.append(1)
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        compile_cache.call(function)
    assert calls == [1]


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"ACTOR_LEARNER_CACHE": "/there"}, "/there/xla"),
        ({"ACTOR_LEARNER_CACHE": ""}, None),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/actor_learner/xla"),
        ({"HOME": "/home/me"}, "/home/me/.cache/actor_learner/xla"),
        ({"ACTOR_LEARNER_CACHE": "/the re"}, None),
        ({"ACTOR_LEARNER_CACHE": "there"}, None),
        ({"XDG_CACHE_HOME": "/a\tb"}, None),
    ],
)
def test_where_it_is(monkeypatch, tmp_path, variables, path):
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    for name in ("ACTOR_LEARNER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert compile_cache._cache_folder() == (None if path is None else Path(path))


def test_flags_and_threads_have_caches_of_their_own(monkeypatch):
    before = compile_cache._compiled_with()
    assert compile_cache._compiled_with() == before
    for name in ("XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "--other=7")
        assert compile_cache._compiled_with() != before
        before = compile_cache._compiled_with()
    assert len({before, compile_cache._compiled_with(1), compile_cache._compiled_with(4)}) == 3


def test_deterministic_operations_are_a_flag_before_the_backend_starts(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=1")
    monkeypatch.setattr(compile_cache, "_started_backend", lambda: None)
    compile_cache.use_deterministic_ops("cpu")
    assert os.environ["XLA_FLAGS"] == "--xla_other=1"
    for _ in range(2):
        compile_cache.use_deterministic_ops("auto")
        assert os.environ["XLA_FLAGS"] == "--xla_other=1 --xla_gpu_deterministic_ops=true"


def test_deterministic_operations_are_refused_once_the_backend_has_started(monkeypatch, tmp_path):
    import tensorflow as tf

    tf.constant(0)
    config = al.TrainConfig(deterministic_ops=True, run_dir=tmp_path / "run", quiet=True)
    expected = r"^`deterministic_ops` must be set before (\w+) starts: .*: deterministic_ops=True after \1 has started$"
    with pytest.raises(ValueError, match=expected):
        al.train(config)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")  # as it was when the backend started
    compile_cache.use_deterministic_ops("auto")


JAX_STARTS = """
from actor_learner.system import compile_cache
import jax
compile_cache.use_deterministic_ops("auto")
jax.devices()
compile_cache.use_deterministic_ops("gpu")
del compile_cache.os.environ["XLA_FLAGS"]
compile_cache.use_deterministic_ops("gpu")
"""


@pytest.mark.thorough
def test_jax_takes_the_flag_before_it_starts():
    pytest.importorskip("jax", reason="needs jax")
    done = subprocess.run([sys.executable, "-c", JAX_STARTS], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ValueError: `deterministic_ops` must be set before JAX starts")
    assert done.stderr.count('File "<string>", line 8') == 1


PROGRAM_OF_XLA = """
import sys
from actor_learner.system import compile_cache
if sys.argv[1:]:
    import keras, tensorflow
compile_cache.begin(1)
import tensorflow as tf
function = tf.function(lambda x: tf.math.tanh(x @ x), jit_compile=True)
print(compile_cache.call(function, tf.random.stateless_normal((8, 8), (1, 2))).numpy().tolist())
"""


@pytest.mark.thorough
def test_results_are_the_same_bit_for_bit_with_and_without_what_was_kept(tmp_path):
    def run(*imports_first):
        command = [sys.executable, "-c", PROGRAM_OF_XLA, *imports_first]
        environment = {**os.environ, "ACTOR_LEARNER_CACHE": str(tmp_path / "cache")}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = run("imports first")
    (kept,) = (tmp_path / "cache").rglob("*.pb.*")
    written = kept.stat().st_mtime_ns
    assert run() == first
    (kept,) = (tmp_path / "cache").rglob("*.pb.*")
    assert kept.stat().st_mtime_ns == written
    assert list(kept.parent.glob("*-*/")) == []
