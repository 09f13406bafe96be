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
import pufferlib.pytorch
import pufferlib.vector
import torch
from torch import nn

from benchmarks.peers.programs.clock import Clock, read_task

SEGMENT = 64
"""Steps that it learns from in one piece, at most; a minibatch is of four or more pieces."""


def make_env(task: SimpleNamespace, buf: Any = None, seed: int = 0) -> Any:
    """One environment, emulated. Pong: Gymnasium's own preprocessing, four frames, clipped rewards."""
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


def tower(inputs: int, outputs: int, gain: float) -> Any:
    """64 and 64."""
    layer = pufferlib.pytorch.layer_init
    return nn.Sequential(
        *(layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()),
        layer(nn.Linear(64, outputs), std=gain),
    )


class Policy(nn.Module):
    """Two trunks of 64 and 64 for vectors; one Nature CNN for images."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        layer = pufferlib.pytorch.layer_init
        space, actions = env.single_observation_space, env.single_action_space
        self.discrete, self.images = hasattr(actions, "n"), len(space.shape) == 3
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        if self.images:
            self.trunk = nn.Sequential(
                *(layer(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
                *(layer(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU(), nn.Flatten()),
                *(layer(nn.Linear(3136, 512)), nn.ReLU()),
            )
            self.actor, self.critic = layer(nn.Linear(512, outputs), std=0.01), layer(nn.Linear(512, 1), std=1)
        else:
            inputs = int(np.prod(space.shape))
            self.actor, self.critic = tower(inputs, outputs, 0.01), tower(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, observations: Any, state: Any = None) -> tuple[Any, Any]:
        """Logits, or a distribution, and values."""
        hidden = self.trunk(observations.float() / 255.0) if self.images else observations.float()
        mean = self.actor(hidden)
        return mean if self.discrete else torch.distributions.Normal(mean, self.log_std.exp().expand_as(mean)), (
            self.critic(hidden)
        )

    forward_eval = forward


def settings(task: SimpleNamespace) -> dict[str, Any]:
    """Its own defaults, but for what a work has."""
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
    """One run."""
    task = read_task()
    sys.argv[1:] = []  # it reads them too
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
