"""The metrics of the machines that run actors, where there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool

PREFIX = "host/"


class HostSampler:
    """Compares what has come from each machine with the last time."""

    def __init__(self, actors: ActorPool) -> None:
        self._actors = actors
        self._before: dict[str, tuple[int, float]] = {}

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return the metrics of the last batch, `host/<name>/...`. seconds: since the last call.

        `steps_per_second`: env steps of its actors. `waiting`: their share of time without anything to do.
        `megabytes_per_second`, of 10^6 bytes, over the network. `receiving`: the share of time in which their columns
        were on their way.
        """
        found: dict[str, float] = {}
        present = self._actors.hosts
        for name in dict.fromkeys(host.name for host in present):
            hosts = [host for host in present if host.name == name]  # those of several shares
            actors = {actor for host in hosts for actor in host.actors}
            unrolls = [unroll for unroll in self._actors.unrolls if unroll.actor in actors]
            worked = sum(unroll.env + unroll.acting + unroll.other for unroll in unrolls)
            waited = sum(unroll.waiting for unroll in unrolls)
            now = sum(host.received for host in hosts), sum(host.receiving for host in hosts)
            before = self._before.get(name, now)
            self._before[name] = now
            received, receiving = (max(0.0, new - old) for new, old in zip(now, before, strict=True))
            key = f"{PREFIX}{name}/"
            steps = self._actors.layout.spec.unroll_length * sum(host.num_envs for host in hosts) / len(actors)
            found[f"{key}steps_per_second"] = len(unrolls) * steps / seconds
            found[f"{key}waiting"] = waited / (worked + waited) if worked + waited else 0.0
            found[f"{key}megabytes_per_second"] = received / 1e6 / seconds
            found[f"{key}receiving"] = receiving / seconds
        return found
