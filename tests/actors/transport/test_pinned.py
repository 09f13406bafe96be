"""Memory that CUDA's driver knows: registered once, and released on every path while it is still mapped."""

from __future__ import annotations

import ctypes
import os

import pytest

import actor_learner as al
from actor_learner.actors.transport import pinned
from actor_learner.actors.transport.pinned import Pin
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.cli import doctor
from tests.support.counting_env import BrokenLater, CountingEnv

INT, UINT, SIZE, POINTER = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
FUNCTIONS = {
    "cuDeviceGet": (ctypes.POINTER(INT), INT),
    "cuDevicePrimaryCtxGetState": (INT, ctypes.POINTER(UINT), ctypes.POINTER(INT)),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(POINTER), INT),
    "cuCtxPushCurrent_v2": (POINTER,),
    "cuMemHostRegister_v2": (POINTER, SIZE, UINT),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(POINTER),),
    "cuCtxSynchronize": (),
    "cuMemHostUnregister": (POINTER,),
    "cuDevicePrimaryCtxRelease_v2": (INT,),
    "cuGetErrorName": (INT, ctypes.POINTER(ctypes.c_char_p)),
}
REGISTERED = "Retain PushCurrent HostRegister PopCurrent".split()
RELEASED = "PushCurrent Synchronize HostUnregister PopCurrent Release".split()


class Driver:
    """CUDA's driver as C functions, by their own types, with a context in use; `fails` gives CUDA's error 2."""

    def __init__(self, fails=""):
        self.calls, self.fails, self.memory = [], fails, {}
        for name, types in FUNCTIONS.items():
            function = lambda *arguments, name=name: self._call(name, *arguments)  # noqa: E731
            setattr(self, name, ctypes.CFUNCTYPE(INT, *types)(function))

    def _call(self, name, *arguments):
        short = name.removesuffix("_v2")
        if name not in ("cuDeviceGet", "cuGetErrorName", "cuDevicePrimaryCtxGetState"):
            self.calls.append(next(word for word in {*REGISTERED, *RELEASED} if short.endswith(word)))
        if name == self.fails:
            return 2
        if name == "cuDevicePrimaryCtxGetState":
            arguments[2][0] = 1
        if name == "cuDevicePrimaryCtxRetain":
            arguments[0][0] = 0xC0DE
        if name == "cuCtxPushCurrent_v2":
            assert arguments == (0xC0DE,)
        if name == "cuGetErrorName":
            arguments[1][0] = b"CUDA_ERROR_OUT_OF_MEMORY"
        if name == "cuMemHostRegister_v2":
            assert arguments[2] == 1
            self.memory[arguments[0]] = arguments[1]
        if name == "cuMemHostUnregister":
            ctypes.string_at(arguments[0], self.memory.pop(arguments[0]))  # a crash if it isn't mapped any more
        return 0


@pytest.fixture
def make_driver(monkeypatch):
    def make(fails=""):
        driver = Driver(fails)
        monkeypatch.setattr(pinned, "loaded_driver", lambda: driver)
        return driver

    return make


@pytest.mark.slow
def test_a_pools_memory_is_registered_once_whoever_fills_it(make_driver, nothing_is_left):
    driver = make_driver()
    with al.ActorPool(CountingEnv, num_actors=2, envs_per_actor=1, unroll_length=4, max_policy_lag=1) as pool:
        (size,) = driver.memory.values()
        assert size == pool._group._memory.arena.size
        pool.collect()
        pool.restart([0])
        while not pool.restarts:
            pool.publish(pool.network.get_weights())
            pool.collect()
        assert driver.calls == REGISTERED
        if (child := os.fork()) == 0:
            pool._group._memory.close()
            os._exit(len(driver.calls) - len(REGISTERED))
        assert os.waitpid(child, 0)[1] == 0
    assert driver.calls == [*REGISTERED, *RELEASED]
    assert not driver.memory


def test_a_failed_pool_releases_its_memory(make_driver):
    driver = make_driver()
    options = {"num_actors": 0, "envs_per_actor": 1, "unroll_length": 256}
    with al.ActorPool(BrokenLater, **options) as pool, pytest.raises(ZeroDivisionError):
        pool.collect()
    assert driver.calls == [*REGISTERED, *RELEASED]


@pytest.mark.parametrize("fails", ["cuMemHostRegister_v2", "cuCtxPushCurrent_v2"])
def test_a_driver_that_refuses_changes_nothing_and_doctor_says_so(fails, make_driver):
    driver = make_driver(fails)
    with al.ActorPool(CountingEnv, num_actors=0, envs_per_actor=1, unroll_length=4) as pool:
        pool.collect()
    assert driver.calls == [*(REGISTERED if "Register" in fails else REGISTERED[:2]), "Release"]
    assert doctor._pinning() == f"not registered: {fails} gave CUDA_ERROR_OUT_OF_MEMORY"
    make_driver()
    assert doctor._pinning() == "registered"


def test_without_a_gpu_there_is_nothing_to_register_with(make_driver):
    arena = Arena.create()
    arena.reserve(4096)
    make_driver("cuDevicePrimaryCtxGetState")
    (pin := Pin(arena)).close()
    assert pin.outcome == "no NVIDIA GPU is in use"
    arena.close()
