#!/usr/bin/env python3
"""What one actor costs: memory, microseconds per vector step, milliseconds for a new weight version.

    scripts/measure actor [--env CartPole-v1] [--envs 8] [--output benchmarks/speed/actor.json]

A real actor process fills batches; its own clocks say how long acting (LiteRT, sampling) and everything else of
ours around `env.step` took. Medians over batches.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import actor_learner as al
from actor_learner.system.memory import own_memory
from benchmarks.machine import machine

STEPS, BATCHES, VERSIONS = 1000, 30, 200


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "env": arguments.env,
        "envs": arguments.envs,
        **measure_actor(arguments.env, arguments.envs),
    }
    print(json.dumps(result, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


def measure_actor(env: str, envs: int) -> dict[str, Any]:
    """Figures of one actor process, and of weight versions in this one."""
    with al.ActorPool(env, num_actors=1, envs_per_actor=envs, unroll_length=STEPS) as actors:
        microseconds: dict[str, list[float]] = {"env": [], "acting": [], "other": []}
        actors.collect()
        for _ in range(BATCHES):
            started = time.perf_counter()
            actors.collect()
            cycle = time.perf_counter() - started
            for name, values in microseconds.items():
                values.append(actors.timings[name] * cycle / STEPS * 1e6)
        own = [a + b for a, b in zip(microseconds["acting"], microseconds["other"], strict=True)]
        maps = Path(f"/proc/{actor_pid()}/maps").read_text().lower()
        return {
            "resident_megabytes": resident_megabytes(actor_pid()),
            "own_megabytes": own_memory(actor_pid()) / 1e6,
            "tensorflow_mapped": "tensorflow" in maps or "keras" in maps,
            "env_step_us": statistics.median(microseconds["env"]),
            "acting_us": statistics.median(microseconds["acting"]),
            "all_of_ours_around_env_step_us": statistics.median(own),
            "new_weights_ms": weight_version_milliseconds(actors, envs),
        }


def weight_version_milliseconds(actors: al.ActorPool, envs: int) -> float:
    """A new version in a policy like the actor's: the copy, the interpreter, and a first step."""
    policy = al.Policy.from_network(actors.network, actors.action_space, batch_size=envs)
    weights, observation = actors.network.get_weights(), actors.collect().observation[0].copy()
    policy.step(observation)
    started = time.perf_counter()
    for _ in range(VERSIONS):
        policy.set_weights(weights)
    return (time.perf_counter() - started) / VERSIONS * 1e3


def actor_pid() -> int:
    """The child of this process whose command line says that it is an actor."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"actor-0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise RuntimeError("There is no actor.")


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
