"""Kills the learner's process at random moments, from its start on, and looks for what it has left behind.

    scripts/measure soak --what learner --times 100

Two programs by turns: a run that writes a checkpoint after each update, to its end, and a pool whose actors sleep in
env.step, spin in C with the interpreter's lock held, and are stopped. Each actor has a child process, like a simulator.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.faults.stamped import MISDEEDS, Board
from benchmarks.processes import command_line, marked

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("train", "stuck")
GONE_SECONDS = 2.0
_ACTORS = 4
_STUCK = ("hang", "spin", "stop itself")
_LONGEST_LIFE = 120.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def soak_learner(folder: Path, times: int, seed: int) -> dict[str, Any]:
    """Kills it so many times. Returns figures, and what was left behind as "problems"."""
    lives = {program: _lifetime(folder / f"whole-{program}", program) for program in PROGRAMS}
    chance, killed, problems, seconds = random.Random(seed), Counter[str](), [], []
    phases = Counter[str]()
    for attempt in itertools.count():
        program = PROGRAMS[attempt % len(PROGRAMS)]
        moment = chance.uniform(0, lives[program])
        learner = Learner(folder / str(attempt), program)
        learner.sleep_until(moment)
        processes, was_alive = learner.processes(), learner.process.poll() is None
        learner.process.kill()
        gone, left = learner.leftovers()
        problems += [f"{program} killed after {moment:.2f} s: {thing}" for thing in left]
        if was_alive:
            seconds.append(gone)
            killed[program] += 1
            phases[_phase(processes)] += 1
        line = f"{attempt:4} {program:6} {moment:6.2f} s: {processes} processes, gone after {gone:.3f} s"
        print(line, file=sys.stderr)
        if killed.total() >= times:
            break
    return {
        "command": "scripts/measure soak " + " ".join(sys.argv[1:]),
        "problems": problems,
        "killed": dict(killed),
        "lifetimes": {program: round(life, 2) for program, life in lives.items()},
        "killed_with": dict(phases),
        "seconds_until_all_were_gone": {
            "median": round(statistics.median(seconds), 3),
            "worst": round(max(seconds), 3),
        },
    }


def _phase(processes: int) -> str:
    if processes <= 1:
        return "no actors, yet or any more"
    return "all actors and simulators" if processes >= 2 + 2 * _ACTORS else "some of the actors"


class Learner:
    """A process that runs one of the programs; it, and all that it starts, bear a mark in their environment."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        for name in ("tmp", "cwd", "run"):
            (folder / name).mkdir(parents=True)
        self._mark = f"SOAK_MARK={uuid.uuid4()}"
        self._shared = set(_SHARED_MEMORY.iterdir())
        name, _, value = self._mark.partition("=")
        with open(folder / "output", "wb") as output:
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.faults.soak_learner", program, folder],
                cwd=folder / "cwd",
                env={**os.environ, "PYTHONPATH": str(ROOT), name: value, "TMPDIR": str(folder / "tmp")},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def sleep_until(self, seconds: float) -> None:
        """Since its start; no longer than it lives."""
        while self.process.poll() is None and time.monotonic() < self.started + seconds:
            time.sleep(0.005)

    def processes(self) -> int:
        """How many there are, itself included."""
        return len(marked(self._mark))

    def leftovers(self) -> tuple[float, list[str]]:
        """After it was killed: seconds until all of its processes were gone, and what is left behind."""
        since = time.monotonic()
        self.process.wait()
        while (alive := marked(self._mark)) and time.monotonic() < since + 2 * GONE_SECONDS:
            time.sleep(0.002)
        gone = time.monotonic() - since
        problems = [f"process {pid} is alive after {gone:.1f} s: {command_line(pid)}" for pid in sorted(alive)]
        if not alive and gone > GONE_SECONDS:
            problems.append(f"its processes were gone only after {gone:.2f} s")
        if more := set(_SHARED_MEMORY.iterdir()) - self._shared:
            problems.append(f"shared memory is left: {sorted(map(str, more))}")
        files = [path for name in ("tmp", "cwd") for path in (self._folder / name).rglob("*")]
        if files:
            problems.append(f"files outside of the run's folder are left: {sorted(map(str, files))}")
        return gone, problems

    def output(self) -> str:
        """What it has printed."""
        return (self._folder / "output").read_text(errors="replace")


def _lifetime(folder: Path, program: str) -> float:
    """Seconds that a program takes to its end, or until all its actors are stuck, and one more."""
    learner, board = Learner(folder, program), folder / "board"
    while learner.process.poll() is None and time.monotonic() < learner.started + _LONGEST_LIFE:
        if program == "stuck" and board.exists() and Board(board).words[:, Board.TAKEN].sum() == len(_STUCK):
            break
        time.sleep(0.02)
    life = time.monotonic() - learner.started
    code = learner.process.poll()
    learner.process.kill()
    _, problems = learner.leftovers()
    if code != (0 if program == "train" else None) or problems:
        raise RuntimeError(f"The program {program} itself failed: {code=}, {problems=}\n{learner.output()}")
    return life + (program == "stuck")


def train(folder: Path) -> None:
    """A run to its end."""
    import actor_learner as al
    from benchmarks.faults.checks import make_network
    from benchmarks.faults.stamped import StampedCartPole

    al.train(
        al.preset("CartPole-v1").replace(
            env=StampedCartPole,
            env_kwargs={"simulator": True},
            network=make_network,
            num_actors=_ACTORS,
            max_policy_lag=1,
            total_steps=20_000,
            checkpoint_updates=1,
            run_dir=folder / "run",
        )
    )


def stuck(folder: Path) -> None:
    """A pool whose actors, all but one, are stuck in their first steps."""
    import actor_learner as al
    from benchmarks.faults.checks import make_network
    from benchmarks.faults.stamped import StampedCartPole

    board = Board(folder / "board", _ACTORS)
    for actor, misdeed in enumerate(_STUCK, start=1):
        board.words[actor, Board.COMMAND] = 1 + MISDEEDS.index(misdeed)
    kwargs = {"board": str(folder / "board"), "simulator": True}
    with al.ActorPool(StampedCartPole, make_network, env_kwargs=kwargs, num_actors=_ACTORS, logs_dir=folder) as actors:
        actors.collect(timeout=None)


if __name__ == "__main__":
    {"train": train, "stuck": stuck}[sys.argv[1]](Path(sys.argv[2]))
