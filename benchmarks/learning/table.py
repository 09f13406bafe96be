"""Trains with the presets, evaluates the final weights, and writes the table of learning results and its curves.

    scripts/measure learning --minutes 60                  # what fits, long rows first, continuing where it stopped
    scripts/measure learning --only Hopper-v5/ppo          # one row
    scripts/measure learning --list                        # rows with their expected minutes

Each seed is a whole `actor-learner train ... --seed N` on one core, as many at a time as there are cores, and then
`actor-learner evaluate --seed 1000` of the final weights. Seeds with a result are not run again. The rows of SB3 need
its venv, which is made on first use (`--venvs`).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.reports.curves import bootstrap_interval, interquartile_mean
from actor_learner.runs.provenance import git_commit
from benchmarks.harness import ROOT, Figures, make_parser, map_on_cores, origin, run_on_core, table, write
from benchmarks.learning.rows import ROWS, Published, Row
from benchmarks.peers.libraries import prepare, versions

COMMAND = ("-m", "actor_learner.cli")
PACKAGES = ("actor-learner", "tensorflow", "keras", "gymnasium", "mujoco", "box2d", "ale-py")
SB3 = ("-m", "benchmarks.learning.sb3_zoo")
PEER_PACKAGES = {
    "sb3": ("stable-baselines3", "sb3-contrib", "torch", "gymnasium"),
    "sbx": ("sbx-rl", "jax", "gymnasium"),
}
TRAIN_SECONDS, EVALUATE_SECONDS = 4 * 3600.0, 1800.0
EVALUATION_SEED = 1000

Job = tuple[Row, int]


def main() -> None:
    parser = make_parser("learning", __doc__ or "", output="folder of the table and the curves", minutes=240.0)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW", help="rows (see --list)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/learning", help="folder of the runs")
    parser.add_argument("--venvs", type=Path, default=ROOT / "runs/venvs", help="folder of the peers' venvs")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    parser.set_defaults(output=Path(__file__).parent)
    arguments = parser.parse_args()
    if arguments.list:
        for row in ROWS:
            print(f"{row.name:55} {row.seeds} seeds x {row.minutes:g} minutes")
        return
    arguments.runs.mkdir(parents=True, exist_ok=True)
    rows = [row for row in ROWS if row.name in arguments.only]
    jobs = [(row, seed) for row in rows for seed in range(row.seeds)]
    missing = [job for job in jobs if not _result_file(job, arguments.runs).exists()]
    sb3 = prepare("sb3", arguments.venvs) if any(row.library in PEER_PACKAGES for row, _ in missing) else None
    Runner(arguments.runs, time.monotonic() + 60 * arguments.minutes, origin(parser), sb3).run_all(missing)
    write_table(rows, arguments.runs, arguments.output)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs jobs, one for each core, longest first; skips jobs that would end after the deadline.

    sb3: The interpreter of SB3's venv.
    """

    runs: Path
    deadline: float
    source: Figures
    sb3: Path | None

    def run_all(self, jobs: Sequence[Job]) -> None:
        map_on_cores(self._run, sorted(jobs, key=lambda job: -job[0].minutes))

    def _run(self, core: int, job: Job) -> None:
        """Run one seed and write its result; print a failure, and continue."""
        row, seed = job
        if time.monotonic() + 60 * row.minutes > self.deadline:
            print(f"no time left for {row.name}, seed {seed}", flush=True)
            return
        started = time.perf_counter()
        try:
            result = (self._run_ours if row.library == "ours" else self._run_sb3)(row, seed, core)
        except (subprocess.SubprocessError, ValueError, OSError) as error:
            print(f"{row.name}, seed {seed} failed; see {self._log(job)}\n{error}", flush=True)
            return
        result = {
            "seed": seed,
            **result,
            "cores": 1,
            "date": self.source["date"],
            "machine": self.source["machine"],
            "commit": (git_commit(ROOT) or {"commit": ""})["commit"][:7],
        }
        write(result, _result_file(job, self.runs))
        returns = f"{result['evaluation_mean']:,.1f} (training {result['training_return']:,.1f})"
        print(f"{row.name}, seed {seed}: {returns} after {time.perf_counter() - started:,.0f} s", flush=True)

    def _log(self, job: Job) -> Path:
        return _result_file(job, self.runs).with_suffix(".log")

    def _run_ours(self, row: Row, seed: int, core: int) -> Figures:
        directory = _result_file((row, seed), self.runs).with_suffix("")
        train = [*row.command, "--seed", str(seed), "--run-dir", str(directory), "--quiet", "--overwrite"]
        evaluate = ["evaluate", str(directory), "--episodes", str(row.episodes)]
        evaluate += ["--seed", str(EVALUATION_SEED), "--json"]
        started = time.perf_counter()
        with self._log((row, seed)).open("w") as log:
            run_on_core(core, [*COMMAND, *train], timeout=TRAIN_SECONDS, stdout=log, stderr=log, check=True)
        seconds = time.perf_counter() - started
        done = run_on_core(core, [*COMMAND, *evaluate], timeout=EVALUATE_SECONDS, capture_output=True, check=True)
        evaluation = json.loads(done.stdout)
        metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        return {
            "evaluation_mean": evaluation["return_mean"],
            "evaluation_std": evaluation["return_std"],
            "training_return": metrics[-1]["episode_return"],
            "training_return_at": training_returns(metrics, {published.steps for published in row.published}),
            "env_steps": metrics[-1]["env_steps"],
            "seconds": seconds,
            "versions": {"Python": platform.python_version()} | {n: importlib.metadata.version(n) for n in PACKAGES},
        }

    def _run_sb3(self, row: Row, seed: int, core: int) -> Figures:
        assert self.sb3 is not None
        words = [*SB3, row.library, row.algorithm, row.env, str(seed), str(row.steps), str(row.episodes)]
        started = time.perf_counter()
        with self._log((row, seed)).open("w") as log:
            options: Figures = {"timeout": TRAIN_SECONDS, "stdout": subprocess.PIPE, "stderr": log, "check": True}
            done = run_on_core(core, words, self.sb3, **options)
        found = json.loads(done.stdout.splitlines()[-1])
        return {
            "evaluation_mean": found["return_mean"],
            "evaluation_std": found["return_std"],
            "training_return": found["training_return"],
            "training_return_at": {},
            "env_steps": found["env_steps"],
            "seconds": time.perf_counter() - started,
            "versions": versions(self.sb3, PEER_PACKAGES[row.library]),
        }


