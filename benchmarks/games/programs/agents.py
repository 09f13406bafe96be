"""Parallel games for both libraries, and how a policy is judged in them. Plain Python, for any interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SPREAD = {"N": 3, "local_ratio": 0.0, "max_cycles": 25}
KNIGHTS = {"max_cycles": 100, "max_zombies": 4, "obs_method": "vector"}
FIRST_SEED = 10_000

Act = Callable[[np.ndarray], np.ndarray]


def spread() -> Any:
    """Return simple_spread: three agents share the negative distances of the landmarks from their nearest agents."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(**SPREAD)


def knights() -> Any:
    """Return Knights, Archers, Zombies as in PettingZoo's tutorial, with vectors as observations."""
    from pettingzoo.butterfly import knights_archers_zombies_v11

    return knights_archers_zombies_v11.parallel_env(**KNIGHTS)


GAMES: dict[str, Callable[[], Any]] = {"simple_spread": spread, "knights": knights}


def judge(game: str, act: Act, games: int) -> dict[str, float]:
    """Return the mean, over games with fixed seeds, of the sum of all agents' rewards, and its standard error.

    act: observations `[N, ...]` of the N agents that are alive -> actions `[N]`.
    """
    env = GAMES[game]()
    totals = np.array([_play(env, act, FIRST_SEED + number) for number in range(games)])
    env.close()
    return {"mean": round(float(totals.mean()), 3), "error": round(float(totals.std(ddof=1) / games**0.5), 3)}


def _play(env: Any, act: Act, seed: int) -> float:
    """Return the sum of the rewards of one game."""
    observations, _ = env.reset(seed=seed)
    total = 0.0
    while env.agents:
        agents = list(env.agents)
        actions = act(np.stack([observations[agent] for agent in agents]))
        given = {agent: int(action) for agent, action in zip(agents, actions, strict=True)}
        observations, rewards, _, _, _ = env.step(given)
        total += sum(rewards.values())
    return total
