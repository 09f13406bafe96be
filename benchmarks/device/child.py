"""Measures one work in a process of its own, whose Keras runs on JAX. Prints JSON."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import actor_learner as al
from actor_learner.environments.jax.source import find_jax_env
from actor_learner.networks.contract import call_network
from benchmarks.device import purejaxrl
from benchmarks.harness import Figures, run_in_turns
from benchmarks.programs import answer

LEARNING_RATE = 2.5e-4
ENDLESS = "jax:benchmarks.device.envs:Endless"
Run = Callable[[], Figures]


def jax_env(name: str) -> Any:
    return find_jax_env(name, {}).make({})


def sizes_of(task: SimpleNamespace) -> purejaxrl.Sizes:
    return purejaxrl.Sizes(task.num_envs, task.unroll_length, task.minibatch_size, task.epochs)


@contextlib.contextmanager
def ours(
    env: str, task: SimpleNamespace, gamma: float = 0.99, rate: float = LEARNING_RATE, **options: Any
) -> Iterator[Any]:
    """Yield a function that makes so many updates, and the network. Options: of `ActorPool`."""
    algorithm = al.PPO(
        minibatch_size=task.minibatch_size, epochs=task.epochs, learning_rate=rate, ent_coef=0.0, gamma=gamma
    )
    with al.ActorPool(env, num_envs=task.num_envs, unroll_length=task.unroll_length, **options) as actors:
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, device=task.device)

        def run(updates: int) -> Figures:
            collecting = 0.0
            started = time.perf_counter()
            for _ in range(updates):
                begun = time.perf_counter()
                batch = actors.collect()
                collecting += time.perf_counter() - begun
                learner.update(batch)
                actors.publish(learner.flat_weights())
            return {"update": (time.perf_counter() - started) / updates, "rollout": collecting / updates}

        yield run, actors.network


def published_way(env: Any, task: SimpleNamespace, gamma: float = 0.99, rate: float = LEARNING_RATE) -> Any:
    """Return a function that makes so many updates by one program, and one that returns the values of observations."""
    carry, update = purejaxrl.make(env, sizes_of(task), rate, gamma)
    program = jax.jit(lambda carry, updates: jax.lax.fori_loop(0, updates, lambda _, now: update(now)[0], carry))

    def run(updates: int) -> Figures:
        nonlocal carry
        started = time.perf_counter()
        carry = jax.block_until_ready(program(carry, updates))
        return {"update": (time.perf_counter() - started) / updates}

    return run, lambda observation: purejaxrl.policy(carry.weights, observation)[1]


def speed(task: SimpleNamespace) -> Figures:
    """Alternate all ways, and return the seconds of each round by way."""
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[int], Figures]] = {}
        if "device" in task.ways:
            ways["device"], _ = stack.enter_context(ours(task.env, task, device=task.device))
        if "program" in task.ways:
            ways["program"], _ = published_way(jax_env(task.env), task)
        for name in filter(is_installed, task.ways):
            options = {"num_actors": task.num_actors, "max_policy_lag": 1}
            ways[name], _ = stack.enter_context(ours(name, task, **options))
        counts = {name: updates_in(run, task.seconds) for name, run in ways.items()}
        return run_in_turns({name: lambda run=run, n=counts[name]: run(n) for name, run in ways.items()}, task.rounds)


def is_installed(way: str) -> bool:
    """Return whether a way is an environment for ordinary actors that can be made here."""
    return way not in ("device", "program") and not (way.startswith("envpool:") and find_spec("envpool") is None)


def updates_in(run: Callable[[int], Figures], seconds: float) -> int:
    """Return how many updates fill this time, once all is compiled; at least 1."""
    run(2)
    return max(1, round(seconds / run(2)["update"]))


def truncation(task: SimpleNamespace) -> Figures:
    """Return the values of a state worth 10, as both ways learn it from episodes of ten steps."""
    discount, rate = 0.9, 3e-3
    seen = np.ones((1, 1), np.float32)
    with ours(ENDLESS, task, discount, rate, device=task.device) as (run, network):
        run(task.updates)
        found = {"ours": float(np.asarray(call_network(network, seen)["value"]).ravel()[0])}
    run, values = published_way(jax_env(ENDLESS), task, discount, rate)
    run(task.updates)
    return {**found, "program": float(values(seen)[0]), "right": 1 / (1 - discount)}


def brax_ppo(task: SimpleNamespace) -> Figures:
    """Train with Brax's PPO, and return its evaluations: env steps, seconds since the start and returns."""
    from brax.training.agents.ppo import train

    env = _bare(task.env)
    started, rows = time.perf_counter(), []

    def note(steps: int, metrics: Any) -> None:
        row = {"steps": int(steps), "seconds": time.perf_counter() - started}
        row |= {"return": float(metrics["eval/episode_reward"]), "sps": float(metrics.get("training/sps", 0.0))}
        rows.append(row)

    train.train(env, progress_fn=note, seed=task.seed, **task.settings)
    return {"evaluations": rows}


def _bare(name: str) -> Any:
    library, _, env_id = name.partition(":")
    if library == "brax":
        from brax import envs

        return envs.get_environment(env_id)
    from mujoco_playground import registry

    return registry.load(env_id)


if __name__ == "__main__":
    answer(speed, truncation, brax_ppo)
