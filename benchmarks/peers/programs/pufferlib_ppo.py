"""PufferLib's PuffeRL on emulated Gymnasium environments. Its clock: the return of `train()`."""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["PATH"] = "/usr/bin:/bin"  # without a CUDA compiler: where there is one, it takes advantages to the GPU

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.pufferl
import pufferlib.vector
import torch
from torch.distributions import Normal

from benchmarks.peers.programs.clock import Clock, read_task
from benchmarks.peers.programs.torch_agent import Agent

SEGMENT = 64
"""The longest piece of steps that it learns from; a minibatch has four or more pieces."""


def make_env(task: SimpleNamespace, buf: Any = None, seed: int = 0) -> Any:
    """Make an emulated environment. Pong: Gymnasium's own preprocessing, four frames, clipped rewards."""
    if task.env.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
        env = gymnasium.make(task.env, frameskip=1, **task.env_kwargs)
        env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
        env = gymnasium.wrappers.FrameStackObservation(env, 4)
        env = gymnasium.wrappers.TransformReward(env, np.sign)
    else:
        env = gymnasium.make(task.env, **task.env_kwargs)
        if hasattr(env.action_space, "low"):
            env = gymnasium.wrappers.ClipAction(env)
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


class Policy(Agent):
    """The network with the outputs that PuffeRL expects: logits or a distribution, and values."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.single_observation_space.shape, env.single_action_space)

    def forward(self, observations: Any, state: Any = None) -> tuple[Any, Any]:
        mean, value = self.outputs(observations.float())
        return (mean if self.discrete else Normal(mean, self.log_std.exp().expand_as(mean))), value

    forward_eval = forward


def settings(task: SimpleNamespace) -> dict[str, Any]:
    """Return its own defaults, with a work's settings."""
    config = pufferlib.pufferl.load_config("default")["train"]
    batch_size = task.envs * task.unroll_length
    return {
        **config,
        "env": task.env,
        "seed": task.seed,
        "device": "cpu",
        "optimizer": "adam",
        "anneal_lr": False,
        "learning_rate": 3e-4,
        "batch_size": batch_size,
        "bptt_horizon": min(task.unroll_length, task.minibatch_size // 4, SEGMENT),
        "minibatch_size": task.minibatch_size,
        "update_epochs": task.epochs,
        "total_timesteps": 10**9,
        "checkpoint_interval": 10**9,
    }


def main() -> None:
    task = read_task()
    sys.argv[1:] = []  # PufferLib reads them too
    torch.set_num_threads(task.threads)
    creator = functools.partial(make_env, task)
    several = task.threads > 1
    envs = pufferlib.vector.make(
        creator,
        num_envs=task.envs,
        backend=pufferlib.vector.Multiprocessing if several else pufferlib.vector.Serial,
        **({"num_workers": task.threads, "overwork": True} if several else {}),
    )
    trainer = pufferlib.pufferl.PuffeRL(settings(task), envs, Policy(envs.driver_env))
    trainer.print_dashboard = lambda *_, **__: None
    clock = Clock(task)
    while not clock.enough:
        trainer.evaluate()
        trainer.train()
        clock.tick(trainer.global_step)
    os._exit(0)


if __name__ == "__main__":
    main()
