"""BC and IQL from recorded episodes, beside d3rlpy, which reads the same file; SAC from them, then online.

    scripts/measure offline --minutes 60 --output benchmarks/replay/offline.json

A SAC run of 100,000 env steps plays the episodes, with sampled actions. Its own return, with deterministic actions, is
beside the results. Both libraries learn with one thread, networks of 256 and 256 units, minibatches of 256, rates of
3e-4, and for IQL a temperature of 3,000 / (largest - smallest return of the data). SAC takes 20,000 env steps after as
many gradient steps ("online"), or 20,000 env steps alone ("alone"). Seeds with a result in the folder of the runs
aren't run again.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.reports.curves import bootstrap_interval, interquartile_mean
from benchmarks.harness import ROOT, Figures, make_parser, map_on_cores, origin, report, run_on_core
from benchmarks.peers.libraries import prepare, versions
from benchmarks.works import COMMAND, evaluate_on_core, train_on_core

ENV, DATASET = "HalfCheetah-v5", "halfcheetah/recorded-v0"
SAC_STEPS, RECORDED, EPISODES = 100_000, 60, 10
ONLINE_STEPS = 20_000
WAYS = (("iql", "ours"), ("iql", "d3rlpy"), ("bc", "ours"), ("bc", "d3rlpy"), ("online", "ours"), ("alone", "ours"))
PACKAGES = ("torch==2.13.0",), ("d3rlpy==2.8.*", "h5py", "imageio", "mujoco")
SECONDS = 3600.0


def main() -> None:
    parser = make_parser("offline", __doc__ or "", seeds=3, minutes=120.0, gradient_steps=50_000)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/offline", help="folder of the runs")
    parser.add_argument("--venvs", type=Path, default=ROOT / "runs/venvs", help="folder of the peers' venvs")
    arguments = parser.parse_args()
    runs = arguments.runs.resolve()
    os.environ["MINARI_DATASETS_PATH"] = str(runs / "datasets")
    python = prepare("d3rlpy", arguments.venvs, PACKAGES)
    data = make_data(runs)
    deadline = time.monotonic() + 60 * arguments.minutes
    task = {"env": ENV, "data": str(data["file"]), "episodes": EPISODES, "gradient_steps": arguments.gradient_steps}
    task["temperature"] = data["temperature"]
    jobs = [
        (runs / f"{library}-{algorithm}-{seed}.json", library, {**task, "algorithm": algorithm, "seed": seed})
        for seed in range(arguments.seeds)
        for algorithm, library in WAYS
    ]

    def run(core: int, job: Any) -> None:
        file, library, own = job
        if file.exists() or time.monotonic() > deadline:
            return
        found = learn_ours(core, own, runs) if library == "ours" else learn_d3rlpy(core, own, python)
        file.write_text(json.dumps(found))
        print(file.stem, found, flush=True)

    map_on_cores(run, jobs)
    found: Figures = {name: data[name] for name in ("episodes", "return_mean", "return_least", "return_most")}
    for algorithm, library in WAYS:
        found.setdefault(algorithm, {})[library] = summary(runs, library, algorithm)
    found["versions"] = versions(python, ("d3rlpy", "torch", "gymnasium"))
    report({**origin(parser), "gradient_steps": arguments.gradient_steps, "recorded": found}, arguments.output)


def make_data(runs: Path) -> Figures:
    """Return the recorded episodes' file and returns; train and record, unless that was done."""
    import minari

    sac = runs / "sac"
    if not (sac / "policy").exists():
        train_on_core(0, [ENV, "--algorithm", "sac", "--total-steps", SAC_STEPS], sac, SECONDS)
    if DATASET not in minari.list_local_datasets():
        words = ["evaluate", str(sac), "--episodes", str(RECORDED), "--stochastic", "--record", f"minari:{DATASET}"]
        run_on_core(0, [*COMMAND, *words], timeout=SECONDS, check=True)
    returns = np.array([episode.rewards.sum() for episode in minari.load_dataset(DATASET).iterate_episodes()])
    return {
        "file": runs / "datasets" / DATASET / "data/main_data.hdf5",
        "episodes": {"count": len(returns), "mean": float(returns.mean())},
        "return_mean": evaluate_on_core(0, sac, EPISODES, SECONDS)["return_mean"],
        "return_least": float(returns.min()),
        "return_most": float(returns.max()),
        "temperature": 3000.0 / float(returns.max() - returns.min()),
    }


def learn_ours(core: int, task: Figures, runs: Path) -> Figures:
    folder, way = runs / f"{task['algorithm']}-{task['seed']}", task["algorithm"]
    online = way in ("online", "alone")
    words = [ENV, "--algorithm", "sac" if online else way, "--seed", task["seed"]]
    words += ["--total-steps", ONLINE_STEPS if online else 0]
    if way != "alone":
        words += ["--offline-steps", task["gradient_steps"], "--init-buffer", f"minari:{DATASET}"]
    if way == "iql":
        words += ["--temperature", task["temperature"]]
    seconds = train_on_core(core, words, folder, SECONDS)
    return {"return_mean": evaluate_on_core(core, folder, task["episodes"], SECONDS)["return_mean"], "seconds": seconds}


def learn_d3rlpy(core: int, task: Figures, python: Path) -> Figures:
    words = ["-m", "benchmarks.replay.programs.d3rlpy_offline", json.dumps(task)]
    done = run_on_core(core, words, python, timeout=SECONDS, check=True, capture_output=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(runs: Path, library: str, algorithm: str) -> Figures:
    """Return the seeds' returns, their interquartile mean and its 95% interval."""
    seeds = [json.loads(file.read_text()) for file in sorted(runs.glob(f"{library}-{algorithm}-*.json"))]
    values = np.array([seed["return_mean"] for seed in seeds])
    if not values.size:
        return {"seeds": []}
    low, high = bootstrap_interval(values[:, None])
    middle = float(interquartile_mean(values[:, None])[0])
    return {"middle": middle, "low": float(low[0]), "high": float(high[0]), "seeds": seeds}
