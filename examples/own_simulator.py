"""The learner without our actors: a simulator of your own fills the trajectories, many copies at once in NumPy.

Points on a line are pushed towards their targets.

    python examples/own_simulator.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import numpy as np

import actor_learner as al

OBSERVATION_SPACE, ACTION_SPACE = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))
STEPS, COLUMNS = 20, 16  # T and B: a column is one simulation, and a batch one episode of it


def simulate(state, action):
    """Return the next state [B, 2] (position, target) and the reward [B]."""
    position, target = state.T
    position = np.clip(position + 0.2 * action[:, 0], -1, 1)
    return np.stack([position, target], axis=1), -np.abs(position - target)


def collect(policy, rng):
    shape = (STEPS, COLUMNS)
    observation = np.zeros((STEPS + 1, COLUMNS, 2), np.float32)  # the last row follows the last step
    action = np.zeros((*shape, 1), np.float32)
    reward, log_prob, truncation_value = (np.zeros(shape, np.float32) for _ in range(3))
    observation[0] = rng.uniform(-1, 1, (COLUMNS, 2))
    for t in range(STEPS):
        action[t], log_prob[t] = policy.step(observation[t])  # a sample, and its log-probability
        observation[t + 1], reward[t] = simulate(observation[t], policy.to_env(action[t]))  # clipped to the bounds
    truncated = np.zeros(shape, bool)
    truncated[-1] = True  # each episode is cut off here, and bootstraps from
    truncation_value[-1] = policy.value(observation[STEPS])
    return al.Trajectory(
        observation=observation,
        action=action,
        reward=reward,
        terminated=np.zeros(shape, bool),
        truncated=truncated,
        valid=np.ones(shape, bool),
        behaviour_log_prob=log_prob,
        truncation_value=truncation_value,
        policy_version=np.zeros(COLUMNS, np.int64),
    )


def main(total_steps: int = 16_000) -> float:
    rng = np.random.default_rng(0)
    network = al.default_network(OBSERVATION_SPACE, ACTION_SPACE, hidden_sizes=(32,))
    learner = al.Learner(network, al.PPO(learning_rate=3e-3, gamma=0.9), action_space=ACTION_SPACE)
    policy = al.Policy.from_network(network, ACTION_SPACE, batch_size=COLUMNS)
    while learner.env_steps < total_steps:
        trajectory = collect(policy, rng)
        learner.update(trajectory)
        policy.set_weights(learner.get_weights())
        print(f"{learner.env_steps:>6} steps  mean distance {-trajectory.reward.mean():.3f}")
    return float(-trajectory.reward.mean())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
