"""Trains with the presets, evaluates the final weights, and writes the table of learning results and its curves.

    scripts/measure learning --minutes 60                  # what fits, long rows first, continuing where it stopped
    scripts/measure learning --only Hopper-v5/ppo          # one row
    scripts/measure learning --list                        # rows with their expected minutes

Each seed is the whole command `actor-learner train ENV ... --seed N` on one core with one thread, as many at a time as
there are cores; its seconds include imports and saving. Then `actor-learner evaluate` plays episodes with the final
weights, deterministically, seeded from 1000. Seeds with a result are not run again.
"""

from __future__ import annotations

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

from actor_learner.runs.provenance import git_commit
from benchmarks.harness import ROOT, Found, make_parser, map_on_cores, origin, run_on_core, table
from benchmarks.learning.rows import ROWS, Row

COMMAND = ("-m", "actor_learner.cli")
PACKAGES = ("actor-learner", "tensorflow", "keras", "gymnasium", "mujoco", "box2d", "ale-py")
TRAIN_SECONDS, EVALUATE_SECONDS = 4 * 3600.0, 1800.0
Job = tuple[Row, int]


def main() -> None:
    parser = make_parser("learning", __doc__ or "", output="folder of the table and the curves", minutes=240.0)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW", help="rows (see --list)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/learning", help="folder of the runs")
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
    run_all(missing, arguments.runs, time.monotonic() + 60 * arguments.minutes, origin(parser))
    write_table(rows, arguments.runs, arguments.output)


def run_all(jobs: Sequence[Job], runs: Path, deadline: float, source: Found) -> None:
    """Run jobs, one for each core, longest first; skip jobs that would end after the deadline."""

    def run(core: int, job: Job) -> None:
        if time.monotonic() + 60 * job[0].minutes > deadline:
            print(f"no time left for {job[0].name}, seed {job[1]}", flush=True)
        else:
            run_job(job, runs, core, source)

    map_on_cores(run, sorted(jobs, key=lambda job: -job[0].minutes))


def run_job(job: Job, runs: Path, core: int, source: Found) -> None:
    """Train one seed on one core, evaluate it and write the result; print a failure, and continue."""
    row, seed = job
    file = _result_file(job, runs)
    directory = file.with_suffix("")
    train = [*row.command, "--seed", str(seed), "--run-dir", str(directory), "--quiet", "--overwrite"]
    evaluate = ["evaluate", str(directory), "--episodes", str(row.episodes), "--seed", "1000", "--json"]
    started = time.perf_counter()
    with directory.with_suffix(".log").open("w") as log:
        trained = run_on_core(core, [*COMMAND, *train], timeout=TRAIN_SECONDS, stdout=log, stderr=log, check=False)
    seconds = time.perf_counter() - started
    done = run_on_core(core, [*COMMAND, *evaluate], timeout=EVALUATE_SECONDS, capture_output=True, check=False)
    if trained.returncode or done.returncode:
        print(f"{row.name}, seed {seed} failed; see {directory.with_suffix('.log')}\n{done.stderr}", flush=True)
        return
    evaluation = json.loads(done.stdout)
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    result = {
        "seed": seed,
        "evaluation_mean": evaluation["return_mean"],
        "evaluation_std": evaluation["return_std"],
        "training_return": last["episode_return"],
        "env_steps": last["env_steps"],
        "seconds": seconds,
        "date": source["date"],
        "machine": source["machine"],
        "cores": 1,
        "commit": (git_commit(ROOT) or {"commit": ""})["commit"][:7],
        "versions": {"Python": platform.python_version(), **versions},
    }
    file.write_text(json.dumps(result, indent=1) + "\n")
    returns = f"{result['evaluation_mean']:,.1f} (training {result['training_return']:,.1f})"
    print(f"{row.name}, seed {seed}: {returns} after {seconds:,.0f} s", flush=True)


def _result_file(job: Job, runs: Path) -> Path:
    return runs / f"{job[0].slug}-{job[1]}.json"


def write_table(rows: Sequence[Row], runs: Path, output: Path) -> None:
    """Add the new results to learning.json, and write the table and the curves of these rows."""
    output.mkdir(parents=True, exist_ok=True)
    file = output / "learning.json"
    found: Found = json.loads(file.read_text()) if file.exists() else {}
    for row in rows:
        files = [path for seed in range(row.seeds) if (path := _result_file((row, seed), runs)).exists()]
        if not files:
            continue
        command = f"actor-learner {shlex.join(row.command)} --seed N"
        found[row.name] = {"command": command, "seeds": [json.loads(path.read_text()) for path in files]}
        words = ["plot", *(str(path.with_suffix("")) for path in files), "--output", str(output / f"{row.slug}.png")]
        subprocess.run([sys.executable, *COMMAND, *words], check=True, timeout=300)
    file.write_text(json.dumps(found, indent=1) + "\n")
    (output / "learning.md").write_text(page(found))


def page(found: Found) -> str:
    """Return the results as Markdown."""
    known = [row for row in ROWS if row.name in found]
    origins = [seed for row in known for seed in found[row.name]["seeds"]]
    versions = sorted({", ".join(f"{k} {v}" for k, v in origin["versions"].items()) for origin in origins})
    header = ("command", "steps", "seeds", "evaluation", "last 100", "goal", "published", "seconds", "cores")
    lines = [
        "# Learning with the presets, beside published results",
        "",
        f"{', '.join(sorted({origin['date'] for origin in origins}))}; {origins[0]['machine']}; {'; '.join(versions)}; "
        f"commits {', '.join(sorted({origin['commit'] for origin in origins}))}.",
        "",
        "Final weights, never the best ones. Evaluation: deterministic, 20 episodes a seed (Pong: 5), mean +- std over",
        "the seeds' means. Last 100: stochastic return of the last 100 training episodes, as in CleanRL's figures.",
        "Seeds 0, 1, 2; presets were chosen on seeds from 100 on. Seconds: the whole command, mean over seeds, on so",
        "many cores, which other processes shared at times.",
        "Made by `scripts/measure learning`; figures of each seed are in learning.json.",
        "",
        *table(header, (_table_row(row, found[row.name]) for row in known)),
    ]
    return "\n".join(lines) + "\n"


def _table_row(row: Row, found: Found) -> tuple[str, ...]:
    seeds = found["seeds"]

    def spread(key: str) -> str:
        values = [seed[key] for seed in seeds]
        return f"{statistics.mean(values):,.1f}" + (f" +- {statistics.pstdev(values):,.1f}" if values[1:] else "")

    return (
        f"`{found['command'].removeprefix('actor-learner ')}`",
        f"{seeds[0]['env_steps']:,}",
        str(len(seeds)),
        spread("evaluation_mean"),
        spread("training_return"),
        f"{row.goal:g}",
        row.published,
        f"{statistics.mean(seed['seconds'] for seed in seeds):,.0f}",
        str(seeds[0]["cores"]),
    )
