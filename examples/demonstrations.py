"""SAC that begins with demonstrations: a rule of thumb drives the car, a replay buffer keeps what it did.

The car has to swing up a hill, which hardly happens by chance: without demonstrations, these settings learn to stand
still.

    python examples/demonstrations.py [STEPS]
"""

import sys
from pathlib import Path

import keras
from keras import ops

import actor_learner as al

ENV = "MountainCarContinuous-v0"
SAC = al.SAC(gamma=0.99, buffer_size=50_000, learning_starts=0, minibatch_size=256, updates_per_step=1.0)
UNROLL_LENGTH = 8


def rule_of_thumb(observation_space, action_space):
    """A network without weights to learn: push to where the car moves."""
    inputs = keras.Input(observation_space.shape)
    push = ops.where(inputs[:, 1:] > 0, 1.0, -1.0)
    mean_and_log_std = ops.concatenate([push, 0.0 * push - 1.0], axis=-1)
    return keras.Model(inputs, {"parameters": al.ActionDistribution("squashed")(mean_and_log_std)})


def record(folder, episodes=20):
    """Saves episodes that the rule played, as a replay buffer that SAC can begin with."""
    with al.ActorPool(ENV, rule_of_thumb, num_actors=0, num_envs=4, unroll_length=UNROLL_LENGTH) as actors:
        spaces = actors.observation_space, actors.action_space
        buffer = al.ReplayBuffer(*spaces, 20_000, unroll_length=UNROLL_LENGTH, gamma=SAC.gamma)
        finished = []
        while len(finished) < episodes:
            buffer.add(actors.collect())
            finished.extend(actors.episodes["return"])
    buffer.save(folder)
    print(f"{len(buffer)} steps, {len(finished)} episodes, mean return {sum(finished) / len(finished):.1f}")


def main(total_steps=10_000, folder="runs/demonstrations"):
    record(Path(folder) / "buffer")
    config = al.TrainConfig(
        env=ENV,
        algorithm=SAC,
        total_steps=total_steps,
        num_actors=1,
        num_envs=4,
        unroll_length=UNROLL_LENGTH,
        hidden_sizes=(64, 64),
        init_buffer=Path(folder) / "buffer",
        run_dir=Path(folder) / "run",
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, episodes=20)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:2])))
