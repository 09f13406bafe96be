"""The workloads that most programs measure, PPO with Stable-Baselines3's hyperparameters, and how they are run."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Figures, flag_words, run_on_core, run_python

COMMAND = ("-m", "actor_learner.cli")
EVALUATION_SEED = 1000


def train_rows(words: Sequence[str], path: Path) -> list[dict[str, float]]:
    """Run `actor-learner train` by the packages in `path`; return the rows of its metrics."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        run = Path(folder, "run")
        run_python([*COMMAND, "train", *words, "--quiet", "--run-dir", run], path=path)
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def rate(rows: Sequence[Mapping[str, float]], counter: str) -> float:
    """Return how much a counter grows in a second, after its first two rows, which compile."""
    counted = [row for row in rows if row[counter]]
    first, last = counted[1], counted[-1]
    return (last[counter] - first[counter]) / (last["time_seconds"] - first["time_seconds"])


def train_on_core(core: int, words: Sequence[Any], folder: Path, seconds: float, **streams: Any) -> float:
    """Train into a folder, on one core; return the seconds of the whole command. words: arguments of `train`."""
    command = [*COMMAND, "train", *map(str, words), "--run-dir", str(folder), "--quiet", "--overwrite"]
    started = time.perf_counter()
    run_on_core(core, command, timeout=seconds, check=True, **streams)
    return time.perf_counter() - started


def evaluate_on_core(core: int, folder: Path, episodes: int, seconds: float) -> Figures:
    """Return the returns of a run's final weights, on one core."""
    words = ["evaluate", str(folder), "--episodes", str(episodes), "--seed", str(EVALUATION_SEED), "--json"]
    done = run_on_core(core, [*COMMAND, *words], timeout=seconds, capture_output=True, check=True)
    found: Figures = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Work:
    """An environment and the shape of the updates on it: `envs` x `unroll_length` env steps each."""

    env: str
    envs: int
    unroll_length: int
    minibatch_size: int
    epochs: int
    updates: int  # that take some seconds on two cores, after the first ones, which aren't counted
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the algorithm or of `al.TrainConfig`

    def words(self, num_actors: int = 2, **flags: Any) -> list[str]:
        """Return the arguments of `actor-learner train` or `benchmark`; `flags` come last."""
        own = {
            "preset": "none",
            "num_actors": num_actors,
            "envs_per_actor": self.envs // num_actors,
            **{name: getattr(self, name) for name in ("unroll_length", "minibatch_size", "epochs")},
            "env_kwargs": json.dumps(dict(self.env_kwargs)),
            **self.changes,
        }
        return [self.env, *flag_words({**own, **flags})]

    def train(self, updates: int, path: Path, **flags: Any) -> float:
        """Train by the packages in `path`; return env steps per second after the first two updates."""
        flags |= {"total_steps": self.envs * self.unroll_length * (2 + updates)}
        return rate(train_rows(self.words(**flags), path), "env_steps")


WORKS: dict[str, Work] = {
    "cartpole": Work("CartPole-v1", 8, 2048, 64, 10, 24),
    "cartpole64": Work("CartPole-v1", 64, 32, 512, 4, 400),
    "halfcheetah": Work("HalfCheetah-v5", 8, 2048, 64, 10, 12),
    "pong": Work(
        *("ALE/Pong-v5", 8, 128, 256, 4, 6),
        env_kwargs={"repeat_action_probability": 0.0},
        changes={"clip_reward": "sign", "ent_coef": 0.01},
    ),
}

ALL_WORKS: dict[str, Work] = {
    **WORKS,
    "cartpole32": Work("CartPole-v1", 32, 32, 1024, 4, 400),
    "pong_bfloat16": replace(WORKS["pong"], changes={**WORKS["pong"].changes, "precision": "bfloat16"}),
}
"""With Sample Factory's own best on two cores, 2 workers x 16 envs; and Pong, where ours alone is in bfloat16."""

REPLAY_WORKS: dict[str, list[str]] = {
    "dqn": ["CartPole-v1", "--algorithm", "dqn", "--total-steps", "20000"],
    "sac": ["Pendulum-v1", "--algorithm", "sac", "--total-steps", "4000"],
}
"""Arguments of `actor-learner train` with a replay buffer, whose speed is counted in gradient steps."""
