"""Learning from recorded data: SAC's episodes become a Minari dataset, from which BC and IQL learn.

Neither takes an env step of its own. Needs `pip install 'actor-learner[minari]'`.

    python examples/offline.py [STEPS]
"""

import sys
from pathlib import Path

import minari

import actor_learner as al

ENV = "Pendulum-v1"
DATASET = "minari:pendulum/recorded-v0"
SIZES = {"env": ENV, "num_envs": 4, "unroll_length": 8, "overwrite": True, "quiet": True, "num_actors": 0}
SAC = al.SAC(learning_rate=1e-3, learning_starts=100)


def record(folder, total_steps):
    """Trains SAC for a while, and records episodes of it, which sometimes explore."""
    config = al.TrainConfig(algorithm=SAC, total_steps=total_steps, run_dir=folder / "sac", **SIZES)
    policy = al.train(config).run_dir
    if DATASET.removeprefix("minari:") in minari.list_local_datasets():
        minari.delete_dataset(DATASET.removeprefix("minari:"))
    return al.evaluate(policy, episodes=40, deterministic=False, record=DATASET)


def learn_offline(algorithm, folder, gradient_steps, **fields):
    config = al.TrainConfig(
        algorithm=algorithm,
        init_buffer=DATASET,
        offline_steps=gradient_steps,
        run_dir=folder / type(algorithm).__name__.lower(),
        **{"total_steps": 0, **fields, **SIZES},
    )
    return al.evaluate(al.train(config).run_dir, episodes=40)


def main(total_steps=6_000, folder="runs/offline"):
    folder = Path(folder)
    print("recorded", record(folder, total_steps))
    print("BC", learn_offline(al.BC(learning_rate=1e-3), folder, total_steps // 2))
    cloned = learn_offline(al.IQL(learning_rate=1e-3, gamma=0.95), folder, total_steps)
    print("IQL", cloned)
    return cloned


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:2])))
