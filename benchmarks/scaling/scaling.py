#!/usr/bin/env python3
"""What one more actor brings and costs: throughput against ideal from 1 to 64 actors, memory, the learner's time.

    scripts/measure scaling --output benchmarks/scaling/scaling.json --picture docs/pictures/scaling.svg   # six minutes
    scripts/measure scaling --from benchmarks/scaling/scaling.json --picture docs/pictures/scaling.svg   # draws

Environments are `actor_learner/Latency-v0`: a step waits 20 ms, without using a core, so that two cores can carry 64
actors, and what is missing from actors x environments / latency is the system's own. The share of the cores that was
used stands beside each figure: near 1 it would be the machine that is measured. All numbers of actors alternate, round
by round, in pools that stay; each batch is learned from (PPO, minibatch 512, 4 epochs). For Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import machine
from benchmarks.processes import memory_of
from benchmarks.scaling.model import line_through, simulate
from benchmarks.scaling.table import table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ACTORS = (1, 4, 8, 16, 32, 64)
ENVS, ROWS, STEP_SECONDS = 8, 32, 0.02
EPOCHS, MINIBATCH_SIZE, OTHER_MINIBATCH_SIZE = 4, 512, 64
REFERENCE = 8
"""Actors whose batch is the smallest of the four works': 64 environments x 32 steps."""
TAIL_ACTORS, TAIL_STEP_SECONDS, TAIL, TAIL_LAGS = 16, 0.01, 2.0, (0, 1, 4)
OVERLOAD = 2.0
"""How many times longer than the collection the update of the last part takes."""
Found = dict[str, Any]


def main() -> None:
    """Measures, simulates, prints, writes and draws."""
    arguments = _parser().parse_args()
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    warnings.filterwarnings("ignore", message="`minibatch_size` is larger than a batch")
    found = json.loads(arguments.read.read_text()) if arguments.read else measure_all(arguments)
    found["simulated"] = simulate(found)
    print(table(found))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
        arguments.output.with_suffix(".md").write_text(table(found))
    if arguments.picture:
        from benchmarks.scaling.picture import draw

        draw(found, arguments.picture)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/measure scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actors", type=int, nargs="+", default=ACTORS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6, help="of each round (default: 6)")
    parser.add_argument("--output", type=Path, help="JSON file to write, and beside it the figures as .md")
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    parser.add_argument("--from", dest="read", type=Path, help="JSON file of an earlier run, to draw it again")
    return parser


def measure_all(arguments: argparse.Namespace) -> Found:
    """All parts, one after the other."""
    started = time.monotonic()
    origin = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["scripts/measure scaling", *sys.argv[1:]]),
        "machine": machine(),
        "work": {
            "envs_per_actor": ENVS,
            "unroll_length": ROWS,
            "step_seconds": STEP_SECONDS,
            "epochs": EPOCHS,
            "minibatch_size": MINIBATCH_SIZE,
        },
    }
    found = {
        **origin,
        **measure_scaling(sorted({*arguments.actors, REFERENCE}), arguments.rounds, arguments.batches),
        "heavy_tails": measure_tails(arguments.rounds, arguments.batches),
    }
    return {**found, "minutes": round((time.monotonic() - started) / 60, 1)}


class Learned(NamedTuple):
    """What learning from a batch took: seconds, CPU seconds, and CPU seconds of publishing."""

    seconds: float
    cpu: float
    publish_cpu: float