def training_returns(metrics: Sequence[Figures], steps: set[int]) -> dict[str, float]:
    """Return the training return at each of these env steps that the run reached before its end."""
    found = {}
    for wanted in sorted(steps):
        later = (row for row in metrics if row["env_steps"] >= wanted)
        if wanted < metrics[-1]["env_steps"] and (row := next(later, None)) is not None:
            found[str(wanted)] = row["episode_return"]
    return found


def _result_file(job: Job, runs: Path) -> Path:
    return runs / f"{job[0].slug}-{job[1]}.json"


def write_table(rows: Sequence[Row], runs: Path, output: Path) -> None:
    """Add the new results to learning.json, and write the table and the curves of these rows."""
    output.mkdir(parents=True, exist_ok=True)
    file = output / "learning.json"
    found: Figures = json.loads(file.read_text()) if file.exists() else {}
    for row in rows:
        files = [path for seed in range(row.seeds) if (path := _result_file((row, seed), runs)).exists()]
        if not files:
            continue
        command = f"actor-learner {shlex.join(row.command)} --seed N" if row.library == "ours" else "sb3_zoo.py"
        found[row.name] = {"command": command, "seeds": [json.loads(path.read_text()) for path in files]}
        runs_of_row = [path.with_suffix("") for path in files]
        if row.library == "ours" and all(run.is_dir() for run in runs_of_row):  # else the curves of all stay
            words = ["plot", *map(str, runs_of_row), "--band", "bootstrap", "--output", str(output / f"{row.slug}.png")]
            subprocess.run([sys.executable, *COMMAND, *words], check=True, timeout=300)
    write(found, file, page(found))
    write(counts(found), output / "counts.json")


def counts(found: Figures) -> Figures:
    """Return the number of rows of ours; of those on TensorFlow that have a goal; and of those that reach it."""
    ours = [row for row in ROWS if row.name in found and row.library == "ours"]
    goals = {row.name: row.goal.value for row in ours if row.goal and "jax" not in row.options}
    reached = [name for name, goal in goals.items() if _interval(_means(found[name]["seeds"]))[1] >= goal]
    return {"rows": len(ours), "with_goal": len(goals), "reached": len(reached)}


