"""The cost of one actor: memory, microseconds per vector step, milliseconds for a new weight version.

    scripts/measure actor [--env CartPole-v1] [--envs 8] --output benchmarks/speed/actor.json

The clocks of a real actor process give the time of acting (LiteRT, sampling) and of everything else around `env.step`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import actor_learner as al
from actor_learner.system.memory import own_memory
from benchmarks.harness import Found, make_parser, origin, report
from benchmarks.processes import memory_of

STEPS, VERSIONS = 1000, 200


def main() -> None:
    parser = make_parser("actor", __doc__ or "", env="CartPole-v1", envs=8, batches=30)
    arguments = parser.parse_args()
    figures = measure_actor(arguments.env, arguments.envs, arguments.batches)
    result = {**origin(parser), "env": arguments.env, "envs": arguments.envs, **figures}
    report(result, arguments.output)


def measure_actor(env: str, envs: int, batches: int) -> Found:
    """Measure one actor process, and weight versions in this one."""
    with al.ActorPool(env, num_actors=1, envs_per_actor=envs, unroll_length=STEPS) as actors:
        microseconds: dict[str, list[float]] = {"env": [], "acting": [], "other": []}
        actors.collect()
        for _ in range(batches):
            started = time.perf_counter()
            actors.collect()
            cycle = time.perf_counter() - started
            for name, values in microseconds.items():
                values.append(actors.timings[name] * cycle / STEPS * 1e6)
        own = [a + b for a, b in zip(microseconds["acting"], microseconds["other"], strict=True)]
        pid = actors.pids[0]
        maps = Path(f"/proc/{pid}/maps").read_text().lower()
        return {
            "resident_megabytes": memory_of(pid)["rss"] * 1e6 / 2**20,
            "own_megabytes": own_memory(pid) / 1e6,
            "tensorflow_mapped": "tensorflow" in maps or "keras" in maps,
            "env_step_us": statistics.median(microseconds["env"]),
            "acting_us": statistics.median(microseconds["acting"]),
            "all_of_ours_around_env_step_us": statistics.median(own),
            "new_weights_ms": weight_version_milliseconds(actors, envs),
        }


def weight_version_milliseconds(actors: al.ActorPool, envs: int) -> float:
    """Time a new version in a policy like the actor's: the copy, the interpreter, and a first step."""
    policy = al.Policy.from_network(actors.network, actors.action_space, batch_size=envs)
    weights, observation = actors.network.get_weights(), actors.collect().observation[0].copy()
    policy.step(observation)
    started = time.perf_counter()
    for _ in range(VERSIONS):
        policy.set_weights(weights)
    return (time.perf_counter() - started) / VERSIONS * 1e3
