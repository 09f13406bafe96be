"""The cost of what a run does beside training: the live view, TensorBoard's event files, the supervision of actors.

    scripts/measure overhead view --output benchmarks/overhead/view.json      # one run by the clock, then 20 pairs
    scripts/measure overhead tensorboard --pairs 0 --histogram-updates 100    # the first alone, with histograms
    scripts/measure overhead watching --against ../older-checkout             # pairs: here / another checkout

The first run counts the CPU time of the threads that do it; the pairs compare whole runs of CartPole-v1's preset with
it and without. `watching` is heartbeats, the check for hung actors, checkpoints and memory figures.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import pkgutil
import statistics
import struct
import tempfile
import termios
import threading
import time
import timeit
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import (
    ROOT,
    Found,
    cpu_seconds,
    in_turns,
    make_parser,
    origin,
    ratio_of,
    run_python,
    time_python,
)

COLUMNS, ROWS = 100, 30
_WHOLE_RUN = """
import actor_learner as al, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    config = al.preset("CartPole-v1", quiet=True, run_dir=folder + "/run", total_steps=int(sys.argv[1]))
    al.train(config)
"""


def main() -> None:
    parser = make_parser("overhead", __doc__ or "", steps=400_000, pairs=20)
    parser.add_argument("subject", choices=tuple(TIMED))
    parser.add_argument("--histogram-updates", type=int, help="of `tensorboard`: updates between two histograms")
    parser.add_argument("--against", type=Path, help="of `watching`: another checkout, for the pairs")
    parser.add_argument("--child", choices=("with", "without"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        arguments.output.write_text(json.dumps(train(arguments)))
        return
    found: Found = {**origin(parser), "by_clock": run_child(arguments, "with")}
    if arguments.pairs and (arguments.subject != "watching" or arguments.against):
        found["pairs"] = {"pairs": arguments.pairs, **compare(arguments)}
    harness.report(found, arguments.output)


class Stopwatch:
    """The CPU time that threads spend in some functions, by part; calls within one another count once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._thread = threading.local()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            depth = getattr(self._thread, "depth", 0)
            self._thread.depth, started = depth + 1, time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self._thread.depth = depth
                self.calls[function.__name__] += 1
                self.seconds[part] += time.thread_time() - started if depth == 0 else 0.0

        return timed


_PROGRESS, _EVENT_FILE = "actor_learner.reports.progress:Progress", "actor_learner.runs.tensorboard:EventFile"
TIMED = {
    "view": (
        ("drawing", _PROGRESS, "_draw_repeatedly"),
        ("drawing", "actor_learner.reports.displays:Terminal", "draw"),
        ("learner's thread", _PROGRESS, "update"),
    ),
    "tensorboard": tuple(
        ("event files", _EVENT_FILE, method) for method in ("__init__", "append", "append_histograms", "flush", "close")
    ),
    "watching": (
        ("hung actors", "actor_learner.actors.processes.group:ProcessActors", "tick"),
        ("checkpoints", "actor_learner.runs.recorder:Recorder", "checkpoint"),
        ("memory", "actor_learner.system.memory:MemorySampler", "metrics"),
    ),
}
"""The timed methods of each subject, with the part that they count for."""


def train(arguments: argparse.Namespace) -> Found:
    """Train in this process, whose terminal the view draws on; return figures."""
    import actor_learner as al

    subject, wanted = arguments.subject, arguments.child == "with"
    stopwatch = Stopwatch()
    for part, name, method in TIMED[subject]:
        owner = pkgutil.resolve_name(name)
        setattr(owner, method, stopwatch.timed(part, getattr(owner, method)))
    changes: Found = {"quiet": subject != "view" or not wanted}
    if subject == "tensorboard":
        changes |= {"tensorboard": wanted, "histogram_updates": arguments.histogram_updates}
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset("CartPole-v1", run_dir=f"{folder}/run", total_steps=arguments.steps, **changes)
        started, wall = cpu_seconds(), time.monotonic()
        result = al.train(config)
        total, wall = cpu_seconds() - started, time.monotonic() - wall
        size = sum(file.stat().st_size for file in Path(folder, "run").glob("events.out.tfevents.*"))
    spent = dict(stopwatch.seconds)
    if subject == "watching":
        spent["heartbeats"] = arguments.steps / max(config.env_counts) * heartbeat_seconds()
    updates = result.metrics["updates"]
    return {
        "what": f"CartPole-v1's preset, {arguments.steps:,} steps, {changes}",
        "updates": updates,
        "seconds": round(wall, 2),
        "cpu_seconds": round(total, 2),
        "cpu_seconds_of_parts": {name: round(value, 4) for name, value in spent.items()},
        "percent_of_the_run": {name: round(100 * value / total, 3) for name, value in spent.items()},
        "percent_together": round(100 * sum(spent.values()) / total, 3),
        **({"frames": stopwatch.calls["draw"]} if subject == "view" else {}),
        **({"bytes_per_update": round(size / updates)} if subject == "tensorboard" else {}),
    }


def heartbeat_seconds() -> float:
    """Time the two writes to shared memory that an actor makes in each env step; median of 20 loops."""
    import numpy as np

    loops, names = 100_000, {"beat": np.zeros(8, np.int64).data}
    options = {"setup": "beats = 0", "timer": time.thread_time, "repeat": 20, "number": loops, "globals": names}
    written, empty = (
        statistics.median(timeit.repeat(statement, **options))
        for statement in ("beat[0] = beats + 1; beats += 2; beat[0] = beats", "pass")
    )
    return (written - empty) / loops


def run_child(arguments: argparse.Namespace, kind: str) -> Found:
    """Train in a process of its own, on a pseudo-terminal."""
    with tempfile.TemporaryDirectory() as folder, pseudo_terminal() as (terminal, text):
        output = Path(folder, "figures.json")
        words = [arguments.subject, "--child", kind, "--steps", arguments.steps, "--output", output]
        if arguments.histogram_updates is not None:
            words += ["--histogram-updates", arguments.histogram_updates]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        try:
            run_python(["-m", "benchmarks", "overhead", *words], environment={"TERM": "xterm-256color"}, **streams)
        except harness.RunFailedError:
            harness.tell(text[-2000:].decode(errors="replace"))
            raise
        figures: Found = json.loads(output.read_text())
    return figures


@contextlib.contextmanager
def pseudo_terminal() -> Iterator[tuple[int, bytearray]]:
    """Open a terminal; yield it, and the text that it gets."""

    def read_all() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(controller, 65536):
                text.extend(part)

    text = bytearray()
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        yield terminal, text
    finally:
        os.close(terminal)
        reader.join()
        os.close(controller)


def compare(arguments: argparse.Namespace) -> Found:
    """Return the ratios of the CPU and wall-clock seconds of whole runs: with / without, or here / there."""
    if arguments.against:
        checkouts = {"here": ROOT, "there": arguments.against.resolve()}
        words = ["-c", _WHOLE_RUN, arguments.steps]
        runs = {name: functools.partial(time_python, words, path=path) for name, path in checkouts.items()}
    else:
        runs = {kind: functools.partial(run_child, arguments, kind) for kind in ("with", "without")}
    found = in_turns(runs, arguments.pairs)
    these, others = found.values()
    return {
        "what": " / ".join(runs),
        **{
            name: ratio_of([run[name] for run in these], [run[name] for run in others])._asdict()
            for name in ("cpu_seconds", "seconds")
        },
    }
