"""Trains the two roles of MPE's simple_tag, each by a policy of its own, and plays the seeds and versions crosswise.

    scripts/measure tag --seeds 0 1 2 --output benchmarks/games/tag.json          # 15 minutes

A number is the mean return of an adversary in an episode of 25 steps: 10 for each time that an adversary touches the
agent that flees. Policies sample their actions. A run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import actor_learner as al
from benchmarks.harness import Figures, origin, write

TOTAL_STEPS = 2_000_000  # decisions of all four agents
VERSIONS = 4  # that each seed keeps, evenly spread, the last one among them


def config_of(seed: int, run: Path, total_steps: int) -> al.TrainConfig:
    """Return the run of one seed."""
    return al.TrainConfig(
        env="mpe2.simple_tag_v3:parallel_env",
        policies={
            "adversary": al.PolicyConfig(agents="adversary_*"),
            "good": al.PolicyConfig(agents="agent_*"),
        },
        algorithm=al.PPO(learning_rate="linear_1e-3", gamma=0.95, ent_coef=0.01, epochs=4, minibatch_size=800),
        hidden_sizes=(128, 128),
        num_actors=1,
        envs_per_actor=128,
        unroll_length=50,
        total_steps=total_steps,
        milestone_steps=total_steps // VERSIONS,
        seed=seed,
        run_dir=run,
        quiet=not sys.stdout.isatty(),
    )


def versions(run: Path) -> list[Path]:
    """Return the folders of a run's milestones, evenly spread over its steps."""
    folders = sorted(path for path in (run / "checkpoints").glob("0*") if path.is_dir())
    steps = np.array([json.loads((folder / "run.json").read_text())["env_steps"] for folder in folders])
    wanted = steps.max() * np.arange(1, VERSIONS + 1) / VERSIONS
    return [folders[int(np.abs(steps - each).argmin())] for each in wanted]


def caught(run: Path, adversary: Path, good: Path, episodes: int) -> float:
    """Return the mean return of an adversary that plays against this policy."""
    policies = {"adversary": adversary, "good": good}
    found = al.evaluate(run, policies=policies, episodes=episodes, num_envs=64, deterministic=False, seed=12345)
    return round(found.policies["adversary"].mean, 2)


def matrix(run: Path, rows: list[Path], columns: list[Path], episodes: int) -> list[list[float]]:
    """Return the returns of adversaries (rows) against policies that flee (columns)."""
    return [[caught(run, adversary, good, episodes) for good in columns] for adversary in rows]


def summary(versions: Figures) -> Figures:
    """Return the mean return of adversaries for each version of a role, over all versions of the other role."""
    matrices = {seed: np.array(returns) for seed, returns in versions.items()}
    found: Figures = {}
    for role, other in (("adversary", 1), ("good", 0)):
        each = {seed: returns.mean(other) for seed, returns in matrices.items()}
        found[role] = np.mean(list(each.values()), axis=0).round(1).tolist()
        found[f"{role}_each"] = {seed: returns.round(1).tolist() for seed, returns in each.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        "scripts/measure tag", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=TOTAL_STEPS, help="decisions of a seed")
    parser.add_argument("--episodes", type=int, default=900, help="of each pair, counted in adversaries")
    parser.add_argument("--runs", type=Path, default=Path("runs/tag"), help="folder of the runs")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    found: Figures = {**origin(parser), "versions": {}}
    runs = {seed: arguments.runs / str(seed) for seed in arguments.seeds}
    for seed, run in runs.items():
        al.train(config_of(seed, run, arguments.steps), resume=(run / "config.json").exists())
        folders = versions(run)
        found["versions"][str(seed)] = matrix(run, folders, folders, arguments.episodes)
        print(seed, found["versions"][str(seed)], flush=True)
    finals = list(runs.values())
    found["seeds"] = matrix(finals[0], finals, finals, arguments.episodes)
    print("seeds", found["seeds"])
    found |= summary(found["versions"])
    write(found, arguments.output)


if __name__ == "__main__":
    main()