class Station:
    """A pool of actors and the learner that learns from what they collect, measured again and again.

    learner: of the pools before; None: this is the first.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        learner: Any,
        actors: int,
        step_seconds: float,
        lag: int = 1,
        **env_kwargs: Any,
    ) -> None:
        import actor_learner as al

        before = _watchers()
        self.pool = stack.enter_context(
            al.ActorPool(
                "actor_learner/Latency-v0",
                learner and learner.network,
                env_kwargs={"step_time": step_seconds, **env_kwargs},
                num_actors=actors,
                envs_per_actor=ENVS,
                unroll_length=ROWS,
                max_policy_lag=lag,
            )
        )
        (self._watcher,) = _watchers() - before
        self.learner = learner or make_learner(self.pool.network, self.pool.action_space)
        self.actors, self.ideal = actors, actors * ENVS / step_seconds
        self._updates = 1

    def overload(self, updates: int) -> None:
        """From now on each batch is learned from so many times."""
        self._updates = updates

    def warm_up(self, batches: int = 2) -> None:
        """Lets everything be compiled, and the actors be where they are between two batches."""
        for _ in range(batches):
            self._learn(self.pool.collect())

    def measure(self, batches: int) -> Found:
        """Figures of some batches: from when one has been collected to when the last one has.

        `pool_seconds`: CPU time of the pool within the learner's process, in both of its threads. `update_seconds`,
        `update_cpu_seconds`: of learning. All for one batch. `actor_cpu_seconds`: of an actor's process in each step of
        its environments. `cores`: share of all cores that this process and the actors used.
        """
        self.warm_up()
        trajectory = self.pool.collect()
        pool, updates, steps = -_cpu_of_thread(self._watcher), [], 0
        actors_cpu, cpu, started = -self._actors_cpu(), -time.process_time(), time.perf_counter()
        for _ in range(batches):
            updates.append(self._learn(trajectory))
            before = time.thread_time()
            trajectory = self.pool.collect()
            pool += updates[-1].publish_cpu + time.thread_time() - before
            steps += int(trajectory.valid.sum())
        seconds = time.perf_counter() - started
        pool += _cpu_of_thread(self._watcher)
        actors_cpu, cpu = actors_cpu + self._actors_cpu(), cpu + time.process_time()
        return {
            "steps_per_second": round(steps / seconds, 1),
            "of_ideal": round(steps / seconds / self.ideal, 4),
            "pool_seconds": round(pool / batches, 7),
            "update_seconds": round(statistics.median(update.seconds for update in updates), 6),
            "update_cpu_seconds": round(statistics.median(update.cpu for update in updates), 6),
            "actor_cpu_seconds": round(actors_cpu / (steps / ENVS), 7),
            "cores": round((cpu + actors_cpu) / seconds / len(os.sched_getaffinity(0)), 4),
        }

    def _learn(self, trajectory: Any) -> Learned:
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(self._updates):
            self.learner.update(trajectory)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        before = time.thread_time()
        self.pool.publish(self.learner.get_weights())
        return Learned(seconds, cpu, time.thread_time() - before)

    def _actors_cpu(self) -> float:
        return sum(map(_cpu_of_process, self.pool.pids.values()))

    def memory(self) -> Found:
        """Of one actor, in MB of 10^6 bytes."""
        sizes = [memory_of(pid) for pid in self.pool.pids.values()]
        return {kind: round(statistics.mean(size[kind] for size in sizes), 2) for kind in sizes[0]}


def make_learner(network: Any, action_space: Any, minibatch_size: int = MINIBATCH_SIZE) -> Any:
    """What each batch is learned by."""
    import actor_learner as al

    return al.Learner(network, al.PPO(minibatch_size=minibatch_size, epochs=EPOCHS), action_space=action_space)


def measure_scaling(actors: Iterable[int], rounds: int, batches: int) -> Found:
    """Throughput, memory and the learner's time by number of actors; and with a learner that can't keep up."""
    with contextlib.ExitStack() as stack:
        stations: dict[int, Station] = {}
        memory: dict[int, Found] = {}
        learner = None
        for count in actors:
            stations[count] = Station(stack, learner, count, STEP_SECONDS)
            learner = stations[count].learner
            stations[count].warm_up()
            memory[count] = stations[count].memory()
            _tell(f"{count} actors: {memory[count]}")
        found: dict[int, list[Found]] = {count: [] for count in stations}
        for turn in range(rounds):
            for count, station in stations.items():
                found[count].append(station.measure(batches))
            _tell(f"round {turn + 1}: {_newest(found)} of ideal")
        medians = {count: _medians(rows) for count, rows in found.items()}
        return {
            "rounds": found,
            "actors": medians,
            "memory_mb": memory,
            "learner": _learner_figures(medians),
            "minibatches": _minibatches(stations[REFERENCE]),
            "overload": measure_overload(stations[max(stations)], medians[max(stations)], rounds),
        }


def _learner_figures(medians: dict[int, Found]) -> Found:
    """What an actor costs the learner's process, and when that is saturated."""
    base, slope = line_through({count: row["pool_seconds"] for count, row in medians.items()})
    largest, reference = max(medians), medians[REFERENCE]
    rate = largest * ENVS * ROWS / medians[largest]["update_seconds"]
    return {
        "pool_seconds_per_batch": base,
        "pool_seconds_per_actor_and_batch": slope,
        "share_of_2048_steps": round(slope / (reference["update_cpu_seconds"] + reference["pool_seconds"]), 5),
        "steps_per_second_of_the_update_alone": round(rate),
        "saturated_by_actors": round(rate / (ENVS / STEP_SECONDS)),
    }


