"""PPO as one compiled program, in the manner of PureJaxRL (github.com/luchris429/purejaxrl, ppo.py), to compare with.

Like it, a step resets the environments that ended, an episode's end is terminal however it came, and minibatches are
drawn on the device. Unlike it, losses of values aren't clipped, as al.PPO's aren't by default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from actor_learner.environments.jax.vector import choose
from actor_learner.spaces.jax_env import JaxEnv

LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM = 0.95, 0.2, 0.0, 0.5, 0.5
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5  # of Adam

Program = Callable[[Any], Any]


class Transition(NamedTuple):
    """A step of all environments, `[N, ...]`."""

    observation: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any


class Sizes(NamedTuple):
    """The sizes of a batch, `[unroll_length, num_envs]`, and of its update."""

    num_envs: int
    unroll_length: int
    minibatch_size: int
    epochs: int


class Carry(NamedTuple):
    """The state carried from one update to the next. moments: Adam's, two for each weight, and its number of steps."""

    weights: Any
    moments: Any
    state: Any
    observation: Any
    key: Any


def make(env: JaxEnv, sizes: Sizes, learning_rate: float, gamma: float = 0.99, seed: int = 0) -> tuple[Carry, Program]:
    """Return the first carry, and the update, which returns the next one.

    env: with a vector as observation and discrete actions.
    """
    count, steps = sizes.num_envs, sizes.unroll_length
    reset = jax.vmap(env.reset)

    def begin(key: Any) -> Carry:
        key, of_weights, of_envs = jax.random.split(key, 3)
        weights = make_weights(of_weights, env.observation_space.shape[0], int(env.action_space.n))
        state, observation = reset(jax.random.split(of_envs, count))
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return Carry(weights, (zeros, zeros, jnp.float32(0)), state, observation, key)

    def rollout(weights: Any, carry: Carry) -> tuple[Carry, Transition]:
        def step(carry: Carry, _: None) -> tuple[Carry, Transition]:
            key, of_action, of_step, of_reset = jax.random.split(carry.key, 4)
            logits, value = policy(weights, carry.observation)
            action = jax.random.categorical(of_action, logits)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            stepped = jax.vmap(env.step)(jax.random.split(of_step, count), carry.state, action)
            done = stepped.terminated | stepped.truncated
            fresh = reset(jax.random.split(of_reset, count))
            state, observation = choose(done, fresh, (stepped.state, stepped.observation))
            transition = Transition(carry.observation, action, log_prob, value, stepped.reward, done)
            return carry._replace(state=state, observation=observation, key=key), transition

        return jax.lax.scan(step, carry, None, steps)

    def update(carry: Carry) -> Carry:
        carry, taken = rollout(carry.weights, carry)
        _, last = policy(carry.weights, carry.observation)
        advantages = gae(taken, last, gamma)
        rows = jax.tree.map(
            lambda leaf: leaf.reshape(count * steps, *leaf.shape[2:]), (taken, advantages, advantages + taken.value)
        )

        def minibatch(learned: Any, part: Any) -> tuple[Any, None]:
            return adam(*learned, jax.grad(loss)(learned[0], *part), learning_rate), None

        def epoch(learned: Any, key: Any) -> tuple[Any, None]:
            order = jax.random.permutation(key, count * steps)
            parts = jax.tree.map(lambda leaf: leaf[order].reshape(-1, sizes.minibatch_size, *leaf.shape[1:]), rows)
            return jax.lax.scan(minibatch, learned, parts)

        key, of_epochs = jax.random.split(carry.key)
        learned, _ = jax.lax.scan(epoch, (carry.weights, carry.moments), jax.random.split(of_epochs, sizes.epochs))
        return carry._replace(weights=learned[0], moments=learned[1], key=key)

    return jax.jit(begin)(jax.random.key(seed)), update


def make_weights(key: Any, inputs: int, actions: int, hidden: tuple[int, ...] = (64, 64)) -> dict[str, Any]:
    """Return two networks' layers, orthogonal as PPO's are."""
    found = {}
    for name, outputs, scale in (("policy", actions, 0.01), ("value", 1, 1.0)):
        sizes = (inputs, *hidden, outputs)
        scales = [np.sqrt(2)] * len(hidden) + [scale]
        keys = jax.random.split(jax.random.fold_in(key, outputs + len(name)), len(scales))
        found[name] = [
            (jax.nn.initializers.orthogonal(each)(own, size), jnp.zeros(size[1]))
            for each, own, size in zip(scales, keys, itertools.pairwise(sizes), strict=True)
        ]
    return found


def policy(weights: Any, observation: Any) -> tuple[Any, Any]:
    """Return logits `[N, A]` and values `[N]`."""

    def network(layers: Any) -> Any:
        hidden = observation
        for kernel, bias in layers[:-1]:
            hidden = jnp.tanh(hidden @ kernel + bias)
        kernel, bias = layers[-1]
        return hidden @ kernel + bias

    return network(weights["policy"]), network(weights["value"])[:, 0]


def gae(taken: Transition, last: Any, gamma: float) -> Any:
    """Return advantages by GAE (arXiv:1506.02438, equation 16), with each end as a terminal one."""

    def step(carry: tuple[Any, Any], row: Transition) -> tuple[tuple[Any, Any], Any]:
        advantage, following = carry
        going = 1.0 - row.done
        delta = row.reward + gamma * following * going - row.value
        advantage = delta + gamma * LAMBDA * going * advantage
        return (advantage, row.value), advantage

    return jax.lax.scan(step, (jnp.zeros_like(last), last), taken, reverse=True, unroll=16)[1]


def loss(weights: Any, row: Transition, advantage: Any, target: Any) -> Any:
    logits, value = policy(weights, row.observation)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, row.action[:, None], 1)[:, 0]
    ratio = jnp.exp(chosen - row.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return VALUE * 0.5 * jnp.square(value - target).mean() - surrogate - ENTROPY * entropy


def adam(weights: Any, moments: Any, gradient: Any, rate: float) -> tuple[Any, Any]:
    """Return weights and moments after a step of Adam, with the gradient's norm clipped."""
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, MAX_NORM / (norm + 1e-6)), gradient)
    first, second, count = moments
    count = count + 1
    first = jax.tree.map(lambda old, leaf: BETA1 * old + (1 - BETA1) * leaf, first, gradient)
    second = jax.tree.map(lambda old, leaf: BETA2 * old + (1 - BETA2) * leaf**2, second, gradient)
    weights = jax.tree.map(
        lambda weight, one, two: (
            weight - rate * one / (1 - BETA1**count) / (jnp.sqrt(two / (1 - BETA2**count)) + EPSILON)
        ),
        weights,
        first,
        second,
    )
    return weights, (first, second, count)
