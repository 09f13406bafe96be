"""What a return costs by PPO and PQN, and by DQN or SAC: env steps, seconds and CPU seconds, on one core and on all.

    scripts/measure resources --output benchmarks/replay/resources.json    # 70 minutes
    scripts/measure resources --envs CartPole-v1 --output benchmarks/replay/resources.json    # the others stay

A preset trains until ten deterministic episodes, played now and then, have the goal as their mean return. Seconds are
the whole command's: starting, compiling and evaluating included. Medians over seeds of the runs that reach the goal.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.harness import (
    Figures,
    children_cpu_seconds,
    make_parser,
    medians,
    origin,
    report,
    run_in_turns,
    run_python,
    write,
)

TASKS = (
    ("CartPole-v1", 500, {"ppo": 5000, "dqn": 2500, "pqn": 5000}),
    ("Pendulum-v1", -200, {"ppo": 5000, "sac": 500}),
    ("LunarLander-v3", 200, {"ppo": 25_000, "dqn": 5000, "pqn": 25_000}),
    ("HalfCheetah-v5", 3000, {"ppo": 25_000, "sac": 5000}),
)
"""Environments, goals, and the env steps between two evaluations with each algorithm."""
SECONDS = 3600.0


def main() -> None:
    parser = make_parser("resources", __doc__ or "", seeds=3)
    envs = [env for env, _, _ in TASKS]
    parser.add_argument("--envs", nargs="+", choices=envs, default=envs, help="environments (default: all)")
    arguments = parser.parse_args()
    output = arguments.output
    found: Figures = json.loads(output.read_text()) if output and output.exists() else {}
    for env, goal, names in TASKS:
        if env in arguments.envs:
            measured = costs(env, goal, names, arguments.seeds)
            found[f"{env}, return {goal}"] = {"measured": origin(parser), "seeds": arguments.seeds, **measured}
            write(found, output)  # what is measured isn't lost with what comes next
    report(found, output)


def costs(env: str, goal: float, algorithms: dict[str, int], seeds: int) -> Figures:
    """Return what each algorithm takes to reach the goal, on one core and on all, in turns, each turn a seed."""
    counts = {"one core": 1, "all cores": os.cpu_count() or 1}
    runs = {}
    for algorithm, (name, cores) in itertools.product(algorithms, counts.items()):
        seed = itertools.count()
        task = {"env": env, "algorithm": algorithm, "goal": goal, "every_steps": algorithms[algorithm], "cores": cores}
        runs[f"{algorithm}, {name}"] = functools.partial(run, task, seed)
    return {name: summary(rows) for name, rows in run_in_turns(runs, seeds).items()}


def run(task: Figures, seeds: Iterator[int]) -> Figures:
    """Train the next seed until the goal, in a process of its own."""
    task = {**task, "seed": next(seeds)}
    began, cpu = time.monotonic(), children_cpu_seconds()
    found = json.loads(run_python(["-m", "benchmarks.replay.resources", json.dumps(task)], seconds=SECONDS))
    seconds = {"seconds": time.monotonic() - began, "cpu_seconds": children_cpu_seconds() - cpu}
    return {**found, **{name: round(value, 1) for name, value in seconds.items()}}


def until() -> None:
    """Train a preset in this process until its policy reaches a return; print the env steps, and whether it did."""
    task: Figures = json.loads(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.pop("cores")])  # before TensorFlow counts them

    import actor_learner as al

    goal, evaluate = task.pop("goal"), al.callbacks.Evaluate(task.pop("every_steps"))
    stop = al.callbacks.StopOnReturn(goal, monitor="evaluation/return_mean")
    with tempfile.TemporaryDirectory() as folder:
        options = {**task, "run_dir": f"{folder}/run", "quiet": True, "callbacks": [evaluate, stop]}
        result = al.train(al.preset(options.pop("env"), **options))
    assert evaluate.evaluation is not None
    print(json.dumps({"env_steps": result.metrics["env_steps"], "reached": evaluate.evaluation.mean >= goal}))


def summary(rows: list[Figures]) -> Figures:
    """Return the medians of the runs that reached the goal, and all runs."""
    reached = [{name: row[name] for name in ("env_steps", "seconds", "cpu_seconds")} for row in rows if row["reached"]]
    return {"reached": f"{len(reached)} of {len(rows)}", **(medians(reached) if reached else {}), "runs": rows}


if __name__ == "__main__":
    until()
