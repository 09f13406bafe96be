"""Faults of a cluster: from each to the next whole batch, and what is left of a learner that was killed.

    scripts/measure cluster-faults --rounds 3 --output benchmarks/cluster/faults.json

Two simulated hosts (see benchmarks/hosts.py) with two actors each; the learner and Ray's head are on the first one. A
fault is caused on the second one, in the middle of a run in lock-step. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks import hosts
from benchmarks.harness import Figures, make_parser, origin, report

CARTPOLE = ("CartPole-v1", "120")  # environment and seconds
OPTIONS = {"ray_address": "auto", "envs_per_actor": 16, "unroll_length": 32}
MIN_SECONDS = 1.5  # of undisturbed batches before the fault
MAX_SECONDS = 60.0
LEFT_SECONDS = 7.0  # after which nothing may be left of a run whose learner was killed


def kill(host: str, part: str) -> None:
    """Kill the first process on a host whose command line contains this. Raises ProcessLookupError."""
    pid = next((pid for pid, line in hosts.processes(host).items() if part in line), None)
    if pid is None:
        raise ProcessLookupError(f"no process of host {host} has {part!r} in its command line")
    os.kill(pid, signal.SIGKILL)


FAULTS: dict[str, Callable[[str], None]] = {
    "actor killed": lambda host: kill(host, "actor-"),
    "NodeHost killed": lambda host: kill(host, "ray::RayHost"),
    "raylet killed": lambda host: kill(host, "raylet/raylet"),
    "host off": hosts.power_off,
    "cable cut": hosts.cut,
}
"""The faults of a host."""

JOINS = "host joins"
LEARNER_FAULTS = ("learner killed", "learner killed, cable cut")


def main() -> None:
    parser = make_parser("cluster-faults", __doc__ or "", rounds=3)
    names = [*FAULTS, *LEARNER_FAULTS, "head killed", JOINS]
    parser.add_argument("--faults", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    hosts.require(parser)
    found: Figures = {}
    for name in arguments.faults:
        found[name] = [measure(name) for _ in range(arguments.rounds)]
        print(name, found[name], flush=True)
    medians = {
        name: statistics.median(row["seconds"] for row in rows)
        for name, rows in found.items()
        if name in (*FAULTS, JOINS)
    }
    report({**origin(parser), "medians": medians, "faults": found}, arguments.output)


def measure(name: str) -> Figures:
    """Return what followed a fault on a new cluster."""
    with hosts.cluster("AB"), Learner(CARTPOLE, {**OPTIONS, "num_actors": 6 if name == JOINS else 4}) as learner:
        learner.wait(lambda: len(learner.batches) > 1)
        time.sleep(MIN_SECONDS)
        if name == JOINS:
            return learner.use_new_host()
        if name in FAULTS:
            return learner.recover_from(FAULTS[name])
        return learner.die(cut=name == LEARNER_FAULTS[1]) if name in LEARNER_FAULTS else learner.lose_head()


class Learner:
    """A program of benchmarks/cluster/pool.py on host A, its rows and its other lines."""

    def __init__(self, words: Sequence[str], options: Figures) -> None:
        command = hosts.module_on("A", "benchmarks.cluster.pool", *words, json.dumps(options))
        self.process = subprocess.Popen(
            **command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.rows: list[Figures] = []
        self.other: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"'):
                self.rows.append(json.loads(line))
            else:
                self.other.append(line.rstrip())

    @property
    def batches(self) -> list[Figures]:
        """The rows of batches."""
        return [row for row in self.rows if "batch" in row]

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("\n".join(["the learner gave up:", *self.other[-20:]]))
            time.sleep(0.02)

    def recover_from(self, fault: Callable[[str], None]) -> Figures:
        """Cause a fault; return the longest time without a batch after it, and the batches that weren't whole."""
        began = time.time()
        fault("B")
        self.wait(lambda: any(batch["restarts"] for batch in self.batches))
        time.sleep(MIN_SECONDS)
        times = [began, *(batch["batch"] for batch in self.batches if batch["batch"] > began)]
        wrong = sum(batch["rows"] < 0.9 * batch["of"] for batch in self.batches)
        longest = max(b - a for a, b in itertools.pairwise(times))
        causes = sorted({cause for batch in self.batches for cause in batch["restarts"]})
        return {"seconds": round(longest, 2), "batches": len(self.batches), "wrong": wrong, "restarts": causes}

    def use_new_host(self) -> Figures:
        """Start a host while two actors share others' CPUs; return how long after Ray's start there they run on it."""
        hosts.up("C")
        hosts.start_ray("C", "A")
        began = time.time()
        self.wait(lambda: "host-C" in self.batches[-1]["hosts"])
        return {"seconds": round(self.batches[-1]["batch"] - began, 2)}

    def die(self, *, cut: bool) -> Figures:
        """Kill the learner; return the actors that are left anywhere after a while."""
        if cut:
            hosts.cut("B")
        kill("A", "benchmarks.cluster.pool")
        time.sleep(LEFT_SECONDS)
        lines = (line for host in "AB" for line in hosts.processes(host).values())
        return {"left": [line for line in lines if "actor_learner" in line or "RayHost" in line]}

    def lose_head(self) -> Figures:
        """Kill Ray's head; return how the learner ends."""
        kill("A", "gcs_server")
        began = time.monotonic()
        self.process.wait(MAX_SECONDS)
        seconds = round(time.monotonic() - began, 1)
        return {"seconds": seconds, "exit_code": self.process.returncode, "says": self.other[-1]}

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            hosts.power_off("A")
        self.process.wait(10.0)
        self._reader.join(10.0)
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            stream.close()
