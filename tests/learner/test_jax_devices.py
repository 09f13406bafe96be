"""What JAX is told of GPUs before it starts."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

jax = pytest.importorskip("jax", reason="needs jax")

from actor_learner.learner.jax import devices  # noqa: E402

VARIABLE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def test_memory_is_taken_as_it_is_needed_unless_the_environment_says_otherwise(monkeypatch):
    for given, expected in (("", "false"), ("true", "true")):
        monkeypatch.setenv(VARIABLE, given)
        if not given:
            monkeypatch.delenv(VARIABLE)
        devices.prepare_devices("cpu")
        assert os.environ[VARIABLE] == expected


@pytest.mark.parametrize(
    ("device", "platforms", "started", "limits"),
    [
        ("cpu", None, False, True),
        ("cpu", "cuda", False, False),
        ("cpu", None, True, False),
        ("auto", None, False, False),
    ],
)
def test_jax_starts_on_the_cpu_alone_where_nothing_else_was_asked_for(device, platforms, started, limits, monkeypatch):
    config = SimpleNamespace(jax_platforms=platforms, update=Mock())
    monkeypatch.setattr(devices, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(devices.xla_bridge, "backends_are_initialized", lambda: started)
    devices.use_only(device)
    assert config.update.mock_calls == ([call("jax_platforms", "cpu")] if limits else [])


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(
        ValueError, match=r"^`jax.distributed` must not join .* \(devices=N\), .* Received: 2 processes$"
    ):
        devices.resolve_device("cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16777716 bytes.", True),
        ("INTERNAL: Autotuning failed for HLO: Out of memory while trying to allocate 4 bytes", True),
        ("UNKNOWN: Failed to determine best cudnn convolution algorithm: CUDNN_STATUS_ALLOC_FAILED", True),
        ("INTERNAL: CUDA error: CUDA_ERROR_OUT_OF_MEMORY", True),
        ("INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS", False),
    ],
)
def test_errors_that_tell_of_no_memory(text, expected):
    assert devices.is_out_of_memory(jax.errors.JaxRuntimeError(text)) is expected
    assert not devices.is_out_of_memory(RuntimeError(text))
