#!/usr/bin/env python3
"""Where the time goes between a command and its first update, and after the last one: a timeline of short runs.

    scripts/measure startup --output benchmarks/speed/startup.json     # 2 minutes
    scripts/measure startup --against ../older-checkout          # both, alternated: 4 minutes

Each run is `actor-learner train CartPole-v1` in a process of its own; what it does is noted where a function of it ends
for the first time. The files are in the page cache: the first run of each checkout isn't counted. Half of the runs have
what XLA compiled in the one before ("warm"), half have no such cache ("cold").
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEFORE_TENSORFLOW = {
    "actor_learner.system.keras_import:import_keras": "TensorFlow and Keras imported",
    "actor_learner.cli:parse": "command read",
    "actor_learner.actors.group:ProcessActors.spaces": "actors ready",
    "actor_learner.actors.pool:_build_network": "network built",
    "actor_learner.actors.pool:_export": "policy exported",
    "actor_learner.actors.pool:ActorPool.__init__": "actors begun",
    "actor_learner.actors.pool:ActorPool.collect": "first batch",
    "actor_learner.reports.progress:Progress.update": "first progress line",
    "actor_learner.runs.recorder:Recorder.checkpoint": "first checkpoint",
    "actor_learner.runs.recorder:Recorder.close": "last update, last checkpoint",
    "actor_learner.train:_save": "network and policy saved",
}
WITH_TENSORFLOW = {
    "actor_learner.learner.update:Update.__call__": "update traced",
    "actor_learner.learner:Learner.update": "first update done",
}
COMMANDS = {"import actor_learner": ("-c", "import actor_learner"), "--help": ("-m", "actor_learner.cli", "--help")}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="after --: flags of `actor-learner train`")
    arguments = parser.parse_args()
    if arguments.child:
        run_here(Path(arguments.child), arguments.flags)
        return
    checkouts = [ROOT, *([arguments.against.resolve()] if arguments.against else [])]
    with tempfile.TemporaryDirectory() as arguments.cache:
        figures = measure(checkouts, arguments)
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


def measure(checkouts: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of all that is measured, by checkout."""
    from benchmarks.machine import machine

    found: dict[Path, dict[str, list[list[float]]]] = {checkout: {} for checkout in checkouts}
    for number in range(arguments.runs + 1):
        order = random.Random(number).sample(checkouts, len(checkouts))
        for checkout in order:
            seen = {**run_commands(checkout), **run(checkout, arguments, "warm"), **run(checkout, arguments, "cold")}
            for name, seconds in seen.items() if number else ():
                found[checkout].setdefault(name, []).append(seconds)
        print(f"run {number} of {arguments.runs}: {time.strftime('%T')}", file=sys.stderr, flush=True)
    command = " ".join(["train", arguments.env, "--total-steps", str(arguments.steps), *arguments.flags])
    return {
        "what": f"actor-learner {command}: medians of {arguments.runs} runs, seconds since the process started, and "
        "CPU seconds of that process by then",
        "machine": machine(),
        "date": time.strftime("%F"),
        **{
            commit(checkout): {name: medians(seconds) for name, seconds in found[checkout].items()}
            for checkout in checkouts
        },
    }


def medians(seconds: list[list[float]]) -> dict[str, float]:
    """Of pairs of wall and CPU seconds."""
    wall, cpu = zip(*seconds, strict=True)
    return {"seconds": round(statistics.median(wall), 3), "cpu_seconds": round(statistics.median(cpu), 3)}


def commit(checkout: Path) -> str:
    """What a checkout is called."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_commands(checkout: Path) -> dict[str, list[float]]:
    """Commands that are to be quick."""
    return {name: _timed(checkout, list(command)) for name, command in COMMANDS.items()}


def run(checkout: Path, arguments: argparse.Namespace, kind: str) -> dict[str, list[float]]:
    """The timeline of a run, with what XLA compiled in earlier ones ("warm") or without ("cold")."""
    os.environ["ACTOR_LEARNER_CACHE"] = arguments.cache if kind == "warm" else ""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks.json")
        flags = [arguments.env, "--total-steps", str(arguments.steps), "--run-dir", f"{folder}/run", *arguments.flags]
        whole = _timed(checkout, [__file__, "--child", str(marks), "--", *flags])
        timeline = {**json.loads(marks.read_text()), "end": whole}
        return {f"{kind}: {name}": seconds for name, seconds in timeline.items()}


def _timed(checkout: Path, command: list[str]) -> list[float]:
    """Wall and CPU seconds of a process and its children."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment["STARTED"] = str(time.monotonic())
    before = _children_cpu()
    subprocess.run([sys.executable, "-P", *command], env=environment, check=True, stdout=subprocess.DEVNULL)
    return [time.monotonic() - float(environment["STARTED"]), _children_cpu() - before]


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_here(output: Path, flags: list[str]) -> None:
    """Trains in this process, and writes when each thing was done for the first time: wall and CPU seconds."""
    started = float(os.environ["STARTED"])
    marks: dict[str, list[float]] = {}

    def note(name: str) -> None:
        marks.setdefault(name, [time.monotonic() - started, time.process_time()])

    note("interpreter")
    for place, name in BEFORE_TENSORFLOW.items():
        note_end_of(place, name, note)
    note_end_of("actor_learner.actors.pool:_import_learner_side", "", lambda _: _with_tensorflow(note))
    status = importlib.import_module("actor_learner.cli").main(["train", *flags])
    output.write_text(json.dumps(marks))
    sys.exit(status)


def _with_tensorflow(note: Callable[[str], None]) -> None:
    while WITH_TENSORFLOW:
        note_end_of(*WITH_TENSORFLOW.popitem(), note)


def note_end_of(place: str, name: str, note: Callable[[str], None]) -> None:
    """Notes `name` whenever the function at "module:path" has returned; another version may have none."""
    module, _, path = place.partition(":")
    *parents, last = path.split(".")
    try:
        home: Any = importlib.import_module(module)
        for parent in parents:
            home = getattr(home, parent)
        original = getattr(home, last)
    except (ImportError, AttributeError):
        return

    def noted(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        note(name)
        return result

    setattr(home, last, noted)


if __name__ == "__main__":
    main()
