"""The time from a command to its first update, and from the last update to the end: a timeline of short runs.

    scripts/measure startup --output benchmarks/speed/startup.json     # 2 minutes
    scripts/measure startup --against v0.1.0                           # both in turns: 4 minutes

Each run is `actor-learner train CartPole-v1` in a process of its own, which timeline.py observes; the first of each
isn't counted. Half of the runs find what XLA compiled in the run before ("warm"), half don't ("cold").
"""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
import time
from pathlib import Path

from actor_learner.runs.recorded_config import git_commit
from benchmarks.harness import ROOT, Figures, make_parser, origin, report, run_in_turns, time_python
from benchmarks.speed.speed import trees_of

TIMELINE = Path(__file__).with_name("timeline.py")
COMMANDS = {"import actor_learner": ("-c", "import actor_learner"), "--help": ("-m", "actor_learner.cli", "--help")}
Times = dict[str, list[float]]  # wall and CPU seconds, by name


def main() -> None:
    parser = make_parser("startup", __doc__ or "", env="CartPole-v1", steps=4_000, runs=5)
    parser.add_argument("--against", metavar="GIT_REF", help="compare the working tree with this commit")
    parser.add_argument("flags", nargs="*", help="after --: flags of `actor-learner train`")
    arguments = parser.parse_args()
    words = [arguments.env, "--total-steps", str(arguments.steps), *arguments.flags]
    with tempfile.TemporaryDirectory() as folder:
        trees = trees_of(arguments.against, Path(folder))
        measure = {
            name: functools.partial(time_commands, tree, words, f"{folder}/cache") for name, tree in trees.items()
        }
        found = run_in_turns(measure, arguments.runs + 1)
    what = (
        f"actor-learner train {' '.join(words)}: medians of {arguments.runs} runs, seconds since the process started, "
        "and CPU seconds of that process by then"
    )
    figures = {name: medians(rounds[1:]) for name, rounds in found.items()}
    report({"what": what, **origin(parser), "git": git_commit(ROOT), **figures}, arguments.output)


def medians(rounds: list[Times]) -> Figures:
    """Return the median of each time."""
    found = {}
    for name in rounds[0]:
        wall, cpu = (statistics.median(times[name][clock] for times in rounds) for clock in (0, 1))
        found[name] = {"seconds": round(wall, 3), "cpu_seconds": round(cpu, 3)}
    return found


def time_commands(tree: Path, words: list[str], cache: str) -> Times:
    """Time the short commands, a run with what XLA compiled before, and one without."""
    found = {name: _time(tree, *command) for name, command in COMMANDS.items()}
    for kind in ("warm", "cold"):
        with tempfile.TemporaryDirectory() as folder:
            marks = Path(folder, "marks.json")
            command = [TIMELINE, marks, *words, "--run-dir", f"{folder}/run"]
            whole = _time(tree, *command, ACTOR_LEARNER_CACHE=cache if kind == "warm" else "")
            timeline = {**json.loads(marks.read_text()), "end": whole}
        found |= {f"{kind}: {name}": seconds for name, seconds in timeline.items()}
    return found


def _time(tree: Path, *words: object, **environment: str) -> list[float]:
    environment["STARTED"] = str(time.monotonic())
    return list(time_python(words, path=tree, environment=environment).values())
