"""Players of Connect Four with the policies of other libraries, in NumPy: (observation, mask, generator) -> action.

A policy is a file of weights that a program in programs/ wrote. The players sample among the columns that aren't full.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]
Player = Callable[[Any, Any, np.random.Generator], int]


def sb3(weights: Path) -> Player:
    """Return MaskablePPO's policy, which sees PettingZoo's observation as a vector."""
    layers = _layers(weights, "mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net")
    return lambda observation, mask, generator: _sample(layers, observation.reshape(-1), mask, generator)


def rllib(weights: Path) -> Player:
    """Return RLlib's policy, which sees OpenSpiel's observation."""
    layers = _layers(weights, "encoder.encoder.net.mlp.0", "encoder.encoder.net.mlp.2", "pi.net.mlp.0")
    return lambda observation, mask, generator: _sample(layers, to_open_spiel(observation), mask, generator)


def to_open_spiel(observation: np.ndarray) -> np.ndarray:
    """Return PettingZoo's `[6, 7, 2]`, own discs and others from the top row, as OpenSpiel's `[3 x 6 x 7]`.

    That has the first player's discs, the second's and the empty places, from the bottom row.
    """
    boards = observation[::-1, :, 0] != 0, observation[::-1, :, 1] != 0
    first, second = boards if boards[0].sum() == boards[1].sum() else boards[::-1]
    return np.stack([first, second, ~(first | second)]).reshape(-1).astype(np.float32)


def _layers(weights: Path, *names: str) -> Layers:
    with np.load(weights) as file:
        return [(file[f"{name}.weight"].T, file[f"{name}.bias"]) for name in names]


def _sample(layers: Layers, x: np.ndarray, mask: Any, generator: np.random.Generator) -> int:
    """Run the network, with tanh between its layers, and draw one of the allowed actions."""
    *hidden, (weight, bias) = layers
    for inner, offset in hidden:
        x = np.tanh(x @ inner + offset)
    logits = np.where(np.asarray(mask, bool), x @ weight + bias, -np.inf).astype(np.float64)
    odds = np.exp(logits - logits.max())
    return int(generator.choice(len(odds), p=odds / odds.sum()))
