"""Trains with the presets, evaluates the final weights, and writes the table of learning results.

    scripts/measure learning --minutes 60                  # what fits, long rows first, continuing where it stopped
    scripts/measure learning --only Hopper-v5/ppo          # one row
    scripts/measure learning --list                        # rows with their expected minutes

Each seed is a whole `actor-learner train ... --seed N` on one core, as many at a time as there are cores, and then
`actor-learner evaluate --seed 1000` of the final weights. Seeds with a result are not run again. The rows of SB3 need
its venv, which is made on first use (`--venvs`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actor_learner.reports.curves import bootstrap_interval, interquartile_mean
from actor_learner.runs.recorded_config import algorithm_title, git_commit
from benchmarks.harness import ROOT, Figures, make_parser, map_on_cores, origin, run_on_core, table, write
from benchmarks.learning.rows import PUBLISHED, ROWS, Published, Row
from benchmarks.peers.libraries import prepare, versions
from benchmarks.works import COMMAND, evaluate_on_core, train_on_core

PACKAGES = ("actor-learner", "tensorflow", "keras", "gymnasium", "mujoco", "box2d", "ale-py")
SB3 = ("-m", "benchmarks.learning.sb3_zoo")
PEER_PACKAGES = {
    "sb3": ("stable-baselines3", "sb3-contrib", "torch", "gymnasium"),
    "sbx": ("sbx-rl", "jax", "gymnasium"),
}
TRAIN_SECONDS, EVALUATE_SECONDS = 4 * 3600.0, 1800.0
ORIGIN = ("versions", "cores", "date", "machine", "commit")

COMPARED = ("strongest, same algorithm", "ours - theirs", "strongest, any algorithm")
HEADER = ("command", "steps", "seeds", "evaluation", "mean +- std", "last 100", *COMPARED, "others", "seconds", "made")
VERDICTS = ("at least", "open", "less")
MIN_SEEDS = 3  # of a row that counts in the sums

Job = tuple[Row, int]


def main() -> None:
    parser = make_parser("learning", __doc__ or "", output="folder of the table", minutes=240.0)
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
        words = [*row.command[1:], "--seed", seed]
        with self._log((row, seed)).open("w") as log:
            seconds = train_on_core(core, words, directory, TRAIN_SECONDS, stdout=log, stderr=log)
        evaluation = evaluate_on_core(core, directory, row.episodes, EVALUATE_SECONDS)
        metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        return {
            "evaluation_mean": evaluation["return_mean"],
            "evaluation_std": evaluation["return_std"],
            "training_return": metrics[-1]["episode_return"],
            "training_return_at": training_returns(metrics, {each.steps for each in row.published}),
            "env_steps": metrics[-1]["env_steps"],
            "seconds": seconds,
            "versions": {"Python": platform.python_version()} | _installed(PACKAGES),
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


def _installed(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those of these packages that are there."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


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
    """Add the new results to learning.json, write the table, and draw those curves of these rows that are there."""
    output.mkdir(parents=True, exist_ok=True)
    file = output / "learning.json"
    found: Figures = json.loads(file.read_text()) if file.exists() else {}
    for row in rows:
        files = [path for seed in range(row.seeds) if (path := _result_file((row, seed), runs)).exists()]
        if not files:
            continue
        command = f"actor-learner {shlex.join(row.command)} --seed N" if row.library == "ours" else "sb3_zoo.py"
        found[row.name] = {"command": command, **pack([json.loads(path.read_text()) for path in files])}
        runs_of_row = [path.with_suffix("") for path in files]
        if (curve := output / f"{row.slug}.png").exists() and all(run.is_dir() for run in runs_of_row):
            words = ["plot", *map(str, runs_of_row), "--band", "bootstrap", "--output", str(curve)]
            subprocess.run([sys.executable, *COMMAND, *words], check=True, timeout=300)
    file.write_text(text_of(found))
    file.with_suffix(".md").write_text(page(found, output))
    write(counts(found), output / "counts.json")


def pack(seeds: Sequence[Figures]) -> Figures:
    """Return the results of a row's seeds, with what all have in common of their origin apart."""
    common = {name: seeds[0][name] for name in ORIGIN if all(seed.get(name) == seeds[0][name] for seed in seeds)}
    return {"all": common, "seeds": [{name: seed[name] for name in seed if name not in common} for seed in seeds]}


