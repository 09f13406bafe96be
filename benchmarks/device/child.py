"""Measures one work in a process of its own, whose Keras runs on JAX. Prints JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import actor_learner as al
from actor_learner.environments.jax.source import find_jax_env
from actor_learner.learner.ahead import weights_for
from actor_learner.networks.contract import call_network
from benchmarks.device import purejaxrl
from benchmarks.harness import Figures, run_in_turns, tell

LEARNING_RATE = 2.5e-4
IDLE_SECONDS = 60.0
Run = Callable[[int], Figures]


def jax_env(name: str) -> Any:
    return find_jax_env(name, {}).make({})


@contextlib.contextmanager
def ours(
    env: str, task: SimpleNamespace, gamma: float = 0.99, rate: float = LEARNING_RATE, **options: Any
) -> Iterator[tuple[Run, Any]]:
    """Yield a function that makes so many updates, and the network. options: of `ActorPool`."""
    algorithm = al.PPO(
        minibatch_size=task.minibatch_size, epochs=task.epochs, learning_rate=rate, ent_coef=0.0, gamma=gamma
    )
    with al.ActorPool(env, num_envs=task.num_envs, unroll_length=task.unroll_length, **options) as actors:
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, device=task.device)
        weights = weights_for(actors, learner)

        def seconds_of(updates: int, learn: Callable[[Any], object]) -> float:
            started = time.perf_counter()
            for _ in range(updates):
                learn(actors.collect())
                actors.publish(weights())
            return (time.perf_counter() - started) / max(1, updates)

        def run(updates: int) -> Figures:
            lag = options.get("max_policy_lag", 0)
            seconds_of(lag + 1 if lag else 0, learner.update)  # else the first batches cost nothing
            found = {"update": seconds_of(updates, learner.update)}
            if actors.acts_on_device:
                seconds_of(1, id)  # an unroll that has begun
                found["rollout"] = seconds_of(updates, id)
            deadline = time.monotonic() + IDLE_SECONDS
            while not actors.idle and time.monotonic() < deadline:  # else they would slow down what comes next
                time.sleep(0.001)
            return found

        yield run, actors.network


def purejaxrl_program(env: Any, task: SimpleNamespace, gamma: float = 0.99, rate: float = LEARNING_RATE) -> Any:
    """Return a function that makes so many updates by one program, and one that returns the values of observations."""
    sizes = purejaxrl.Sizes(task.num_envs, task.unroll_length, task.minibatch_size, task.epochs)
    carry, update = purejaxrl.make(env, sizes, rate, gamma)
    program = jax.jit(lambda carry, updates: jax.lax.fori_loop(0, updates, lambda _, now: update(now), carry))

    def run(updates: int) -> Figures:
        nonlocal carry
        started = time.perf_counter()
        carry = jax.block_until_ready(program(carry, updates))
        return {"update": (time.perf_counter() - started) / updates}

    return run, lambda observation: purejaxrl.policy(carry.weights, observation)[1]


def speed(task: SimpleNamespace) -> Figures:
    """Alternate all variants, and return the seconds of each round by variant."""
    with contextlib.ExitStack() as stack:
        variants: dict[str, Run] = {}
        on_device = ours(task.env, task, device=task.device, env_kwargs=task.env_kwargs)
        variants["device"], _ = stack.enter_context(on_device)
        if task.program:
            variants["program"], _ = purejaxrl_program(jax_env(task.env), task)
        for name, options in task.actors.items():
            if options["env"].startswith("envpool:") and find_spec("envpool") is None:
                tell(f"{name} is left out: it needs envpool")
                continue
            pool = {"num_actors": task.num_actors, "max_policy_lag": 1, **options}
            variants[name], _ = stack.enter_context(ours(pool.pop("env"), task, **pool))
        counts = {name: updates_in(run, task.seconds) for name, run in variants.items()}
        runs = {name: functools.partial(run, counts[name]) for name, run in variants.items()}
        return run_in_turns(runs, task.rounds)


def updates_in(run: Run, seconds: float) -> int:
    """Return how many updates fill this time, once all is compiled; at least 1."""
    run(2)
    return max(1, round(seconds / run(2)["update"]))


def truncation(task: SimpleNamespace) -> Figures:
    """Return the values of a state worth 10, as both learn it from episodes of ten steps."""
    discount, rate = 0.9, 3e-3
    seen = np.ones((1, 1), np.float32)
    with ours(task.env, task, discount, rate, device=task.device) as (run, network):
        run(task.updates)
        found = {"ours": float(np.asarray(call_network(network, seen)["value"]).ravel()[0])}
    run, values = purejaxrl_program(jax_env(task.env), task, discount, rate)
    run(task.updates)
    return {**found, "program": float(values(seen)[0]), "right": 1 / (1 - discount)}


if __name__ == "__main__":
    name, task = sys.argv[1:]
    print(json.dumps({"speed": speed, "truncation": truncation}[name](SimpleNamespace(**json.loads(task)))))
