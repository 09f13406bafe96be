"""PPO with a behaviour-cloning term, as a subclass: a simple rule shows the way, then fades.

In MountainCar every step costs 1 until the car has climbed the hill, which chance hardly ever does. The rule does it by
pushing in the direction of motion. The term's weight is a schedule: from the middle of the run on, PPO is on its own.

python examples/behaviour_cloning.py [TOTAL_STEPS]
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import keras
from keras import ops

import actor_learner as al
from actor_learner.algorithms.returns import mean_valid  # leaves out rows that only reset an environment
from actor_learner.algorithms.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class ClonedPPO(al.PPO):
    """PPO with the cross-entropy between the policy and the rule's action."""

    bc_coef: Schedule = 1.0
    SCHEDULED: ClassVar[tuple[str, ...]] = (*al.PPO.SCHEDULED, "bc_coef")

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        velocity = minibatch["observation"][:, 1]
        expert_action = ops.where(velocity < 0, 0, 2)
        cross_entropy = keras.losses.sparse_categorical_crossentropy(
            expert_action, outputs["parameters"], from_logits=True
        )
        cloning = mean_valid(cross_entropy, minibatch["valid"])
        return loss + self.bc_coef * cloning, {**metrics, "cloning_loss": cloning}


def fading(progress_remaining):
    """Return the term's weight: 1 at the start, 0 from the middle of the run on."""
    return max(0.0, 2 * progress_remaining - 1)


def main(total_steps: int = 60_000, bc_coef: Schedule = fading) -> float:
    algorithm = ClonedPPO(bc_coef=bc_coef, learning_rate="linear_1e-3", epochs=4, minibatch_size=256)
    config = al.TrainConfig(
        env="MountainCar-v0", algorithm=algorithm, normalize_observation=True, total_steps=total_steps
    )
    return al.evaluate(al.train(config).run_dir, episodes=50, seed=1, deterministic=False).mean


if __name__ == "__main__":
    steps = [int(word) for word in sys.argv[1:]]
    print("return:", main(*steps), "- without the rule:", main(*steps, bc_coef=0.0))
