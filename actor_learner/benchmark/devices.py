"""Which device should learn, and whether it should act too: the same work on each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actor_learner.benchmark.clocks import Busyness, Stopwatch, nvml_reader
from actor_learner.benchmark.measure import Measured, Say, as_json, measure_setting
from actor_learner.benchmark.roofline import Cost, roof
from actor_learner.benchmark.whole import default_network_is_used, still
from actor_learner.config.config import TrainConfig
from actor_learner.spaces.trajectory import Trajectory, map_leaves

if TYPE_CHECKING:
    from gymnasium.spaces import Space

LARGE_NETWORK = 100_000
"""Multiplications for one row, from which on acting on a device is measured: below that a call costs more."""

_SMALLEST_MINIBATCH = 64
_STEP = 4
WIDTHS = (64, 256, 1024)
"""Of the two hidden layers of the default network, where it has some, and where there are devices to compare."""
_ACTING_CALLS = 20


def present(devices: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of "cpu" and "gpu" TensorFlow sees, and which not. Loads TensorFlow.

    Raises ValueError where none is left.
    """
    from actor_learner.learner.tf.devices import resolve_device

    found, missing, error = [], [], None
    for device in dict.fromkeys(devices):
        try:
            resolve_device(device)
        except ValueError as reason:
            missing.append(device)
            error = reason
        else:
            found.append(device)
    if not found and error is not None:
        raise ValueError(str(error).replace("`device='gpu'`", "`--devices gpu`"))
    return found, missing


