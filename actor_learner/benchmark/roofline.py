"""How fast a run could be at best: the steps per second that perfect overlap of its measured parts would reach.

docs/roof.md has the model in words; tests compare it with `tests/support/event_simulation.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

NAMES = {"env": "environments", "acting": "acting", "copying": "copying", "update": "learning"}
"""The parts, by the names that they have in `Parts`."""

WORTHWHILE = 0.05
"""Changes that are expected to give less than this aren't worth a mention."""


@dataclass(frozen=True)
class Cost:
    """Seconds that something takes with the cores to itself, and CPU seconds that it uses.

    wall above cpu: it waits for something, or computes elsewhere (a GPU). cpu above wall: it has several threads.
    """

    wall: float
    cpu: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.wall * factor, self.cpu * factor)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What one batch takes, part by part, each measured alone.

    env, acting, copying: of one actor's columns. update: of the whole batch. steps: env steps in a batch, all actors
    together. num_actors: 0 is one actor in the learner's process. cores: that the run may use.
    """

    steps: float
    env: Cost
    acting: Cost
    copying: Cost
    update: Cost
    num_actors: int
    cores: int
    max_policy_lag: int

    @property
    def actor(self) -> Cost:
        """One actor's part of a batch."""
        return self.env + self.acting + self.copying


class Roof(NamedTuple):
    """The least that a batch can take.

    seconds: for a batch. steps_per_second: what that comes to. limit: "learning"; "environments", "acting" or
    "copying" (the largest part of what an actor does, where actors limit); "cores" where all of them are busy.
    """

    seconds: float
    steps_per_second: float
    limit: str


class Prospect(NamedTuple):
    """A change, and by which part more steps per second it lets one expect: .38 is +38%."""

    change: str
    gain: float


def roof(parts: Parts) -> Roof:
    """The steps per second that perfect overlap would reach.

    In lock-step (`max_policy_lag=0`) the actors collect side by side, and the learner learns after them. With a lag,
    all of it goes on at once, and what takes longest decides: the update, an actor's share of a batch, or all the
    CPU time over all the cores. What waits without computing keeps its actor, but no core, busy.
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
    """Seconds in which all actors, and nobody else, fill a batch; and what limits that."""
    if parts.num_actors == 0:
        return parts.actor.wall, _largest_part(parts)
    busy = parts.num_actors * parts.actor.cpu / parts.cores
    return (busy, "cores") if busy > parts.actor.wall else (parts.actor.wall, _largest_part(parts))


def _largest_part(parts: Parts) -> str:
    """Of what an actor does."""
    return NAMES[max(("env", "acting", "copying"), key=lambda name: getattr(parts, name).wall)]


def with_actors(parts: Parts, num_actors: int) -> Parts:
    """With so many actors of as many environments each: the batch grows with them, and the update with the batch."""
    factor = num_actors / max(1, parts.num_actors)
    return dataclasses.replace(parts, steps=parts.steps * factor, update=parts.update * factor, num_actors=num_actors)


def prospects(parts: Parts) -> list[Prospect]:
    """What would raise the roof, the most promising first; nothing that is expected to give less than 5%."""
    half = Cost(parts.update.wall / 2, parts.update.cpu / 2)
    changes = {
        "one more actor": with_actors(parts, parts.num_actors + 1),
        "an update twice as fast": dataclasses.replace(parts, update=half),
        "environments twice as fast": dataclasses.replace(parts, env=parts.env * 0.5),
    }
    if parts.num_actors and not parts.max_policy_lag:
        changes["max_policy_lag=1"] = dataclasses.replace(parts, max_policy_lag=1)
    now = roof(parts).steps_per_second
    found = [Prospect(change, roof(then).steps_per_second / now - 1) for change, then in changes.items()]
    return sorted((each for each in found if each.gain >= WORTHWHILE), key=lambda each: -each.gain)
