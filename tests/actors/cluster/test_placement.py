"""Which machine gets how many actors."""

from __future__ import annotations

import pytest

from actor_learner.actors.cluster.shares import Node, divide, reservable


def nodes(**cpus):
    return [Node(name, name, "", count, count, name == "own") for name, count in cpus.items()]


@pytest.mark.parametrize(
    ("machines", "actors", "per_host", "reserved", "expected"),
    [
        ({"own": 4}, 3, None, 0, [(3, "own", True)]),
        ({"own": 4, "a": 2, "b": 8}, 12, None, 1, [(3, "own", True), (8, "b", False), (1, "a", False)]),
        ({"own": 1, "a": 4}, 4, None, 1, [(4, "a", False)]),
        ({"a": 4, "b": 4}, 4, 2, 0, [(2, "a", False), (2, "b", False)]),
        ({"a": 4, "b": 4}, 3, 2, 0, [(2, "a", False), (1, "b", False)]),
        ({"a": 2}, 5, None, 0, [(2, "a", False), (2, None, False), (1, None, False)]),
        ({"a": 2}, 8, 4, 0, [(4, None, False), (4, None, False)]),
        ({}, 3, None, 0, [(3, None, False)]),
    ],
)
def test_actors_are_divided_among_free_cpus(machines, actors, per_host, reserved, expected):
    placements = divide(nodes(**machines), actors, per_host, reserved)
    assert [(len(placement.actors), placement.node, placement.own) for placement in placements] == expected
    assert [actor for placement in placements for actor in placement.actors] == list(range(actors))


@pytest.mark.parametrize(
    ("machines", "actors", "per_host", "expected"),
    [
        ({"own": 2, "a": 2}, 3, None, 1),
        ({"own": 2, "a": 2}, 4, None, 0),
        ({"own": 2, "a": 2}, 5, None, 1),
        ({"own": 2, "a": 2}, 4, 2, 0),
    ],
)
def test_the_learner_shares_its_cpu_rather_than_leave_an_actor_without_one(machines, actors, per_host, expected):
    assert reservable(nodes(**machines), actors, per_host, 1) == expected
