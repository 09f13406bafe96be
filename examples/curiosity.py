"""PPO with random network distillation (arXiv:1810.12894): a bonus for what a predictor hasn't learned to foresee.

In MountainCar every step costs 1 until the car has climbed the hill, which chance hardly ever does. The predictor
learns the outputs of a random network; its error, divided by a running mean, is large where the car has hardly been.

python examples/curiosity.py [TOTAL_STEPS]
"""

import sys
from dataclasses import dataclass

import keras
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.returns import mean_valid  # leaves out rows that only reset an environment


@dataclass(frozen=True, kw_only=True)
class RND(al.PPO):
    """PPO whose rewards have a bonus; the learner trains, saves and undoes what `models` returns."""

    bonus: float = 0.5

    def models(self, observation_space, action_space):
        def network(name):
            parts = [layers.Rescaling([1.0, 20.0]), layers.Dense(64, "relu"), layers.Dense(16)]
            return keras.Sequential([keras.Input(observation_space.shape), *parts], name=name)

        target = network("target")
        target.trainable = False
        square = keras.Variable(1.0, trainable=False, name="mean_square")
        return {"predictor": network("predictor"), "target": target, "mean_square": square}

    def surprise(self, observation):
        difference = self.own["predictor"](observation) - self.own["target"](observation)
        return ops.mean(ops.square(difference), axis=-1)

    def targets(self, batch, value):
        """Add the bonus of the observation that an action led to, which is a constant here."""
        observation, square = batch["observation"], self.own["mean_square"]
        error = self.surprise(ops.reshape(observation, (-1, observation.shape[-1])))
        error = ops.reshape(error, observation.shape[:-1])[1:]
        square.assign(0.9 * square + 0.1 * ops.mean(ops.square(error)))
        bonus = self.bonus * error / ops.sqrt(square + 1e-8)
        return super().targets({**batch, "reward": batch["reward"] + bonus}, value)

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        error = mean_valid(self.surprise(minibatch["observation"]), minibatch["valid"])
        return loss + error, {**metrics, "surprise": error}


def main(total_steps: int = 200_000) -> float:
    algorithm = RND(learning_rate=1e-3, epochs=4, minibatch_size=256, ent_coef=0.01)
    config = al.TrainConfig(env="MountainCar-v0", algorithm=algorithm, num_envs=16, total_steps=total_steps)
    return al.evaluate(al.train(config).run_dir, episodes=50, seed=1, deterministic=False).mean


if __name__ == "__main__":
    print(f"mean return: {main(*map(int, sys.argv[1:])):.1f}")
