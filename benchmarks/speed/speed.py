"""The speed as ratios that can be compared between machines and commits.

    scripts/measure speed                           # three minutes; the result stays in benchmarks/speed/history/
    scripts/measure speed --against v0.1.0          # this working tree and that commit, in turns; two minutes
    scripts/measure speed --against HEAD~3 --works halfcheetah dqn sac preset:CartPole-v1 --rounds 10

Each work (benchmarks/works.py, max_policy_lag=1) is compared, in turns, with a loop in plain NumPy and TensorFlow
(reference_loop.py, CartPole alone; pinned by its hash, hence the old paths in its docstring), and with the roof. Two
commits are compared on gradient steps per second of `dqn` and `sac`, too, and on `preset:ENV`: env steps per second of
`actor-learner train ENV`, from the command's start to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from actor_learner.runs.provenance import git_commit, provenance
from benchmarks import harness
from benchmarks.harness import ROOT, Figures, make_parser, origin, ratio_of, run_in_turns, run_python
from benchmarks.works import REPLAY_WORKS, WORKS, rate, train_rows

HISTORY = ROOT / "benchmarks/speed/history"
REFERENCE = Path(__file__).with_name("reference_loop.py")
UPDATES = {"cartpole": 12, "cartpole64": 200, "halfcheetah": 6, "pong": 5}
PRESET = "preset:"
REFERENCE_UPDATES = {"cartpole": 1, "cartpole64": 40}
PACKAGES = {"actor_learner": "actor_learner", "actor_learner_envs": "envs"}  # the folder of each in the repository


def main(words: Sequence[str] | None = None) -> None:
    place = f"folder to write to (default: {HISTORY.relative_to(ROOT)})"
    parser = make_parser("speed", __doc__ or "", output=place, rounds=5)
    known = ", ".join((*WORKS, *REPLAY_WORKS, f"{PRESET}ENV"))
    parser.add_argument("--works", nargs="+", metavar="WORK", default=["cartpole", "cartpole64"], help=f"of {known}")
    parser.add_argument("--against", metavar="GIT_REF", help="compare the working tree with this commit")
    words = sys.argv[1:] if words is None else list(words)
    arguments = parser.parse_args(words)

    def refuse(reason: str) -> NoReturn:
        parser.exit(2, f"{parser.prog}: error: {reason}\n")

    if arguments.rounds < 1:
        refuse(f"`rounds` must be at least 1. Received: rounds={arguments.rounds}")
    for work in arguments.works:
        if work not in WORKS and (arguments.against is None or not (work in REPLAY_WORKS or work.startswith(PRESET))):
            refuse(f"`works` must be of {known}, with `--against` if not of {', '.join(WORKS)}. Received: {work!r}")
    folder = arguments.output or (HISTORY if arguments.against is None else None)
    if folder and not _is_writable(folder):
        refuse(f"`output` must be a folder that can be written. Received: output={str(folder)!r}")
    try:
        found = _measure_all(arguments)
    except (UnknownRefError, harness.RunFailedError) as error:
        refuse(str(error))
    sha256 = hashlib.sha256(REFERENCE.read_bytes()).hexdigest()
    source = {**origin(parser, words), **provenance(), "git": git_commit(ROOT), "reference_loop_sha256": sha256}
    if folder:
        try:
            print(f"written: {os.path.relpath(write({**source, 'rounds': arguments.rounds, **found}, folder))}")
        except OSError as error:
            refuse(str(error))


def _is_writable(folder: Path) -> bool:
    """Return whether a folder can be written, or made; makes none."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _measure_all(arguments: argparse.Namespace) -> Figures:
    commit = None if arguments.against is None else commit_of(arguments.against)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        here = working_tree(Path(folder, "here"))
        if commit is None:
            return {"works": {name: measure(name, here, arguments.rounds) for name in arguments.works}}
        there = tree_of(commit, Path(folder, "there"))
        works = {name: compare(name, here, there, arguments.rounds) for name in arguments.works}
        return {"against": {"ref": arguments.against, "commit": commit}, "works": works}


def measure(name: str, tree: Path, rounds: int) -> Figures:
    """Compare a work with the reference loop, where that loop can do it, and with the roof."""
    found: Figures = {}
    if name in REFERENCE_UPDATES:
        runs = {"ours": lambda: run_ours(name, tree), "reference": lambda: run_reference(name)}
        speeds = run_in_turns(runs, rounds)
        ratio = ratio_of(speeds["ours"], speeds["reference"])
        print(f"{name}: ours / reference loop = {ratio}", flush=True)
        found = {"ours_over_reference": ratio._asdict(), "steps_per_second": speeds}
    options = {"max_policy_lag": 1, "rounds": rounds, "seconds": 0.5}
    words = ["-m", "actor_learner.cli", "benchmark", *WORKS[name].words(**options), "--json"]
    limit = json.loads(run_python(words, path=tree))
    print(f"{name}: ours / roof = {limit['ratio']:.3f}", flush=True)
    return {**found, "ours_over_roof": limit["ratio"], "roof": limit}


