"""SB3-contrib's RecurrentPPO and torch's nn.LSTM, the same work: `python -m benchmarks.recurrent.programs.peers
run|update JSON`.

No episode starts within the sequences of `update`, which nn.LSTM can't express. Run by the interpreter of a venv with
sb3-contrib; prints JSON. Times are CPU seconds of this process, on one thread.
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from benchmarks.programs import answer, cpu_times


class NoVelocity(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


class Clock(BaseCallback):
    """Notes the CPU time at which each rollout begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []
        self.ended: list[float] = []

    def _on_rollout_start(self) -> None:
        self.begun.append(time.process_time())

    def _on_rollout_end(self) -> None:
        self.ended.append(time.process_time())

    def _on_step(self) -> bool:
        return True


def run(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of an env step and of an update, from the fourth batch on."""
    rows = task.envs * task.steps
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([NoVelocity] * task.envs),
        n_steps=task.steps,
        batch_size=task.minibatch_size,
        n_epochs=task.epochs,
        learning_rate=1e-3,
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": task.units,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": {"pi": [64], "vf": [64]},
        },
    )
    clock = Clock()
    model.learn((3 + task.batches + 1) * rows, callback=clock)
    updates = [after - before for before, after in zip(clock.ended[3:], clock.begun[4:], strict=False)]
    batches = len(clock.begun) - 4
    total = clock.begun[-1] - clock.begun[3]
    return {"env_step": total / (batches * rows), "update": sum(updates[:batches]) / batches}


class Network(nn.Module):
    """A dense layer, an LSTM and two heads."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.dense, self.lstm = nn.Linear(8, 64), nn.LSTM(64, units)
        self.policy, self.value = nn.Linear(units, 4), nn.Linear(units, 1)

    def forward(self, observation: Any, state: Any) -> tuple[Any, Any]:
        hidden, _ = self.lstm(torch.tanh(self.dense(observation)), state)
        return self.policy(hidden), self.value(hidden)[..., 0]


def update(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of a minibatch: the median of updates of `4 x epochs` minibatches."""
    torch.manual_seed(0)
    steps, columns = task.steps, task.columns
    network = Network(task.units)
    optimizer = torch.optim.Adam(network.parameters(), 3e-4, eps=1e-5)
    rows = (steps, 4 * columns)
    observation, advantage, target = torch.randn(*rows, 8), torch.randn(rows), torch.randn(rows)
    action, behaviour = torch.randint(0, 4, rows), torch.full(rows, -1.3863)
    state = torch.zeros(2, 1, 4 * columns, task.units)

    def minibatch(chosen: Any) -> None:
        logits, value = network(observation[:, chosen], tuple(state[:, :, chosen]))
        log_prob = torch.log_softmax(logits, -1)
        ratio = (log_prob.gather(-1, action[:, chosen, None])[..., 0] - behaviour[:, chosen]).exp()
        own = advantage[:, chosen]
        own = (own - own.mean()) / (own.std() + 1e-8)
        loss = -torch.minimum(ratio * own, ratio.clamp(0.8, 1.2) * own).mean()
        loss = loss + 0.5 * (value - target[:, chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()

    def epochs() -> None:
        for _ in range(task.epochs):
            for chosen in torch.randperm(4 * columns).split(columns):
                minibatch(chosen)

    _, *times = cpu_times(epochs, task.updates + 1)
    return {"minibatch": statistics.median(times) / (4 * task.epochs)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(run, update)
