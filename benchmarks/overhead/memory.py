#!/usr/bin/env python3
"""Memory of the learner and of each actor over a run of CartPole-v1's preset: does it grow?

    scripts/measure memory --minutes 20 --output benchmarks/overhead/memory.json --picture docs/pictures/memory.svg

Every ten seconds, of each process: what is resident, its share of it (PSS: what n processes map counts 1/n in each),
and what no file stands for, which the picture shows. Of the learner also what is allocated, which tells a leak that
finds room where something was freed before. Growth is from the end of the first fifth, when all is loaded and compiled,
to the end. For Linux with glibc.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import actor_learner as al
from benchmarks.harness import machine
from benchmarks.overhead.memory_growth import growth
from benchmarks.processes import memory_of

ENDLESS = 10**12
Samples = dict[str, list[dict[str, float]]]


class Sampler(al.callbacks.Callback):  # type: ignore[misc]
    """Looks at the processes from time to time, and ends the run when its time is up."""

    def __init__(self, minutes: float, seconds: float) -> None:
        super().__init__()
        self._length, self._seconds = 60 * minutes, seconds
        self._began = self._due = 0.0
        self.minutes: list[float] = []
        self.samples: Samples = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measures where it is time, after an update."""
        now = time.monotonic()
        if not self.samples:  # the first update was compiled meanwhile
            self._began = self._due = now
        if now - self._began >= self._length:
            self.model.stop_training = True
        if now < self._due:
            return
        self._due += self._seconds
        self.minutes.append((now - self._began) / 60)
        pids = {"learner": os.getpid(), **{f"actor {actor}": pid for actor, pid in self.actors.pids.items()}}
        for name, pid in pids.items():
            self.samples.setdefault(name, []).append(memory_of(pid))
        self.samples["learner"][-1]["allocated"] = allocated()


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def allocated() -> float:
    """MB of 10^6 bytes that this process has got from malloc and not given back."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocated
    found = mallinfo()
    return (found.uordblks + found.hblkhd) / 1e6


def main() -> None:
    """Measures, prints and writes."""
    arguments = _parser().parse_args()
    sampler = Sampler(arguments.minutes, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset("CartPole-v1", total_steps=ENDLESS, callbacks=[sampler], run_dir=f"{folder}/run", quiet=True)
        result = al.train(config)
    found = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["scripts/measure memory", *sys.argv[1:]]),
        "machine": machine(),
        "minutes": arguments.minutes,
        "updates": result.metrics["updates"],
        "env_steps": result.metrics["env_steps"],
        "processes": {name: growth(samples) for name, samples in sampler.samples.items()},
    }
    print(json.dumps(found, indent=1))
    found["anonymous_mb"] = {
        name: [round(one["anonymous"], 2) for one in samples] for name, samples in sampler.samples.items()
    }
    found["learner_allocated_mb"] = [round(one["allocated"], 2) for one in sampler.samples["learner"]]
    found["at_minutes"] = [round(minute, 2) for minute in sampler.minutes]
    if arguments.output:
        arguments.output.write_text(json.dumps(found) + "\n")
    if arguments.picture:
        draw(found["at_minutes"], found["anonymous_mb"], arguments.picture)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="between two samples (default: 10)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    return parser


def draw(minutes: Sequence[float], sizes: Mapping[str, Sequence[float]], path: Path) -> None:
    """The learner above, the actors below, each from 0 on."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "memory", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
        figure, (learner, actors) = pyplot.subplots(2, 1, figsize=(6.4, 4.4), sharex=True, layout="constrained")
        for name, values in sizes.items():
            (learner if name == "learner" else actors).plot(minutes[: len(values)], values, label=name)
        for axes in (learner, actors):
            axes.set(ylabel="MB")
            axes.set_ylim(bottom=0)
            axes.legend(loc="lower right", ncols=4)
        actors.set_xlabel("minutes")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
