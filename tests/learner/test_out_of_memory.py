"""A device without room for an update: one line that names what to lower, and a run that can be resumed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

import actor_learner as al
from actor_learner import build
from actor_learner.learner import backend
from actor_learner.learner.ahead import prefetching
from actor_learner.system import compile_cache
from tests.support.processes import patience, wait_until
from tests.support.small_networks import linear_network
from tests.support.trajectories import TWO_ACTIONS, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")
TOO_MUCH = 1 << 50  # numbers: beyond any address space

ON_JAX = """
import keras
from keras import ops
import actor_learner as al
from tests.support.trajectories import TWO_ACTIONS, random_trajectory

class SortedCube(keras.layers.Layer):
    "Needs memory for rows ** 3 times a thousand numbers: little for the rows that a network is checked with."

    def call(self, x):
        rows = x.shape[0] or 1
        cube = ops.broadcast_to(ops.reshape(x[:, :1], (-1, 1, 1, 1)), (rows, rows, rows, 1024))
        return ops.reshape(ops.sort(cube, axis=-1)[:, 0, 0, :2], (-1, 2))

x = keras.Input((4,))
network = keras.Model(x, (keras.layers.Dense(2)(SortedCube()(x)), keras.layers.Dense(1)(x)))
learner = al.Learner(network, al.PPO(minibatch_size=8192, epochs=1), action_space=TWO_ACTIONS)
before = network.get_weights()
try:
    learner.update(random_trajectory(steps=1024, columns=8))
except MemoryError as error:
    print(error)
assert all((old == new).all() for old, new in zip(before, network.get_weights(), strict=True))
assert learner.updates == 0
"""


@pytest.fixture(scope="module")
def full():
    """A function that raises what TensorFlow did when asked for more memory than there is, which takes it 10 s."""
    import tensorflow as tf

    with pytest.raises(Exception, match="OOM") as error:
        tf.zeros([TOO_MUCH])

    def allocate(*arguments):
        raise error.value

    return allocate


@pytest.mark.thorough
def test_an_update_that_needs_too_much_on_jax():
    pytest.importorskip("jax", reason="needs jax")
    done = subprocess.run(
        [sys.executable, "-c", ON_JAX],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=patience(280),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "The CPU's memory is too small for this update: lower `minibatch_size`, or num_envs x unroll_length, or use "
        "precision='bfloat16'. Received: minibatch_size=8192, unroll_length=1024, num_envs=8, precision=float32\n"
    )


def test_other_errors_are_none_of_these(full):
    with pytest.raises(Exception, match="OOM") as error:
        full()
    assert backend.is_out_of_memory(error.value)
    assert not backend.is_out_of_memory(RuntimeError(str(error.value)))


def test_xla_and_cudnn_say_so_in_errors_of_other_kinds():
    from tensorflow import errors

    assert backend.is_out_of_memory(errors.InternalError(None, None, "Autotuning failed: Out of memory while trying"))
    assert not backend.is_out_of_memory(errors.InternalError(None, None, "Failed to launch a kernel"))
    assert not backend.is_out_of_memory(errors.InvalidArgumentError(None, None, "out of memory"))


@pytest.mark.parametrize(("message", "calls"), [("Out of memory while trying to allocate", 1), ("a damaged file", 2)])
def test_an_update_without_room_is_not_tried_again_without_the_cache(message, calls, monkeypatch):
    from tensorflow import errors

    monkeypatch.setattr(compile_cache, "_active", Mock(flags_before=None))
    function = Mock(side_effect=errors.InternalError(None, None, message))
    with pytest.raises(errors.InternalError, match=message):
        compile_cache.call(function)
    assert function.call_count == calls


def test_a_gpu_that_is_full_is_one_line(full, monkeypatch):
    monkeypatch.setattr(backend, "resolve_device", lambda *arguments: "/GPU:0")
    monkeypatch.setattr(backend, "device", lambda *arguments: contextlib.nullcontext())
    line = r"^The GPU's memory is full: end what else .*device='cpu'\. Received: .*OOM"
    with pytest.raises(MemoryError, match=line), build.on_device(al.TrainConfig()):
        full()


def test_a_copy_ahead_without_room_leaves_the_update_alone(full, monkeypatch):
    learner = al.Learner(linear_network(), al.PPO(epochs=1), action_space=TWO_ACTIONS)
    asked = []

    def to_device(*arguments, **options):
        asked.append(arguments)
        return full()

    with monkeypatch.context() as patch:
        patch.setattr("actor_learner.learner.backend.to_device", to_device)
        with pytest.raises(MemoryError, match="minibatch_size=64, unroll_length=16, num_envs=4"):
            learner.prefetch(random_trajectory())
        with prefetching(random_trajectory, learner):
            learner.begun += 1
            assert wait_until(lambda: len(asked) == 2, 30)
    assert learner.update(random_trajectory())


def test_a_run_without_room_is_saved_and_resumed(full, monkeypatch, tmp_path):
    config = al.TrainConfig(
        env="CartPole-v1",
        network=lambda *spaces: linear_network(),
        algorithm=al.PPO(minibatch_size=8, epochs=1),
        num_actors=0,
        envs_per_actor=2,
        unroll_length=16,
        total_steps=160,
        tensorboard=False,
        run_dir=tmp_path / "run",
        quiet=True,
    )
    usual, calls = backend.Compiled.__call__, []

    def run_once(self, *arguments, **options):  # an update has arguments; the program that reads the weights has none
        calls.append(arguments)
        return usual(self, *arguments, **options) if not arguments or sum(map(bool, calls)) < 3 else full()

    with monkeypatch.context() as patch:
        patch.setattr(backend.Compiled, "__call__", run_once)
        with pytest.raises(MemoryError, match="The CPU's memory is too small for this update") as error:
            al.train(config)
    (note,) = error.value.__notes__
    assert "--resume" in note
    assert al.train(config, resume=True).metrics["env_steps"] >= 160
