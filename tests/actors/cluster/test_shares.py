"""Which host is started where, and which one takes another's place, without any host."""

from __future__ import annotations

import pytest

from actor_learner.actors.cluster import shares
from actor_learner.actors.cluster.shares import (
    FAILED_STARTS,
    HOME_SECONDS,
    LOSSES_IN_A_ROW,
    SHARED_CPUS_SECONDS,
    Node,
    Shares,
)


class Cluster:
    """Records what is asked for; time is what a test says."""

    def __init__(self, monkeypatch, nodes="abc"):
        self.now, self.started, self.ended = 0.0, [], []
        monkeypatch.setattr(shares.time, "monotonic", lambda: self.now)
        self.shares = Shares(lambda _, link, cpus, node: self.started.append((link, cpus, node)), self.ended.append)
        self.shares.nodes = [Node(name, name, "", 2, 0) for name in nodes]
        self.shares.began = True

    def wait(self, seconds):
        self.now += seconds
        before = len(self.started)
        self.shares.start_where_due()
        return [(cpus, node) for _, cpus, node in self.started[before:]]

    def ready(self, index, name=None):
        link = self.started[index][0]
        link.name = name or link.machine or "a"
        if self.shares.is_needed(link):
            self.shares.adopt(link)
        return link


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster(monkeypatch)
    made.shares.add(range(2), "a")
    made.shares.add(range(2, 4), "b")
    made.ready(0)
    made.ready(1)
    return made


def test_a_lost_host_is_replaced_on_cpus_of_its_own_or_beside_others(cluster):
    assert cluster.shares.lose(cluster.started[1][0], "died") is None
    assert cluster.wait(0.0) == [(2, None)]
    assert cluster.wait(HOME_SECONDS) == [(0, "a")]  # where a host runs, and not where one was lost
    beside = cluster.ready(3)
    assert cluster.shares.all[1].link is beside
    home = cluster.ready(2, "c")
    assert cluster.shares.all[1].link is home
    assert cluster.ended == [beside.number]


def test_actors_without_a_machine_take_no_cpus_of_those_that_have_one(monkeypatch):
    cluster = Cluster(monkeypatch)
    cluster.shares.add(range(2), "a")
    cluster.shares.add(range(2, 4), None)
    assert cluster.wait(0.0) == [(0, "a")]
    cluster.ready(0)
    assert cluster.wait(1.0) == [(2, None)]


def test_actors_whose_cpus_were_taken_meanwhile_get_a_host_beside_others(monkeypatch):
    cluster = Cluster(monkeypatch)
    cluster.shares.add(range(2), "a")
    assert cluster.wait(SHARED_CPUS_SECONDS - 1) == []
    assert cluster.wait(1.0) == [(0, "b")]


def test_a_host_beside_others_that_takes_long_is_followed_by_one_elsewhere_and_the_first_one_stays(cluster):
    cluster.shares.lose(cluster.started[1][0], "died")
    cluster.wait(HOME_SECONDS)
    assert cluster.wait(SHARED_CPUS_SECONDS) == [(0, "c")]
    first = cluster.ready(3)
    late = cluster.ready(4)
    assert cluster.shares.all[1].link is first
    assert late.number in cluster.ended
    assert cluster.wait(10 * SHARED_CPUS_SECONDS) == []


def test_a_host_that_is_ready_too_late_is_ended(cluster):
    cluster.shares.lose(cluster.started[1][0], "died")
    cluster.wait(HOME_SECONDS)
    home = cluster.ready(2, "c")
    late = cluster.ready(3)
    assert cluster.shares.all[1].link is home
    assert late.number in cluster.ended


def test_cpus_that_cannot_be_had_do_not_end_actors_that_run_beside_others(cluster):
    cluster.shares.lose(cluster.started[1][0], "died")
    cluster.wait(HOME_SECONDS)
    cluster.ready(3)
    for _ in range(2 * FAILED_STARTS):
        home = next(link for link, cpus, _ in reversed(cluster.started) if cpus)
        assert cluster.shares.lose(home, "can't be started") is None
        assert cluster.wait(shares.MAX_RETRY_SECONDS) == [(2, None)]


def test_starts_that_fail_and_hosts_that_are_lost_again_and_again_are_given_up(cluster):
    assert cluster.shares.lose(cluster.started[1][0], "died") is None
    for failures in range(1, FAILED_STARTS + 1):
        cluster.wait(shares.MAX_RETRY_SECONDS)
        beside = next(link for link, cpus, _ in reversed(cluster.started) if not cpus)
        text = cluster.shares.lose(beside, "can't be started")
        assert (text is None) == (failures < FAILED_STARTS)
    assert text.endswith(f"with actors 2 to 3, can't be started, after {FAILED_STARTS - 1} others")


def test_hosts_that_fill_no_columns_are_given_up(cluster):
    link = cluster.started[1][0]
    for losses in range(1, LOSSES_IN_A_ROW + 1):
        text = cluster.shares.lose(link, "died")
        assert (text is None) == (losses < LOSSES_IN_A_ROW)
        cluster.wait(0.0)
        link = cluster.ready(-1, "c")