def text_of(found: Figures) -> str:
    """Return JSON with a row a line."""
    lines = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def counts(found: Figures) -> Figures:
    """Return the number of rows of ours; and of those that count, how they compare with what others publish."""
    ours = [result for result in _results(found).values() if result.row.library == "ours"]
    sums = {"same": _verdicts(ours, "same"), "any": _verdicts(ours, "any")}
    return {"rows": len(ours)} | {name: {verdict: len(rows) for verdict, rows in sums[name].items()} for name in sums}


def page(found: Figures, folder: Path) -> str:
    """Return the results as Markdown: a summary, a section for each environment, and the whole table.

    folder: of the curves; most rows have none.
    """
    results = _results(found)
    environments: dict[str, list[_Result]] = {}
    for result in results.values():
        environments.setdefault(result.row.env, []).append(result)
    seeds = [seed for result in results.values() for seed in result.seeds]
    used = sorted({", ".join(f"{k} {v}" for k, v in seed["versions"].items()) for seed in seeds})
    lines = [
        "# Returns that the presets reach, beside published ones",
        "",
        "This page shows the returns of the presets beside published returns. All figures are of final weights, never",
        "of the best ones.",
        "",
        "## Summary",
        "",
        *_summary(environments),
        "",
        "## Methods",
        "",
        *PUBLISHED["methods"].strip().splitlines(),
        "",
        "## Sources",
        "",
        *("- [{name}]({address}), read {read}: {of}.".format(**each) for each in PUBLISHED["sources"]),
        "",
        *PUBLISHED["not_read"].strip().splitlines(),
        "",
        "## Environments",
        "",
        *(line for env, own in environments.items() for line in _section(env, own, folder)),
        "## All results",
        "",
        '<details markdown="1"><summary>The whole table</summary>',
        "",
        *table(HEADER, (_table_row(result, found[name]["command"]) for name, result in results.items())),
        "",
        "</details>",
        "",
        "Versions of the packages:",
        "",
        *(f"- {versions}" for versions in used),
    ]
    return "\n".join(lines) + "\n"


class _Difference(NamedTuple):
    """Ours less a published return, its 95% interval, and the probability that a run of ours is better than theirs."""

    middle: float
    low: float
    high: float
    better: float | None = None
    seeds: int = MIN_SEEDS

    @property
    def verdict(self) -> str:
        if self.seeds < MIN_SEEDS:
            return "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return "at least" if self.low >= 0 else "less" if self.high < 0 else "open"

    def __str__(self) -> str:
        interval = f" [{_number(self.low)}, {_number(self.high)}]" if self.seeds > 1 else ""
        better = "" if self.better is None else f", P {self.better:.2f}"
        return f"{self.verdict}: {_number(self.middle)}{interval}{better}"


