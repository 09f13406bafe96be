"""RLlib's self-play example (self_play_with_open_spiel.py): OpenSpiel's Connect Four, PPO, versions frozen at 95% wins.

Its clock: the end of each call of `train`. It counts decisions of the learning policy. The task's `workers` is the
number of env runners; the example has 2. The example's callback raises IndexError for some of the games that a batch
cuts in two (Ray 2.60), which ends a run without env runners; here such a game doesn't count for the win rate.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyspiel
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.wrappers.open_spiel import OpenSpielEnv
from ray.rllib.examples.multi_agent.utils import SelfPlayCallback
from ray.rllib.examples.rl_modules.classes.random_rlm import RandomRLModule
from ray.tune.registry import register_env

from benchmarks.peers.programs.clock import Clock, read_task

THRESHOLD = 0.95


class Callback(SelfPlayCallback):
    """The example's callback, which skips games without a reward in their last part."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **_: Any) -> None:
        agent = 0 if episode.module_for(0) == "main" else 1
        if rewards := list(episode.agent_episodes[agent].get_rewards()):
            metrics_logger.log_value("win_rate", float(rewards[-1] == 1.0), reduce="mean", window=100)


def seat_of(agent_id: int, episode: Any, **_: Any) -> str:
    """Return the module of a seat: the main policy sits in each as often."""
    return "main" if hash(episode.id_) % 2 == agent_id else "random"


def config_of(task: SimpleNamespace) -> Any:
    """Return the example's settings."""
    modules = {"main": RLModuleSpec(), "random": RLModuleSpec(module_class=RandomRLModule)}
    return (
        PPOConfig()
        .environment("open_spiel_env")
        .callbacks(functools.partial(Callback, win_rate_threshold=THRESHOLD))
        .env_runners(num_env_runners=task.workers, num_envs_per_env_runner=1)
        .multi_agent(policies={"main", "random"}, policy_mapping_fn=seat_of, policies_to_train=["main"])
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[512, 512]),
            rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules),
        )
        .training(num_epochs=20)
        .debugging(seed=task.seed, log_level="ERROR")
    )


def save(algorithm: Any, folder: Path, found: dict[str, Any]) -> None:
    """Write the main policy's weights, and how many versions of it were frozen."""
    state = algorithm.get_module("main").state_dict()
    np.savez(folder / "weights.npz", **{name: tensor.detach().numpy() for name, tensor in state.items()})
    win_rate = float(found["env_runners"]["win_rate"])
    (folder / "found.json").write_text(json.dumps({"versions": int(found["league_size"]) - 2, "win_rate": win_rate}))


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    register_env("open_spiel_env", lambda _: OpenSpielEnv(pyspiel.load_game("connect_four")))
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=temporary)
        algorithm, clock, decisions = config_of(task).build_algo(), Clock(task), 0
        while not clock.enough and decisions < task.steps:
            found = algorithm.train()
            decisions = int(found["env_runners"]["num_module_steps_sampled_lifetime"]["main"])
            clock.tick(decisions)
            save(algorithm, Path(task.folder), found)
    os._exit(0)  # Ray takes long to end; its processes notice


if __name__ == "__main__":
    main()