def _minibatches(station: Station) -> dict[int, float]:
    """CPU seconds of an update of the same batch in minibatches of two sizes, for the model."""
    trajectory = station.pool.collect().copy()
    seconds = {}
    for size in (OTHER_MINIBATCH_SIZE, MINIBATCH_SIZE):
        learner = make_learner(station.pool.network, station.pool.action_space, size)
        learner.update(trajectory)
        times = []
        for _ in range(10):
            started = time.process_time()
            learner.update(trajectory)
            times.append(time.process_time() - started)
        seconds[size] = round(statistics.median(times), 6)
    return seconds


def measure_overload(station: Station, alone: Found, rounds: int, batches: int = 3) -> Found:
    """Throughput where learning takes longer than collecting, against what the update alone would allow."""
    collection = ROWS * STEP_SECONDS
    updates = max(1, round(OVERLOAD * collection / alone["update_seconds"]))
    station.overload(updates)
    found = [station.measure(batches) for _ in range(rounds)]
    batch = station.actors * ENVS * ROWS
    shares = [row["steps_per_second"] * row["update_seconds"] / batch for row in found]
    _tell(f"overloaded: {shares}")
    return {
        "actors": station.actors,
        "updates_per_batch": updates,
        "rounds": found,
        "of_the_learners_rate": round(statistics.median(shares), 4),
    }


def measure_tails(rounds: int, batches: int) -> Found:
    """Lock-step, one batch ahead and running freely, with steps of Pareto-distributed length."""
    with contextlib.ExitStack() as stack:
        stations: dict[int, Station] = {}
        learner = None
        for lag in TAIL_LAGS:
            stations[lag] = Station(stack, learner, TAIL_ACTORS, TAIL_STEP_SECONDS, lag, tail=TAIL)
            learner = stations[lag].learner
        found: dict[int, list[Found]] = {lag: [] for lag in stations}
        for turn in range(rounds):
            for lag, station in stations.items():
                found[lag].append(station.measure(2 * batches))
            _tell(f"heavy tails, round {turn + 1}: {_newest(found)} of ideal")
    ratios = {
        lag: statistics.median(
            row["steps_per_second"] / lock_step["steps_per_second"]
            for row, lock_step in zip(rows, found[TAIL_LAGS[0]], strict=True)
        )
        for lag, rows in found.items()
    }
    return {
        "work": {"actors": TAIL_ACTORS, "mean_step_seconds": TAIL_STEP_SECONDS, "pareto_exponent": TAIL},
        "rounds": found,
        "lags": {lag: {**_medians(rows), "of_lock_step": round(ratios[lag], 4)} for lag, rows in found.items()},
    }


def _newest(found: dict[int, list[Found]]) -> str:
    return ", ".join(f"{key}: {rows[-1]['of_ideal']:.3f}" for key, rows in found.items())


def _medians(rows: list[Found]) -> Found:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _watchers() -> set[int]:
    """The threads that listen to actors, by the kernel's numbers."""
    return {thread.native_id or 0 for thread in threading.enumerate() if thread.name == "actor-watcher"}


def _cpu_of_thread(number: int) -> float:
    return _schedstat(Path(f"/proc/self/task/{number}/schedstat"))


def _cpu_of_process(pid: int) -> float:
    """Of all of its threads, in nanoseconds' resolution; actors that wait use too little for clock ticks."""
    return sum(map(_schedstat, Path(f"/proc/{pid}/task").glob("*/schedstat")))


def _schedstat(file: Path) -> float:
    return int(file.read_text().split()[0]) / 1e9


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
