"""SAC that begins with demonstrations: a rule of thumb drives the car, a replay buffer keeps what it did.

The car has to swing up a hill, which hardly happens by chance: without demonstrations, these settings learn to stand
still.

    python examples/demonstrations.py [STEPS]
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

import actor_learner as al

ENV = "MountainCarContinuous-v0"
SAC = al.SAC(gamma=0.99, buffer_size=50_000, learning_starts=0, minibatch_size=256, updates_per_step=1.0)
UNROLL_LENGTH = 8


def play(env, seed):
    """Plays an episode by the rule: push, more or less, to where the car moves."""
    rng = np.random.default_rng(seed)
    observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
    ended = cut_off = False
    while not (ended or cut_off):
        push = np.sign(observations[-1][1:]) * rng.uniform(0.5, 1.0, 1)
        observation, reward, ended, cut_off, _ = env.step(push.astype(np.float32))
        observations.append(observation)
        actions.append(push)
        rewards.append(reward)
    return observations, actions, rewards, ended


def record(folder, episodes=20):
    """Saves episodes as a replay buffer that SAC can begin with."""
    env = gym.make(ENV)
    spaces = env.observation_space, env.action_space
    buffer = al.ReplayBuffer(*spaces, 20_000, unroll_length=UNROLL_LENGTH, gamma=SAC.gamma)
    returns = []
    for seed in range(episodes):
        *steps, ended = play(env, seed)
        buffer.add_episode(*steps, terminated=ended, squashed=True)
        returns.append(sum(steps[2]))
    buffer.save(folder)
    print(f"{len(buffer)} steps, {episodes} episodes, mean return {np.mean(returns):.1f}")


def main(total_steps=10_000, folder="runs/demonstrations"):
    record(Path(folder) / "buffer")
    config = al.TrainConfig(
        env=ENV,
        algorithm=SAC,
        total_steps=total_steps,
        num_actors=1,
        num_envs=4,
        unroll_length=UNROLL_LENGTH,
        hidden_sizes=(64, 64),
        init_buffer=Path(folder) / "buffer",
        run_dir=Path(folder) / "run",
        overwrite=True,
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, episodes=20)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:2])))
