"""Trains with the presets, evaluates the final weights, and writes the table of learning results and its curves.

    scripts/measure learning --minutes 60                  # what fits, long rows first, continuing where it stopped
    scripts/measure learning --only Hopper-v5/ppo          # one row
    scripts/measure learning --list                        # rows with their expected minutes

Each seed is a whole `actor-learner train ... --seed N` on one core, as many at a time as there are cores, and then
`actor-learner evaluate --seed 1000` of the final weights. Seeds with a result are not run again.
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
from dataclasses import dataclass
from pathlib import Path

from actor_learner.runs.provenance import git_commit
from benchmarks.harness import ROOT, Found, make_parser, map_on_cores, origin, run_on_core, table

COMMAND = ("-m", "actor_learner.cli")
PACKAGES = ("actor-learner", "tensorflow", "keras", "gymnasium", "mujoco", "box2d", "ale-py")
TRAIN_SECONDS, EVALUATE_SECONDS = 4 * 3600.0, 1800.0


@dataclass(frozen=True)
class Row:
    """A row of the table: each seed is `actor-learner train env --algorithm algorithm --seed N options`."""

    env: str
    algorithm: str
    seeds: int  # 0, 1, ...; presets were tuned on seeds from 100 on
    goal: float  # for the mean of the deterministic evaluations
    published: str
    minutes: float  # of one seed on one core of the machine of the committed results
    options: tuple[str, ...] = ()
    variant: str = ""  # distinguishes rows of the same environment and algorithm
    episodes: int = 20

    @property
    def name(self) -> str:
        """The name for `--only`."""
        return "/".join(filter(None, (self.env, self.algorithm, self.variant)))

    @property
    def slug(self) -> str:
        """The name of the row's files."""
        return self.name.lower().replace("/", "-").replace(" ", "-")

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of `actor-learner`, without the seed."""
        return ("train", self.env, "--algorithm", self.algorithm, *self.options)


NO_STICKY = ("--env-kwargs", '{"repeat_action_probability": 0.0}')

ROWS = (
    Row("CartPole-v1", "ppo", 3, 500, "SB3 Zoo 500 (100k); CleanRL 490.0 +- 6.1 (500k)", 0.3),
    Row("Acrobot-v1", "ppo", 3, -83, "SB3 Zoo -73.5 (1M); CleanRL -86.4 +- 1.3 (500k)", 1),
    Row("MountainCar-v0", "ppo", 3, -115, "SB3 Zoo -110 (1M); CleanRL -200 (500k)", 1),
    Row("MountainCarContinuous-v0", "ppo", 3, 88, "SB3 Zoo 88.3 (20k)", 0.3),
    Row("Pendulum-v1", "ppo", 3, -180, "SB3 Zoo -172 (100k)", 0.3),
    Row("LunarLander-v3", "ppo", 3, 242, "SB3 Zoo 242 (v2, 1M)", 1.2),
    Row("LunarLanderContinuous-v3", "ppo", 3, 250, "SB3 Zoo 271 (v2, 1M)", 1.2),
    Row("HalfCheetah-v5", "ppo", 3, 3041, "SB3 Zoo 5819 (v3, 1M); CleanRL 1443 +- 46 (v4, 1M); TF-Agents 4239", 2),
    Row("Hopper-v5", "ppo", 3, 2410, "SB3 Zoo 2410 (v3, 1M); CleanRL 2383 +- 272 (v4, 1M); TF-Agents 2530", 2.7),
    Row("Walker2d-v5", "ppo", 3, 2288, "SB3 Zoo 3479 (v3, 1M); CleanRL 2288 +- 572 (v4, 1M); TF-Agents 2971", 3.5),
    Row("Swimmer-v5", "ppo", 2, 250, "SB3 Zoo 282 (v3, 1M)", 2),
    Row("BipedalWalker-v3", "ppo", 2, 280, "SB3 Zoo 288 (5M)", 15),
    Row("CartPole-v1", "a2c", 3, 500, "SB3 Zoo 500 (500k)", 1),
    Row("Acrobot-v1", "a2c", 3, -86, "SB3 Zoo -83.4 (500k)", 1),
    Row("LunarLander-v3", "a2c", 5, 156, "SB3 Zoo 155.8 (v2, 200k); SB3 here, as in the Zoo: 16.2 +- 38.0", 0.5),
    Row("CartPole-v1", "impala", 3, 475, "", 0.5),
    Row("LunarLander-v3", "impala", 3, 200, "", 5),
    Row("actor_learner/Catch-v0", "ppo", 3, 0.95, "", 0.5),
    Row("ALE/Pong-v5", "ppo", 1, -10, "20.4 to 21.0 (10M)", 40, episodes=5),
    Row("ALE/Pong-v5", "ppo", 1, -10, "20.4 to 21.0 (10M)", 40, NO_STICKY, "not sticky", episodes=5),
)

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
