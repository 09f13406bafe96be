"""Learns from a Minari dataset's file with d3rlpy, and evaluates; run by the interpreter of its venv. Prints JSON.

The task, as JSON: `algorithm` ("bc" or "iql"), `data` (main_data.hdf5), `env`, `gradient_steps`, `temperature`, `seed`,
`episodes`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import d3rlpy
import gymnasium as gym
import h5py
import numpy as np
import torch

EVALUATION_SEED = 1000


def read(file: str) -> Any:
    """Return the dataset, episode by episode."""
    columns: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminals": [], "timeouts": []}
    with h5py.File(file) as data:
        for name in sorted(data, key=lambda name: int(name.rpartition("_")[2])):
            episode = data[name]
            columns["observations"].append(np.asarray(episode["observations"], np.float32)[:-1])
            columns["actions"].append(np.asarray(episode["actions"], np.float32))
            columns["rewards"].append(np.asarray(episode["rewards"], np.float32))
            ends = np.zeros((2, len(columns["rewards"][-1])), np.float32)
            ends[0 if episode["terminations"][-1] else 1, -1] = 1.0
            columns["terminals"].append(ends[0])
            columns["timeouts"].append(ends[1])
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    return d3rlpy.dataset.MDPDataset(**joined, action_space=d3rlpy.ActionSpace.CONTINUOUS)


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    d3rlpy.seed(task["seed"])
    encoder = d3rlpy.models.VectorEncoderFactory([256, 256])
    if task["algorithm"] == "bc":
        config: Any = d3rlpy.algos.BCConfig(learning_rate=3e-4, batch_size=256, encoder_factory=encoder)
    else:
        encoders = {f"{name}_encoder_factory": encoder for name in ("actor", "critic", "value")}
        config = d3rlpy.algos.IQLConfig(weight_temp=task["temperature"], **encoders)
    learner = config.create(device="cpu:0")
    env = gym.make(task["env"])  # which needs packages: before it learns
    started = time.perf_counter()
    steps = task["gradient_steps"]
    learner.fit(read(task["data"]), n_steps=steps, n_steps_per_epoch=steps, show_progress=False, save_interval=10**9)
    seconds = time.perf_counter() - started
    returns = []
    for episode in range(task["episodes"]):
        observation, total, ended = env.reset(seed=EVALUATION_SEED + episode)[0], 0.0, False
        while not ended:
            action = learner.predict(np.asarray(observation, np.float32)[None])[0]
            observation, reward, terminated, truncated, _ = env.step(np.clip(action, -1.0, 1.0))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(json.dumps({"return_mean": float(np.mean(returns)), "seconds": seconds}))


if __name__ == "__main__":
    main()
