"""A convolutional network of your own on pixels: catch the falling ball.

python examples/cnn.py [TOTAL_STEPS]
"""

import sys

import keras
from keras import layers

import actor_learner as al


def network(observation_space, action_space):
    """Build a small network: one wide stride covers a cell of the board. Pixels arrive as uint8."""
    pixels = keras.Input(observation_space.shape, dtype="uint8")
    h = layers.Rescaling(1 / 255)(pixels)
    h = layers.Conv2D(16, 7, strides=7, activation="relu")(h)
    h = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(h)
    h = layers.Dense(128, "relu")(layers.Flatten()(h))
    logits = layers.Dense(al.parameter_size(action_space))(h)
    return keras.Model(pixels, (logits, layers.Dense(1)(h)))


def main(total_steps: int = 150_000) -> float:
    config = al.TrainConfig(
        env="actor_learner/Catch-v0",
        network=network,
        algorithm=al.PPO(learning_rate="linear_2e-3", epochs=4, minibatch_size=256, ent_coef=0.01),
        total_steps=total_steps,
        envs_per_actor=16,
        unroll_length=32,
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, episodes=100, seed=1).mean


if __name__ == "__main__":
    print("return, from -1 (never caught) to 1 (always):", main(*map(int, sys.argv[1:])))