def compare(name: str, here: Path, there: Path, rounds: int) -> Figures:
    """Compare a work in two trees, in turns."""
    speeds = run_in_turns({"here": lambda: run_ours(name, here), "there": lambda: run_ours(name, there)}, rounds)
    ratio = ratio_of(speeds["here"], speeds["there"])
    print(f"{name}: here / there = {ratio}; {statistics.median(speeds['here']):,.0f} steps/s here", flush=True)
    return {"here_over_there": ratio._asdict(), "steps_per_second": speeds}


def run_ours(name: str, tree: Path) -> float:
    """Return env steps per second, or gradient steps per second, of a training run by the packages in `tree`."""
    if name in WORKS:
        return WORKS[name].train(UPDATES[name], tree, max_policy_lag=1)
    if name in REPLAY_WORKS:
        return rate(train_rows(REPLAY_WORKS[name], tree), "gradient_steps")
    started = time.monotonic()
    rows = train_rows([name.removeprefix(PRESET)], tree)
    return rows[-1]["env_steps"] / (time.monotonic() - started)


def run_reference(name: str) -> float:
    """Return env steps per second of the reference loop."""
    work = WORKS[name]
    numbers = {key: getattr(work, key) for key in ("envs", "unroll_length", "minibatch_size", "epochs")}
    words = harness.flag_words({**numbers, "updates": REFERENCE_UPDATES[name]})
    return float(json.loads(run_python([REFERENCE, *words]))["steps_per_second"])


def write(found: Figures, folder: Path) -> Path:
    """Write a new file, `<date>-<commit>.json`; a file of that name stays, and the new one gets a number."""
    folder.mkdir(parents=True, exist_ok=True)
    git = found["git"] or {"commit": "unknown", "dirty": False}
    name = f"{found['date']}-{git['commit'][:10]}{'-changed' if git['dirty'] else ''}"
    for number in itertools.count(1):
        path = folder / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
        with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=1) + "\n")
            return path
    raise AssertionError


class UnknownRefError(ValueError):
    """There is no such commit."""


def commit_of(ref: str, repository: Path = ROOT) -> str:
    """Return the commit of a name. Raises UnknownRefError, in one line."""
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{commit}")
    if found.returncode:
        raise UnknownRefError(
            f"there is no such commit, branch or tag; `git log` and `git branch -a` list them. Received: {ref!r}"
        )
    return found.stdout.decode().strip()


def working_tree(folder: Path, repository: Path = ROOT) -> Path:
    """Make a folder with links to the packages as they are now."""
    folder.mkdir()
    for package, source in PACKAGES.items():
        (folder / package).symlink_to(repository / source)
    return folder


def tree_of(commit: str, folder: Path, repository: Path = ROOT) -> Path:
    """Make a folder with the packages of a commit; the repository doesn't refer to it."""
    archive = _git(repository, "archive", "--format=tar", commit, *PACKAGES.values())
    if archive.returncode:
        raise UnknownRefError(f"that commit has no {' and '.join(PACKAGES.values())}. Received: {commit!r}")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    for package, source in PACKAGES.items():
        if package != source:
            (folder / source).rename(folder / package)
    return folder


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, check=False)


def roof() -> None:
    """Measure the speed against the roof on the four works, at lag 0 and 1: `actor-learner benchmark` for each.

    scripts/measure roof --output benchmarks/speed/roof.json    # six minutes
    scripts/measure roof --works cartpole pong --lags 1
    """
    parser = make_parser(
        "roof", roof.__doc__ or "", works=list(WORKS), lags=[1, 0], num_actors=2, rounds=5, seconds=1.0
    )
    arguments = parser.parse_args()
    result: Figures = {**origin(parser), "works": {}}
    for name in arguments.works:
        for lag in arguments.lags:
            flags = {"max_policy_lag": lag, "rounds": arguments.rounds, "seconds": arguments.seconds}
            words = ["benchmark", *WORKS[name].words(arguments.num_actors, **flags), "--json"]
            found = json.loads(run_python(["-m", "actor_learner.cli", *words], seconds=1800, stderr=sys.stderr))
            result["works"].setdefault(name, {})[f"lag {lag}"] = found
            print(_roof_line(name, lag, found), flush=True)
            harness.write(result, arguments.output)


def _roof_line(name: str, lag: int, found: Figures) -> str:
    cores = {part: share for part, share in found["cores"].items() if part != "count" and share >= 0.01}
    shares = ", ".join(f"{part} {share:.0%}" for part, share in cores.items())
    slower = ", ".join(f"{part} {factor:.2f}x" for part, factor in found["slower_than_alone"].items())
    return (
        f"{name:11} lag {lag}: {found['achieved_steps_per_second']:>9,.0f} / {found['roof_steps_per_second']:>9,.0f} = "
        f"{found['ratio']:.1%}, limit {found['limit']}; cores: {shares}; slower than alone: {slower}"
    )
