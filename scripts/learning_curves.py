#!/usr/bin/env python3
"""Learning with the presets: trains with several seeds, evaluates, draws curves, writes a table.

    scripts/learning_curves.py --output benchmarks --runs runs/learning [--only CartPole-v1/ppo ...]

Each run is the whole command, `actor-learner train ENV --algorithm NAME --seed N`, in a process of its own,
one after the other; its seconds include imports and saving. Then `actor-learner evaluate` plays 20 episodes
with the final weights, deterministically. A run that is there already is only evaluated again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import machine

ROWS = {
    "CartPole-v1/ppo": {"seeds": 5, "goal": 490, "reference": "SB3 Zoo 500 (100k)"},
    "Pendulum-v1/ppo": {"seeds": 3, "goal": -250, "reference": "SB3 Zoo -172 (100k)"},
    "Acrobot-v1/ppo": {"seeds": 3, "goal": -90, "reference": "SB3 Zoo -73.5 (1M), CleanRL -86.4 (500k)"},
    "LunarLander-v3/ppo": {"seeds": 3, "goal": 200, "reference": "SB3 Zoo 242 (v2, 1M)"},
    "HalfCheetah-v5/ppo": {"seeds": 3, "goal": 1450, "reference": "CleanRL 1443 (v4, 1M), SB3 Zoo 5819 (v3, 1M)"},
    "CartPole-v1/a2c": {"seeds": 3, "goal": 475, "reference": "SB3 Zoo 500 (500k)"},
}
EPISODES = 20
COMMAND = [sys.executable, "-m", "actor_learner.cli"]


def main() -> None:
    """Runs the rows, then writes learning.json, learning.md and a picture for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("benchmarks"))
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "learning.json"
    found = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    found |= {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
    for name in arguments.only:
        found["rows"][name] = run_row(name, arguments.runs, arguments.output)
        print(table_row(name, found["rows"][name]), flush=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
    (arguments.output / "learning.md").write_text(table(found))


def run_row(name: str, runs: Path, output: Path) -> dict[str, Any]:
    """Trains and evaluates each seed of a row, and draws its curve."""
    env, algorithm = name.split("/")
    results = [
        run_seed(env, algorithm, seed, runs / f"{env}-{algorithm}-{seed}") for seed in range(ROWS[name]["seeds"])
    ]
    picture = output / f"{env.partition('-')[0].lower()}-{algorithm}.png"
    directories = [str(runs / f"{env}-{algorithm}-{seed}") for seed in range(ROWS[name]["seeds"])]
    subprocess.run([*COMMAND, "plot", *directories, "--output", str(picture)], check=True, timeout=300)
    return {"command": f"actor-learner train {env} --algorithm {algorithm} --seed N", "seeds": results}


def run_seed(env: str, algorithm: str, seed: int, directory: Path) -> dict[str, float]:
    """One whole run of the command, timed, and its evaluation."""
    timing = directory.with_suffix(".seconds")
    if not (directory / "policy").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        train = ["train", env, "--algorithm", algorithm, "--seed", str(seed), "--run-dir", str(directory), "--quiet"]
        started = time.perf_counter()
        subprocess.run([*COMMAND, *train, "--overwrite"], check=True, timeout=3600, stdout=subprocess.DEVNULL)
        timing.write_text(str(time.perf_counter() - started))
    evaluate = ["evaluate", str(directory), "--episodes", str(EPISODES), "--seed", "1000", "--json"]
    done = subprocess.run([*COMMAND, *evaluate], check=True, timeout=600, capture_output=True, text=True)
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "seed": seed,
        "evaluation_mean": json.loads(done.stdout)["return_mean"],
        "training_return": last["episode_return"],
        "env_steps": last["env_steps"],
        "seconds": float(timing.read_text()),
    }


def table(found: dict[str, Any]) -> str:
    """All rows in Markdown."""
    lines = [
        "# Learning with the presets",
        "",
        f"{found['date']}, {found['machine']}; {', '.join(f'{k} {v}' for k, v in found['versions'].items())}.",
        f"Final weights; deterministic evaluation over {EPISODES} episodes, mean +- std over seeds 0, 1, ..;",
        "`last 100`: stochastic return of the last 100 training episodes; seconds: the whole command, mean over seeds.",
        "Made by `scripts/learning_curves.py`.",
        "",
        "| env/algorithm | steps | seeds | evaluation | last 100 | goal | published | seconds |",
        "|-|-|-|-|-|-|-|-|",
        *(table_row(name, row) for name, row in found["rows"].items()),
    ]
    return "\n".join(lines) + "\n"


def table_row(name: str, row: dict[str, Any]) -> str:
    """One row in Markdown."""
    seeds = row["seeds"]

    def spread(key: str) -> str:
        values = [seed[key] for seed in seeds]
        return f"{statistics.mean(values):,.1f} +- {statistics.pstdev(values):,.1f}"

    seconds = statistics.mean(seed["seconds"] for seed in seeds)
    return (
        f"| {name} | {seeds[0]['env_steps']:,} | {len(seeds)} | {spread('evaluation_mean')} | "
        f"{spread('training_return')} | {ROWS[name]['goal']} | {ROWS[name]['reference']} | {seconds:.0f} |"
    )


def versions() -> dict[str, str]:
    """Versions of what decides the results."""
    packages = ("tensorflow", "keras", "gymnasium", "mujoco", "box2d")
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


if __name__ == "__main__":
    main()
