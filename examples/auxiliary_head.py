"""An auxiliary head: the features must also predict the reward, as in UNREAL (arXiv:1611.05397).

    python examples/auxiliary_head.py [TOTAL_STEPS]

On the command line: actor-learner train Pendulum-v1 --algorithm auxiliary_head:PredictingPPO
--network auxiliary_head:network --prediction-coef 0.2
"""

import sys
from dataclasses import dataclass

import keras
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.returns import mean_valid  # leaves out rows that only reset an environment


@dataclass(frozen=True, kw_only=True)
class PredictingPPO(al.PPO):
    """PPO with a head that predicts the reward. Each field becomes a flag of the command line."""

    prediction_coef: float = 0.1

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        error = ops.square(outputs["prediction"][:, 0] - minibatch["reward"])
        error = mean_valid(error, minibatch["valid"])
        return loss + self.prediction_coef * error, {**metrics, "prediction_error": error}


def network(observation_space, action_space):
    """Build a Keras model whose outputs have these names; the actors ignore other outputs."""
    x = keras.Input(observation_space.shape)
    h = layers.Dense(64, "tanh")(layers.Dense(64, "tanh")(x))
    return keras.Model(
        x,
        {
            "parameters": al.LogStd()(layers.Dense(1)(h)),
            "value": layers.Dense(1)(layers.Dense(64, "tanh")(x)),
            "prediction": layers.Dense(1)(h),
        },
    )


def main(total_steps: int = 150_000) -> dict[str, float]:
    config = al.preset("Pendulum-v1", total_steps=total_steps)
    values = {**vars(config.algorithm), "prediction_coef": 0.1}
    config = config.replace(algorithm=PredictingPPO(**values), network=network)
    return al.train(config).metrics


if __name__ == "__main__":
    metrics = main(*map(int, sys.argv[1:]))
    print("return:", metrics["episode_return"], "- squared error of the prediction:", metrics["prediction_error"])
