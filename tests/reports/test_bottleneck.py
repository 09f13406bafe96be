"""What limits a run: the cases of the rule, and that shares of figures measured elsewhere are judged as one would."""

from __future__ import annotations

import pytest

from actor_learner.reports.bottleneck import MIN_UPDATES, bottleneck


def judge(learning, collecting, env, acting, other, *, actors=2, cores=4, lag=0, replay=False, device=False, **more):
    shares = {"learning": learning, "collecting": collecting, "env": env, "acting": acting, "other": other}
    shares["waiting"] = 1 - env - acting - other
    metrics = {f"time/{name}": share for name, share in shares.items()}
    of_run = {"num_actors": actors, "cores": cores, "max_policy_lag": lag, "replay": replay, "on_device": device}
    found = bottleneck({**metrics, **more}, **of_run)
    return str(found)


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        # In lock-step, whoever takes more of the learner's time limits.
        ((0.3, 0.7, 0.6, 0.1, 0.0), {}, "environments; another actor would help"),
        ((0.3, 0.7, 0.1, 0.5, 0.1), {}, "acting; another actor would help"),
        ((0.3, 0.7, 0.1, 0.1, 0.5), {}, "copying; another actor would help"),
        ((0.7, 0.3, 0.2, 0.1, 0.0), {}, "learning; max_policy_lag=1 would let the actors collect meanwhile"),
        ((0.9, 0.1, 0.1, 0.0, 0.0), {}, "learning; fewer epochs, larger minibatches or a GPU would help"),
        ((0.2, 0.2, 0.2, 0.0, 0.0), {}, "callbacks and checkpoints between updates; do them less often"),
        # No core is left.
        ((0.3, 0.7, 0.6, 0.1, 0.0), {"cores": 2}, "environments; every core has an actor; max_policy_lag=1 may help"),
        (
            (0.1, 0.9, 0.8, 0.1, 0.0),
            {"cores": 2},
            "environments; every core has an actor, so more cores or a faster environment would help",
        ),
        ((0.3, 0.7, 0.1, 0.5, 0.1), {"cores": 2}, "acting; more envs_per_actor or a smaller network would help"),
        ((0.7, 0.3, 0.2, 0.1, 0.0), {"cores": 1}, "learning; fewer epochs, larger minibatches or a GPU would help"),
        # One actor holds up the others: they wait for longer than the learner learns.
        ((0.1, 0.9, 0.2, 0.05, 0.0), {}, "the slowest actor; max_policy_lag=3 would"),
        ((0.1, 0.9, 0.2, 0.05, 0.0), {"actors": 1, "cores": 1}, "environments; every core has an actor, so"),
        # Overlapping: the learner needs a core of its own, and limits where it doesn't wait.
        ((0.93, 0.05, 0.3, 0.0, 0.0), {"lag": 1}, "learning; fewer epochs, larger minibatches or a GPU would help"),
        (
            (0.93, 0.05, 0.3, 0.0, 0.0),
            {"lag": 1, "replay": True},
            "learning; smaller minibatches, a smaller updates_per_step or a GPU would help",
        ),
        ((0.4, 0.6, 0.9, 0.1, 0.0), {"lag": 1}, "environments; another actor would help"),
        ((0.4, 0.6, 0.9, 0.1, 0.0), {"lag": 1, "actors": 4}, "environments; every core has an actor, so more cores"),
        ((0.4, 0.6, 0.3, 0.0, 0.0), {"lag": 4}, "the slowest actor; a larger max_policy_lag would"),
        # The device steps the environments: no actors could help.
        ((0.3, 0.7, 1.0, 0.0, 0.0), {"actors": 0, "device": True}, "environments on the device; a larger num_envs may"),
        # One process does it all.
        ((0.3, 0.7, 0.6, 0.1, 0.3), {"actors": 0}, "environments; num_actors=1 or more would step them in other"),
    ],
)
def test_what_limits_and_what_would_help(arguments, options, expected):
    assert judge(*arguments, **options).startswith(f"limited by: {expected}")


