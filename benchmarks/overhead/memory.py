"""The memory of the learner and of each actor over a run of CartPole-v1's preset: does it grow?

    scripts/measure memory --output benchmarks/overhead/memory.json --picture docs/pictures/memory.svg    # 20 minutes

Of each process: resident memory, its share (PSS), and anonymous memory, which the picture shows; of the learner also
what malloc has allocated. Growth is from the end of the first fifth, when all is compiled, to the end. For Linux.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import actor_learner as al
from benchmarks.harness import Figures, make_parser, origin, report, svg_figure
from benchmarks.processes import growth, memory_of

ENDLESS = 10**12


class Sampler(al.callbacks.Callback):  # type: ignore[misc]
    """Measures the processes from time to time, and ends the run when its time is up."""

    def __init__(self, minutes: float, seconds: float) -> None:
        super().__init__()
        self._length, self._seconds = 60 * minutes, seconds
        self._began = self._due = 0.0
        self.minutes: list[float] = []
        self.samples: dict[str, list[dict[str, float]]] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
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
        self.samples["learner"][-1]["allocated"] = allocated_megabytes()


class _Allocated(ctypes.Structure):
    """The `struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def allocated_megabytes() -> float:
    """Return the MB of 10^6 bytes that this process has allocated with malloc."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocated
    found = mallinfo()
    return (found.uordblks + found.hblkhd) / 1e6


def main() -> None:
    parser = make_parser("memory", __doc__ or "", minutes=20.0, seconds=10.0)
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    arguments = parser.parse_args()
    sampler = Sampler(arguments.minutes, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset("CartPole-v1", total_steps=ENDLESS, callbacks=[sampler], run_dir=f"{folder}/run", quiet=True)
        result = al.train(config)
    sizes = {name: [round(one["anonymous"], 2) for one in samples] for name, samples in sampler.samples.items()}
    found: Figures = {
        **origin(parser),
        "minutes": arguments.minutes,
        "updates": result.metrics["updates"],
        "env_steps": result.metrics["env_steps"],
        "processes": {name: growth(samples) for name, samples in sampler.samples.items()},
        "anonymous_mb": sizes,
        "learner_allocated_mb": [round(one["allocated"], 2) for one in sampler.samples["learner"]],
        "at_minutes": [round(minute, 2) for minute in sampler.minutes],
    }
    report(found, arguments.output, leave_out=("anonymous_mb", "learner_allocated_mb", "at_minutes"))
    if arguments.picture:
        draw(found["at_minutes"], sizes, arguments.picture)


def draw(minutes: Sequence[float], sizes: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw the learner above the actors, each from 0 on."""
    figure, (learner, actors) = svg_figure("memory", 2, (6.4, 4.4), sharex=True)
    for name, values in sizes.items():
        (learner if name == "learner" else actors).plot(minutes[: len(values)], values, label=name)
    for axes in (learner, actors):
        axes.set(ylabel="MB")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", ncols=4)
    actors.set_xlabel("minutes")
    figure.savefig(path, metadata={"Date": None})
