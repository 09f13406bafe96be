"""The same work with the learner on each device, and what acting there would give."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from actor_learner.benchmark.measure import Measured, Say, as_json, measure_setting
from actor_learner.benchmark.parts import Stopwatch
from actor_learner.benchmark.roofline import Cost, roof
from actor_learner.config.config import TrainConfig
from actor_learner.spaces.trajectory import map_leaves
from actor_learner.system.machine import first_bus_id

_MIN_MULTIPLICATIONS = 100_000  # for one row; in smaller networks a call of a device costs more than arithmetic
_ACTING_CALLS = 20
_SAMPLE_SECONDS = 0.05


def present(devices: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the devices of "cpu" and "gpu" that Keras's backend sees, and the missing ones. Loads it.

    Raises ValueError if all are missing.
    """
    from actor_learner.learner.backend import resolve_device

    found, missing = [], {}
    for device in dict.fromkeys(devices):
        try:
            resolve_device(device)
            found.append(device)
        except ValueError as error:
            missing[device] = str(error)
    if missing and not found:
        raise ValueError(list(missing.values())[-1].replace("`device='gpu'`", "`--compare-devices gpu`"))
    return found, list(missing)


def compare_devices(
    config: TrainConfig,
    devices: Mapping[str, str],
    *,
    rounds: int,
    seconds: float,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Measure the whole system with the learner on each device, and acting there.

    devices: name in the result -> `TrainConfig.device`. rounds, seconds, say: as for `measure_setting`.

    Return JSON: `devices` (the `as_json` of each), that of the `fastest`, `acting` (of large networks) and `gpu_busy`.
    """
    read_gpu = nvml_reader()
    measured: dict[str, Measured] = {}
    busy: dict[str, float | None] = {}
    for name, device in devices.items():
        with Busyness(read_gpu if device == "gpu" else None) as busyness:
            measured[name] = measure_setting(
                config.replace(device=device),
                rounds=rounds,
                seconds=seconds,
                say=lambda text, name=name: say(f"{name}: {text}"),  # type: ignore[misc]
            )
        busy[name] = busyness.mean
    found = {name: as_json(own) for name, own in measured.items()}
    fastest = max(measured, key=lambda name: measured[name].achieved)
    acting = {name: comparison for name, own in measured.items() if (comparison := _acting(own)) is not None}
    return {**found[fastest], "fastest": fastest, "devices": found, "acting": acting, "gpu_busy": busy}


def _acting(measured: Measured) -> dict[str, float] | None:
    """Compare acting by calls for all environments on the device with acting in each actor; None for small networks."""
    from actor_learner.learner.cost import multiplications

    config, parts = measured.config, measured.parts
    if config.acts_on_device or multiplications(measured.network) < _MIN_MULTIPLICATIONS:
        return None
    call = _time_call(measured)
    batch = call * config.unroll_length
    there = dataclasses.replace(parts, acting=Cost(batch.wall, batch.cpu / max(1, config.num_actors)))
    return {
        "seconds_a_step": call.wall,
        "seconds_a_step_in_actors": parts.acting.wall / config.unroll_length,
        "roof_steps_per_second": roof(there).steps_per_second,
        "roof_steps_per_second_in_actors": measured.roof.steps_per_second,
    }


def _time_call(measured: Measured) -> Cost:
    """Return the cost of one call of the network for the observations of all environments."""
    from actor_learner.learner import backend
    from actor_learner.networks.contract import call_network

    network, observation = measured.network, map_leaves(lambda leaf: leaf[0], measured.batch.observation)
    forward = backend.Compiled(
        lambda seen: call_network(network, seen)["parameters"], network.variables, with_xla=False
    )
    with backend.device(backend.resolve_device(measured.config.device)):
        backend.to_numpy(forward(backend.to_device(observation)))
        stopwatch = Stopwatch()
        for _ in range(_ACTING_CALLS):
            backend.to_numpy(forward(backend.to_device(observation)))
        return stopwatch.cost() * (1 / _ACTING_CALLS)


class _Rates(ctypes.Structure):
    """NVML's nvmlUtilization_t: percentages."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def nvml_reader() -> Callable[[], float] | None:
    """Return a reader of the share of time in which CUDA's first GPU ran a kernel of any program, 0 to 1.

    None without a GPU or NVML, which is in its driver, and for a part of a GPU (MIG), of which NVML doesn't tell.
    """
    gpu, rates = ctypes.c_void_p(), _Rates()
    try:
        nvml, address = ctypes.CDLL("libnvidia-ml.so.1"), first_bus_id()
        if address is None or nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(gpu)):
            return None
        if nvml.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates)):
            return None
    except (OSError, AttributeError):  # no driver, or one without these functions
        return None

    def read() -> float:
        nvml.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates))
        return float(rates.gpu) / 100

    return read


class Busyness(contextlib.AbstractContextManager["Busyness"]):
    """Samples `read` while its `with` block runs; None: samples nothing."""

    def __init__(self, read: Callable[[], float] | None) -> None:
        self._read = read
        self._readings: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-busyness", daemon=True)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self._readings) if self._readings else None

    def _sample(self) -> None:
        while self._read is not None:
            self._readings.append(self._read())
            if self._over.wait(_SAMPLE_SECONDS):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
