"""Makes what a version keeps on disk, tiny, which all later versions must read: `python -m tests.kept.make`.

<version>/ppo, sac         run directories, with a policy and a checkpoint each; that of sac holds a replay buffer
<version>/buffer           what `ReplayBuffer.save` writes, of stacks of frames, with priorities
<version>/trajectory.npz   what `Trajectory.save` writes

Run it once for each released version, with the lowest versions of Keras and NumPy that it supports or any newer ones,
and commit the folder; it isn't made again. It refuses to replace one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

import actor_learner as al

KEPT = Path(__file__).parent
FRAMES = Box(0, 255, (8, 8, 4), np.uint8)
COMMON = {
    "vectorization": "sync",
    "num_actors": 0,
    "envs_per_actor": 2,
    "hidden_sizes": (4,),
    "checkpoint_minutes": None,
    "keep_checkpoints": 1,
    "keep_best_checkpoints": 0,
    "tensorboard": False,
    "quiet": True,
}


def main() -> None:
    folder = KEPT / al.__version__
    folder.mkdir()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # so that no path is recorded
        trajectory = frames()
        trajectory.save("trajectory.npz")
        buffer = al.ReplayBuffer(FRAMES, Discrete(2), 32, unroll_length=8, priority_exponent=0.6)
        buffer.add(trajectory)
        buffer.save("buffer")
        ppo = al.PPO(minibatch_size=None, epochs=1, normalize_reward=True)
        options = {**COMMON, "unroll_length": 16, "total_steps": 64, "normalize_observation": True}
        al.train(al.TrainConfig(env="CartPole-v1", algorithm=ppo, run_dir="ppo", **options))
        sac = al.SAC(buffer_size=64, learning_starts=16, minibatch_size=8)
        options = {**COMMON, "unroll_length": 8, "total_steps": 48}
        al.train(al.TrainConfig(env="Pendulum-v1", algorithm=sac, run_dir="sac", **options))
        for run in ("ppo", "sac"):
            shutil.rmtree(f"{run}/logs", ignore_errors=True)
            Path(run, ".lock").unlink(missing_ok=True)
            config = Path(run, "config.json")
            content = {**json.loads(config.read_text("utf-8")), "machine": {}}  # nobody needs this one's
            config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for name in os.listdir():
            shutil.move(name, folder / name)


def frames() -> al.Trajectory:
    """Return a trajectory `[8, 2]` of stacks of four frames, with an episode's end."""
    steps, columns = 8, 2
    rng = np.random.default_rng(0)
    single = rng.integers(256, size=(steps + 4, columns, 8, 8), dtype=np.uint8)
    ended = np.zeros((steps, columns), bool)
    zeros = np.zeros((steps, columns), np.float32)
    ended[3, 1] = True
    return al.Trajectory(
        observation=np.stack([single[row : row + steps + 1] for row in range(4)], axis=-1),
        action=rng.integers(2, size=(steps, columns), dtype=np.int32),
        reward=np.arange(steps * columns, dtype=np.float32).reshape(steps, columns),
        terminated=ended,
        truncated=~ended & ended,
        valid=np.ones((steps, columns), bool),
        behaviour_log_prob=zeros,
        truncation_value=zeros,
        policy_version=np.zeros(columns, np.int64),
    )


if __name__ == "__main__":
    main()
