"""The roof of a run: the steps per second that perfect overlap of its measured parts would reach.

docs/performance.md has the model in words; tests compare it with `tests/support/event_simulation.py`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NAMES = {"env": "environments", "acting": "acting", "copying": "copying", "update": "learning"}
"""The name of each field of `Parts` that is a cost."""
_MIN_GAIN = 0.05  # the least expected gain of a change that is mentioned


@dataclass(frozen=True)
class Cost:
    """The seconds that a piece of work takes with the cores to itself, and its CPU seconds.

    wall above cpu: it waits, or computes elsewhere (a GPU). cpu above wall: it has several threads.
    """

    wall: float
    cpu: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.wall * factor, self.cpu * factor)

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        return cls(statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The costs of one batch, part by part, each measured alone.

    steps: env steps in a batch. env, acting, copying: of one actor's columns. update: of the whole batch. num_actors:
    0 is one actor in the learner's process. cores: the number that the run may use. on_device: the learner's device
    steps the environments, and `env` is all of a rollout.
    """

    steps: float
    env: Cost
    acting: Cost
    copying: Cost
    update: Cost
    num_actors: int
    cores: int
    max_policy_lag: int
    on_device: bool = False

    @property
    def actor(self) -> Cost:
        return self.env + self.acting + self.copying

    @property
    def stepping(self) -> str:
        """The name of `env`."""
        return "rollouts" if self.on_device else NAMES["env"]


class Roof(NamedTuple):
    """The least time for a batch.

    limit: "learning"; "environments", "acting" or "copying" (the largest part of an actor's work, where actors limit);
    "rollouts" on a device; "cores" where all of them are busy.
    """

    seconds: float
    steps_per_second: float
    limit: str


class Prospect(NamedTuple):
    """A change, and the expected gain of steps per second: 0.38 is +38%."""

    change: str
    gain: float


def roof(parts: Parts) -> Roof:
    """Return the steps per second that perfect overlap would reach.

    In lock-step (`max_policy_lag=0`) the actors collect side by side, then the learner learns. With a lag, both happen
    at once, and the longest term decides: the update, an actor's share of a batch, or all the CPU time over all the
    cores. An environment that waits keeps its actor busy, but no core.
    """
    collecting, collecting_limit = _collecting(parts)
    if parts.num_actors == 0 or parts.max_policy_lag == 0:
        seconds = collecting + parts.update.wall
        limit = NAMES["update"] if parts.update.wall >= collecting else collecting_limit
    else:
        busy = (parts.update.cpu + parts.num_actors * parts.actor.cpu) / parts.cores
        terms = {NAMES["update"]: parts.update.wall, _largest_part(parts): parts.actor.wall, "cores": busy}
        limit = max(terms, key=terms.__getitem__)
        seconds = terms[limit]
    return Roof(seconds, parts.steps / seconds, limit)


def _collecting(parts: Parts) -> tuple[float, str]:
    """Return the seconds in which the actors alone fill a batch, and their limit."""
    if parts.num_actors == 0:
        return parts.actor.wall, _largest_part(parts)
    busy = parts.num_actors * parts.actor.cpu / parts.cores
    return (busy, "cores") if busy > parts.actor.wall else (parts.actor.wall, _largest_part(parts))


def _largest_part(parts: Parts) -> str:
    largest = max(("env", "acting", "copying"), key=lambda name: getattr(parts, name).wall)
    return parts.stepping if largest == "env" else NAMES[largest]


def with_actors(parts: Parts, num_actors: int) -> Parts:
    """Return the parts with this number of actors: the batch grows with it, and the update with the batch."""
    factor = num_actors / max(1, parts.num_actors)
    return dataclasses.replace(parts, steps=parts.steps * factor, update=parts.update * factor, num_actors=num_actors)


def prospects(parts: Parts) -> list[Prospect]:
    """Return the changes that raise the roof by at least 5%, the best first."""
    more = {} if parts.on_device else {"one more actor": with_actors(parts, parts.num_actors + 1)}
    changes = {
        **more,
        "an update twice as fast": dataclasses.replace(parts, update=parts.update * 0.5),
        f"{parts.stepping} twice as fast": dataclasses.replace(parts, env=parts.env * 0.5),
    }
    if parts.num_actors and not parts.max_policy_lag:
        changes["max_policy_lag=1"] = dataclasses.replace(parts, max_policy_lag=1)
    now = roof(parts).steps_per_second
    found = [Prospect(change, roof(then).steps_per_second / now - 1) for change, then in changes.items()]
    return sorted((each for each in found if each.gain >= _MIN_GAIN), key=lambda each: -each.gain)
