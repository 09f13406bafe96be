"""Trains agents that share a game with and without a centralized value: MPE's simple_spread.

    scripts/measure value --seeds 0 1 2 --output benchmarks/games/value.json          # 15 minutes

The settings are those of examples/simple_spread.py. Of each run, the sum of the agents' returns is the mean of 200
games, and the explained variance the mean over a part of the updates.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import actor_learner as al
from benchmarks.harness import Figures, make_parser, origin, write

AGENTS, GAMES, TOTAL_STEPS = 3, 200, 600_000
PARTS = {"early": (0.2, 0.4), "late": (0.8, 1.0)}


def measure(run: Path, seed: int, centralized: bool) -> Figures:
    """Train one seed, and let its policy play."""
    config = al.TrainConfig(
        env="mpe2.simple_spread_v3:parallel_env",
        env_kwargs={"local_ratio": 0.0, "max_cycles": 25},
        algorithm=al.PPO(learning_rate="linear_7e-4", gamma=0.9, epochs=8, minibatch_size=600, normalize_reward=True),
        num_actors=1,
        envs_per_actor=48,
        unroll_length=25,
        total_steps=TOTAL_STEPS,
        centralized_value=centralized,
        seed=seed,
        run_dir=run,
        quiet=True,
    )
    al.train(config, resume=(run / "config.json").exists())
    played = al.evaluate(run, episodes=AGENTS * GAMES, num_envs=9, seed=1)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    explained = [row["explained_variance"] for row in rows]
    ends = {part: [int(end * len(rows)) for end in ends] for part, ends in PARTS.items()}
    return {
        "seed": seed,
        "return": round(AGENTS * played.mean, 2),
        "interval": [round(AGENTS * end, 2) for end in played.confidence_interval()],
        "explained": {part: round(float(np.mean(explained[first:last])), 3) for part, (first, last) in ends.items()},
    }


def main() -> None:
    parser = make_parser("value", __doc__ or "", seeds=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/value"), help="folder of the runs")
    arguments = parser.parse_args()
    found: Figures = {**origin(parser), "without": [], "centralized": []}
    for seed in arguments.seeds:
        for name in ("without", "centralized"):
            found[name].append(measure(arguments.runs / f"{name}-{seed}", seed, name == "centralized"))
            print(name, json.dumps(found[name][-1]), flush=True)
    write(found, arguments.output)


if __name__ == "__main__":
    main()
