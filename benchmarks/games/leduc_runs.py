"""Self-play on Leduc hold'em, and the exploitability of its policy along the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import actor_learner as al
from actor_learner.runs.league import VERSION_FILE
from benchmarks.games.leduc import Probabilities, exploitability, uniform
from benchmarks.harness import Figures

LEDUC = "pettingzoo:classic/leduc_holdem-v4"
DECISIONS, MILESTONE = 300_000, 50_000
POOLS = {
    "pfsp": al.SelfPlay(size=64, every=5, random=0.0),
    "uniform": al.SelfPlay(size=64, every=5, random=0.0, rule="uniform"),
}


def config_of(rule: str, seed: int, run: Path) -> al.TrainConfig:
    """Return the settings of a run: the presets' for board games, with a pool of versions over the whole run."""
    return al.TrainConfig(
        env=LEDUC,
        algorithm=al.PPO(learning_rate="linear_1e-3", gamma=1.0, epochs=4, minibatch_size=512, ent_coef=0.02),
        self_play=POOLS[rule],
        num_envs=64,
        unroll_length=32,
        hidden_sizes=(128, 128),
        total_steps=DECISIONS,
        milestone_steps=MILESTONE,
        seed=seed,
        run_dir=run,
        quiet=not sys.stdout.isatty(),
    )


def measure_leduc(rule: str, seed: int, runs: Path) -> Figures:
    """Train one seed, and return the exploitability of the policy at each milestone, and of the pool."""
    run = runs / f"leduc-{rule}-{seed}"
    al.train(config_of(rule, seed, run), resume=(run / "config.json").exists())
    return {"decisions": DECISIONS, "random": exploitability([uniform]), "course": course(run)}


def course(run: Path) -> list[Figures]:
    """Return exploitabilities at each milestone and the end.

    They are those of the newest policy, of the mixture of all versions in the pool, and of the newer half of them.
    """
    found = []
    for folder in _checkpoints(run):
        learner = al.Learner.load(folder)
        network = learner.network
        paths = sorted(folder.glob(VERSION_FILE.format("*")), key=lambda path: int(path.stem.rpartition("-")[2]))
        pool = [probabilities_of(network, _split(network, np.load(path))) for path in paths]
        mixtures = {
            "newest": [probabilities_of(network, network.get_weights())],
            "pool": pool,
            "newer half of the pool": pool[len(pool) // 2 :],
        }
        figures = {name: round(exploitability(mixture), 4) for name, mixture in mixtures.items()}
        found.append({"decisions": learner.env_steps, **figures, "versions": len(pool)})
    return found


def _checkpoints(run: Path) -> list[Path]:
    folders = [path for path in (run / "checkpoints").iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(folders, key=lambda path: path.name)


def _split(network: Any, vector: np.ndarray) -> list[np.ndarray]:
    """Return a vector of weights as the network's arrays."""
    shapes = [weights.shape for weights in network.get_weights()]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


def probabilities_of(network: Any, weights: list[np.ndarray]) -> Probabilities:
    """Return the policy of a network with these weights."""

    def probabilities(rows: np.ndarray, masks: np.ndarray) -> np.ndarray:
        network.set_weights(weights)
        outputs = network(rows, training=False)
        logits = np.asarray(outputs["parameters"] if isinstance(outputs, dict) else outputs[0], np.float64)
        logits = np.where(masks, logits, -np.inf)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    return probabilities
