"""PPO in JAX, rewritten in CleanRL's way: EnvPool inside a compiled scan, and the update too.

Its clock: the end of each update, when its result exists.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import envpool
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.linen.initializers import constant, orthogonal

from benchmarks.peers.programs.clock import Clock, read_task

GAMMA, LAMBDA, CLIP, VALUE, MAX_NORM, LEARNING_RATE = 0.99, 0.95, 0.2, 0.5, 0.5, 3e-4


def make_pool(task: SimpleNamespace) -> Any:
    """Make a pool of a work's environments, with the task's threads."""
    options = {"num_envs": task.envs, "num_threads": task.threads, "seed": task.seed}
    return envpool.make(task.env, env_type="gymnasium", **options)


def dense(features: int, gain: float) -> Any:
    """Return a layer with orthogonal weights and no bias."""
    return nn.Dense(features, kernel_init=orthogonal(gain), bias_init=constant(0.0))


class Agent(nn.Module):
    """Two trunks of 64 and 64."""

    outputs: int

    @nn.compact
    def __call__(self, observation: Any) -> tuple[Any, Any, Any]:
        """Return logits or means, log of the standard deviations, values."""
        log_std = self.param("log_std", constant(0.0), (self.outputs,))
        return self._tower(observation, self.outputs, 0.01), log_std, self._tower(observation, 1, 1.0)[..., 0]

    def _tower(self, hidden: Any, outputs: int, gain: float) -> Any:
        for _ in range(2):
            hidden = jnp.tanh(dense(64, 2**0.5)(hidden))
        return dense(outputs, gain)(hidden)


class Batch(NamedTuple):
    """Steps, `[T, N]`; `done`: the step before ended an episode."""

    observation: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any


def log_prob(mean: Any, log_std: Any, action: Any, *, discrete: bool) -> Any:
    if discrete:
        return jnp.take_along_axis(jax.nn.log_softmax(mean), action[..., None], axis=-1)[..., 0]
    return (-0.5 * ((action - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)


def entropy(mean: Any, log_std: Any, *, discrete: bool) -> Any:
    if discrete:
        log_probs = jax.nn.log_softmax(mean)
        return -(jnp.exp(log_probs) * log_probs).sum(-1)
    return (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum() * jnp.ones(mean.shape[:-1])


def make_collect(agent: Agent, step_pool: Any, unroll_length: int, *, discrete: bool) -> Any:
    """Compile (parameters, pool's handle, observation, done, key) -> the same after a batch, and the batch."""

    def step(carry: Any, _: None) -> Any:
        parameters, handle, observation, done, key = carry
        key, sampling = jax.random.split(key)
        mean, log_std, value = agent.apply(parameters, observation.astype(jnp.float32))
        if discrete:
            action = jax.random.categorical(sampling, mean).astype(jnp.int32)
            given = action
        else:
            action = mean + jnp.exp(log_std) * jax.random.normal(sampling, mean.shape)
            given = action.astype(jnp.float64) if jax.config.jax_enable_x64 else action
        chosen = log_prob(mean, log_std, action, discrete=discrete)
        handle, (after, reward, terminated, truncated, _) = step_pool(handle, given)
        row = Batch(observation, action, chosen, value, reward.astype(jnp.float32), done)
        return (parameters, handle, after, terminated | truncated, key), row

    @jax.jit
    def collect(*carry: Any) -> Any:
        return jax.lax.scan(step, carry, None, length=unroll_length)

    return collect


def advantages(batch: Batch, value: Any, done: Any) -> Any:
    def back(carry: Any, row: Any) -> Any:
        last, value, done = carry
        delta = row.reward + GAMMA * value * (1 - done) - row.value
        last = delta + GAMMA * LAMBDA * (1 - done) * last
        return (last, row.value, row.done), last

    return jax.lax.scan(back, (jnp.zeros_like(value), value, done), batch, reverse=True)[1]


def make_learn(agent: Agent, optimizer: Any, task: SimpleNamespace, *, discrete: bool) -> Any:
    """Compile (parameters, optimizer's state, batch, observation and done after it, key) -> the first two."""
    rows = task.envs * task.unroll_length

    def loss(parameters: Any, batch: Batch, advantage: Any, target: Any) -> Any:
        mean, log_std, value = agent.apply(parameters, batch.observation.astype(jnp.float32))
        ratio = jnp.exp(log_prob(mean, log_std, batch.action, discrete=discrete) - batch.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = jnp.maximum(-advantage * ratio, -advantage * jnp.clip(ratio, 1 - CLIP, 1 + CLIP)).mean()
        bonus = entropy(mean, log_std, discrete=discrete).mean()
        return policy - task.changes.get("ent_coef", 0.0) * bonus + VALUE * 0.5 * ((value - target) ** 2).mean()

    def minibatch(carry: Any, chosen: Any) -> Any:
        parameters, state, batch, advantage, target = carry
        part = jax.tree.map(lambda rows: rows[chosen], batch)
        gradients = jax.grad(loss)(parameters, part, advantage[chosen], target[chosen])
        updates, state = optimizer.update(gradients, state, parameters)
        return (optax.apply_updates(parameters, updates), state, batch, advantage, target), None

    def prepare(parameters: Any, state: Any, batch: Batch, observation: Any, done: Any, key: Any) -> Any:
        value = agent.apply(parameters, observation.astype(jnp.float32))[2]
        advantage = advantages(batch, value, done)
        flat = jax.tree.map(lambda field: field.reshape(rows, *field.shape[2:]), batch)
        orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(jax.random.split(key, task.epochs))
        carry = (parameters, state, flat, advantage.reshape(rows), (advantage + batch.value).reshape(rows))
        return carry, orders.reshape(-1, task.minibatch_size)

    @jax.jit
    def learn(*given: Any) -> Any:
        return jax.lax.scan(minibatch, *prepare(*given))[0][:2]

    return learn


def main() -> None:
    task = read_task()
    jax.config.update("jax_enable_x64", task.env.startswith("HalfCheetah"))  # its actions are of 64 bits in EnvPool
    clock, pool = Clock(task), make_pool(task)
    discrete = hasattr(pool.action_space, "n")
    outputs = int(pool.action_space.n) if discrete else int(np.prod(pool.action_space.shape))
    agent = Agent(outputs)
    observation, _ = pool.reset()
    handle, _, _, step_pool = pool.xla()
    key, making = jax.random.split(jax.random.key(task.seed))
    parameters = jax.tree.map(
        lambda weights: weights.astype(jnp.float32), agent.init(making, observation.astype(np.float32))
    )
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
    state, done = optimizer.init(parameters), jnp.zeros(task.envs, bool)
    collect = make_collect(agent, step_pool, task.unroll_length, discrete=discrete)
    learn = make_learn(agent, optimizer, task, discrete=discrete)
    for update in itertools.count(1):
        key, collecting, learning = jax.random.split(key, 3)
        carry, batch = collect(parameters, handle, observation, done, collecting)
        _, handle, observation, done, _ = carry
        parameters, state = learn(parameters, state, batch, observation, done, learning)
        jax.block_until_ready(parameters)
        if clock.tick(update * task.envs * task.unroll_length):
            break


if __name__ == "__main__":
    main()
