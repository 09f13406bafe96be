"""Sample Factory's APPO. Its clock: the observer's call after each iteration of training."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.peers.programs.clock import Clock, read_task

COMMON = {"algo": "APPO", "experiment": "run", "train_for_env_steps": 10**9, "device": "cpu"}
COMMON |= {"max_policy_lag": 10**9}  # in optimizer steps, of which an update may have more than the 1000 of its default
COMMON |= {"use_rnn": False, "recurrence": 1, "with_vtrace": False, "with_wandb": False}


def make_env(name: str, *_: Any, render_mode: str | None = None, **__: Any) -> Any:
    return gymnasium.make(name, render_mode=render_mode)


for _name in ("CartPole-v1", "HalfCheetah-v4"):
    register_env(_name, make_env)  # in each process that imports this file, too


def settings(task: SimpleNamespace) -> dict[str, Any]:
    """Return the flags for a work: a batch is collected while the one before is learned."""
    batch = task.envs * task.unroll_length
    return {
        **COMMON,
        "env": task.env.replace("-v5", "-v4"),  # it needs a Gymnasium that has no v5
        "num_workers": task.workers,
        "num_envs_per_worker": task.envs // task.workers,
        "rollout": min(task.unroll_length, task.minibatch_size),
        "batch_size": task.minibatch_size,
        "num_batches_per_epoch": batch // task.minibatch_size,
        "num_epochs": task.epochs,
    }


class Ticks(AlgoObserver):
    """Counts the iterations; ends the training after the measurement."""

    def __init__(self, clock: Clock, batch_size: int) -> None:
        self._clock, self._batch_size = clock, batch_size

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """Take one batch in an iteration through all its epochs."""
        if self._clock.tick(training_iteration_since_resume * self._batch_size):
            runner.cfg.train_for_env_steps = 0


def main() -> None:
    task = read_task()
    flags = {"train_dir": os.getcwd(), "seed": task.seed, "encoder_mlp_layers": (64, 64), "nonlinearity": "tanh"}
    flags |= settings(task)
    arguments = []
    for name, value in flags.items():
        arguments += [f"--{name}", *map(str, value)] if isinstance(value, tuple) else [f"--{name}={value}"]
    parser, _ = parse_sf_args(argv=arguments)
    config, runner = make_runner(parse_full_cfg(parser, arguments))
    runner.register_observer(Ticks(Clock(task), config.batch_size * config.num_batches_per_epoch))
    runner.init()
    runner.run()


if __name__ == "__main__":
    main()