def test_columns_that_are_long_on_their_way_wait_for_the_network():
    shares = (0.1, 0.9, 0.3, 0.1, 0.0)
    assert judge(*shares, **{"host/far/receiving": 0.6}).startswith("limited by: the network; fewer bytes")
    assert judge(*shares, **{"host/far/receiving": 0.4}).startswith("limited by: the slowest actor")


def test_few_updates_do_not_tell_that_callbacks_limit_a_run():
    metrics = {"time/learning": 0.2, "time/collecting": 0.2, "time/env": 0.2, "time/acting": 0.0, "time/other": 0.0}

    def part(updates, **changes):
        found = {**metrics, "time/waiting": 0.8, **changes}
        return bottleneck(found, num_actors=2, cores=4, max_policy_lag=0, updates=updates).part

    assert part(5) == "work that is done once, such as the first checkpoint"
    assert part(MIN_UPDATES) == "callbacks and checkpoints between updates"
    assert part(5, **{"time/learning": 0.7}) == "learning"


def test_environments_that_wait_profit_from_more_actors_than_cores():
    busy = {"cpu/actor_0": 0.9, "cpu/actor_1": 0.7}
    asleep = {"cpu/actor_0": 0.1, "cpu/actor_1": 0.2}
    assert "more cores" in judge(0.1, 0.9, 0.9, 0.0, 0.0, cores=2, **busy)
    for cores in (2, 8):
        advice = judge(0.1, 0.9, 0.9, 0.0, 0.0, cores=cores, **asleep)
        assert "they wait rather than compute, so more actors than cores would help" in advice


def test_environments_that_compute_on_full_cores_do_not_wait():
    shares = (0.1, 0.9, 0.9, 0.0, 0.0)
    eight = {f"cpu/actor_{actor}": 0.22 for actor in range(8)}
    assert "they wait" not in judge(*shares, actors=8, cores=2, **eight)
    assert "they wait" in judge(*shares, actors=8, cores=8, **eight)
    two = {"cpu/actor_0": 0.4, "cpu/actor_1": 0.4}
    assert "they wait" not in judge(*shares, cores=2, **two, **{"cpu/pressure": 0.6})  # of a load that isn't seen
    assert "they wait" in judge(*shares, cores=2, **two, **{"cpu/pressure": 0.05})


def test_a_busy_machine_is_named_before_a_part_of_the_run():
    busy = {"cpu/others": 1.26, "cpu/pressure": 0.59}
    for shares in ((0.3, 0.7, 0.6, 0.1, 0.0), (0.9, 0.1, 0.1, 0.0, 0.0)):
        assert judge(*shares, cores=2, **busy) == (
            "limited by: other programs; they use 1.3 of 2 cores, and processes wait for a core 59% of the time: "
            "only on an idle machine can more be told"
        )
        for idle in ({"cpu/others": 0.3}, {"cpu/pressure": 0.05}):
            assert "other programs" not in judge(*shares, cores=2, **{**busy, **idle})


def test_environments_that_wait_are_named_even_on_a_busy_machine():
    busy = {"cpu/others": 1.26, "cpu/pressure": 0.59, "cores": 2}
    asleep = {"cpu/actor_0": 0.1, "cpu/actor_1": 0.15}
    named = judge(0.05, 0.95, 0.92, 0.02, 0.01, **busy, **asleep)
    assert named.startswith("limited by: environments; they wait rather than compute, so more actors than cores")
    for shares, cpu in (((0.2, 0.8, 0.8, 0.1, 0.0), asleep), ((0.05, 0.95, 0.92, 0.02, 0.01), {"cpu/actor_0": 0.3})):
        assert "other programs" in judge(*shares, **busy, **cpu)


def test_rows_without_the_time_that_was_waited_for_batches():
    """As older runs have them: what isn't learning counts as that."""
    metrics = {"time/learning": 0.3, "time/env": 0.6, "time/acting": 0.1, "time/other": 0.0, "time/waiting": 0.3}
    found = bottleneck(metrics, num_actors=1, cores=2, max_policy_lag=0)
    assert found is not None
    assert found.part == "environments"


def test_nothing_is_said_of_what_is_not_known():
    assert bottleneck({"time/learning": 0.5}, num_actors=1, cores=2, max_policy_lag=0) is None
