"""What can't work is refused in one line, and leaves nothing."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

import actor_learner as al
from actor_learner.actors.cluster import group
from actor_learner.system.installation import install_command
from tests.actors.cluster.conftest import needs_ray
from tests.support.cluster_envs import needs_a_package

pytestmark = pytest.mark.filterwarnings("ignore:There are more actors than cores")


@needs_ray
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ray_address": "ray://head:10001"}, "run on a machine of the cluster, by `ray job submit` for example"),
        (
            {"ray_address": "somewhere"},
            "`ray_address` must be 'auto' or 'host:port'. Received: ray_address='somewhere'",
        ),
        ({"ray_address": 6379}, "must be 'auto' or 'host:port'. Received: ray_address=6379"),
        ({"ray_address": "auto", "num_actors": 0}, "needs actors: num_actors of at least 1"),
        ({"ray_address": "auto", "acting": "device"}, "acting='device' needs all actors on the learner's machine"),
        ({"ray_address": "auto", "actors_per_host": 0}, "actors_per_host"),
        ({"ray_address": "auto", "ray_wait": -1}, "ray_wait"),
        ({"actors_per_host": 2}, r"needs `ray_address` \(--ray ADDRESS\). Received: actors_per_host=2"),
        ({"ray_wait": 2}, r"needs `ray_address` \(--ray ADDRESS\). Received: ray_wait=2"),
    ],
)
def test_options_that_cannot_be_used(fields, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**fields)
    with pytest.raises(ValueError, match=message):
        al.ActorPool("CartPole-v1", **fields)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, re.escape(f"A cluster needs Ray: {install_command('actor-learner[ray]')}")),
        ("2.54.1", "needs Ray 2.55 or later, below 3: .* Received: Ray 2.54.1"),
        ("3.0.0", "Received: Ray 3.0.0"),
    ],
)
def test_ray_must_be_installed_in_a_version_that_works(version, message, monkeypatch):
    def found(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(ray_address="auto")


@needs_ray
def test_a_run_looks_for_the_cluster_before_anything_else(tmp_path):
    config = al.TrainConfig(env="CartPole-v1", ray_address="127.0.0.1:1", run_dir=tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"answers there .*; `--ray none` \(ray_address=None\) runs without"):
        al.train(config)
    assert not (tmp_path / "run").exists()


@needs_ray
@pytest.mark.parametrize("address", ["raycluster-kuberay-head-svc:6379", "raymachine:6379", "auto"])
def test_names_that_begin_like_the_client_are_addresses(address):
    assert al.TrainConfig(ray_address=address).ray_address == address


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpus", "options", "message"),
    [
        ({"a": 2, "b": 1}, {}, "3 CPUs are free on the cluster's 2 machines after 0.3 s, too few for all actors"),
        (
            {"a": 4},
            {"actors_per_host": 1},
            "4 CPUs are free on the cluster's 1 machine, and `actors_per_host` gives each machine 1 after 0.3 s",
        ),
    ],
)
def test_too_few_cpus_are_refused_after_the_wait(machines, cpus, options, message):
    machines.are(**cpus)
    text = f"{message}.* Received: num_actors=4"
    with pytest.raises(RuntimeError, match=text), machines.pool("CartPole-v1", ray_wait=0.3, **options):
        pass


@pytest.mark.thorough
def test_too_few_cpus_are_named_where_the_run_starts_all_the_same(machines, caplog):
    machines.are(a=2)
    with machines.pool("CartPole-v1", num_actors=3, envs_per_actor=1) as pool:
        pool.collect()
    assert (
        "2 of 3 actors have a CPU of their own: 2 CPUs are free on the cluster's 1 machine; the others" in caplog.text
    )


@pytest.mark.thorough
def test_another_version_on_a_machine(machines, monkeypatch):
    machines.are(a=4)
    monkeypatch.setattr(group, "identity", lambda: {"actor_learner": "9.9", "Python": "3.11"})
    with (
        pytest.raises(RuntimeError, match="need the same versions. .* on host a, .*9.9.* here"),
        machines.pool("CartPole-v1"),
    ):
        pass


@pytest.mark.thorough
def test_an_environment_without_its_package_on_a_machine_names_both(machines):
    machines.are(far=4)
    with (
        pytest.raises(ValueError, match=r"No module named 'no_such_simulator'.*\(on host far\)"),
        machines.pool(needs_a_package),
    ):
        pass


@pytest.mark.slow
def test_a_start_that_takes_too_long_names_the_actors(machines):
    machines.are(a=2)
    text = "(No host was ready in time for actors 0 to 1|Ray named no machines in time).* Received: start_timeout=0.2"
    with pytest.raises(TimeoutError, match=text), machines.pool("CartPole-v1", start_timeout=0.2):
        pass
