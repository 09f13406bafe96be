"""`doctor --ray`: what it says of a cluster's machines."""

from __future__ import annotations

import json

import pytest

from actor_learner import cli
from tests.actors.cluster.conftest import needs_ray


@pytest.mark.thorough
def test_it_tells_what_an_actor_on_each_machine_does(machines, capsys):
    machines.are(own=2, far=1)
    cli.main(["doctor", "--no-self-test", "--json", "--ray", "auto"])
    found = json.loads(capsys.readouterr().out)["cluster"]
    assert (found["machines"], found["CPUs"], found["free CPUs"]) == (2, 3, 3)
    assert "1 of 1 CPUs free" in found["host far"]
    assert "bytes for each, which came at" in found["host far"]
    assert "env steps/s" in found["host this machine"]


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_a_problem(capsys):
    assert cli.main(["doctor", "--no-self-test", "--json", "--ray", "127.0.0.1:1"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any("The cluster: No Ray cluster answers there" in problem for problem in problems)
