"""The gain and the cost of one more actor: throughput against ideal from 1 to 64 actors, memory, the learner's time.

    scripts/measure scaling --output benchmarks/scaling/scaling.json --picture docs/pictures/scaling.svg   # 6 minutes
    scripts/measure scaling --from benchmarks/scaling/scaling.json --picture docs/pictures/scaling.svg     # draws only

Environments are `actor_learner/Latency-v0`: a step waits 20 ms, without using a core, so that two cores can carry 64
actors, and the difference to actors x environments / latency is the system's own. For Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import Figures, make_parser, medians, origin, run_in_turns, tell, write
from benchmarks.processes import memory_of
from benchmarks.scaling.page import draw, line_through, page

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ACTORS = (1, 4, 8, 16, 32, 64)
ENVS, ROWS, STEP_SECONDS = 8, 32, 0.02
EPOCHS, MINIBATCH_SIZE = 4, 512
REFERENCE = 8  # actors whose batch is the smallest of the four works': 64 environments x 32 steps
TAIL_ACTORS, TAIL_STEP_SECONDS, TAIL, TAIL_LAGS = 16, 0.01, 2.0, (0, 1, 4)


def main() -> None:
    parser = make_parser("scaling", __doc__ or "", actors=ACTORS, rounds=5, batches=6)
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    parser.add_argument("--from", dest="read", type=Path, help="JSON file of an earlier run, to draw it again")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    warnings.filterwarnings("ignore", message="`minibatch_size` is larger than a batch")
    found = json.loads(arguments.read.read_text()) if arguments.read else measure_all(parser, arguments)
    print(page(found))
    write(found, arguments.output, page(found))
    if arguments.picture:
        draw(found, arguments.picture)


def measure_all(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Figures:
    """Measure all parts, one after the other."""
    started = time.monotonic()
    work = {"envs_per_actor": ENVS, "unroll_length": ROWS, "step_seconds": STEP_SECONDS}
    work |= {"epochs": EPOCHS, "minibatch_size": MINIBATCH_SIZE}
    found = {
        **origin(parser),
        "work": work,
        **measure_scaling(sorted({*arguments.actors, REFERENCE}), arguments.rounds, arguments.batches),
        "heavy_tails": measure_tails(arguments.rounds, arguments.batches),
    }
    return {**found, "minutes": round((time.monotonic() - started) / 60, 1)}


class Station:
    """A pool of actors and the learner of all pools (None: a new one), measured again and again."""

    def __init__(
        self, stack: contextlib.ExitStack, learner: Any, actors: int, step_seconds: float, lag: int = 1, **env: Any
    ) -> None:
        import actor_learner as al

        before = _supervisor_threads()
        settings = {"num_actors": actors, "envs_per_actor": ENVS, "unroll_length": ROWS, "max_policy_lag": lag}
        settings["asynchronous"] = lag > 1
        env |= {"step_time": step_seconds}
        pool = al.ActorPool("actor_learner/Latency-v0", learner and learner.network, env_kwargs=env, **settings)
        self.pool = stack.enter_context(pool)
        (watcher,) = _supervisor_threads() - before
        self._watcher = Path(f"/proc/self/task/{watcher}/schedstat")
        self.learner = learner or make_learner(self.pool.network, self.pool.action_space)
        self.actors, self.ideal = actors, actors * ENVS / step_seconds

    def warm_up(self, batches: int = 2) -> None:
        """Compile everything, and bring the actors to where they are between two batches."""
        for _ in range(batches):
            self._learn(self.pool.collect())

    def measure(self, batches: int) -> Figures:
        """Measure some batches: from the end of a collection to the end of the last one.

        For one batch: `pool_seconds`, CPU time of the pool in both threads of the learner's process, and the update's
        seconds. `actor_cpu_seconds`: of an actor in each step. `cores`: the used share of all.
        """
        self.warm_up()
        trajectory = self.pool.collect()
        pool, updates, steps = -_schedstat(self._watcher), [], 0
        actors_cpu, cpu, started = -self._actors_cpu(), -time.process_time(), time.perf_counter()
        for _ in range(batches):
            update, publish_seconds = self._learn(trajectory)
            updates.append(update)
            before = time.thread_time()
            trajectory = self.pool.collect()
            pool += publish_seconds + time.thread_time() - before
            steps += int(trajectory.valid.sum())
        seconds = time.perf_counter() - started
        pool += _schedstat(self._watcher)
        actors_cpu, cpu = actors_cpu + self._actors_cpu(), cpu + time.process_time()
        return {
            "steps_per_second": round(steps / seconds, 1),
            "of_ideal": round(steps / seconds / self.ideal, 4),
            "pool_seconds": round(pool / batches, 7),
            **medians(updates, digits=6),
            "actor_cpu_seconds": round(actors_cpu / (steps / ENVS), 7),
            "cores": round((cpu + actors_cpu) / seconds / len(os.sched_getaffinity(0)), 4),
        }

    def _learn(self, trajectory: Any) -> tuple[Figures, float]:
        """Learn and publish; return the times of the update, and the CPU seconds of publishing."""
        started, cpu = time.perf_counter(), time.process_time()
        self.learner.update(trajectory)
        update = {"update_seconds": time.perf_counter() - started, "update_cpu_seconds": time.process_time() - cpu}
        before = time.thread_time()
        self.pool.publish(self.learner.get_weights())
        return update, time.thread_time() - before

    def _actors_cpu(self) -> float:
        """Return the CPU seconds of all actors, from a finer clock than ticks: waiting actors use little."""
        files = (file for pid in self.pool.pids.values() for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(map(_schedstat, files))

    def memory(self) -> Figures:
        """Return the memory of one actor, in MB of 10^6 bytes."""
        sizes = [memory_of(pid) for pid in self.pool.pids.values()]
        return {kind: round(statistics.mean(size[kind] for size in sizes), 2) for kind in sizes[0]}


def make_learner(network: Any, action_space: Any) -> Any:
    """Return a learner with the algorithm of this measurement."""
    import actor_learner as al

    return al.Learner(network, al.PPO(minibatch_size=MINIBATCH_SIZE, epochs=EPOCHS), action_space=action_space)


def measure_scaling(actors: Iterable[int], rounds: int, batches: int) -> Figures:
    """Measure throughput, memory and the learner's time by number of actors."""
    with contextlib.ExitStack() as stack:
        stations: dict[int, Station] = {}
        memory: dict[int, Figures] = {}
        learner = None
        for count in actors:
            stations[count] = Station(stack, learner, count, STEP_SECONDS)
            learner = stations[count].learner
            stations[count].warm_up()
            memory[count] = stations[count].memory()
            tell(f"{count} actors: {memory[count]}")
        found = _measure_in_turns(stations, rounds, batches)
        middle = {count: medians(rows) for count, rows in found.items()}
        return {
            "rounds": found,
            "actors": middle,
            "memory_mb": memory,
            "learner": _learner_figures(middle),
        }


