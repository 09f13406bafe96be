"""one actor in this process."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from actor_learner.actors.actor import Actor, Leaves, Startup, make_environments
from actor_learner.actors.processes.restarts import Restart
from actor_learner.actors.scheduling import Schedule
from actor_learner.actors.transport.batches import ArenaPlan
from actor_learner.actors.transport.messages import HandOut
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.environments.calls import Call, Calls
from actor_learner.environments.environments import Environments
from actor_learner.environments.factory import EnvFactory
from actor_learner.policy.exported import ExportedPolicy


class LocalActors:
    """One actor in the caller's process: for debuggers, and the same bytes as one actor process."""

    def __init__(self, factory: EnvFactory, startup: Startup, arena: Arena) -> None:
        self._factory, self._startup, self._arena = factory, startup, arena
        self._environments: Environments | None = None
        self._observation: Leaves | None = None
        self._to_do: deque[tuple[tuple[Call, ...], HandOut]] = deque()
        self.calls, self._told = Calls(), 0
        self._actor: Actor | None = None
        self.lock = contextlib.nullcontext()
        self._closed = False

    def start(self) -> None:
        """Makes and resets the environments. Raises EnvError if that fails."""
        self._environments, self._observation = make_environments(self._factory, self._startup)

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON."""
        assert self._environments is not None
        return self._environments.spaces.to_json()

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: Schedule) -> None:
        """Shows the actor the arena and the policy."""
        assert self._environments is not None
        assert self._observation is not None
        self._actor = Actor(self._startup, self._environments, self._observation, exported, self._arena, plan)

    def call(self, call: Call) -> None:
        """Notes a call. Raises CallError if the environments have no such method."""
        assert self._environments is not None
        if not call.optional:
            self._environments.check_call(call)
        self.calls.add(call)

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Notes columns to fill, which happens in `wait`."""
        self._to_do.append((self.calls.since(self._told), hand_out))
        self._told = self.calls.count

    def wait(self, hand_outs: Schedule, seconds: float) -> None:
        """Fills columns until there is a batch, however long it takes. An exception is the environment's own."""
        self.check()
        assert self._actor is not None
        try:
            while not hand_outs.complete():
                calls, hand_out = self._to_do.popleft()
                self._actor.call(calls)
                hand_outs.done(0, self._actor.fill(hand_out))
        except BaseException:  # the environments are somewhere within an unroll
            self.close()
            raise

    @property
    def idle(self) -> bool:
        """Always: what is handed out is filled in `wait` alone."""
        return True

    def check(self) -> None:
        """Raises RuntimeError if the crew is closed."""
        if self._closed:
            raise RuntimeError("The pool is closed; make another.")

    def replaced(self) -> list[Restart]:
        """None: there is no process but the caller's own."""
        return []

    def replace(self, actors: Iterable[int]) -> None:
        """Raises ValueError: there is no process but the caller's own."""
        raise ValueError("Actors can be replaced that have processes of their own. Received: num_actors=0")

    def process_ids(self) -> dict[int, int]:
        """None."""
        return {}

    def close(self) -> None:
        """Closes the environments; idempotent."""
        if not self._closed:
            self._closed = True
            self._actor = None
            if self._environments is not None:
                self._environments.close()
