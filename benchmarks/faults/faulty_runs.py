#!/usr/bin/env python3
"""Whole runs with faults beside the same runs without: does learning come out the same?

    scripts/measure faulty-runs actors --env HalfCheetah-v5 --seeds 2 --faults 60    # actors killed and stopped
    scripts/measure faulty-runs nan --env CartPole-v1 --seeds 3    # NaN by environment, network, learning rate

Each run is one process on one core, as many at a time as there are cores, or `--at-once`. `--output FILE` keeps the
figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import machine

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"actors": ("none", "actors"), "nan": ("none", "environment", "network", "learning rate")}
AT_CALL = 20
"""The update in which the learning rate is huge."""
HUGE = 1e30


def main() -> None:
    """Runs all, prints a line for each, and writes the figures."""
    arguments = _parser().parse_args()
    if arguments.one is not None:
        print(json.dumps(run(**json.loads(arguments.one))))
        return
    jobs = [
        {
            "env": arguments.env,
            "kind": kind,
            "seed": seed,
            "faults": arguments.faults,
            "total_steps": arguments.total_steps,
        }
        for seed in range(arguments.seeds)
        for kind in KINDS[arguments.what]
    ]
    cores = sorted(os.sched_getaffinity(0))
    _free_cores.extend(itertools.islice(itertools.cycle(cores), arguments.at_once or len(cores)))
    with ThreadPoolExecutor(len(_free_cores)) as pool:
        results = list(pool.map(_in_a_process, jobs))
    summary = {"command": " ".join(sys.argv[1:]), "machine": machine(), "runs": results}
    if arguments.output:
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--faults", type=int, default=60, help="in each run with faults")
    parser.add_argument("--total-steps", type=int, help="default: the preset's")
    parser.add_argument("--at-once", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


_free_cores: list[int] = []
_lock = threading.Lock()


def _in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """The run, on one core."""
    with _lock:
        core = _free_cores.pop()
    pinned = f"import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.argv[1], sys.argv[1:])"
    command = [
        sys.executable,
        "-c",
        pinned,
        sys.executable,
        "-m",
        "benchmarks.faults.faulty_runs",
        "nan",
        "--one",
        json.dumps(job),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    with _lock:
        _free_cores.append(core)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def run(env: str, kind: str, seed: int, faults: int, total_steps: int | None) -> dict[str, Any]:
    """One run in this process, and what came of it."""
    import actor_learner as al

    changes: dict[str, Any] = {} if total_steps is None else {"total_steps": total_steps}
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset(env, seed=seed, quiet=True, run_dir=f"{folder}/run", actor_timeout=5.0, **changes)
        if kind == "actors":
            config = config.replace(callbacks=[_chaos(config.total_steps, faults, seed)])
        elif kind == "environment":
            config = config.replace(env=_nan_environment(env, f"{folder}/done"))
        elif kind == "network":
            config = config.replace(network=_nan_network(config), normalize_observation=False)
        elif kind == "learning rate":
            config = config.replace(algorithm=dataclasses.replace(config.algorithm, learning_rate=HugeOnce(1e-3)))
        started = time.monotonic()
        result = al.train(config)
        seconds = time.monotonic() - started
        evaluation = al.evaluate(result.network, env=env, episodes=20, seed=1000)
        rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        incidents = sorted(path.name for path in (result.run_dir / "incidents").glob("*-*"))
        algorithm = (
            dataclasses.replace(config.algorithm, learning_rate=lambda _: HUGE) if kind == "learning rate" else None
        )
        repeated = [_repeats(al, result.run_dir / "incidents" / name, algorithm) for name in incidents]
    return {
        "env": env,
        "kind": kind,
        "seed": seed,
        "evaluation_mean": round(evaluation.mean, 1),
        "evaluation_std": round(evaluation.std, 1),
        "last_100": round(result.metrics["episode_return"], 1),
        "env_steps": int(result.metrics["env_steps"]),
        "actor_restarts": int(result.metrics["actor_restarts"]),
        "undone_updates": sum("undone" in row for row in rows),
        "incidents_that_repeat": sum(repeated),
        "seconds": round(seconds),
    }


def _repeats(al: Any, incident: Path, algorithm: Any) -> bool:
    """Whether the update of an incident comes out as it was: the same metrics, the same of them not finite."""
    before = json.loads((incident / "metrics.json").read_text())
    again = al.Learner.load(incident, algorithm=algorithm).update(al.load_trajectory(incident / "trajectory.npz"))
    return bool(again.get("undone")) and all(
        value is None or again[name] == value for name, value in before.items() if name in again
    )


def _nan_environment(env: str, marker: str) -> Callable[[], Any]:
    """Gives NaN as a reward once in the run, after some steps."""

    def make() -> Any:
        import gymnasium as gym

        class Spoilt(gym.Wrapper):  # type: ignore[type-arg]
            steps = 0

            def step(self, action: Any) -> Any:
                observation, reward, *rest = self.env.step(action)
                self.steps += 1
                if self.steps == 500 and not os.path.exists(marker):
                    open(marker, "w").close()
                    reward = float("nan")
                return observation, reward, *rest

        return Spoilt(gym.make(env))

    return make


def _nan_network(config: Any) -> Callable[[Any, Any], Any]:
    """The default network, but that it gives NaN where the first number of an observation is in a narrow band."""

    def make(observation_space: Any, action_space: Any) -> Any:
        import keras
        from keras import ops

        import actor_learner as al

        inner = al.default_network(observation_space, action_space, seed=config.seed)
        observation = keras.Input(observation_space.shape)
        first = observation[:, :1]
        spoilt = ops.where(ops.logical_and(first > 0.5, first < 0.50002), float("nan"), 1.0)
        parameters, value = inner(observation)
        return keras.Model(observation, (parameters * spoilt, value))

    return make


class HugeOnce:
    """A schedule that falls linearly, but for one update in which it is huge."""

    def __init__(self, rate: float) -> None:
        self.rate, self.calls = rate, 0

    def __call__(self, progress_remaining: float) -> float:
        self.calls += 1
        return HUGE if self.calls == AT_CALL else self.rate * progress_remaining


def _chaos(total_steps: int, faults: int, seed: int) -> Any:
    import actor_learner as al

    class Chaos(al.callbacks.Callback):  # type: ignore[misc]
        """Kills an actor, or stops one for good, as often as asked for and evenly over the run."""

        def __init__(self) -> None:
            super().__init__()
            self.random, self.done = random.Random(seed), 0

        def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
            if logs["env_steps"] / total_steps * (faults + 1) > self.done + 1 and (pids := self.actors.pids):
                how = self.random.choice([signal.SIGKILL] * 4 + [signal.SIGSTOP])
                os.kill(pids[self.random.choice(sorted(pids))], how)
                self.done += 1

    return Chaos()


if __name__ == "__main__":
    main()
