"""PPO on CartPole-v1 as anyone would write it: one process, one loop, NumPy and TensorFlow, nothing of this project.

    python scripts/reference_loop.py --envs 8 --unroll-length 2048 --minibatch-size 64 --epochs 10 --updates 3

What scripts/benchmark holds ours against, so that figures of different machines and dates can be compared. It is
pinned: a test knows its hash, and whoever changes it begins a new history. As in most loops, the row in which an
environment only resets is learned from too. Prints env steps per second as JSON, counted from the end of the first
update.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import gymnasium as gym
import numpy as np
import tensorflow as tf

LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP_RANGE = 3e-4, 0.99, 0.95, 0.2
ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.0, 0.5, 0.5
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-5
OBSERVATION, HIDDEN, ACTIONS = 4, 64, 2


def dense(inputs: int, outputs: int, rng: np.random.Generator) -> list[tf.Variable]:
    """Kernel and bias of a layer."""
    limit = np.sqrt(6 / (inputs + outputs))
    return [
        tf.Variable(rng.uniform(-limit, limit, (inputs, outputs)), dtype=tf.float32),
        tf.Variable(tf.zeros(outputs)),
    ]


class Agent:
    """Two trunks of 64-64 with tanh, Adam, and two graphs: one acts, one learns from a minibatch."""

    def __init__(self, rng: np.random.Generator) -> None:
        sizes = [(OBSERVATION, HIDDEN), (HIDDEN, HIDDEN)]
        self.actor = [dense(*size, rng) for size in (*sizes, (HIDDEN, ACTIONS))]
        self.critic = [dense(*size, rng) for size in (*sizes, (HIDDEN, 1))]
        self.weights = [weight for layer in (*self.actor, *self.critic) for weight in layer]
        self.first_moments = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]
        self.second_moments = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]
        self.step = tf.Variable(0.0)

    @staticmethod
    def forward(layers: list[list[tf.Variable]], x: tf.Tensor) -> tf.Tensor:
        """A trunk and its head."""
        for kernel, bias in layers[:-1]:
            x = tf.tanh(x @ kernel + bias)
        kernel, bias = layers[-1]
        return x @ kernel + bias

    @tf.function(reduce_retracing=True)
    def act(self, observation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Action, its log-probability, value: [B] each."""
        logits = tf.nn.log_softmax(self.forward(self.actor, observation))
        action = tf.random.categorical(logits, 1)[:, 0]
        return action, tf.gather(logits, action, batch_dims=1), self.forward(self.critic, observation)[:, 0]

    @tf.function(reduce_retracing=True)
    def learn(
        self,
        observation: tf.Tensor,
        action: tf.Tensor,
        log_prob: tf.Tensor,
        advantage: tf.Tensor,
        target: tf.Tensor,
    ) -> tf.Tensor:
        """One step of Adam on one minibatch."""
        advantage = (advantage - tf.reduce_mean(advantage)) / (tf.math.reduce_std(advantage) + 1e-8)
        with tf.GradientTape() as tape:
            logits = tf.nn.log_softmax(self.forward(self.actor, observation))
            value = self.forward(self.critic, observation)[:, 0]
            ratio = tf.exp(tf.gather(logits, action, batch_dims=1) - log_prob)
            clipped = tf.clip_by_value(ratio, 1 - CLIP_RANGE, 1 + CLIP_RANGE)
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logits) * logits, -1))
            loss = policy_loss + VF_COEF * tf.reduce_mean((value - target) ** 2) - ENT_COEF * entropy
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.weights), MAX_GRAD_NORM)
        self.step.assign_add(1.0)
        rate = LEARNING_RATE * tf.sqrt(1 - BETA_2**self.step) / (1 - BETA_1**self.step)
        for weight, first, second, gradient in zip(
            self.weights, self.first_moments, self.second_moments, gradients, strict=True
        ):
            first.assign(BETA_1 * first + (1 - BETA_1) * gradient)
            second.assign(BETA_2 * second + (1 - BETA_2) * gradient**2)
            weight.assign_sub(rate * first / (tf.sqrt(second) + EPSILON))
        return loss


def gae(reward: np.ndarray, value: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Advantages, [T, B]; value is [T + 1, B]. An episode's end is an end, whether terminated or cut off."""
    advantage = np.zeros_like(reward)
    later = np.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        going_on = 1.0 - ended[t]
        delta = reward[t] + GAMMA * value[t + 1] * going_on - value[t]
        later = advantage[t] = delta + GAMMA * GAE_LAMBDA * going_on * later
    return advantage


def collect(agent: Agent, envs: gym.vector.VectorEnv, observation: np.ndarray, length: int) -> tuple:
    """A batch of `length` steps of every environment, and the observation to go on from."""
    size = envs.num_envs
    observations = np.zeros((length, size, OBSERVATION), np.float32)
    actions = np.zeros((length, size), np.int64)
    log_probs, rewards, ended = (np.zeros((length, size), np.float32) for _ in range(3))
    values = np.zeros((length + 1, size), np.float32)
    for t in range(length):
        observations[t] = observation
        actions[t], log_probs[t], values[t] = (result.numpy() for result in agent.act(observation))
        observation, rewards[t], terminated, truncated, _ = envs.step(actions[t])
        ended[t] = terminated | truncated
    values[length] = agent.act(observation)[2].numpy()
    advantages = gae(rewards, values, ended)
    batch = (observations, actions, log_probs, advantages, advantages + values[:-1])
    return [field.reshape(length * size, *field.shape[2:]) for field in batch], observation


def main() -> None:
    """Trains for some updates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("envs", 8), ("unroll-length", 2048), ("minibatch-size", 64), ("epochs", 10), ("updates", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(0)
    tf.random.set_seed(0)
    agent = Agent(rng)
    envs = gym.make_vec("CartPole-v1", arguments.envs, vectorization_mode="vector_entry_point")
    observation, _ = envs.reset(seed=0)
    steps = arguments.envs * arguments.unroll_length
    started = 0.0
    for update in range(1 + arguments.updates):
        if update == 1:
            started = time.perf_counter()
        batch, observation = collect(agent, envs, observation, arguments.unroll_length)
        for _ in range(arguments.epochs):
            order = rng.permutation(steps)
            for start in range(0, steps, arguments.minibatch_size):
                rows = order[start : start + arguments.minibatch_size]
                agent.learn(*(field[rows] for field in batch))
    print(json.dumps({"steps_per_second": arguments.updates * steps / (time.perf_counter() - started)}))


if __name__ == "__main__":
    main()
