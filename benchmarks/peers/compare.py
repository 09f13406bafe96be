"""Speed, memory and start-up beside other libraries, each in a virtual environment of its own.

    scripts/measure peers --rounds 5 --output benchmarks/peers/peers.json     # all works, all peers: 50 minutes
    scripts/measure peers --works cartpole --peers sb3 sbx --rounds 3
    scripts/measure peers --works cartpole64 --peers cleanrl_jax --backend jax --output benchmarks/peers/peers-jax.json

Environment, batch, minibatch and epochs are the same for all. Each library first runs at all its settings, then at the
better one in rounds. A table is written beside the JSON file, as .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import ROOT, Figures, RunFailedError, make_parser, origin, write
from benchmarks.peers.libraries import OURS, PEERS, NotInstallableError, Peer, prepare, versions
from benchmarks.peers.runs import Run, run_peer
from benchmarks.peers.table import page
from benchmarks.works import ALL_WORKS, Work

OWN_PACKAGES = ("actor-learner", "tensorflow", "jax", "keras", "gymnasium", "ale-py", "mujoco")
ALL_PEERS = {**OURS, **PEERS}
TRIAL_SECONDS = 1.0


def main() -> None:
    parser = make_parser("peers", __doc__ or "", works=list(ALL_WORKS), rounds=5, seconds=3.0, seed=0)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--threads", type=int, help="threads of the peers (default: the faster of one and all)")
    parser.add_argument("--backend", choices=("tensorflow", "jax"), help="Keras's backend for ours")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-peers", help="folder of the virtual environments")
    arguments = parser.parse_args()
    if arguments.backend:
        os.environ["KERAS_BACKEND"] = arguments.backend
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that the present run is killed
    pythons, installed, failures = prepare_all(arguments.peers, arguments.venvs)
    output = arguments.output
    found: Figures = json.loads(output.read_text()) if output and output.exists() else {}
    found |= {"versions": found.get("versions", {}) | installed, "not_installed": failures}
    chance = random.Random(arguments.seed)
    for name in arguments.works:
        figures = compare(name, pythons, arguments, chance)
        found.setdefault("works", {})[name] = {**origin(parser), **figures}
        found["worker_memory"] = found.get("worker_memory", {}) or worker_memory(pythons)
        write(found, output, page(found))
    if not output:
        print(page(found))


def prepare_all(names: Iterable[str], folder: Path) -> tuple[dict[str, Path], Figures, dict[str, str]]:
    """Return the interpreters of ours and of these peers, the installed versions, and the peers' failures."""
    pythons = {name: Path(sys.executable) for name in OURS}
    own = [name for name in OWN_PACKAGES if name != "jax" or os.environ.get("KERAS_BACKEND") == "jax"]
    installed: Figures = {"ours": {name: importlib.metadata.version(name) for name in own}}
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


def compare(name: str, pythons: dict[str, Path], arguments: argparse.Namespace, chance: random.Random) -> Figures:
    """Measure all libraries that can do this work, in turns, each at its better setting."""
    peers = {key: peer for key, peer in ALL_PEERS.items() if key in pythons and name in peer.works}
    work = dataclasses.asdict(ALL_WORKS[name])
    failures: dict[str, str] = {}
    settings: dict[str, Figures] = {}
    for key in peers:
        if setting := choose_setting(key, pythons[key], name, arguments.threads, failures):
            settings[key] = setting
    runs: dict[str, list[Figures | None]] = {key: [] for key in settings}
    for turn in range(arguments.rounds):
        for key in chance.sample(list(settings), len(settings)):
            runs[key].append(None)
            if key in failures:
                continue
            task = {**work, **settings[key], "seconds": arguments.seconds, "seed": turn}
            if run := attempt(name, key, pythons[key], task, failures):
                runs[key][-1] = run.figures()
                print(f"{name}, round {turn + 1}: {peers[key].title} {run.speed:,.0f} steps/s", flush=True)
    return {"work": work, "settings": settings, "runs": runs, "failures": failures}


def attempt(what: str, key: str, python: Path, task: Figures, failures: dict[str, str]) -> Run | None:
    """Run a library; print a failure, add it to `failures` and return None."""
    try:
        return run_peer(ALL_PEERS[key], python, task)
    except RunFailedError as error:
        print(f"{what}: {ALL_PEERS[key].title} failed, the others continue: {error}", flush=True)
        failures[key] = str(error)
        return None


_best_settings: dict[tuple[str, str], Figures] = {}
"""The better setting, by peer and work."""


def choose_setting(key: str, python: Path, name: str, threads: int | None, failures: dict[str, str]) -> Figures | None:
    """Return the setting at which a short run is fastest, of a peer the same for all works with vectors."""
    peer = ALL_PEERS[key]
    settings = peer_settings(peer, threads)
    if len(settings) == 1:
        return settings[0]
    if peer.venv is not None and not ALL_WORKS[name].env.startswith("ALE/"):
        name = "cartpole64"
    if (key, name) in _best_settings:
        return _best_settings[key, name]
    speeds: list[tuple[float, Figures]] = []
    reasons: dict[str, str] = {}
    for setting in settings:
        task = {**dataclasses.asdict(ALL_WORKS[name]), **setting, "seconds": TRIAL_SECONDS}
        if run := attempt(name, key, python, task, reasons):
            speeds.append((run.speed, setting))
    if not speeds:
        failures |= reasons
        return None
    _best_settings[key, name] = max(speeds, key=lambda pair: pair[0])[1]
    return _best_settings[key, name]


def peer_settings(peer: Peer, threads: int | None) -> list[Figures]:
    """Return the settings to try: one actor, two or one for each core, of ours; one thread or all, of the peers."""
    cores = len(os.sched_getaffinity(0))
    if peer.settings:
        return list(peer.settings)
    if peer.venv is None:
        return [{"actors": count} for count in ([2] if threads else sorted({1, min(cores, 8), 2}))]
    return [{"threads": count} for count in ([threads] if threads else sorted({1, cores}))]


def worker_memory(pythons: dict[str, Path]) -> Figures:
    """Measure a worker process of those peers that step environments in their own process by default."""
    found: Figures = {}
    for key, peer in PEERS.items():
        if key in pythons and peer.with_processes:
            task = {**dataclasses.asdict(Work("CartPole-v1", 2, 256, 64, 2, 1)), "seconds": 1.0, "processes": True}
            if run := attempt("worker processes", key, pythons[key], task, {}):
                found[key] = run.memory
    return found
