#!/usr/bin/env python3
"""Speed as ratios that can be compared between machines and commits.

    scripts/measure speed                           # three minutes; the result stays in benchmarks/speed/history/
    scripts/measure speed --against v0.1.0          # this working tree and that commit, in turns; two minutes
    scripts/measure speed --against HEAD~3 --works halfcheetah pong --rounds 10

For each work (benchmarks/works.py, max_policy_lag=1): ours against a loop in plain NumPy and TensorFlow
(reference_loop.py, CartPole alone), in turns, each run in a process of its own and counted from the end of its
first updates; and ours against the roof of this machine, by `actor-learner benchmark`. Steps per second are written
beside the ratios, and mean little elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from actor_learner.runs.provenance import git_commit, provenance
from benchmarks.speed.ratios import ratio_of
from benchmarks.speed.trees import ROOT, UnknownRefError, commit_of, tree_of, working_tree
from benchmarks.works import WORKS, Work

HISTORY = ROOT / "benchmarks/speed/history"
REFERENCE = Path(__file__).with_name("reference_loop.py")
ACTORS = 2
UPDATES = {"cartpole": 12, "cartpole64": 200, "halfcheetah": 6, "pong": 5}
REFERENCE_UPDATES = {"cartpole": 1, "cartpole64": 40}
_SECONDS = 600.0
Found = dict[str, Any]


class RunFailedError(RuntimeError):
    """A run gave no figure; says why in a line."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(words)
    if given.rounds < 1:
        _refuse(f"`rounds` must be at least 1. Received: rounds={given.rounds}")
    if given.output or given.against is None:
        _check_folder(given.output or HISTORY)
    try:
        commit = None if given.against is None else commit_of(given.against)
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            here = working_tree(Path(folder, "here"))
            if commit is None:
                found = {"works": {name: measure(name, here, given.rounds) for name in given.works}}
            else:
                there = tree_of(commit, Path(folder, "there"))
                works = {name: compare(name, here, there, given.rounds) for name in given.works}
                found = {"against": {"ref": given.against, "commit": commit}, "works": works}
    except (UnknownRefError, RunFailedError) as error:
        _refuse(str(error))
    found = {**_origin(words), "rounds": given.rounds, **found}
    if given.output or given.against is None:
        try:
            print(f"written: {os.path.relpath(write(found, given.output or HISTORY))}")
        except OSError as error:
            _refuse(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/measure speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=["cartpole", "cartpole64"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", metavar="GIT_REF", help="measure this commit in turns with the working tree")
    parser.add_argument("--output", type=Path, help="folder to write to (default: benchmarks/speed/history)")
    return parser


def _check_folder(folder: Path) -> None:
    """Refuses a folder that can't be made, or written to; it makes none."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        _refuse(f"`output` must be a folder that can be written. Received: output={str(folder)!r}")


def _refuse(reason: str) -> NoReturn:
    print(f"scripts/measure speed: error: {reason}", file=sys.stderr)
    sys.exit(2)


def _origin(words: Sequence[str]) -> Found:
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["scripts/measure speed", *words]),
        **provenance(),
        "git": git_commit(ROOT),
        "reference_loop_sha256": hashlib.sha256(REFERENCE.read_bytes()).hexdigest(),
    }


def measure(name: str, tree: Path, rounds: int) -> Found:
    """A work against the reference loop, where that does it, and against the roof."""
    found: Found = {}
    if name in REFERENCE_UPDATES:
        ours, theirs = in_turns(lambda: run_ours(name, tree), lambda: run_reference(name), rounds)
        ratio = ratio_of(ours, theirs)
        print(f"{name}: ours / reference loop = {ratio}", flush=True)
        found = {"ours_over_reference": ratio._asdict(), "steps_per_second": {"ours": ours, "reference": theirs}}
    roof = run_roof(name, tree, rounds)
    print(f"{name}: ours / roof = {roof['ratio']:.3f}", flush=True)
    return {**found, "ours_over_roof": roof["ratio"], "roof": roof}


def compare(name: str, here: Path, there: Path, rounds: int) -> Found:
    """A work in two trees, in turns."""
    ours, theirs = in_turns(lambda: run_ours(name, here), lambda: run_ours(name, there), rounds)
    ratio = ratio_of(ours, theirs)
    print(f"{name}: here / there = {ratio}; {statistics.median(ours):,.0f} steps/s here", flush=True)
    return {"here_over_there": ratio._asdict(), "steps_per_second": {"here": ours, "there": theirs}}


def in_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Both, round after round; whoever begins changes, so that neither always has the warmer machine."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            found[which].append((first, second)[which]())
    return found


def settings(work: Work) -> list[str]:
    """A work as flags of the command line."""
    flags = {
        "preset": "none",
        "num-actors": ACTORS,
        "envs-per-actor": work.envs // ACTORS,
        "unroll-length": work.unroll_length,
        "max-policy-lag": 1,
        "minibatch-size": work.minibatch_size,
        "epochs": work.epochs,
        "env-kwargs": json.dumps(dict(work.env_kwargs)),
        **{name.replace("_", "-"): value for name, value in work.changes.items()},
    }
    return [work.env, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def run_ours(name: str, tree: Path) -> float:
    """Env steps per second of a training run by the packages in `tree`, after its first two updates.

    The second one's batch is collected while the first is compiled.
    """
    work = WORKS[name]
    steps = work.batch_size * (2 + UPDATES[name])
    with tempfile.TemporaryDirectory(prefix="run-", dir=tree.parent) as folder:
        run = Path(folder, "run")
        words = [*settings(work), "--quiet", "--total-steps", str(steps), "--run-dir", str(run)]
        _python(tree, "-m", "actor_learner.cli", "train", *words)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[1], rows[-1]
    return float((last["env_steps"] - first["env_steps"]) / (last["time_seconds"] - first["time_seconds"]))


def run_reference(name: str) -> float:
    """Env steps per second of the reference loop."""
    work = WORKS[name]
    numbers = {
        "envs": work.envs,
        "unroll-length": work.unroll_length,
        "minibatch-size": work.minibatch_size,
        "epochs": work.epochs,
        "updates": REFERENCE_UPDATES[name],
    }
    words = [word for flag, number in numbers.items() for word in (f"--{flag}", str(number))]
    return float(json.loads(_python(None, str(REFERENCE), *words))["steps_per_second"])


def run_roof(name: str, tree: Path, rounds: int) -> Found:
    """What `actor-learner benchmark --json` says."""
    words = ["--rounds", str(rounds), "--seconds", "0.5", "--json"]
    printed = _python(tree, "-m", "actor_learner.cli", "benchmark", *settings(WORKS[name]), *words)
    found: Found = json.loads(printed)
    return found


def _python(tree: Path | None, *words: str) -> str:
    """What a program prints in a process of its own, which imports the project from `tree`."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    if tree is not None:
        environment["PYTHONPATH"] = str(tree)
    command = [sys.executable, "-P", *words]
    name = words[-1] if tree is None else " ".join(words[1:4])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"{name} failed: it hadn't ended after {_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunFailedError(f"{name} failed: {lines[-1]}")
    return done.stdout


def write(found: Found, folder: Path) -> Path:
    """Writes a new file, `<date>-<commit>.json`; one that is there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    git = found["git"] or {"commit": "unknown", "dirty": False}
    name = f"{found['date']}-{git['commit'][:10]}{'-changed' if git['dirty'] else ''}"
    number = 1
    while True:
        path = folder / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(json.dumps(found, indent=1) + "\n")
        except FileExistsError:
            number += 1
        else:
            return path


if __name__ == "__main__":
    main()
