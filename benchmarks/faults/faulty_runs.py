"""Whole runs with faults beside the same runs without: does learning come out the same?

    scripts/measure faulty-runs actors --env HalfCheetah-v5 --seeds 2 --faults 60    # actors killed and stopped
    scripts/measure faulty-runs nan --env CartPole-v1 --seeds 3    # NaN by environment, network, learning rate

Each run is one process on one core, as many at a time as there are cores, or `--at-once`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Found, make_parser, map_on_cores, origin, run_on_core

KINDS = {"actors": ("none", "actors"), "nan": ("none", "environment", "network", "learning rate")}
HUGE_AT_CALL, HUGE = 20, 1e30
"""The update in which the learning rate is huge, and that rate."""


def main() -> None:
    parser = make_parser("faulty-runs", __doc__ or "", env="CartPole-v1", seeds=2, faults=60)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--total-steps", type=int, help="default: the preset's")
    parser.add_argument("--at-once", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(run(**json.loads(arguments.one))))
        return
    settings = {"env": arguments.env, "faults": arguments.faults, "total_steps": arguments.total_steps}
    kinds = KINDS[arguments.what]
    jobs = [{**settings, "kind": kind, "seed": seed} for seed in range(arguments.seeds) for kind in kinds]
    runs = map_on_cores(_run_child, jobs, arguments.at_once)
    if arguments.output:
        arguments.output.write_text(json.dumps({**origin(parser), "runs": runs}, indent=1) + "\n")


def _run_child(core: int, job: Found) -> Found:
    """Run a job in a process of its own, on a core."""
    words = ["-m", "benchmarks", "faulty-runs", "nan", "--one", json.dumps(job)]
    result: Found = json.loads(run_on_core(core, words, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def run(env: str, kind: str, seed: int, faults: int, total_steps: int | None) -> Found:
    """Train once in this process, evaluate, and repeat the incidents."""
    import actor_learner as al

    changes: Found = {} if total_steps is None else {"total_steps": total_steps}
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset(env, seed=seed, quiet=True, run_dir=f"{folder}/run", actor_timeout=5.0, **changes)
        huge = None
        if kind == "actors":
            config = config.replace(callbacks=[_chaos(config.total_steps, faults, seed)])
        elif kind == "environment":
            config = config.replace(env=_nan_environment(env, f"{folder}/done"))
        elif kind == "network":
            config = config.replace(network=_nan_network(config), normalize_observation=False)
        elif kind == "learning rate":
            config = config.replace(algorithm=dataclasses.replace(config.algorithm, learning_rate=HugeOnce(1e-3)))
            huge = dataclasses.replace(config.algorithm, learning_rate=lambda _: HUGE)
        started = time.monotonic()
        result = al.train(config)
        seconds = time.monotonic() - started
        evaluation = al.evaluate(result.network, env=env, episodes=20, seed=1000)
        rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        repeated = [_repeats(al, path, huge) for path in sorted((result.run_dir / "incidents").glob("*-*"))]
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
    """Return whether the update of an incident has the same metrics again, finite or not."""
    before = json.loads((incident / "metrics.json").read_text())
    again = al.Learner.load(incident, algorithm=algorithm).update(al.load_trajectory(incident / "trajectory.npz"))
    return bool(again.get("undone")) and all(
        value is None or again[name] == value for name, value in before.items() if name in again
    )


def _nan_environment(env: str, marker: str) -> Callable[[], Any]:
    """Return a factory of environments; one of them returns NaN as a reward, once in the run."""

    def make() -> Any:
        import gymnasium as gym

        class NanReward(gym.Wrapper):  # type: ignore[type-arg]
            steps = 0

            def step(self, action: Any) -> Any:
                observation, reward, *rest = self.env.step(action)
                self.steps += 1
                if self.steps == 500 and not os.path.exists(marker):
                    open(marker, "w").close()
                    reward = float("nan")
                return observation, reward, *rest

        return NanReward(gym.make(env))

    return make


def _nan_network(config: Any) -> Callable[[Any, Any], Any]:
    """Return a factory of default networks that return NaN for observations in a narrow band."""

    def make(observation_space: Any, action_space: Any) -> Any:
        import keras
        from keras import ops

        import actor_learner as al

        inner = al.default_network(observation_space, action_space, seed=config.seed)
        observation = keras.Input(observation_space.shape)
        first = observation[:, :1]
        factor = ops.where(ops.logical_and(first > 0.5, first < 0.50002), float("nan"), 1.0)
        parameters, value = inner(observation)
        return keras.Model(observation, (parameters * factor, value))

    return make


class HugeOnce:
    """A schedule that falls linearly, but is huge in one update."""

    def __init__(self, rate: float) -> None:
        self.rate, self.calls = rate, 0

    def __call__(self, progress_remaining: float) -> float:
        self.calls += 1
        return HUGE if self.calls == HUGE_AT_CALL else self.rate * progress_remaining


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
