"""A memory of your own, in a network of your own: units that are slowly overwritten, each at a pace that it learns.

python examples/own_memory.py [TOTAL_STEPS]
"""

import sys

import keras
from keras import layers, ops

import actor_learner as al


@keras.saving.register_keras_serializable(package="own_memory")
class Overwritten(al.Memory):
    """h <- k h + (1 - k) tanh(W x), where the gate k = sigmoid(V x) sees the input alone."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.candidate = layers.Dense(units, activation="tanh")
        self.gate = layers.Dense(units, activation="sigmoid", bias_initializer=keras.initializers.Constant(3.0))

    def build(self, input_shape):
        self.candidate.build(input_shape)
        self.gate.build(input_shape)

    def initial_state(self, rows):
        return ops.zeros((rows, self.units))

    def step(self, x, state):
        keep = self.gate(x)  # at first about 0.95, so that a cue lasts for tens of steps
        state = keep * state + (1 - keep) * self.candidate(x)
        return state, state

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def network(observation_space, action_space):
    observation = keras.Input(observation_space.shape)
    remembered = Overwritten(64)(layers.Dense(64, activation="tanh")(observation))
    hidden = layers.Dense(64, activation="tanh")(layers.Concatenate()([observation, remembered]))
    logits = layers.Dense(al.parameter_size(action_space))(hidden)
    return keras.Model(observation, (logits, layers.Dense(1)(hidden)))


def main(total_steps: int = 100_000) -> float:
    config = al.TrainConfig(
        env="actor_learner/Memory-v0",  # shows a cue, then nothing for 8 steps, then asks; without memory 0.25
        network=network,
        envs_per_actor=8,
        unroll_length=64,
        algorithm=al.PPO(learning_rate="linear_1e-3", minibatch_size=256),
        total_steps=total_steps,
    )
    run = al.train(config)
    return al.evaluate(run.run_dir, episodes=100, seed=1).mean


if __name__ == "__main__":
    print("questions answered:", main(*map(int, sys.argv[1:])))
