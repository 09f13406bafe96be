#!/usr/bin/env python3
"""A PPO update as one compiled graph, against the same minibatch step called from Python.

    scripts/measure update [--rounds 11] [--minibatch-sizes 64 512] [--output benchmarks/speed/update.json]

One thread, the default network for CartPole-v1 (two trunks of 64-64), 2048 rows, 10 epochs. Both take the same
minibatches in the same order and make the same optimizer steps; the step from Python at the better of
`jit_compile=True` and `False`. LockStep alternate; figures are medians, in microseconds of CPU and of wall-clock time
for each minibatch, and the ratio is the median of the rounds' ratios. Takes about a minute and a half.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.system.keras_import import import_keras
from benchmarks.machine import machine

import_keras()

import tensorflow as tf  # noqa: E402

from actor_learner.learner.batch import minibatch_of  # noqa: E402

STEPS, COLUMNS, EPOCHS = 256, 8, 10
ROWS = STEPS * COLUMNS
OBSERVATIONS, ACTIONS = Box(-10, 10, (4,), np.float32), Discrete(2)


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--minibatch-sizes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = {
        "command": " ".join(["scripts/measure update", *sys.argv[1:]]),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "threads": 1,
        "rows": ROWS,
        "epochs": EPOCHS,
        "rounds": arguments.rounds,
        "minibatch_sizes": {},
    }
    for size in arguments.minibatch_sizes:
        found = compare(size, arguments.rounds)
        result["minibatch_sizes"][size] = found
        print(
            f"{size} rows a minibatch: {found['one_graph_us']['cpu']:.0f} us each in one graph, "
            f"{found['from_python_us']['cpu']:.0f} us called from Python ({found['from_python']}): "
            f"{found['ratio']['cpu']:.2f}x by CPU time, {found['ratio']['wall']:.2f}x by the clock on the wall",
            flush=True,
        )
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


def compare(size: int, rounds: int) -> dict[str, Any]:
    """Alternates the two, after a look at how the step from Python is better compiled."""
    one_graph = make_one_graph(size)
    steps = {name: make_steps(size, with_xla) for name, with_xla in (("XLA", True), ("plain", False))}
    for update in (one_graph, *steps.values()):
        update()
    better = min(steps, key=lambda name: statistics.median(seconds(steps[name])["cpu"] for _ in range(3)))
    runs: dict[str, list[dict[str, float]]] = {"one_graph": [], "from_python": []}
    for _ in range(rounds):
        runs["one_graph"].append(seconds(one_graph))
        runs["from_python"].append(seconds(steps[better]))
    minibatches = EPOCHS * ROWS // size
    found: dict[str, Any] = {
        f"{name}_us": {
            clock: statistics.median(run[clock] for run in of_one) / minibatches * 1e6 for clock in ("cpu", "wall")
        }
        for name, of_one in runs.items()
    }
    pairs = list(zip(runs["from_python"], runs["one_graph"], strict=True))
    ratios = {clock: statistics.median(a[clock] / b[clock] for a, b in pairs) for clock in ("cpu", "wall")}
    return {**found, "from_python": better, "ratio": ratios}


def seconds(update: Callable[[], Any]) -> dict[str, float]:
    """That it takes, of this process's CPU time and on the wall."""
    cpu, wall = time.process_time(), time.perf_counter()
    update()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def make_learner(size: int) -> al.Learner:
    """A learner that has seen a batch."""
    network = al.default_network(OBSERVATIONS, ACTIONS, seed=0)
    learner = al.Learner(network, al.PPO(minibatch_size=size, epochs=EPOCHS), action_space=ACTIONS, device="cpu")
    learner.update(make_trajectory())
    return learner


def make_trajectory() -> al.Trajectory:
    """Random rows without an end."""
    rng, shape = np.random.default_rng(0), (STEPS, COLUMNS)
    return al.Trajectory(
        observation=rng.normal(size=(STEPS + 1, COLUMNS, 4)).astype(np.float32),
        action=rng.integers(0, 2, shape),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        behaviour_log_prob=np.full(shape, -np.log(2), np.float32),
        truncation_value=np.zeros(shape, np.float32),
        policy_version=np.zeros(COLUMNS, np.int64),
        env_index=np.arange(COLUMNS, dtype=np.int32),
    )


def make_one_graph(size: int) -> Callable[[], Any]:
    """`Learner.update`, from the batch in NumPy to metrics: advantages, all minibatches, checks."""
    learner, trajectory = make_learner(size), make_trajectory()
    return lambda: learner.update(trajectory)


def make_steps(size: int, with_xla: bool) -> Callable[[], Any]:
    """The minibatch steps alone, each a call from Python: no advantages, no checks, metrics fetched once in the end."""
    learner = make_learner(size)
    update = learner._update
    rng = np.random.default_rng(0)
    rows = {
        "observation": tf.constant(rng.normal(size=(ROWS, 4)).astype(np.float32)),
        "action": tf.constant(rng.integers(0, 2, ROWS)),
        "valid": tf.ones(ROWS, tf.bool),
        **{
            name: tf.constant(rng.normal(size=ROWS).astype(np.float32))
            for name in ("behaviour_log_prob", "advantage", "return", "value")
        },
    }

    @tf.function(jit_compile=with_xla, autograph=False)
    def step(index: Any) -> Any:
        gradients, metrics = update._gradients(learner.algorithm, minibatch_of(rows, index))
        update._apply(gradients)
        return tf.stack([metrics[name] for name in sorted(metrics)])

    def steps() -> Any:
        metrics = []
        for _ in range(EPOCHS):
            order = rng.permutation(ROWS).astype(np.int32).reshape(-1, size)
            metrics += [step(tf.constant(index)) for index in order]
        return tf.reduce_mean(tf.stack(metrics), axis=0).numpy()

    return steps


if __name__ == "__main__":
    main()
