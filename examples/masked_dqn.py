"""DQN with a Keras model of two inputs, an action mask, and a replay buffer that shrinks before memory runs out.

A player walks over a board to a treasure; of 64 moves at most four are legal, and they change with every step. The
board is seen as two inputs: where the player is, and where the treasure is.

    python examples/masked_dqn.py [STEPS]
"""

import sys

import gymnasium as gym
import keras
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary
from keras import layers, ops

import actor_learner as al


class TwoViews(gym.ObservationWrapper):
    """The board as two observations, with the mask of legal moves beside them."""

    def __init__(self):
        super().__init__(gym.make("actor_learner_envs:actor_learner/MaskedTreasure-v0", mask_in="observation"))
        square = Box(0.0, 1.0, (64,), np.float32)
        self.observation_space = Dict({"player": square, "treasure": square, "action_mask": MultiBinary(64)})

    def observation(self, observation):
        player, treasure = np.split(observation["observation"], 2)
        return {"player": player, "treasure": treasure, "action_mask": observation["action_mask"]}


def q_network(observation_space, action_space):
    """A functional model: values `[N, 64]` from two inputs. The mask needs none: what it forbids has no value."""
    inputs = {name: keras.Input((64,), name=name) for name in ("player", "treasure")}
    seen = [layers.Dense(64, "relu")(inputs[name]) for name in ("player", "treasure")]
    hidden = layers.Dense(128, "relu")(layers.Concatenate()(seen))
    values = layers.Dense(int(action_space.n))(hidden)
    parameters = al.ActionDistribution("greedy")(values)
    return keras.Model(inputs, (parameters, ops.max(values, axis=-1)))


def main(total_steps=60_000):
    config = al.TrainConfig(
        env=TwoViews,
        network=q_network,
        algorithm=al.DQN(
            learning_rate=1e-3,
            buffer_size=50_000,
            learning_starts=1_000,
            minibatch_size=64,
            target_update_interval=500,
            exploration_fraction=0.3,
            double=True,
        ),
        total_steps=total_steps,
        num_actors=1,
        num_envs=8,
        callbacks=[al.callbacks.MemoryLimit(8, "shrink_buffer")],
    )
    result = al.train(config)
    return al.evaluate(al.load_policy(result.run_dir), TwoViews, episodes=100)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:2])))
