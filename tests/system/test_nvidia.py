"""Why a library sees no GPU of a machine that has one, and the address of the GPU that CUDA counts first."""

from __future__ import annotations

import pytest

from actor_learner.system import machine

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  1 00:00:00 UTC 2030\nGCC version:  gcc 12\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine with NVIDIA's GPU on its bus, beside a network card of NVIDIA's and another GPU."""
    for name, vendor, kind in (("a", "0x10de", "0x020000"), ("b", "0x1002", "0x030000"), ("c", "0x10de", "0x030200")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "_load_library", lambda name: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def with_driver(root, version):
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(DRIVER.format(version))


def test_a_driver_that_is_missing_or_incomplete_is_named(root, monkeypatch):
    assert "NVIDIA's driver isn't loaded" in machine.unused_gpu("JAX", "jax-cuda", 13)
    assert "device='cpu' has hidden it from this process" in machine.unused_gpu("JAX", "jax-cuda", 13, hidden=True)
    with_driver(root, "550.54.15")
    assert "libcuda.so.1, a part of NVIDIA's driver 550.54.15, is missing" in machine.unused_gpu("JAX", "jax-cuda", 13)
    monkeypatch.setattr(machine, "_load_library", lambda name: object())
    assert "driver 550.54.15 is older than 580, which CUDA 13 needs" in machine.unused_gpu("JAX", "jax-cuda", 13)
    assert "whose driver is 550.54.15: " in (reason := machine.unused_gpu("TensorFlow", "cuda", 12))
    assert "[cuda]" in reason


def test_a_gpu_that_is_hidden_or_of_another_maker_is_none(root, monkeypatch):
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert machine.unused_gpu("JAX", "jax-cuda", 13) is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (root / "sys/bus/pci/devices/c/vendor").write_text("0x1002\n")
    assert machine.unused_gpu("JAX", "jax-cuda", 13) is None


def test_one_warning_says_so(root):
    machine.warn_of_unused_gpu.cache_clear()
    with pytest.warns(UserWarning, match="driver isn't loaded.*Received: device='auto', which is the CPU now"):
        machine.warn_of_unused_gpu("JAX", "jax-cuda", 13)
    machine.warn_of_unused_gpu("JAX", "jax-cuda", 13)
    machine.warn_of_unused_gpu.cache_clear()


class Cuda:
    """The functions of libcuda, which return 0 where they succeed."""

    def __init__(self, failing=""):
        self._failing = failing

    def __getattr__(self, name):
        def call(*arguments):
            if name == "cuDeviceGetPCIBusId":
                arguments[0].value = b"0000:3b:00.0"
            return int(name == self._failing)

        return call


def test_the_first_gpu_is_the_one_that_cuda_counts_first(monkeypatch):
    monkeypatch.setattr(machine, "_load_library", lambda name: Cuda())
    assert machine.first_bus_id() == b"0000:3b:00.0"
    for failing in ("cuInit", "cuDeviceGet", "cuDeviceGetPCIBusId"):
        monkeypatch.setattr(machine, "_load_library", lambda name, failing=failing: Cuda(failing))
        assert machine.first_bus_id() is None
    monkeypatch.setattr(machine, "_load_library", lambda name: None)
    assert machine.first_bus_id() is None
