"""A PPO update as one compiled graph, against the same minibatch step called from Python.

    scripts/measure update --output benchmarks/speed/update.json    # a minute and a half

One thread, the default network for CartPole-v1 (two trunks of 64-64), 2048 rows, 10 epochs; the step from Python at the
better of `jit_compile=True` and `False`. Figures are medians, in microseconds for each minibatch.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.system.keras_import import import_keras

import_keras()

import tensorflow as tf  # noqa: E402

from actor_learner.learner.batch import minibatch_of  # noqa: E402
from benchmarks.harness import Found, in_turns, make_parser, medians, origin, report  # noqa: E402

STEPS, COLUMNS, EPOCHS = 256, 8, 10
ROWS = STEPS * COLUMNS
OBSERVATIONS, ACTIONS = Box(-10, 10, (4,), np.float32), Discrete(2)
Seconds = dict[str, float]


def main() -> None:
    parser = make_parser("update", __doc__ or "", rounds=11, minibatch_sizes=[64, 512])
    arguments = parser.parse_args()
    found = {size: compare(size, arguments.rounds) for size in arguments.minibatch_sizes}
    work = {"threads": 1, "rows": ROWS, "epochs": EPOCHS, "rounds": arguments.rounds}
    report({**origin(parser), **work, "minibatch_sizes": found}, arguments.output)


def compare(size: int, rounds: int) -> Found:
    """Alternate the graph and the better of the two ways to compile the step from Python."""
    one_graph = make_one_graph(size)
    steps = {name: make_steps(size, with_xla) for name, with_xla in (("XLA", True), ("plain", False))}
    for update in (one_graph, *steps.values()):
        update()
    better = min(steps, key=lambda name: statistics.median(seconds(steps[name])["cpu"] for _ in range(3)))
    runs = {"one_graph": lambda: seconds(one_graph), "from_python": lambda: seconds(steps[better])}
    found = in_turns(runs, rounds)
    scale = size / (EPOCHS * ROWS) * 1e6
    pairs = list(zip(found["from_python"], found["one_graph"], strict=True))
    scaled = {name: [{clock: row[clock] * scale for clock in row} for row in rows] for name, rows in found.items()}
    return {
        **{f"{name}_us": medians(rows) for name, rows in scaled.items()},
        "from_python": better,
        "ratio": {clock: statistics.median(a[clock] / b[clock] for a, b in pairs) for clock in ("cpu", "wall")},
    }


def seconds(update: Callable[[], Any]) -> Seconds:
    """Time an update: CPU seconds of this process and wall-clock seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    update()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


@functools.cache
def make_trajectory() -> al.Trajectory:
    """Collect rows of CartPole-v1."""
    with al.ActorPool("CartPole-v1", num_actors=0, envs_per_actor=COLUMNS, unroll_length=STEPS) as actors:
        return actors.collect().copy()


def make_learner(size: int) -> al.Learner:
    """Return a learner that has learned from one batch."""
    network = al.default_network(OBSERVATIONS, ACTIONS, seed=0)
    learner = al.Learner(network, al.PPO(minibatch_size=size, epochs=EPOCHS), action_space=ACTIONS, device="cpu")
    learner.update(make_trajectory())
    return learner


def make_one_graph(size: int) -> Callable[[], Any]:
    """Return `Learner.update`, from the batch in NumPy to metrics: advantages, all minibatches, checks."""
    learner, trajectory = make_learner(size), make_trajectory()
    return lambda: learner.update(trajectory)


def make_steps(size: int, with_xla: bool) -> Callable[[], Any]:
    """Return the minibatch steps alone, called from Python: no advantages, no checks, metrics fetched at the end."""
    learner = make_learner(size)
    update = learner._update
    rng = np.random.default_rng(0)
    names = ("behaviour_log_prob", "advantage", "return", "value")
    rows = {
        "observation": tf.constant(rng.normal(size=(ROWS, 4)).astype(np.float32)),
        "action": tf.constant(rng.integers(0, 2, ROWS)),
        "valid": tf.ones(ROWS, tf.bool),
        **{name: tf.constant(rng.normal(size=ROWS).astype(np.float32)) for name in names},
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
