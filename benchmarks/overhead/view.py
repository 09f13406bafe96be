#!/usr/bin/env python3
"""What the live view costs, in runs of CartPole-v1's preset that draw it on a pseudo-terminal of 100 x 30.

    scripts/measure view --output benchmarks/overhead/view.json    # one run by the clocks of threads, then 20 pairs
    scripts/measure view --pairs 0                        # the first alone

The first counts the CPU time of the thread that draws and of what the learner's thread does for it, as a part of the
run's, actors included. The pairs compare whole runs with the view and with `quiet=True`, both on such a terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.overhead.watching import STEPS, compare, cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 100, 30


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=("view", "quiet"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        arguments.output.write_text(json.dumps(run_here(arguments.steps, quiet=arguments.child == "quiet")))
        return
    figures = {"machine": machine(), "by_clock": run("view", arguments.steps)}
    print(json.dumps(figures, indent=1), flush=True)
    if arguments.pairs:
        figures["pairs"] = pairs(arguments.steps, arguments.pairs)
        print(json.dumps(figures["pairs"], indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


def run_here(steps: int, *, quiet: bool) -> dict[str, Any]:
    """Trains in this process, whose terminal it draws on."""
    import actor_learner as al
    from actor_learner.reports.displays import Terminal
    from actor_learner.reports.progress import Progress

    spent = {"drawing": 0.0, "learner's thread": 0.0}
    frames = [0]
    draw_now_and_then, update, draw = Progress._draw_now_and_then, Progress.update, Terminal.draw

    def timed_thread(self: Progress) -> None:
        draw_now_and_then(self)
        spent["drawing"] = time.thread_time()

    def timed_update(self: Progress, row: Any) -> None:
        started = time.thread_time()
        update(self, row)
        spent["learner's thread"] += time.thread_time() - started

    def counted_draw(self: Terminal, *arguments: Any) -> None:
        frames[0] += 1
        draw(self, *arguments)

    Progress._draw_now_and_then, Progress.update = timed_thread, timed_update  # type: ignore[method-assign]
    Terminal.draw = counted_draw  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset("CartPole-v1", quiet=quiet, run_dir=f"{folder}/run", total_steps=steps)
        started, wall = cpu_seconds(), time.monotonic()
        al.train(config)
        total, wall = cpu_seconds() - started, time.monotonic() - wall
    return {
        "what": f"CartPole-v1's preset, {steps:,} steps",
        "seconds": round(wall, 2),
        "cpu_seconds": round(total, 2),
        "frames": frames[0],
        "cpu_seconds_of_the_view": {name: round(value, 4) for name, value in spent.items()},
        "percent_of_the_run": round(100 * sum(spent.values()) / total, 3),
    }


def run(kind: str, steps: int) -> dict[str, Any]:
    """The same in a process of its own, on a pseudo-terminal whose output is read and thrown away."""
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    reader = threading.Thread(target=_read_all, args=(controller,))
    reader.start()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        command = [
            sys.executable,
            "-m",
            "benchmarks.overhead.view",
            "--child",
            kind,
            "--steps",
            str(steps),
            "--output",
            str(output),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        subprocess.run(command, env=environment, check=True, stdin=terminal, stdout=terminal, stderr=terminal)
        figures: dict[str, Any] = json.loads(output.read_text())
    os.close(terminal)
    reader.join()
    os.close(controller)
    return figures


def _read_all(controller: int) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while os.read(controller, 65536):
            pass


def pairs(steps: int, count: int) -> dict[str, Any]:
    """CPU and wall seconds of runs with it / without."""
    return {
        "what": f"runs of CartPole-v1's preset, {steps:,} steps, with the view / with quiet=True",
        "pairs": count,
        **compare(lambda kind: run(kind, steps), "view", "quiet", count),
    }


if __name__ == "__main__":
    main()
