"""A diagnosis of a Ray cluster: its machines, and what an actor on each of them does for a few seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actor_learner.actors.cluster.shares import Node

SECONDS = 3.0  # of acting on each machine
_NODES_TIMEOUT_SECONDS = 60.0
_START_TIMEOUT_SECONDS = 60.0
_UNROLL_LENGTH = 64


def examine_cluster(address: str, env: str) -> dict[str, Any]:
    """Return the machines, and what an actor on each does with an environment.

    Raises RuntimeError, EnvError, ActorError or TimeoutError in one line, naming the machine where it is one's fault.
    """
    nodes = _nodes(address)
    cpus = {node.name: f"{node.free:g} of {node.cpus:g} CPUs free" for node in nodes}
    figures, own = _act_on_each(address, env, len(cpus)), "the learner's"
    return {
        "machines": len(nodes),
        "CPUs": sum(node.cpus for node in nodes),
        "free CPUs": sum(node.free for node in nodes),
        **{f"host {name}": f"{cpus.get(name, own)}; {text}" for name, text in figures.items()},
    }


def _nodes(address: str) -> list[Node]:
    """Return the machines of a cluster."""
    from actor_learner.actors.cluster.broker import BrokerProcess

    broker, deadline = BrokerProcess(address), time.monotonic() + _NODES_TIMEOUT_SECONDS
    try:
        broker.start()
        while time.monotonic() < deadline:
            for what, found in broker.messages():
                if what == "nodes":
                    return list(found)
        raise RuntimeError(f"Ray at {address} names no machines within {_NODES_TIMEOUT_SECONDS:g} s")
    finally:
        broker.close(time.monotonic() + 1.0)


def _act_on_each(address: str, env: str, num_actors: int) -> dict[str, str]:
    """Return the speed of each machine that had an actor for a few seconds, and what came from it."""
    from actor_learner.actors.pool import ActorPool

    options: dict[str, Any] = {"num_actors": num_actors, "actors_per_host": 1, "envs_per_actor": 8}
    options |= {"ray_address": address, "unroll_length": _UNROLL_LENGTH, "start_timeout": _START_TIMEOUT_SECONDS}
    with ActorPool(env, **options) as actors:
        actors.collect()
        before = {host.name: host for host in actors.hosts}
        started, batches = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            actors.publish(actors.exported.weights)
            actors.collect()
            batches += 1
        figures = {}
        for host in actors.hosts:
            steps = batches * _UNROLL_LENGTH * host.num_envs
            earlier = before.get(host.name, host)
            received, receiving = host.received - earlier.received, host.receiving - earlier.receiving
            text = f"{steps / (time.perf_counter() - started):,.0f} env steps/s"
            if received and receiving:
                speed = f"{received / receiving / 1e6:,.0f} MB/s"
                text += f", {received / steps:,.0f} bytes for each, which came at {speed}"
            figures[host.name] = text
    return figures
