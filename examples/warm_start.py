"""A warm start from demonstrations: Keras's own `fit` imitates a rule, then PPO improves on it.

python examples/warm_start.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import actor_learner as al

ENV = "Acrobot-v1"


def demonstrate(steps, num_envs=32):
    """Follow the rule (push the joint the way that it turns) half of the time, and act at random otherwise."""
    envs = gym.make_vec(ENV, num_envs=num_envs, vectorization_mode="sync")
    rng = np.random.default_rng(0)
    observation, _ = envs.reset(seed=0)
    observations, actions = [], []
    for _ in range(steps // num_envs):
        action = np.where(observation[:, 5] < 0, 0, 2)
        action = np.where(rng.random(num_envs) < 0.5, rng.integers(3, size=num_envs), action)
        observations.append(observation.copy())
        actions.append(action)
        observation, *_ = envs.step(action)
    return np.concatenate(observations), np.concatenate(actions)


def imitate(observations, actions, epochs):
    """Train a network to imitate the demonstrations; PPO learns its value head later."""
    env = gym.make(ENV)
    network = al.default_network(env.observation_space, env.action_space)
    policy = keras.Model(network.input, network.output[0])  # shares the layers
    policy.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    policy.fit(observations, actions, batch_size=256, epochs=epochs, verbose=2)
    return network


def main(total_steps: int = 100_000) -> tuple[float, float]:
    observations, actions = demonstrate(steps=10_000)
    network = imitate(observations, actions, epochs=5)
    before = al.evaluate(network, env=ENV, episodes=20, seed=1, deterministic=False).mean
    config = al.preset(ENV, network=network, normalize_observation=False, total_steps=total_steps)
    result = al.train(config)
    return before, al.evaluate(result.run_dir, episodes=20, seed=1, deterministic=False).mean


if __name__ == "__main__":
    before, after = main(*map(int, sys.argv[1:]))
    print(f"return after imitation: {before:.1f}, after PPO: {after:.1f}")
