"""Trains rows of the table with their presets, evaluates the final weights, writes the table and its curves.

    scripts/measure learning --minutes 60                  # whatever fits, long rows first, where it stopped last
    scripts/measure learning --only Hopper-v5/ppo          # one row
    scripts/measure learning --list                        # rows with their expected minutes

Each seed is the whole command `actor-learner train ENV ... --seed N` on one core with one thread, as many at
a time as there are cores; its seconds include imports and saving. Then `actor-learner evaluate` plays episodes
with the final weights, deterministically, seeded from 1000. A seed that is done isn't done again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.learning.rows import ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "actor_learner.cli")
TRAIN_TIMEOUT_SECONDS = 4 * 3600.0
Job = tuple[Row, int]


def main() -> None:
    """Runs what isn't done yet, within the budget, then writes the table."""
    arguments = _parser().parse_args()
    rows = [row for row in ROWS if arguments.only is None or row.name in arguments.only]
    if arguments.list:
        for row in ROWS:
            print(f"{row.name:55} {row.seeds} seeds x {row.minutes:g} minutes")
        return
    arguments.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(row, seed) for row in rows for seed in range(row.seeds)]
    todo = [job for job in jobs if not _result_file(job, arguments.runs).exists()]
    run_all(todo, arguments.runs, time.monotonic() + 60 * arguments.minutes)
    write_table(rows, arguments.runs, arguments.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=240.0, help="no seed is begun that would take longer")
    parser.add_argument(
        "--only", nargs="+", choices=[row.name for row in ROWS], metavar="ROW", help="rows (see --list)"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/learning", help="where the runs are kept")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/learning", help="where table and pictures go")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    return parser


def run_all(jobs: Sequence[Job], runs: Path, deadline: float) -> None:
    """One thread for each core takes the longest job that is left and still fits."""
    waiting: queue.Queue[Job] = queue.Queue()
    for job in sorted(jobs, key=lambda job: -job[0].minutes):
        waiting.put(job)

    def work(core: int) -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            if time.monotonic() + 60 * job[0].minutes > deadline:
                print(f"no time left for {job[0].name}, seed {job[1]}", flush=True)
                continue
            run_job(job, runs, core)

    threads = [threading.Thread(target=work, args=(core,)) for core in sorted(os.sched_getaffinity(0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_job(job: Job, runs: Path, core: int) -> None:
    """Trains one seed on one core, evaluates it and writes down what came out; a failure is shown, and passed over."""
    row, seed = job
    directory = _directory(job, runs)
    train = [*row.command, "--seed", str(seed), "--run-dir", str(directory), "--quiet", "--overwrite"]
    started = time.perf_counter()
    with directory.with_suffix(".log").open("w") as log:
        done = _run_on(core, train, TRAIN_TIMEOUT_SECONDS, stdout=log, stderr=log)
    seconds = time.perf_counter() - started
    evaluation = _run_on(
        core,
        ["evaluate", str(directory), "--episodes", str(row.episodes), "--seed", "1000", "--json"],
        1800.0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if done.returncode or evaluation.returncode:
        print(f"{row.name}, seed {seed} failed; see {directory.with_suffix('.log')}\n{evaluation.stderr}", flush=True)
        return
    result = {"seed": seed, **_figures(directory, json.loads(evaluation.stdout)), "seconds": seconds, **_origin()}
    _result_file(job, runs).write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{row.name}, seed {seed}: {result['evaluation_mean']:,.1f} (training {result['training_return']:,.1f}) after "
        f"{seconds:,.0f} s",
        flush=True,
    )


def _run_on(core: int, arguments: list[str], timeout: float, **streams: Any) -> subprocess.CompletedProcess[str]:
    """The command on one core, which makes TensorFlow use one thread."""
    pinned = f"import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", pinned, *COMMAND, *arguments]
    return subprocess.run(command, text=True, timeout=timeout, check=False, **streams)


def _figures(directory: Path, evaluation: dict[str, Any]) -> dict[str, float]:
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "evaluation_mean": evaluation["return_mean"],
        "evaluation_std": evaluation["return_std"],
        "training_return": last["episode_return"],
        "env_steps": last["env_steps"],
    }


def _origin() -> dict[str, Any]:
    """What the result comes from: the day, the machine, the code and the packages that decide it."""
    packages = ("actor-learner", "tensorflow", "keras", "gymnasium", "mujoco", "box2d", "ale-py")
    versions = {name: importlib.metadata.version(name) for name in packages}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "cores": 1,
        "commit": commit.stdout.strip(),
        "versions": {"Python": platform.python_version(), **versions},
    }


