"""Measurements of a pool: the cost of one actor, and acting on the learner's device."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import actor_learner as al
from actor_learner.config.pool_checks import ACTING, DEVICES
from actor_learner.system.memory import own_memory
from benchmarks.harness import Figures, make_parser, origin, ratio_of, report, run_in_turns
from benchmarks.processes import memory_of
from benchmarks.speed.frames import NoiseFrames

STEPS, VERSIONS = 1000, 200
FRAME_ENVS, FRAME_ROWS = 64, 8


def actor() -> None:
    """Measure the cost of one actor: memory, microseconds per vector step, milliseconds for a new weight version.

        scripts/measure actor [--env CartPole-v1] [--envs 8] --output benchmarks/speed/actor.json

    The clocks of a real actor process give the time of acting (LiteRT, sampling) and of everything else.
    """
    parser = make_parser("actor", actor.__doc__ or "", env="CartPole-v1", envs=8, batches=30)
    arguments = parser.parse_args()
    figures = measure_actor(arguments.env, arguments.envs, arguments.batches)
    result = {**origin(parser), "env": arguments.env, "envs": arguments.envs, **figures}
    report(result, arguments.output)


def measure_actor(env: str, envs: int, batches: int) -> Figures:
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


def acting() -> None:
    """Env steps per second where actors act by themselves, and where the learner's device does, in turns.

        scripts/measure acting [--device gpu] --output benchmarks/speed/acting.json

    64 environments that cost nothing and show frames of 84 x 84 x 4 bytes; nothing is learned. Actors compute in
    float32, whatever the network's precision.
    """
    parser = make_parser("acting", acting.__doc__ or "", actors=2, rounds=15)
    parser.add_argument("--device", default="auto", choices=DEVICES, help="the learner's device (default: auto)")
    arguments = parser.parse_args()
    kinds = itertools.product(("nature", "impala"), ("float32", "bfloat16"))
    found = {", ".join(kind): compare_acting(*kind, arguments) for kind in kinds}
    report({**origin(parser), "actors": arguments.actors, "envs": FRAME_ENVS, **found}, arguments.output)


def compare_acting(image_network: str, precision: str, arguments: argparse.Namespace) -> Figures:
    """Alternate two pools whose actors have the same network."""

    def network(*spaces: Any) -> Any:
        from actor_learner.networks.contract import building_in

        with building_in(precision):
            return al.default_network(*spaces, image_network=image_network, seed=0)

    with contextlib.ExitStack() as stack:
        pools = {
            where: stack.enter_context(
                al.ActorPool(
                    NoiseFrames,
                    network,
                    num_actors=arguments.actors,
                    num_envs=FRAME_ENVS,
                    unroll_length=FRAME_ROWS,
                    acting=where,
                    device=arguments.device,
                )
            )
            for where in ACTING
        }
        for actors in pools.values():
            actors.collect(timeout=None)
        found = run_in_turns(
            {where: functools.partial(_speed, actors) for where, actors in pools.items()}, arguments.rounds
        )
    speeds = {where: statistics.median(speeds) for where, speeds in found.items()}
    ratio = ratio_of(found["device"], found["actors"])
    return {"steps_per_second": speeds, "device_over_actors": ratio._asdict(), "rounds": found}


def _speed(actors: al.ActorPool) -> float:
    started = time.perf_counter()
    trajectory = actors.collect(timeout=None)
    return trajectory.valid.size / (time.perf_counter() - started)
