"""DQN in a training loop of Keras: a `PyDataset` over the replay buffer, and actors that explore by epsilon.

The targets are those of Double DQN (arXiv:1509.06461). Keras's `fit` does the rest.

    python examples/replay_dataset.py [STEPS]
"""

import sys

import keras
import numpy as np
from keras import layers, ops

import actor_learner as al

EPSILON, EXPLORED = 0.05, 0.3  # the last probability of a random action, reached after this part of all steps


def q_network(observation_space, action_space):
    """A model of the values `[N, n]`, and inside of it what actors need: the policy and the state's value."""
    inputs = keras.Input(observation_space.shape)
    hidden = layers.Dense(128, "relu")(layers.Dense(128, "relu")(inputs))
    values = layers.Dense(int(action_space.n), name="values")(hidden)
    parameters = al.ActionDistribution("greedy", epsilon=1.0, name="policy")(values)
    return keras.Model(inputs, (parameters, ops.max(values, axis=-1)))


class Replay(keras.utils.PyDataset):
    """Minibatches of observations, and of actions with the values that they should have."""

    def __init__(self, buffer, online, target, minibatches):
        super().__init__()
        self.buffer, self.online, self.target, self.minibatches = buffer, online, target, minibatches

    def __len__(self):
        return self.minibatches

    def __getitem__(self, index):
        batch = self.buffer.sample(128)
        best = np.argmax(self.online(batch.next_observation), axis=1)
        following = np.take_along_axis(np.asarray(self.target(batch.next_observation)), best[:, None], axis=1)[:, 0]
        return batch.observation, np.stack([batch.action, batch.reward + batch.discount * following], axis=1)


def loss(target, values):
    chosen = ops.take_along_axis(values, ops.cast(target[:, :1], "int32"), axis=1)
    return keras.losses.huber(target[:, 1:], chosen)


def main(total_steps=50_000):
    keras.utils.set_random_seed(0)
    with al.ActorPool("CartPole-v1", q_network, num_actors=1, num_envs=4, unroll_length=32) as actors:
        online = keras.Model(actors.network.input, actors.network.get_layer("values").output)
        target = keras.models.clone_model(online)  # with weights of its own
        target.set_weights(online.get_weights())
        online.compile(keras.optimizers.Adam(5e-4), loss)
        buffer = al.ReplayBuffer(actors.observation_space, actors.action_space, 50_000, gamma=0.99)
        steps, batches, returns = 0, 0, []
        while steps < total_steps:
            trajectory = actors.collect()
            buffer.add(trajectory)
            steps, batches = steps + int(trajectory.valid.sum()), batches + 1
            returns = [*returns, *actors.episodes["return"]][-50:]
            if batches % 4 == 0:
                target.set_weights(online.get_weights())
            online.fit(Replay(buffer, online, target, 32), verbose=0)
            explores = max(EPSILON, 1 - (1 - EPSILON) * steps / (EXPLORED * total_steps))
            actors.network.get_layer("policy").epsilon.assign([explores])
            actors.publish(actors.network.get_weights())
        print(f"{steps} steps, mean return of the last 50 episodes {np.mean(returns):.1f}")
        return al.evaluate(al.Policy.from_network(actors.network, actors.action_space), "CartPole-v1", episodes=10)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:2])))