def page(found: Figures) -> str:
    """Return the results as Markdown."""
    known = [row for row in ROWS if row.name in found]
    seeds = [seed for row in known for seed in found[row.name]["seeds"]]
    used = sorted({", ".join(f"{k} {v}" for k, v in seed["versions"].items()) for seed in seeds})
    header = ("command", "steps", "seeds", "evaluation", "mean +- std", "last 100", "goal", "others", "seconds", "made")
    lines = [
        "# Learning with the presets, beside published results",
        "",
        "Final weights, never the best ones. **Evaluation**: deterministic, 20 episodes a seed (Pong and Breakout: 5);",
        "interquartile mean over the seeds' means, and its 95% interval by the stratified bootstrap (as rliable,",
        "arXiv:2108.13264); beside it mean and sample standard deviation over seeds. **Last 100**: stochastic return",
        "of the last 100 training episodes, mean over seeds, as in CleanRL's figures. **Goal**: the strongest return",
        "that others publish at as many steps (bold: the interval reaches it); **others**: further ones, with our",
        "training return at the same step where they stopped earlier. The Zoo's are one run each; Tianshou's the best",
        "of a run, 10 seeds. Seeds count from 0; presets were chosen on seeds from 100 on. Each seed has one core,",
        "which other processes share at times: seconds are the whole command's, mean over seeds. Made by",
        "`scripts/measure learning`; figures of each seed are in learning.json.",
        "",
        *table(header, (_table_row(row, found[row.name]["command"], found[row.name]["seeds"]) for row in known)),
        "",
        *(f"- `{row.name}`: {row.note}." for row in known if row.note),
        "",
        f"Versions: {'; '.join(used)}.",
    ]
    return "\n".join(lines) + "\n"


def _table_row(row: Row, command: str, seeds: Sequence[Figures]) -> tuple[str, ...]:
    values = _means(seeds)
    middle, (low, high) = float(interquartile_mean(values[:, None])[0]), _interval(values)
    goal = row.goal
    evaluation = f"{middle:,.1f}" + (f" [{low:,.1f}, {high:,.1f}]" if values[1:].size else "")
    if goal is not None and high >= goal.value:
        evaluation = f"**{evaluation}**"
    spread = f" +- {statistics.stdev(values.tolist()):,.1f}" if values[1:].size else ""
    made = {f"{seed['date']}, {seed['commit']}, {seed['machine'].partition(' of ')[2]}" for seed in seeds}
    return (
        f"`{command.removeprefix('actor-learner ')}`"
        if row.library == "ours"
        else f"{row.library.upper()}, Zoo's settings: {row.env}/{row.algorithm}",
        f"{max(seed['env_steps'] for seed in seeds):,}",
        str(len(seeds)),
        evaluation,
        f"{values.mean():,.1f}{spread}",
        f"{statistics.mean(seed['training_return'] for seed in seeds):,.1f}",
        "" if goal is None else str(goal),
        "; ".join(_compare_with(published, row, seeds) for published in row.published if published is not goal),
        f"{statistics.mean(seed['seconds'] for seed in seeds):,.0f}",
        "; ".join(sorted(made)),
    )


def _means(seeds: Sequence[Figures]) -> Any:
    return np.array([seed["evaluation_mean"] for seed in seeds])


def _interval(values: Any) -> tuple[float, float]:
    low, high = bootstrap_interval(values[:, None])
    return float(low[0]), float(high[0])


def _compare_with(published: Published, row: Row, seeds: Sequence[Figures]) -> str:
    """Return a published return; if it was reached at other steps, with these, and ours in training at that step."""
    if published.steps == row.steps:
        return str(published)
    ours = [seed["training_return_at"].get(str(published.steps)) for seed in seeds]
    known = [value for value in ours if value is not None]
    steps = f"{published.steps / 1e6:g}M" if published.steps >= 1e6 else f"{published.steps // 1000}k"
    return f"{published} ({steps}{f'; ours then {statistics.mean(known):,.1f}' if known else ''})"
