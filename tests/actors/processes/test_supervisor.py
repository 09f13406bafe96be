"""The supervisor of actors' processes: of whom it says that they were killed before their environments were closed."""

from types import SimpleNamespace
from unittest.mock import Mock

from actor_learner.actors.processes.supervisor import Supervisor


def test_an_actor_that_is_still_starting_is_not_said_to_be_in_a_step():
    supervisor = SimpleNamespace(
        _actors={number: Mock() for number in range(3)},
        _closers={2: (0.0, "Env")},
        _owner=SimpleNamespace(starting={0}),
        error=None,
        unclosed={},
    )
    Supervisor._kill_all(supervisor)
    assert supervisor.unclosed == {1: None, 2: "Env"}
    assert all(actor.kill.called for actor in supervisor._actors.values())
