"""The speed of this working tree beside a commit's, in turns: the ratio, with an interval.

    scripts/measure speed --against v0.1.0          # two minutes
    scripts/measure speed --against HEAD~3 --works halfcheetah dqn sac preset:CartPole-v1 --rounds 10

Works (benchmarks/works.py) are compared on env steps per second at max_policy_lag=1, `dqn` and `sac` on gradient steps
per second, and `preset:ENV` on env steps per second of `actor-learner train ENV`, from the command's start to its end.
`actor-learner benchmark` measures a work beside its roof.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from actor_learner.runs.recorded_config import git_commit, provenance
from benchmarks.harness import ROOT, Figures, RunFailedError, make_parser, origin, ratio_of, run_in_turns, write
from benchmarks.works import REPLAY_WORKS, WORKS, rate, train_rows

UPDATES = {"cartpole": 12, "cartpole64": 200, "halfcheetah": 6, "pong": 5}
PRESET = "preset:"
PACKAGES = {"actor_learner": "actor_learner", "actor_learner_envs": "envs"}  # the folder of each in the repository


def main() -> None:
    parser = make_parser("speed", __doc__ or "", rounds=5)
    known = ", ".join((*WORKS, *REPLAY_WORKS, f"{PRESET}ENV"))
    parser.add_argument("--works", nargs="+", metavar="WORK", default=["cartpole", "cartpole64"], help=f"of {known}")
    parser.add_argument("--against", metavar="GIT_REF", default="HEAD", help="the commit (default: HEAD)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"`rounds` must be at least 1. Received: rounds={arguments.rounds}")
    for work in arguments.works:
        if work not in (*WORKS, *REPLAY_WORKS) and not work.startswith(PRESET):
            parser.error(f"`works` must be of {known}. Received: {work!r}")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        trees = trees_of(arguments.against, Path(folder))
        works = {name: compare(name, **trees, rounds=arguments.rounds) for name in arguments.works}
    against = {"ref": arguments.against, "commit": commit_of(arguments.against)}
    source = {**origin(parser), **provenance(), "git": git_commit(ROOT), "rounds": arguments.rounds}
    write({**source, "against": against, "works": works}, arguments.output)


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


class UnknownRefError(RunFailedError):
    """There is no such commit."""


def commit_of(ref: str, repository: Path = ROOT) -> str:
    """Return the commit of a name. Raises UnknownRefError, in one line."""
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{commit}")
    if found.returncode:
        raise UnknownRefError(
            f"there is no such commit, branch or tag; `git log` and `git branch -a` list them. Received: {ref!r}"
        )
    return found.stdout.decode().strip()


def trees_of(ref: str | None, folder: Path) -> dict[str, Path]:
    """Make folders with the packages as they are now, "here", and, with a ref, as they were at that commit, "there"."""
    trees = {"here": working_tree(folder / "here")}
    return {**trees, "there": tree_of(commit_of(ref), folder / "there")} if ref else trees


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
