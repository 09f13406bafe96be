"""Fine-tuning with frozen layers: left and right are swapped, the features stay, and new heads are learned.

python examples/fine_tune.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import keras

import actor_learner as al


def crossed():
    """CartPole with left and right swapped."""
    env = gym.make("CartPole-v1")
    return gym.wrappers.TransformAction(env, lambda action: 1 - action, env.action_space)


def main(total_steps: int = 50_000) -> tuple[float, float]:
    trained = al.train(al.preset("CartPole-v1", total_steps=total_steps))
    network = al.load_network(trained.run_dir)
    before = al.evaluate(network, env=crossed, episodes=20, seed=1).mean
    for layer in network.layers:
        layer.trainable = layer.name in ("logits", "value")  # the new heads
        for weight in layer.trainable_weights:
            weight.assign(keras.ops.zeros(weight.shape))
    network.summary(show_trainable=True)
    tuned = al.train(
        al.TrainConfig(
            env=crossed,
            network=network,
            algorithm=al.PPO(learning_rate="linear_3e-3", gamma=0.98, minibatch_size=256),
            total_steps=total_steps,
            unroll_length=32,
        )
    )
    return before, al.evaluate(tuned.run_dir, env=crossed, episodes=20, seed=1).mean


if __name__ == "__main__":
    before, after = main(*map(int, sys.argv[1:]))
    print(f"return with crossed steering: {before:.1f}, after fine-tuning: {after:.1f}")