def compare_devices(
    config: TrainConfig,
    devices: Mapping[str, str],
    *,
    rounds: int,
    seconds: float,
    say: Say = lambda text: None,
    read_gpu: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """The whole system with the learner on each device, the update at several sizes, and acting there.

    Args:
        config: the work.
        devices: what each is called -> `TrainConfig.device`.
        rounds: of the whole system.
        seconds: as for `measure_setting`; the update at each size gets as many.
        say: hears what is going on.
        read_gpu: gives how busy the GPU is; by default NVML does.

    Returns:
        JSON: `devices` (what `as_json` says of each), `fastest`, the update by minibatch size and by network,
        where the faster device changes (`flips`), `acting`, and how busy the GPU was.
    """
    read_gpu = read_gpu or nvml_reader()
    found: dict[str, Any] = {}
    measured: dict[str, Measured] = {}
    acting: dict[str, Any] = {}
    busy: dict[str, float | None] = {}
    for name, device in devices.items():
        own = config.replace(device=device)
        with Busyness(read_gpu if device == "gpu" else None) as busyness:
            measured[name] = measure_setting(own, rounds=rounds, seconds=seconds, say=_prefixed(name, say))
        found[name], busy[name] = as_json(measured[name]), busyness.mean
    say("sizes")
    sizes, widths = _updates_by_size(measured, seconds, acting)
    fastest = max(measured, key=lambda name: measured[name].achieved)
    return {
        **found[fastest],
        "fastest": fastest,
        "devices": found,
        "update_by_minibatch_size": sizes,
        "update_by_width": widths,
        "flips": {"minibatch_size": flip(sizes), "width": flip(widths)},
        "acting": _judge_acting(acting, measured),
        "gpu_busy": busy,
    }


def _prefixed(name: str, say: Say) -> Say:
    return lambda text: say(f"{name}: {text}")


def flip(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The first size at which another device is the fastest than at the smallest; None if it never changes."""
    return next((row["size"] for row in rows if row["fastest"] != rows[0]["fastest"]), None)


def sizes_to_try(configured: int | None, rows: int) -> list[int]:
    """Minibatch sizes: the configured one, and powers of 4 times 64 up to the batch."""
    if configured is None:
        return [rows]
    sizes, size = {min(configured, rows), rows}, _SMALLEST_MINIBATCH
    while size < rows:
        sizes.add(size)
        size *= _STEP
    return sorted(sizes)


def _updates_by_size(
    measured: Mapping[str, Measured], seconds: float, acting: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Seconds of an update of one epoch, by minibatch size and by the network's width; notes what acting takes."""
    by_size: dict[int, dict[str, float]] = {}
    by_width: dict[int, dict[str, float]] = {}
    batch, spaces = (first := next(iter(measured.values()))).batch, first.spaces
    for name, own in measured.items():
        config = still(own.config)
        configured = getattr(config.algorithm, "minibatch_size", None)
        for size in sizes_to_try(configured, batch.valid.size):
            updates = _Updates(config, None if configured is None else size, spaces)
            by_size.setdefault(size, {})[name] = updates.seconds(batch, seconds)
        acting[name] = updates.acting(batch)
        compared = len(measured) > 1 and default_network_is_used(config, spaces[0])
        for width in WIDTHS if compared else ():
            updates = _Updates(config.replace(hidden_sizes=(width, width)), configured, spaces)
            by_width.setdefault(width, {})[name] = updates.seconds(batch, seconds)
    return _rows(by_size), _rows(by_width)


def _rows(found: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    return [
        {"size": size, "seconds": dict(own), "fastest": min(own, key=own.__getitem__)}
        for size, own in sorted(found.items())
    ]


class _Updates:
    """A learner of its own on a device, with one epoch of minibatches of some size."""

    def __init__(self, config: TrainConfig, minibatch_size: int | None, spaces: tuple[Space[Any], Space[Any]]) -> None:
        import tensorflow as tf

        from actor_learner.build import make_network
        from actor_learner.learner.learner import Learner
        from actor_learner.learner.tf.devices import resolve_device

        changes = {"epochs": 1} | ({} if minibatch_size is None else {"minibatch_size": minibatch_size})
        algorithm = dataclasses.replace(config.algorithm, **changes)
        self._device = resolve_device(config.device)
        with tf.device(self._device):
            self._network = make_network(config, None, *spaces)
        self._learner = Learner(
            self._network, algorithm, action_space=spaces[1], total_steps=config.total_steps, device=config.device
        )

    def seconds(self, batch: Trajectory, seconds: float) -> float:
        """Of one update, compiled before."""
        for _ in range(2):
            self._learner.update(batch)
        stopwatch, end, count = Stopwatch(), time.perf_counter() + seconds, 0
        while not count or time.perf_counter() < end:
            self._learner.update(batch)
            count += 1
        return stopwatch.cost().wall / count

    def acting(self, batch: Trajectory) -> dict[str, float] | None:
        """Seconds in which the network answers the observations of all environments; None if it is small."""
        import tensorflow as tf

        from actor_learner.learner.tf.devices import multiplications
        from actor_learner.networks.contract import call_network

        if multiplications(self._network) < LARGE_NETWORK:
            return None
        observation = map_leaves(lambda leaf: leaf[0], batch.observation)
        forward = tf.function(lambda seen: call_network(self._network, seen)["parameters"], autograph=False)
        with tf.device(self._device):
            forward(tf.nest.map_structure(tf.constant, observation)).numpy()
            stopwatch = Stopwatch()
            for _ in range(_ACTING_CALLS):
                forward(tf.nest.map_structure(tf.constant, observation)).numpy()
            cost = stopwatch.cost() * (1 / _ACTING_CALLS)
            return {"rows": len(batch.reward[0]), "seconds": cost.wall, "cpu_seconds": cost.cpu}


def _judge_acting(calls: Mapping[str, Any], measured: Mapping[str, Measured]) -> dict[str, Any]:
    """What acting by calls from all actors to one device would come to at best, beside acting in each actor."""
    found: dict[str, Any] = {}
    for name, call in calls.items():
        own = measured[name]
        parts, config = own.parts, own.config
        if call is None:
            continue
        rows = max(1, config.num_actors) * config.envs_per_actor
        calls_of_batch = config.unroll_length * rows / call["rows"]
        cpu = call["cpu_seconds"] * calls_of_batch / max(1, config.num_actors)
        there = dataclasses.replace(parts, acting=Cost(call["seconds"] * calls_of_batch, cpu))
        found[name] = {
            "seconds_a_step": call["seconds"],
            "seconds_a_step_in_actors": parts.acting.wall / config.unroll_length,
            "roof_steps_per_second": roof(there).steps_per_second,
            "roof_steps_per_second_in_actors": own.roof.steps_per_second,
        }
    return found