def _directory(job: Job, runs: Path) -> Path:
    return runs / f"{job[0].slug}-{job[1]}"


def _result_file(job: Job, runs: Path) -> Path:
    return runs / f"{job[0].slug}-{job[1]}.json"


def write_table(rows: Sequence[Row], runs: Path, output: Path) -> None:
    """Adds the results that there are to learning.json, and draws the table and the curves of these rows."""
    output.mkdir(parents=True, exist_ok=True)
    file = output / "learning.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for row in rows:
        files = [path for seed in range(row.seeds) if (path := _result_file((row, seed), runs)).exists()]
        if not files:
            continue
        command = " ".join(("actor-learner", *(_quoted(word) for word in row.command), "--seed N"))
        found[row.name] = {"command": command, "seeds": [json.loads(path.read_text()) for path in files]}
        directories = [str(path.with_suffix("")) for path in files]
        picture = output / f"{row.slug}.png"
        subprocess.run([*COMMAND, "plot", *directories, "--output", str(picture)], check=True, timeout=300)
    file.write_text(json.dumps(found, indent=1) + "\n")
    (output / "learning.md").write_text(_table(found))


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def _table(found: dict[str, Any]) -> str:
    known = [row for row in ROWS if row.name in found]
    origins = [seed for row in known for seed in found[row.name]["seeds"]]
    versions = sorted({", ".join(f"{k} {v}" for k, v in origin["versions"].items()) for origin in origins})
    lines = [
        "# Learning with the presets, beside what others publish",
        "",
        f"{', '.join(sorted({origin['date'] for origin in origins}))}; {origins[0]['machine']}; {'; '.join(versions)}; "
        f"commits {', '.join(sorted({origin['commit'] for origin in origins}))}.",
        "",
        "Final weights, never the best ones. Evaluation: deterministic, 20 episodes a seed (Pong: 5), mean +- std over",
        "the seeds' means. Last 100: stochastic return of the last 100 training episodes, as CleanRL's figures are.",
        "Seeds 0, 1, 2; presets were chosen on seeds from 100 on. Seconds: the whole command, mean over seeds, on so",
        "many cores, which other processes shared at times.",
        "Made by `scripts/measure learning`; figures of each seed are in learning.json.",
        "",
        "| command | steps | seeds | evaluation | last 100 | goal | published | seconds | cores |",
        "|-|-|-|-|-|-|-|-|-|",
        *(_table_row(row, found[row.name]) for row in known),
    ]
    return "\n".join(lines) + "\n"


def _table_row(row: Row, found: dict[str, Any]) -> str:
    seeds = found["seeds"]

    def spread(key: str) -> str:
        values = [seed[key] for seed in seeds]
        return f"{statistics.mean(values):,.1f}" + (f" +- {statistics.pstdev(values):,.1f}" if values[1:] else "")

    seconds = statistics.mean(seed["seconds"] for seed in seeds)
    cells = (
        f"`{found['command'].removeprefix('actor-learner ')}`",
        f"{seeds[0]['env_steps']:,}",
        str(len(seeds)),
        spread("evaluation_mean"),
        spread("training_return"),
        f"{row.goal:g}",
        row.published,
        f"{seconds:,.0f}",
        str(seeds[0]["cores"]),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