def _measure_in_turns(stations: dict[int, Station], rounds: int, batches: int) -> dict[int, list[Figures]]:
    runs = {key: functools.partial(station.measure, batches) for key, station in stations.items()}
    found = run_in_turns(runs, rounds)
    tell(f"of ideal: { {key: rows[-1]['of_ideal'] for key, rows in found.items()} }")
    return found


def _learner_figures(middle: dict[int, Figures]) -> Figures:
    """Return an actor's cost in the learner's process, and the number of actors that saturate it."""
    base, slope = line_through({count: row["pool_seconds"] for count, row in middle.items()})
    largest, reference = max(middle), middle[REFERENCE]
    rate = largest * ENVS * ROWS / middle[largest]["update_seconds"]
    return {
        "pool_seconds_per_batch": base,
        "pool_seconds_per_actor_and_batch": slope,
        "share_of_2048_steps": round(slope / (reference["update_cpu_seconds"] + reference["pool_seconds"]), 5),
        "steps_per_second_of_the_update_alone": round(rate),
        "saturated_by_actors": round(rate / (ENVS / STEP_SECONDS)),
    }


def measure_tails(rounds: int, batches: int) -> Figures:
    """Measure lock-step, one batch ahead and free running, with steps of Pareto-distributed length."""
    with contextlib.ExitStack() as stack:
        stations: dict[int, Station] = {}
        learner = None
        for lag in TAIL_LAGS:
            stations[lag] = Station(stack, learner, TAIL_ACTORS, TAIL_STEP_SECONDS, lag, tail=TAIL)
            learner = stations[lag].learner
        found = _measure_in_turns(stations, rounds, 2 * batches)
    lags = {}
    for lag, rows in found.items():
        pairs = zip(rows, found[TAIL_LAGS[0]], strict=True)
        ratio = statistics.median(row["steps_per_second"] / first["steps_per_second"] for row, first in pairs)
        lags[lag] = {**medians(rows), "of_lock_step": round(ratio, 4)}
    work = {"actors": TAIL_ACTORS, "mean_step_seconds": TAIL_STEP_SECONDS, "pareto_exponent": TAIL}
    return {"work": work, "rounds": found, "lags": lags}


def _supervisor_threads() -> set[int]:
    """Return the kernel's numbers of the threads that listen to actors."""
    return {thread.native_id or 0 for thread in threading.enumerate() if thread.name == "actor-supervisor"}


def _schedstat(file: Path) -> float:
    return int(file.read_text().split()[0]) / 1e9
