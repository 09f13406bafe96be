"""What 16 bits in the hidden layers do to PPO's ratio, for a trained policy that hasn't changed since it acted.

    scripts/measure precision RUN --output benchmarks/learning/precision.json    # a minute

Actors act with a run's weights, in float32. Networks of each precision with these weights compute the log-probabilities
of the same actions: what an update learns from at lag 1, before its first step. Without rounding all ratios were 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import actor_learner as al
from actor_learner.build import make_pool
from actor_learner.config.config import PRECISIONS
from benchmarks.harness import Found, make_parser, origin, report

CHUNK = 256
CLIP_RANGE = 0.1


def main() -> None:
    parser = make_parser("precision", __doc__ or "", batches=3, seed=100)
    parser.add_argument("run", type=Path, help="a run's directory")
    arguments = parser.parse_args()
    config = al.load_config(arguments.run / "config.json", seed=arguments.seed, quiet=True)
    network = al.load_network(arguments.run)
    with make_pool(config, network, seed=arguments.seed, logs_dir=None) as actors:
        for _ in range(arguments.batches):
            trajectory = actors.collect()
        spaces = actors.observation_space, actors.action_space
        trajectory = trajectory.copy()
    found = {precision: compare(config, network, spaces, trajectory, precision) for precision in PRECISIONS}
    work = {"run": config.env_name, "rows": int(trajectory.valid.sum()), "clip_range": CLIP_RANGE}
    report({**origin(parser, [arguments.run.name]), **work, "precisions": found}, arguments.output)


def compare(
    config: al.TrainConfig, network: object, spaces: Sequence[object], trajectory: al.Trajectory, precision: str
) -> Found:
    """Return how far log-probabilities are from the actors', and what that does to the ratio's statistics."""
    from actor_learner.networks.contract import building_in

    with building_in(precision):
        other = al.default_network(*spaces, **config.network_fields(all_fields=True), seed=0)
    other.set_weights(network.get_weights())
    difference = log_probs(other, spaces[1], trajectory) - trajectory.behaviour_log_prob.reshape(-1)
    difference = difference[trajectory.valid.reshape(-1)]
    ratio = np.exp(difference)
    return {
        "mean_difference": float(np.abs(difference).mean()),
        "greatest_difference": float(np.abs(difference).max()),
        "ratio_bias": float(ratio.mean() - 1),
        "approx_kl": float((ratio - 1 - difference).mean()),
        "clipped": float((np.abs(ratio - 1) > CLIP_RANGE).mean()),
    }


def log_probs(network: object, action_space: object, trajectory: al.Trajectory) -> np.ndarray:
    """Return the log-probabilities of a trajectory's actions, `[T x B]`."""
    from actor_learner.networks.contract import call_network, network_distribution
    from actor_learner.spaces.spaces import Spaces

    spaces = Spaces(None, action_space)
    distribution = network_distribution(network, spaces)
    rows = trajectory.valid.size
    observation = trajectory.observation[:-1].reshape(rows, *trajectory.observation.shape[2:])
    action = [leaf.reshape(rows, *leaf.shape[2:]) for leaf in spaces.action.flatten(trajectory.action)]
    found = []
    for start in range(0, rows, CHUNK):
        part = slice(start, start + CHUNK)
        parameters = call_network(network, observation[part])["parameters"]
        found.append(np.asarray(distribution.log_prob(parameters, [leaf[part] for leaf in action], None)))
    return np.concatenate(found)