class _Result:
    """A row with its seeds' results: the interquartile mean and its 95% interval, beside what others publish."""

    def __init__(self, row: Row, seeds: Sequence[Figures]) -> None:
        self.row, self.seeds = row, seeds
        self.values = np.array([seed["evaluation_mean"] for seed in seeds])
        self.middle = float(interquartile_mean(self.values[:, None])[0])
        self.low, self.high = (float(end[0]) for end in bootstrap_interval(self.values[:, None]))
        self.steps = max(seed["env_steps"] for seed in seeds)
        self.same, self.any = (each and self.less(each) for each in (row.same, row.any))

    def less(self, published: Published) -> _Difference:
        """Return the difference to a published return: of means if the source has the deviation of its seeds."""
        value, ours = published.value, len(self.values)
        if not published.spread or ours == 1:
            return _Difference(self.middle - value, self.low - value, self.high - value, seeds=ours)
        errors = self.values.var(ddof=1) / ours, published.spread**2 / published.seeds
        freedom = sum(errors) ** 2 / (errors[0] ** 2 / (ours - 1) + errors[1] ** 2 / (published.seeds - 1))
        reach = student_point(freedom) * sum(errors) ** 0.5
        middle = float(self.values.mean()) - value
        theirs = statistics.NormalDist(value, published.spread)
        better = statistics.mean(theirs.cdf(each) for each in self.values.tolist())
        return _Difference(middle, middle - reach, middle + reach, better, ours)

    def __str__(self) -> str:
        interval = f" [{_number(self.low)}, {_number(self.high)}]" if self.values[1:].size else ""
        return f"{_number(self.middle)}{interval}"

    @property
    def compared(self) -> tuple[str, ...]:
        """The cells of COMPARED."""
        rival = f"{self.row.any}: {self.any.verdict}" if self.any else ""
        return str(self.row.same or ""), str(self.same or ""), rival

    @property
    def label(self) -> str:
        """The algorithm with its variant, and the library if it isn't ours."""
        if self.row.library == "ours":
            return ", ".join(filter(None, (algorithm_title(self.row.algorithm), self.row.variant)))
        return f"{self.row.library.upper()}'s {algorithm_title(self.row.algorithm)}, Zoo's settings"


def student_point(freedom: float) -> float:
    """Return the point below which 97.5% of Student's t distribution lies."""
    points = np.linspace(0, 100, 1_000_001)
    density = (1 + points**2 / freedom) ** (-(freedom + 1) / 2)
    whole = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) * math.sqrt(freedom * math.pi)
    return float(points[np.searchsorted((density.cumsum() - (density + 1) / 2) * points[1], 0.475 * whole)])


def _results(found: Figures) -> dict[str, _Result]:
    return {
        row.name: _Result(row, [{**found[row.name]["all"], **seed} for seed in found[row.name]["seeds"]])
        for row in ROWS
        if row.name in found
    }


def _verdicts(ours: Sequence[_Result], which: str) -> dict[str, list[_Result]]:
    """Return the results that count, on TensorFlow, at the preset's lag: all, and by their verdict."""
    other = {"--backend", "--max-policy-lag"}
    preset = (each for each in ours if len(each.seeds) >= MIN_SEEDS and not other.intersection(each.row.options))
    compared = [result for result in preset if getattr(result, which)]
    found = {name: [each for each in compared if getattr(each, which).verdict == name] for name in VERDICTS}
    return {"all": compared, **found, "middle": [each for each in found["open"] if getattr(each, which).middle >= 0]}


def _sentence(which: str, verdicts: Mapping[str, Sequence[_Result]]) -> str:
    least, open_, less = (len(verdicts[name]) for name in VERDICTS)
    missed = ", ".join(f"`{result.row.name}`" for result in verdicts["less"])
    return (
        f"{len(verdicts['all'])} rows stand beside a return of **{which}** at as many steps. Against the strongest of "
        f"these, ours is at least as high in {least}, open in {open_} (in {len(verdicts['middle'])} of them our middle "
        f"is at or above it), and less in {less}{f' ({missed})' if missed else ''}."
    )


