"""The parts that all measuring programs share: arguments, origin, child processes, turns, ratios, files and tables."""

from __future__ import annotations

import argparse
import datetime
import inspect
import itertools
import json
import os
import queue
import resource
import shlex
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from actor_learner.reports.curves import bootstrap_interval
from actor_learner.system.machine import available_cores, cpu_model

ROOT = Path(__file__).resolve().parents[1]
CHILD_SECONDS = 900.0
MAX_LINE = 120  # characters, in JSON files
Figures = dict[str, Any]
K, T = TypeVar("K"), TypeVar("T")

_HELP = {
    "works": "the workloads to measure (benchmarks/works.py)",
    "rounds": "how often everything is measured, in turns",
    "runs": "runs to take the median of",
    "steps": "env steps of each run",
    "seconds": "seconds of each measurement",
    "minutes": "minutes to measure",
    "gradient_steps": "gradient steps of each run",
    "batches": "batches in each round",
    "env": "environment id",
    "actors": "actor processes",
    "num_actors": "actor processes",
    "lag": "max_policy_lag",
    "networks": "the networks to measure, one or several",
    "precisions": "the precisions to measure, one or several",
    "seed": "seed of everything random",
    "seeds": "seeds of each kind of run: 0, 1, ...",
    "fault_every": "seconds between faults, on average",
    "algorithm": "algorithm of the run",
    "actor_timeout": "seconds after which a silent actor is replaced",
    "kills": "how often the run is killed",
    "tiers": "the tiers of scripts/test to try, the smaller one first",
}
"""The help of each flag that has a default."""

_CHOICES = ("works", "networks", "precisions")
"""The flags whose default is all that there is."""


class RunFailedError(RuntimeError):
    """A child process failed; the message is one line."""


def make_parser(topic: str, doc: str, output: str = "JSON file to write", **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser: `--output`, and a flag for each default; lists take several values, in `_CHOICES` no others."""
    form, doc = argparse.RawDescriptionHelpFormatter, inspect.cleandoc(doc)
    parser = argparse.ArgumentParser(prog=f"scripts/measure {topic}", description=doc, formatter_class=form)
    for name, default in defaults.items():
        several = isinstance(default, (tuple, list))
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default[0] if several else default),
            nargs="+" if several else None,
            choices=default if name in _CHOICES else None,
            default=default,
            help=f"{_HELP[name]} (default: {' '.join(map(str, default)) if several else default})",
        )
    parser.add_argument("--output", type=Path, help=output)
    return parser


def origin(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> Figures:
    """Return the date, command and machine of a measurement. words: the arguments, by default this process's."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": f"{parser.prog} {shlex.join(sys.argv[1:] if words is None else words)}".strip(),
        "machine": f"{available_cores()} cores of {cpu_model()}",
    }


def report(found: Mapping[str, Any], output: Path | None = None, *, leave_out: Iterable[str] = ()) -> None:
    """Print figures as JSON, without some long ones, and write all of them to a file."""
    print(layout({name: value for name, value in found.items() if name not in leave_out}), flush=True)
    write(found, output)


def write(found: Mapping[str, Any], output: Path | None, page: str = "") -> None:
    """Write figures to a JSON file, and their page in Markdown beside it; do nothing without a file."""
    if output:
        output.write_text(layout(found) + "\n")
    if output and page:
        output.with_suffix(".md").write_text(page)


def layout(value: Any, indent: str = "") -> str:
    """Return JSON whose objects and lists are on one line where they fit, and numbers fill their lines."""
    line = json.dumps(value)
    if len(indent) + len(line) <= MAX_LINE or not isinstance(value, (Mapping, list, tuple)):
        return line
    inner = indent + " "
    if isinstance(value, Mapping):
        parts = [f"{json.dumps(str(key))}: {layout(each, inner)}" for key, each in value.items()]
    elif all(isinstance(each, (int, float)) for each in value):
        parts = [f"\n{inner}".join(textwrap.wrap(line[1:-1], MAX_LINE - len(inner)))]
    else:
        parts = [layout(each, inner) for each in value]
    return f"{line[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{line[-1]}"


def tell(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Return `{"num_actors": 2}` as `["--num-actors", "2"]`."""
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def run_python(
    words: Iterable[Any],
    *,
    path: Path = ROOT,
    environment: Mapping[str, str | None] | None = None,
    seconds: float = CHILD_SECONDS,
    python: str = sys.executable,
    **streams: Any,
) -> str:
    """Run Python in a process of its own and return what it prints. Raises RunFailedError.

    path: the folder to import the project from. environment: variables to set, or with None to leave out.
    streams: arguments of `subprocess.run` that replace the captured streams.
    """
    command = [python, "-P", *map(str, words)]
    captured = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    name = " ".join(command[3:6]) if command[2] == "-m" else command[2]
    try:
        done = subprocess.run(
            command, env=child_environment(path, environment), text=True, timeout=seconds, check=False, **captured
        )
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"{name} failed: it hadn't ended after {seconds:g} s") from None
    if done.returncode:
        lines = (done.stderr or "").strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunFailedError(f"{name} failed: {lines[-1]}")
    return str(done.stdout)


def child_environment(path: Path = ROOT, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the environment of a child that imports the project from `path`; variables that are None are left out."""
    own = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(path), **(changes or {})}
    return {name: value for name, value in own.items() if value is not None}


def time_python(words: Iterable[Any], **options: Any) -> dict[str, float]:
    """Return the wall-clock and CPU seconds of Python in a process of its own. options: of `run_python`."""
    started, cpu = time.monotonic(), children_cpu_seconds()
    run_python(words, **options)
    return {"seconds": time.monotonic() - started, "cpu_seconds": children_cpu_seconds() - cpu}


def run_on_core(
    core: int, words: Sequence[str], python: Path | str = sys.executable, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with `words` on one core, where TensorFlow uses one thread. options: of `subprocess.run`."""
    pinned = f"import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", pinned, str(python), *words]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **options)


def map_on_cores(run: Callable[[int, K], T], jobs: Iterable[K], at_once: int | None = None) -> list[T]:
    """Call `run(core, job)` for all jobs, so many at a time, by default one for each core; the first jobs first."""
    cores = sorted(os.sched_getaffinity(0))
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in itertools.islice(itertools.cycle(cores), at_once or len(cores)):
        free.put(core)

    def run_job(job: K) -> T:
        core = free.get()
        try:
            return run(core, job)
        finally:
            free.put(core)

    with ThreadPoolExecutor(at_once or len(cores)) as threads:
        return list(threads.map(run_job, jobs))


def run_in_turns(runs: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Call all, round after round, every second round in reverse order, and return the results by name."""
    found: dict[K, list[T]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            found[name].append(runs[name]())
        tell(f"round {turn + 1} of {rounds}")
    return found


class Ratio(NamedTuple):
    """The median of the rounds' ratios, and its 95% interval (bootstrap over the rounds)."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def ratio_of(these: Sequence[float], others: Sequence[float]) -> Ratio:
    """Return these / others, round by round, so that what slows a round down slows both."""
    ratios = [this / other for this, other in zip(these, others, strict=True)]
    low, high = bootstrap_interval(np.log(ratios)[:, None])
    return Ratio(statistics.median(ratios), float(np.exp(low[0])), float(np.exp(high[0])))


def medians(rows: Sequence[Mapping[str, float]], digits: int | None = None) -> dict[str, float]:
    """Return the median of each figure over the rows, rounded to so many digits."""
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return found if digits is None else {name: round(value, digits) for name, value in found.items()}


def children_cpu_seconds() -> float:
    """Return the CPU time of this process's ended children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(header)} |", "|-" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
