"""`acting="auto"`: the place where the policy runs, chosen by measurement when a pool starts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actor_learner.actors.device_acting import parts_of
from actor_learner.actors.transport.step_rows import StepRows
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.errors import describe_error
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.runtime import load_graph
from actor_learner.spaces.packed import unpacked
from actor_learner.system.machine import available_cores

if TYPE_CHECKING:
    from actor_learner.learner.acting import DeviceStep

_CALLS = 5  # measured at least
_SECONDS = 0.2  # of a measurement, if that many calls don't take longer


class Acting(NamedTuple):
    """The place where a pool's policy runs. The others are for "auto": why, and the seconds of an env step of all.

    seconds_in_actors: of one core. seconds_on_device: of the calls for both halves of the actors. None: not measured.
    """

    place: str
    reason: str = ""
    seconds_in_actors: float | None = None
    seconds_on_device: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


def place_acting(
    settings: PoolSettings, exported: ExportedPolicy, env_counts: Sequence[int], make_step: Callable[[], DeviceStep]
) -> tuple[Acting, DeviceStep | None]:
    """Return the place where the policy runs, and its step if that is the device.

    "auto" takes the device if its calls for the environments of all actors together take less time than a core needs
    for those of its actors. Then the device is faster, whatever an env step costs. make_step: makes the device's step.
    With "auto", an error of it is a reason for the actors.
    """
    if settings.acting != "auto":
        return Acting(settings.acting), make_step() if settings.acting == "device" else None
    if settings.ray_address is not None:
        return Acting("actors", "they run on several machines"), None
    try:
        step = make_step()
        if exported.fallback:
            return Acting("device", "actors would need TensorFlow for this network"), step
        there = _seconds_on_device(step, exported, env_counts)
        here = _seconds_in_actors(exported, env_counts)
    except Exception as error:
        return Acting("actors", f"the device can't act: {describe_error(error, with_place=False)}"), None
    place = "device" if there < here else "actors"
    reason = f"{1e6 * here:,.0f} us per env step in actors, {1e6 * there:,.0f} us on the device"
    return Acting(place, reason, here, there), step if place == "device" else None


def _seconds_in_actors(exported: ExportedPolicy, env_counts: Sequence[int]) -> float:
    """Return the time that a core needs for a step of the actors that share it."""
    graph = load_graph(exported.step_graph, exported, exported.weights)
    inputs = tuple(map(np.ascontiguousarray, unpacked(_blank_rows(exported, max(env_counts)))))
    outputs = tuple(range(len(exported.spaces().action.leaves) + 1))
    return _median_seconds(lambda: graph.run(inputs, outputs)) * max(1.0, len(env_counts) / available_cores())


def _seconds_on_device(step: DeviceStep, exported: ExportedPolicy, env_counts: Sequence[int]) -> float:
    """Return the time of the calls for all parts of the actors, copies included, which follow one another."""
    weights = step.load(exported.weights)
    parts = [sum(env_counts[actor] for actor in part) for part in parts_of(len(env_counts))]
    rows = [_blank_rows(exported, count) for count in parts]
    return sum(_median_seconds(lambda inputs=inputs: step(weights, inputs)) for inputs in rows)  # type: ignore[misc]


def _blank_rows(exported: ExportedPolicy, count: int) -> Any:
    return np.zeros(*StepRows.fields(exported, count)["inputs"])


def _median_seconds(call: Callable[[], Any]) -> float:
    call()  # compiles
    seconds, end = list[float](), time.perf_counter() + _SECONDS
    while len(seconds) < _CALLS or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
