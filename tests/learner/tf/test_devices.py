from __future__ import annotations

from unittest.mock import Mock, call

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import actor_learner as al
from actor_learner.learner.backend import use_threads, warn_of_threads
from actor_learner.learner.cost import multiplications
from actor_learner.learner.tf.compiled import Compiled
from actor_learner.learner.tf.devices import resolve_device, use_only, use_xla
from tests.support.trajectories import TWO_ACTIONS, VECTOR


def test_the_rule_that_chooses_xla(caplog):
    mlp = al.default_network(VECTOR, TWO_ACTIONS)
    x = keras.Input((84, 84, 4))
    h = layers.Flatten()(layers.Conv2D(4, 8, 4)(x))
    cnn = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    assert use_xla(mlp, "/CPU:0", 1e6)
    assert not use_xla(mlp, "/CPU:0", 1e10)
    assert not use_xla(cnn, "/CPU:0", 1e6)
    with caplog.at_level("INFO", logger="actor_learner"):
        assert use_xla(cnn, "/GPU:0", 1e10)
    assert "XLA compiles for the GPU anew in each run" in caplog.text


def test_gpus_are_hidden_where_the_cpu_is_asked_for_until_tensorflow_has_started(monkeypatch):
    hide = Mock(side_effect=RuntimeError("Visible devices cannot be modified after being initialized"))
    monkeypatch.setattr(tf.config, "set_visible_devices", hide)
    use_only("auto")
    use_only("gpu")
    assert not hide.mock_calls
    use_only("cpu")
    assert hide.mock_calls == [call([], "GPU")]


def test_a_gpu_that_is_hidden_is_none(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    warn = Mock()
    monkeypatch.setattr("actor_learner.learner.tf.devices.warn_of_unused_gpu", warn)
    assert resolve_device("cpu") == resolve_device("auto") == "/CPU:0"
    assert warn.mock_calls == [call("TensorFlow", "cuda", 12, hidden=True)]
    with pytest.raises(ValueError, match="needs a GPU that TensorFlow sees .* Received: none"):
        resolve_device("gpu")


def test_multiplications_are_the_matrices_elements():
    network = al.default_network(VECTOR, TWO_ACTIONS)
    kernels = [weight for weight in network.get_weights() if weight.ndim == 2]
    assert multiplications(network) == sum(np.prod(kernel.shape) for kernel in kernels)


@pytest.mark.slow
def test_cpu_is_always_there():
    assert resolve_device("cpu") == "/CPU:0"
    with pytest.raises(ValueError, match="must be one of 'auto', 'cpu', 'gpu'. Received: device='cuda'"):
        resolve_device("cuda")


def test_threads_that_the_actors_need_are_a_warning(monkeypatch):
    monkeypatch.setattr("actor_learner.learner.backend.available_cores", lambda: 8)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "4")
    warn_of_threads(4)
    with pytest.warns(UserWarning, match=r"set TF_NUM_INTRAOP_THREADS=2. Received: 4 threads, 8 cores"):
        warn_of_threads(2)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    with pytest.warns(UserWarning, match="Received: all threads"):
        warn_of_threads(6)


def test_threads_that_come_too_late_are_a_warning(monkeypatch):
    tf.constant(0)  # TensorFlow has started
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 3)
    use_threads(None)
    use_threads(3)
    with pytest.warns(UserWarning, match="with 3 threads, .* Received: learner_threads=77"):
        use_threads(77)


def test_tf32_is_on_in_the_programs_that_ask_for_it():
    """TensorFlow's default is TF32; a learner on a GPU rules it out for all else."""

    def is_on(x):
        return tf.py_function(tf.config.experimental.tensor_float_32_execution_enabled, [], tf.bool)

    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        found = [bool(Compiled(is_on, (), with_xla=False, tf32=tf32)(tf.constant(0.0))) for tf32 in (False, True)]
        assert found == [False, True]
        assert not tf.config.experimental.tensor_float_32_execution_enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="needs a GPU"):
        al.Learner(al.default_network(VECTOR, TWO_ACTIONS), al.PPO(), action_space=TWO_ACTIONS, device="gpu")
