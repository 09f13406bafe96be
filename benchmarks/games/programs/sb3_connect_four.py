"""PettingZoo's SB3 tutorial for Connect Four: MaskablePPO with its defaults, one game, every seat learns.

As in the tutorial, a step's reward is the mover's, and its next observation the other player's. The clock: the callback
at the start of each rollout. It counts the decisions of both seats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from pettingzoo.classic import connect_four_v3
from sb3_contrib import MaskablePPO
from sb3_contrib.common.wrappers import ActionMasker

from benchmarks.peers.programs.clock import Clock, read_task
from benchmarks.peers.programs.ticks import Ticks


class Seats(gymnasium.Env):
    """The tutorial's wrapper: one environment in which the seats move in turns."""

    def __init__(self) -> None:
        self._game = connect_four_v3.env()
        self._game.reset()
        agent = self._game.possible_agents[0]
        self.observation_space = self._game.observation_space(agent)["observation"]
        self.action_space = self._game.action_space(agent)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._game.reset(seed, options)
        return self._observe("observation"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        game, mover = self._game, self._game.agent_selection
        game.step(int(action))
        reward = game._cumulative_rewards[mover]
        return self._observe("observation"), reward, game.terminations[mover], game.truncations[mover], {}

    def mask(self) -> Any:
        """Return which columns aren't full."""
        return self._observe("action_mask")

    def _observe(self, key: str) -> Any:
        return self._game.observe(self._game.agent_selection)[key]


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    model = MaskablePPO("MlpPolicy", ActionMasker(Seats(), Seats.mask), seed=task.seed, device="cpu")
    ticks = Ticks(Clock(task))
    model.learn(task.steps, callback=ticks)
    ticks.tick()
    weights = {name: tensor.numpy() for name, tensor in model.policy.state_dict().items()}
    np.savez(Path(task.folder) / "weights.npz", **weights)


if __name__ == "__main__":
    main()
