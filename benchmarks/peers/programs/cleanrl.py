"""PPO in torch, rewritten in CleanRL's way and with its settings; EnvPool steps the environments.

Its clock: the end of each update.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers.programs.clock import Clock, read_task
from benchmarks.peers.programs.pools import Returns, make_pool, own_task
from benchmarks.peers.programs.torch_agent import Agent

GAMMA, LAMBDA, CLIP, VALUE, MAX_NORM = 0.99, 0.95, 0.2, 0.5, 0.5


class Rollout:
    """A batch `[T, N]` of steps; the environments continue where the batch before ended."""

    def __init__(self, agent: Agent, pool: Any, task: SimpleNamespace, returns: Returns) -> None:
        self._agent, self._pool, self._returns = agent, pool, returns
        self._next, self._done = torch.as_tensor(pool.reset()[0]), torch.zeros(task.envs)
        size = (task.unroll_length, task.envs)
        self.observations = torch.zeros((*size, *self._next.shape[1:]), dtype=self._next.dtype)
        actions = pool.action_space
        self.actions = torch.zeros((*size, *(() if agent.discrete else actions.shape)))
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(size) for _ in range(4))

    @torch.no_grad()
    def collect(self) -> tuple[Any, Any]:
        """Fill the batch; return advantages and returns."""
        for step in range(len(self.rewards)):
            self.observations[step], self.dones[step] = self._next, self._done
            distribution, self.values[step] = self._agent(self._next.float())
            action = distribution.sample()
            self.actions[step], self.log_probs[step] = action, distribution.log_prob(action)
            given = action.numpy()
            given = given.astype(np.int32) if self._agent.discrete else given.astype(np.float64)
            observation, reward, terminated, truncated, _ = self._pool.step(given)
            done = terminated | truncated
            self._returns.add(reward, done)
            self.rewards[step] = torch.as_tensor(reward)
            self._next, self._done = torch.as_tensor(observation), torch.as_tensor(done).float()
        return self._advantages()

    def _advantages(self) -> tuple[Any, Any]:
        value, done, last = self._agent(self._next.float())[1], self._done, torch.zeros(len(self._done))
        advantages = torch.zeros_like(self.rewards)
        for step in reversed(range(len(self.rewards))):
            delta = self.rewards[step] + GAMMA * value * (1 - done) - self.values[step]
            advantages[step] = last = delta + GAMMA * LAMBDA * (1 - done) * last
            value, done = self.values[step], self.dones[step]
        return advantages, advantages + self.values


def learn(agent: Agent, optimizer: Any, rollout: Rollout, targets: tuple[Any, Any], task: SimpleNamespace) -> None:
    """Learn from the batch in epochs of minibatches."""
    rows = task.envs * task.unroll_length
    observations, actions = rollout.observations.flatten(0, 1), rollout.actions.flatten(0, 1)
    log_probs, values = rollout.log_probs.flatten(), rollout.values.flatten()
    advantages, returns = (target.flatten() for target in targets)
    for _ in range(task.epochs):
        order = torch.randperm(rows)
        for start in range(0, rows, task.minibatch_size):
            chosen = order[start : start + task.minibatch_size]
            distribution, value = agent(observations[chosen].float())
            ratio = (distribution.log_prob(actions[chosen]) - log_probs[chosen]).exp()
            advantage = advantages[chosen]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            clipped = values[chosen] + (value - values[chosen]).clamp(-CLIP, CLIP)
            value_loss = 0.5 * torch.max((value - returns[chosen]) ** 2, (clipped - returns[chosen]) ** 2).mean()
            loss = policy_loss - task.ent_coef * distribution.entropy().mean() + VALUE * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
            optimizer.step()


def main() -> None:
    task = own_task(read_task())
    torch.manual_seed(task.seed)
    torch.set_num_threads(task.threads)
    clock, pool = Clock(task), make_pool(task)
    agent = Agent(pool.observation_space.shape, pool.action_space)
    optimizer = torch.optim.Adam(agent.parameters(), lr=task.learning_rate, eps=1e-5)
    rollout = Rollout(agent, pool, task, Returns(clock, task.envs))
    for update in range(task.updates):
        if task.goal is not None:
            optimizer.param_groups[0]["lr"] = task.learning_rate * (1 - update / task.updates)
        learn(agent, optimizer, rollout, rollout.collect(), task)
        if clock.tick((update + 1) * task.envs * task.unroll_length):
            break


if __name__ == "__main__":
    main()
