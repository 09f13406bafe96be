"""PPO with a KL penalty to a reference policy: Keras's `fit` clones a rule, and PPO improves on the clone close to it.

In MountainCar every step costs 1 until the car has climbed the hill, which chance hardly ever does. The rule does it by
pushing in the direction of motion. Without the penalty, the first updates, whose values are wrong, may forget that.

python examples/kl_penalty.py [TOTAL_STEPS]
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import keras
import numpy as np

import actor_learner as al
from actor_learner.algorithms.returns import mean_valid  # leaves out rows that only reset an environment
from actor_learner.algorithms.schedules import Schedule

ENV = "MountainCar-v0"
SPACES = (space := gym.make(ENV)).observation_space, space.action_space
SCALE = np.array([1.0, 20.0], np.float32)  # of position and velocity


@dataclass(frozen=True, kw_only=True)
class AnchoredPPO(al.PPO):
    """PPO that also pays for each nat between its policy and that of a network that stays as it is."""

    reference: Any = None
    kl_coef: Schedule = 0.3
    SCHEDULED: ClassVar[tuple[str, ...]] = (*al.PPO.SCHEDULED, "kl_coef")

    def models(self, observation_space, action_space):
        return {"reference": self.reference}  # without trainable weights: no optimizer steps it

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        parameters, _ = self.own["reference"](minibatch["observation"], training=False)
        distance = al.ActionDistribution().kl_divergence(outputs["parameters"], parameters, SPACES[1])
        penalty = mean_valid(distance, minibatch["valid"])
        return loss + self.kl_coef * penalty, {**metrics, "reference_kl": penalty}


def build_network():
    """Return the default network behind a layer that scales observations."""
    inputs = keras.Input((2,))
    network = al.default_network(*SPACES)
    return keras.Model(inputs, network(keras.layers.Rescaling(SCALE.tolist())(inputs)))


def clone_the_rule(network, rows=5_000):
    """Fit the policy to what the rule does anywhere in the space; the value head stays as it is."""
    observations = np.random.default_rng(0).uniform(SPACES[0].low, SPACES[0].high, (rows, 2)).astype(np.float32)
    policy = keras.Model(network.input, network.output[0])  # shares the layers
    policy.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    policy.fit(observations, np.where(observations[:, 1] < 0, 0, 2), batch_size=256, epochs=10, verbose=2)


def main(total_steps: int = 60_000) -> tuple[float, float]:
    network, reference = build_network(), build_network()
    clone_the_rule(reference)
    network.set_weights(reference.get_weights())
    reference.trainable = False
    algorithm = AnchoredPPO(reference=reference, learning_rate="linear_1e-3", epochs=4, minibatch_size=256)
    config = al.TrainConfig(env=ENV, algorithm=algorithm, network=network, total_steps=total_steps)
    run_dir = al.train(config).run_dir
    return tuple(
        al.evaluate(policy, env=ENV, episodes=50, seed=1, deterministic=False).mean for policy in (reference, run_dir)
    )


if __name__ == "__main__":
    before, after = main(*map(int, sys.argv[1:]))
    print(f"return of the clone: {before:.1f}, after PPO: {after:.1f}")
