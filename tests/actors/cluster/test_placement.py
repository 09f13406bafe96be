"""Which machine gets how many actors."""

from __future__ import annotations

import pytest

from actor_learner.actors.cluster.placement import Node, Share, divide


def nodes(**cpus):
    return [Node(name, name, "", count, count, name == "own") for name, count in cpus.items()]


@pytest.mark.parametrize(
    ("machines", "actors", "per_host", "reserved", "expected"),
    [
        ({"own": 4}, 3, None, 0, [Share(3, "own", True)]),
        ({"own": 4, "a": 2, "b": 8}, 12, None, 1, [Share(3, "own", True), Share(8, "b"), Share(1, "a")]),
        ({"own": 1, "a": 4}, 4, None, 1, [Share(4, "a")]),
        ({"a": 4, "b": 4}, 4, 2, 0, [Share(2, "a"), Share(2, "b")]),
        ({"a": 4, "b": 4}, 3, 2, 0, [Share(2, "a"), Share(1, "b")]),
        ({"a": 2}, 5, None, 0, [Share(2, "a"), Share(2, None), Share(1, None)]),
        ({"a": 2}, 8, 4, 0, [Share(4, None), Share(4, None)]),
        ({}, 3, None, 0, [Share(3, None)]),
    ],
)
def test_actors_are_divided_among_free_cpus(machines, actors, per_host, reserved, expected):
    assert divide(nodes(**machines), actors, per_host, reserved) == expected
