"""Whole runs with faults beside the same runs without: does learning come out the same?

    scripts/measure faulty-runs actors --env HalfCheetah-v5 --seeds 2 --faults 60    # actors killed and stopped

Each run is one process on one core, as many at a time as there are cores, or `--at-once`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from typing import Any

from benchmarks.harness import Figures, make_parser, map_on_cores, origin, run_on_core, write

KINDS = ("none", "actors")


def main() -> None:
    parser = make_parser("faulty-runs", __doc__ or "", env="CartPole-v1", seeds=2, faults=60)
    parser.add_argument("what", choices=("actors",), help="the target of the faults")
    parser.add_argument("--total-steps", type=int, help="default: the preset's")
    parser.add_argument("--at-once", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(run(**json.loads(arguments.one))))
        return
    settings = {"env": arguments.env, "faults": arguments.faults, "total_steps": arguments.total_steps}
    jobs = [{**settings, "kind": kind, "seed": seed} for seed in range(arguments.seeds) for kind in KINDS]
    runs = map_on_cores(_run_child, jobs, arguments.at_once)
    write({**origin(parser), "runs": runs}, arguments.output)


def _run_child(core: int, job: Figures) -> Figures:
    """Run a job in a process of its own, on a core."""
    words = ["-m", "benchmarks", "faulty-runs", "actors", "--one", json.dumps(job)]
    result: Figures = json.loads(run_on_core(core, words, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def run(env: str, kind: str, seed: int, faults: int, total_steps: int | None) -> Figures:
    """Train once in this process, and evaluate."""
    import actor_learner as al

    changes: Figures = {} if total_steps is None else {"total_steps": total_steps}
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset(env, seed=seed, quiet=True, run_dir=f"{folder}/run", actor_timeout=5.0, **changes)
        if kind == "actors":
            config = config.replace(callbacks=[_chaos(config.total_steps, faults, seed)])
        started = time.monotonic()
        result = al.train(config)
        seconds = time.monotonic() - started
        evaluation = al.evaluate(result.network, env=env, episodes=20, seed=1000)
    return {
        "env": env,
        "kind": kind,
        "seed": seed,
        "evaluation_mean": round(evaluation.mean, 1),
        "evaluation_std": round(evaluation.std, 1),
        "last_100": round(result.metrics["episode_return"], 1),
        "env_steps": int(result.metrics["env_steps"]),
        "actor_restarts": int(result.metrics["actor_restarts"]),
        "seconds": round(seconds),
    }


def _chaos(total_steps: int, faults: int, seed: int) -> Any:
    import actor_learner as al

    class Chaos(al.callbacks.Callback):  # type: ignore[misc]
        """Kills or stops an actor so many times, evenly over the run."""

        def __init__(self) -> None:
            super().__init__()
            self.random, self.count = random.Random(seed), 0

        def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
            if logs["env_steps"] / total_steps * (faults + 1) > self.count + 1 and (pids := self.actors.pids):
                how = self.random.choice([signal.SIGKILL] * 4 + [signal.SIGSTOP])
                os.kill(pids[self.random.choice(sorted(pids))], how)
                self.count += 1

    return Chaos()
