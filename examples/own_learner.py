"""The actors without our learner: REINFORCE with a baseline, in a `GradientTape` of your own.

python examples/own_learner.py [TOTAL_STEPS]
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import actor_learner as al

GAMMA = 0.98


def make_network():
    x = keras.Input((4,))
    actor = keras.Sequential([keras.layers.Dense(64, "tanh"), keras.layers.Dense(2)])
    critic = keras.Sequential([keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    return keras.Model(x, (actor(x), critic(x)))


def make_update(network, optimizer):
    @tf.function
    def update(observation, action, weight, returns):
        with tf.GradientTape() as tape:
            logits, value = network(observation)
            log_prob = -tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits)
            advantage = returns - value[:, 0]
            loss = weight * (tf.square(advantage) - log_prob * tf.stop_gradient(advantage))
            loss = tf.reduce_sum(loss) / tf.reduce_sum(weight)
        optimizer.apply(tape.gradient(loss, network.trainable_weights), network.trainable_weights)

    return update


def discounted(reward, ended, bootstrap):
    returns = np.zeros_like(reward)
    for t in reversed(range(len(reward))):
        bootstrap = returns[t] = reward[t] + GAMMA * bootstrap * ~ended[t]
    return returns


def main(total_steps: int = 100_000) -> float:
    network = make_network()
    update = make_update(network, keras.optimizers.Adam(3e-3))
    env_steps, length = 0, 0.0
    with al.ActorPool("CartPole-v1", network, num_actors=2, envs_per_actor=8, unroll_length=64) as actors:
        while env_steps < total_steps:
            t = actors.collect()
            bootstrap = network(t.observation[-1])[1][:, 0].numpy()
            returns = discounted(t.reward + GAMMA * t.truncation_value, t.terminated | t.truncated, bootstrap)
            weight = t.valid.astype("float32")  # 0 for rows that only reset an environment
            rows = (t.observation[:-1], t.action, weight, returns)
            update(*[array.reshape(-1, *array.shape[2:]) for array in rows])
            actors.publish(network.get_weights())
            env_steps += int(t.valid.sum())
            if len(actors.episodes["length"]):
                length = float(actors.episodes["length"].mean())
            print(f"{env_steps:>7} steps  episodes of {length:5.1f} steps")
    return length


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
