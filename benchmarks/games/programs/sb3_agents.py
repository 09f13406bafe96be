"""Stable-Baselines3's PPO with SuperSuit, as in PettingZoo's tutorials: all agents of a Parallel game share a policy.

The clock: the callback at the start of each rollout. It counts the decisions of all agents; SuperSuit's `black_death`
lets the dead ones go on deciding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.games.programs.agents import GAMES, judge
from benchmarks.peers.programs.clock import Clock, read_task
from benchmarks.peers.programs.ticks import Ticks


def environments(task: SimpleNamespace) -> Any:
    """Return SuperSuit's vector of so many games, in this process.

    The games are copies of one, with its random numbers: seeds make them differ, which the tutorials leave out.
    """
    game = GAMES[task.game]()
    if task.black_death:
        game = supersuit.black_death_v3(game)
    vector = supersuit.pettingzoo_env_to_vec_env_v1(game)
    vector = supersuit.concat_vec_envs_v1(vector, task.games, num_cpus=0, base_class="stable_baselines3")
    vector.venv.reset(seed=task.seed)
    return VecNormalize(vector, norm_obs=False, gamma=task.gamma) if task.normalize_reward else vector


def learning_rate(task: SimpleNamespace) -> float | Callable[[float], float]:
    """Return a rate that falls to zero, or one that stays."""
    rate = task.learning_rate
    return (lambda remaining: remaining * rate) if task.linear else rate


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    settings = {name: getattr(task, name) for name in ("n_steps", "batch_size", "n_epochs", "gamma", "ent_coef")}
    envs = environments(task)
    set_random_seed(task.seed)
    model = PPO("MlpPolicy", envs, learning_rate=learning_rate(task), device="cpu", **settings)
    ticks = Ticks(Clock(task))
    model.learn(task.steps, callback=ticks)
    ticks.tick()
    if task.judged:
        found = {way: judged(model, task, greedy) for way, greedy in (("greedy", True), ("sampled", False))}
        Path(task.folder, "found.json").write_text(json.dumps({"decisions": model.num_timesteps, "return": found}))


def judged(model: PPO, task: SimpleNamespace, greedy: bool) -> dict[str, float]:
    """Return the policy's mean sum of rewards."""
    return judge(task.game, lambda rows: model.predict(rows, deterministic=greedy)[0], task.judged)


if __name__ == "__main__":
    main()
