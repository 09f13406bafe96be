"""The actors of a pool behind one interface: in processes of their own, or one of them in the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from actor_learner.actors.processes.restarts import Restart
from actor_learner.actors.scheduling import Schedule
from actor_learner.actors.transport.batches import ArenaPlan
from actor_learner.actors.transport.messages import HandOut
from actor_learner.environments.calls import Call, Calls
from actor_learner.policy.exported import ExportedPolicy

Array = np.ndarray[Any, Any]


class ActorGroup(Protocol):
    """The actors of a pool."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any, Any]:
        """Held while hand-outs hear what was done, which may be in another thread."""

    def start(self) -> None:
        """Starts the actors; apart from the constructor, so that whoever is interrupted can close."""

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON, once all are made and reset."""

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: Schedule) -> None:
        """Shows the actors the arena, reserved, and the policy in it; from then on `hand_outs` hear what they fill."""

    @property
    def calls(self) -> Calls:
        """Of the environments' methods: what an actor gets to hear before it fills anything."""

    def call(self, call: Call) -> None:
        """Notes a call of a method of every environment, which each actor makes before its next hand-out."""

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Gives an actor columns to fill."""

    def wait(self, hand_outs: Schedule, seconds: float) -> None:
        """Returns when there is a batch to take."""

    @property
    def idle(self) -> bool:
        """Whether the actors have filled all that was handed out to them."""

    def check(self) -> None:
        """Raises what `wait` would, if an actor has failed by now."""

    def replaced(self) -> list[Restart]:
        """The replacements since this was asked last."""

    def replace(self, actors: Iterable[int]) -> None:
        """Ends these actors' processes, soon; others take their places."""

    def process_ids(self) -> dict[int, int]:
        """Of the actors that have a process now."""

    def close(self) -> None:
        """Ends the actors; idempotent."""