def _summary(environments: Mapping[str, Sequence[_Result]]) -> list[str]:
    """Return how the rows compare with what others publish, and a table of environments and algorithms."""
    ours = [result for own in environments.values() for result in own if result.row.library == "ours"]
    algorithms = list(dict.fromkeys(result.row.algorithm for result in ours))
    rows = []
    for env, own in environments.items():
        first: dict[str, _Result] = {}
        for result in sorted(own, key=lambda result: (result.row.library != "ours", bool(result.row.variant))):
            first.setdefault(result.row.algorithm, result)
        anchor = re.sub(r"[^\w-]", "", env.lower())
        rows.append(
            (
                f"[{env.removeprefix('actor_learner/')}](#{anchor})",
                *(_cell(first.get(name)) for name in algorithms),
            )
        )
    return [
        f"Of our rows on TensorFlow, at the preset's `max_policy_lag`, with {MIN_SEEDS} seeds or more:",
        "",
        f"- {_sentence('the same algorithm', _verdicts(ours, 'same'))}",
        f"- {_sentence('any algorithm', _verdicts(ours, 'any'))}",
        "",
        *PUBLISHED["rule"].strip().splitlines(),
        "",
        *table(("environment", *map(algorithm_title, algorithms)), rows),
    ]


def _cell(result: _Result | None) -> str:
    if result is None:
        return ""
    seeds = "" if len(result.seeds) >= MIN_SEEDS else f", {len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}"
    mark = {"at least": "**", "less": "_"}.get(result.same.verdict if result.same else "", "")
    return f"{mark}{_number(result.middle)}{mark} ({_short(result.steps)}{seeds})"


def _section(env: str, results: Sequence[_Result], folder: Path) -> list[str]:
    """Return an environment's section: its results, notes, and the curves that are there."""
    rows = [
        (result.label, f"{result.steps:,}", str(len(result.seeds)), str(result), *result.compared) for result in results
    ]
    notes: dict[str, list[str]] = {}
    for result in results:
        if result.row.note:
            notes.setdefault(result.row.note, []).append(result.label)
    curves = [result for result in results if (folder / f"{result.row.slug}.png").exists()]
    return [
        f"### {env}",
        "",
        *table(("training", "env steps", "seeds", "return", *COMPARED), rows),
        "",
        *(f"- {', '.join(labels)}: {note}." for note, labels in notes.items()),
        *([""] if notes else []),
        *(f"![Return over env steps: {curve.label}]({curve.row.slug}.png)\n" for curve in curves),
    ]


def _number(value: float) -> str:
    """Format a return to a tenth; a fraction below 10 to a hundredth."""
    return f"{value:,.1f}" if abs(value) >= 10 or value == round(value) else f"{value:.2f}"


def _short(steps: int) -> str:
    return f"{steps / 1e6:.2g}M" if steps >= 1e6 else f"{steps // 1000}k"


def _table_row(result: _Result, command: str) -> tuple[str, ...]:
    row, seeds = result.row, result.seeds
    mean = _number(result.values.mean())
    digits = len(mean.partition(".")[2])
    spread = f" +- {statistics.stdev(result.values.tolist()):,.{digits}f}" if result.values[1:].size else ""
    others = [each for each in row.published if each.algorithm == row.algorithm and each != row.same]
    made = {f"{seed['date']}, {seed['commit']}, {seed['machine'].partition(' of ')[2]}" for seed in seeds}
    return (
        f"`{command.removeprefix('actor-learner ')}`"
        if row.library == "ours"
        else f"{row.library.upper()}, Zoo's settings: {row.env}/{row.algorithm}",
        f"{result.steps:,}",
        str(len(seeds)),
        str(result),
        f"{mean}{spread}",
        _number(statistics.mean(seed["training_return"] for seed in seeds)),
        *result.compared,
        "; ".join(_compare_with(each, row, seeds) for each in others),
        f"{statistics.mean(seed['seconds'] for seed in seeds):,.0f}",
        "; ".join(sorted(made)),
    )


def _compare_with(published: Published, row: Row, seeds: Sequence[Figures]) -> str:
    """Return a published return; if it was reached at other steps, with these, and ours in training at that step."""
    if published.steps == row.steps:
        return str(published)
    ours = [seed["training_return_at"].get(str(published.steps)) for seed in seeds]
    known = [value for value in ours if value is not None]
    return f"{published} ({_short(published.steps)}{f'; ours then {_number(statistics.mean(known))}' if known else ''})"
