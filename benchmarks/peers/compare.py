"""Speed, memory and start-up beside other libraries, each in a virtual environment of its own.

    scripts/measure peers --rounds 5 --output benchmarks/peers/peers.json     # all works, all peers: 50 minutes
    scripts/measure peers --works cartpole --peers sb3 sbx --rounds 3

Environment, batch, minibatch and epochs are the same for all. Each peer, and ours at lag 0 and 1, is first run at each
of its settings (threads of the peers, actors of ours), then at the better one in rounds, in random order within each.
A run is measured for some seconds after its first two updates. Peers that can't be installed, or that fail, are told of
in a line, and the others go on. The work "solve" is CartPole-v1 with everyone's own settings, from the start of the
process to a mean return of 475 over the last 100 training episodes. A table is written beside the JSON file, as .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.peers.known import OURS, OWN_WORKS, PEERS
from benchmarks.peers.runs import Peer, Run, RunFailedError, run_peer
from benchmarks.peers.table import table
from benchmarks.peers.venvs import NotInstallableError, prepare, versions
from benchmarks.works import WORKS, Work

ROOT = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("actor-learner", "tensorflow", "keras", "gymnasium", "ale-py", "mujoco")
GOAL = 475
ALL_WORKS = {**WORKS, **OWN_WORKS}
SOLVE = "solve"
SOLVE_DEADLINE = 75.0
TRIAL_SECONDS = 1.0
Found = dict[str, Any]


def main() -> None:
    """Measures work after work, and writes what is there after each."""
    arguments = _parser().parse_args()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that the run that is on is killed
    pythons, installed, failures = prepare_all(arguments.peers, arguments.venvs)
    found = _read(arguments.output)
    found |= {"versions": found.get("versions", {}) | installed, "not_installed": failures}
    chance = random.Random(arguments.seed)
    for name in arguments.works:
        origin = {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["scripts/measure peers", *sys.argv[1:]]),
            "machine": machine(),
        }
        if name == SOLVE:
            found[SOLVE] = {**origin, **solve(pythons, arguments.seeds, chance)}
        else:
            found.setdefault("works", {})[name] = {**origin, **compare(name, pythons, arguments, chance)}
        found["worker_memory"] = found.get("worker_memory", {}) or worker_memory(pythons)
        if arguments.output:
            arguments.output.write_text(json.dumps(found, indent=1) + "\n")
            arguments.output.with_suffix(".md").write_text(table(found))
    if not arguments.output:
        print(table(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/measure peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    works = [*ALL_WORKS, SOLVE]
    parser.add_argument("--works", nargs="+", choices=works, default=works)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="that a run is measured (default: 3)")
    parser.add_argument("--threads", type=int, help="of the peers; none are tried out then")
    parser.add_argument("--seeds", type=int, default=3, help='of the work "solve" (default: 3)')
    parser.add_argument("--seed", type=int, default=0, help="of the order within a round")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-peers", help="folder of the virtual environments")
    parser.add_argument("--output", type=Path, help="JSON file; works that it has already stay unless measured again")
    return parser


def prepare_all(names: Iterable[str], folder: Path) -> tuple[dict[str, Path], Found, dict[str, str]]:
    """The interpreters of ours and of these peers, what is installed there, and why others have none."""
    pythons = {name: Path(sys.executable) for name in OURS}
    installed: Found = {"ours": {name: importlib.metadata.version(name) for name in OWN_PACKAGES}}
    failures: dict[str, str] = {}
    for name in names:
        try:
            python = prepare(str(PEERS[name].venv), folder)
            installed[name] = versions(python, PEERS[name].packages)
            pythons[name] = python
        except NotInstallableError as error:
            failures[name] = str(error)
            print(f"{PEERS[name].title} is left out, it can't be installed: {error}", flush=True)
    return pythons, installed, failures


def compare(name: str, pythons: dict[str, Path], arguments: argparse.Namespace, chance: random.Random) -> Found:
    """All peers that do this work, alternated, each at its better setting."""
    everyone = {key: peer for key, peer in {**OURS, **PEERS}.items() if key in pythons and name in peer.works}
    failures: dict[str, str] = {}
    settings: dict[str, Found] = {}
    for key, peer in everyone.items():
        try:
            settings[key] = better_setting(key, peer, pythons[key], name, arguments.threads)
        except RunFailedError as error:
            failures[key] = _told(name, peer, error)
    runs: dict[str, list[Found | None]] = {key: [] for key in settings}
    for turn in range(arguments.rounds):
        for key in chance.sample(list(settings), len(settings)):
            runs[key].append(None)
            if key in failures:
                continue
            task = {**dataclasses.asdict(ALL_WORKS[name]), **settings[key], "seconds": arguments.seconds, "seed": turn}
            try:
                runs[key][-1] = figures(run_peer(everyone[key], pythons[key], task))
            except RunFailedError as error:
                failures[key] = _told(name, everyone[key], error)
                continue
            print(f"{name}, round {turn + 1}: {everyone[key].title} {runs[key][-1]['speed']:,.0f} steps/s", flush=True)
    return {"work": dataclasses.asdict(ALL_WORKS[name]), "settings": settings, "runs": runs, "failures": failures}


_better: dict[tuple[str, str], Found] = {}
"""Settings that were found out, by peer and work."""


def better_setting(key: str, peer: Peer, python: Path, name: str, threads: int | None) -> Found:
    """The one of its settings at which a short run was faster. Raises RunFailedError if it fails at all of them.

    A peer's threads are found out once for all works with vectors, on the quickest of them.
    """
    settings = peer_settings(peer, threads)
    if len(settings) == 1:
        return settings[0]
    if peer.venv is not None and not ALL_WORKS[name].env.startswith("ALE/"):
        name = "cartpole64"
    if (key, name) in _better:
        return _better[key, name]
    speeds: list[tuple[float, Found]] = []
    for setting in settings:
        task = {**dataclasses.asdict(ALL_WORKS[name]), **setting, "seconds": TRIAL_SECONDS}
        try:
            speeds.append((run_peer(peer, python, task).speed, setting))
        except RunFailedError as error:
            failure = error
    if not speeds:
        raise failure
    _better[key, name] = max(speeds, key=lambda pair: pair[0])[1]
    return _better[key, name]


def peer_settings(peer: Peer, threads: int | None) -> list[Found]:
    """What is tried: one actor or one for each core, of ours; one thread or all, of the peers."""
    cores = len(os.sched_getaffinity(0))
    if peer.settings is not None:
        return list(peer.settings)
    if peer.venv is None:
        return [{"actors": 2}] if threads else [{"actors": count} for count in sorted({1, min(cores, 8), 2})]
    return [{"threads": threads}] if threads else [{"threads": count} for count in sorted({1, cores})]


def figures(run: Run) -> Found:
    """Of a run, for the JSON file."""
    return {"speed": run.speed, "start_up": run.start_up, "updates": len(run.ticks), "memory": run.memory}


def worker_memory(pythons: dict[str, Path]) -> Found:
    """Of a worker process of the peers that can have some, and by default step environments in their one process."""
    found: Found = {}
    for key, peer in PEERS.items():
        if key in pythons and peer.with_processes:
            task = {**dataclasses.asdict(Work("CartPole-v1", 2, 256, 64, 2, 1)), "seconds": 1.0, "processes": True}
            try:
                found[key] = run_peer(peer, pythons[key], task).memory
            except RunFailedError as error:
                _told("worker processes", peer, error)
    return found


def solve(pythons: dict[str, Path], seeds: int, chance: random.Random) -> Found:
    """Seconds from the start of the process to the goal, for each seed; null where it wasn't reached."""
    everyone = {key: peer for key, peer in {**OURS, **PEERS}.items() if key in pythons and peer.solves}
    seconds: dict[str, list[float | None]] = {key: [] for key in everyone}
    steps: dict[str, list[int | None]] = {key: [] for key in everyone}
    failures: dict[str, str] = {}
    for seed in range(seeds):
        for key in chance.sample(list(everyone), len(everyone)):
            peer, task = everyone[key], {"goal": GOAL, "seed": seed}
            try:
                run = run_peer(peer, pythons[key], task, SOLVE_DEADLINE)
            except RunFailedError as error:
                failures[key] = _told(SOLVE, peer, error)
                seconds[key].append(None)
                steps[key].append(None)
                continue
            seconds[key].append(run.reached(GOAL))
            steps[key].append(run.ticks[-1][1] if seconds[key][-1] is not None else None)
            print(f"{SOLVE}, seed {seed}: {peer.title} {seconds[key][-1]} s", flush=True)
    return {"goal": GOAL, "seconds": seconds, "env_steps": steps, "failures": failures}


def _told(what: str, peer: Peer, error: Exception) -> str:
    """The line that says why a peer failed, printed and kept."""
    print(f"{what}: {peer.title} failed, the others go on: {error}", flush=True)
    return str(error)


def _read(file: Path | None) -> Found:
    return dict(json.loads(file.read_text())) if file is not None and file.exists() else {}


if __name__ == "__main__":
    main()
