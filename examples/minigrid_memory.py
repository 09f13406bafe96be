"""MiniGrid's memory task: what was seen in the first room tells which way to turn at the end of the corridor.

python examples/minigrid_memory.py [TOTAL_STEPS [gru|lstm|attention|none]]  # pip install minigrid
"""

import sys

import gymnasium as gym
import numpy as np

import actor_learner as al


def memory_task():
    """A view of 7 x 7 squares with 20 flags each, and three actions: left, right, forward."""
    from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper

    env = ImgObsWrapper(OneHotPartialObsWrapper(gym.make("MiniGrid-MemoryS7-v0")))
    flags = gym.spaces.Box(0, 1, env.observation_space.shape, np.uint8)  # MiniGrid says up to 255
    env = gym.wrappers.TransformObservation(env, lambda image: image, flags)
    env.action_space = gym.spaces.Discrete(3)  # nothing here can be picked up or opened
    return env


def main(total_steps: int = 500_000, memory: str = "gru") -> float:
    config = al.TrainConfig(
        env=memory_task,
        memory=None if memory == "none" else memory,
        memory_size=64,
        num_envs=16,
        unroll_length=128,
        sequence_length=64 if memory != "none" else None,
        algorithm=al.PPO(learning_rate="linear_1e-3", minibatch_size=256, epochs=4, ent_coef=0.01),
        total_steps=total_steps,
    )
    run = al.train(config)
    return al.evaluate(run.run_dir, memory_task, episodes=100, seed=1, deterministic=False).mean


if __name__ == "__main__":
    steps, *memory = sys.argv[1:] or ["500000"]
    print("mean return, at best about 0.97:", main(int(steps), *memory))
