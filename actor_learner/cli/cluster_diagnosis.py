"""A diagnosis of a Ray cluster: its machines, and what an actor on each of them does for a few seconds."""

from __future__ import annotations

import time
from typing import Any

from actor_learner.actors.cluster.broker_process import BrokerProcess
from actor_learner.actors.cluster.placement import Node

SECONDS = 3.0
_NODES_SECONDS = 60.0
_START_SECONDS = 60.0


def examine_cluster(address: str, env: str) -> dict[str, Any]:
    """Return the machines, and what an actor on each does with an environment.

    Raises RuntimeError, EnvError, ActorError or TimeoutError in one line, naming the machine where it is one's fault.
    """
    machines = _machines(address)
    found: dict[str, Any] = {
        "machines": len(machines),
        "CPUs": sum(node.cpus for node in machines),
        "free CPUs": sum(node.free for node in machines),
    }
    names = {node.name: f"{node.free:g} of {node.cpus:g} CPUs free" for node in machines}
    return found | {f"host {name}": f"{cpus}; {did}" for name, cpus, did in _try_actors(address, env, names)}


def _machines(address: str) -> list[Node]:
    """Return the machines of a cluster."""
    broker, deadline = BrokerProcess(address), time.monotonic() + _NODES_SECONDS
    try:
        broker.start()
        while time.monotonic() < deadline:
            for what, found in broker.messages():
                if what == "nodes":
                    return list(found)
        raise RuntimeError(f"Ray at {address} names no machines within {_NODES_SECONDS:g} s")
    finally:
        broker.close(time.monotonic() + 1.0)


def _try_actors(address: str, env: str, machines: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return name, CPUs and figures of each machine that had an actor for a few seconds."""
    from actor_learner.actors.pool import ActorPool

    options: dict[str, Any] = {"num_actors": len(machines), "actors_per_host": 1, "envs_per_actor": 8}
    options |= {"ray_address": address, "unroll_length": 64, "start_timeout": _START_SECONDS}
    with ActorPool(env, **options) as actors:
        actors.collect()
        before = {host.name: host for host in actors.hosts}
        started, batches = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            actors.publish(actors.exported.weights)
            actors.collect()
            batches += 1
        found = []
        for host in actors.hosts:
            steps = batches * 64 * host.num_envs
            earlier = before.get(host.name, host)
            received, receiving = host.received - earlier.received, host.receiving - earlier.receiving
            text = f"{steps / (time.perf_counter() - started):,.0f} env steps/s"
            if received and receiving:
                text += (
                    f", {received / steps:,.0f} bytes for each, which came at {received / receiving / 1e6:,.0f} MB/s"
                )
            found.append((host.name, machines.get(host.name, "the learner's"), text))
    return found
