"""The options of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster, and how it is used.

    address: Ray's: "auto" or "host:port". actors_per_host: None: as many as a host has free CPUs. wait: seconds to wait
    for a CPU for each actor, then refuse; None: start at once, with more actors than CPUs. reserved: CPUs of the
    learner's own machine that no actor gets.
    """

    address: str
    actors_per_host: int | None = None
    wait: float | None = None
    reserved: int = 0
