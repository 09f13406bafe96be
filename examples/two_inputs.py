"""A Keras functional model with two inputs: a camera and the joints of an arm. The arm reaches for a lamp that it sees.

python examples/two_inputs.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import actor_learner as al

PIXELS = 16


class Reach(gym.Env):
    """Two joints move a hand over a table with a lamp that only the camera sees."""

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (PIXELS, PIXELS, 1), np.uint8),
            "joints": gym.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.joints, lamp = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        row, column = ((lamp + 1) / 2 * (PIXELS - 1)).round().astype(int)
        self.lamp = np.array([row, column]) / (PIXELS - 1) * 2 - 1
        self.image = np.zeros((PIXELS, PIXELS, 1), np.uint8)
        self.image[row, column] = 255
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.joints = np.clip(self.joints + 0.3 * action, -1, 1).astype(np.float32)
        self.steps += 1
        return self._observation(), -float(np.linalg.norm(self.joints - self.lamp)), False, self.steps == 20, {}

    def _observation(self):
        return {"camera": self.image, "joints": self.joints}


def network(observation_space, action_space):
    """Build a model with one named input for each key of the observation."""
    camera = keras.Input((PIXELS, PIXELS, 1), dtype="uint8", name="camera")
    joints = keras.Input((2,), name="joints")
    seen = keras.layers.Rescaling(1 / 255)(camera)
    seen = keras.layers.Dense(64, "relu")(keras.layers.Flatten()(seen))
    h = keras.layers.Concatenate()([seen, joints])
    h = keras.layers.Dense(64, "relu")(keras.layers.Dense(64, "relu")(h))
    parameters = al.LogStd(-0.5)(keras.layers.Dense(2)(h))  # means, and log-stds that don't depend on the state
    return keras.Model({"camera": camera, "joints": joints}, (parameters, keras.layers.Dense(1)(h)))


def main(total_steps: int = 200_000) -> float:
    config = al.TrainConfig(
        env=Reach,
        network=network,
        algorithm=al.PPO(learning_rate="linear_1e-3", gamma=0.8, minibatch_size=256),
        total_steps=total_steps,
        envs_per_actor=16,
        unroll_length=40,
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, env=Reach, episodes=50, seed=1).mean / 20


if __name__ == "__main__":
    print("mean distance from the lamp:", -main(*map(int, sys.argv[1:])))
