"""Kills the learner's process at random moments, from its start on, and looks for what it leaves behind.

    scripts/measure soak --what learner --times 100

Two programs alternate: a run to its end that writes a checkpoint after each update, and a pool whose actors sleep in
env.step, spin in C with the interpreter's lock, and are stopped. Each actor has a child process, like a simulator.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults.stamped import MISDEEDS, Board
from benchmarks.harness import Figures, child_environment, tell
from benchmarks.processes import Child, command_line, find_marked

PROGRAMS = ("train", "stuck")
GONE_SECONDS = 2.0
_ACTORS = 4
_STUCK = ("hang", "spin", "stop itself")
_MAX_LIFE_SECONDS = 120.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def soak(folder: Path, arguments: argparse.Namespace) -> Figures:
    """Kill the learner so many times. Returns figures, and what was left behind as "problems"."""
    lives = {program: _lifetime(folder / f"whole-{program}", program) for program in PROGRAMS}
    chance, killed, problems, seconds = random.Random(arguments.seed), Counter[str](), [], []
    phases = Counter[str]()
    for attempt in itertools.count():
        program = PROGRAMS[attempt % len(PROGRAMS)]
        moment = chance.uniform(0, lives[program])
        learner = Learner(folder / str(attempt), program)
        learner.wait_for_end(moment)
        processes, was_alive = len(find_marked(learner.mark)), learner.process.poll() is None
        learner.process.kill()
        gone, left = learner.leftovers()
        problems += [f"{program} killed after {moment:.2f} s: {thing}" for thing in left]
        if was_alive:
            seconds.append(gone)
            killed[program] += 1
            phases[_phase(processes)] += 1
        tell(f"{attempt:4} {program:6} {moment:6.2f} s: {processes} processes, gone after {gone:.3f} s")
        if killed.total() >= arguments.times:
            break
    return {
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
        return "no actors"
    return "all actors and simulators" if processes >= 2 + 2 * _ACTORS else "some of the actors"


class Learner(Child):
    """A process that runs one of the programs."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        for name in ("tmp", "cwd", "run"):
            (folder / name).mkdir(parents=True)
        self._shared = set(_SHARED_MEMORY.iterdir())
        command = [sys.executable, "-m", "benchmarks.faults.soak_learner", program, folder]
        environment = child_environment(changes={"TMPDIR": str(folder / "tmp")})
        super().__init__(command, folder / "output", environment, cwd=folder / "cwd")

    def leftovers(self) -> tuple[float, list[str]]:
        """Return the seconds until all of its processes were gone after the kill, and what is left."""
        since = time.monotonic()
        self.process.wait()
        while (alive := find_marked(self.mark)) and time.monotonic() < since + 2 * GONE_SECONDS:
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


def _lifetime(folder: Path, program: str) -> float:
    """Time a program to its end, or until all its actors are stuck, and a second more."""
    learner, board = Learner(folder, program), folder / "board"
    learner.wait_until(lambda: program == "stuck" and _are_stuck(board), _MAX_LIFE_SECONDS)
    life = time.monotonic() - learner.started
    code = learner.process.poll()
    learner.process.kill()
    _, problems = learner.leftovers()
    if code != (0 if program == "train" else None) or problems:
        printed = (folder / "output").read_text(errors="replace")
        raise RuntimeError(f"The program {program} itself failed: {code=}, {problems=}\n{printed}")
    return life + (program == "stuck")


def _are_stuck(board: Path) -> bool:
    return board.exists() and Board(board).words[:, Board.TAKEN].sum() == len(_STUCK)


def main() -> None:
    """Run a program in this process: `train` to its end, `stuck` until it is killed."""
    import actor_learner as al
    from benchmarks.faults.chaos import make_network
    from benchmarks.faults.stamped import StampedCartPole

    program, folder = sys.argv[1], Path(sys.argv[2])
    if program == "train":
        settings = {"num_actors": _ACTORS, "max_policy_lag": 1, "total_steps": 20_000, "checkpoint_updates": 1}
        network = {"network": make_network, "run_dir": folder / "run", **settings}
        config = al.preset("CartPole-v1").replace(env=StampedCartPole, env_kwargs={"simulator": True}, **network)
        al.train(config)
        return
    board = Board(folder / "board", _ACTORS)
    for actor, misdeed in enumerate(_STUCK, start=1):
        board.words[actor, Board.COMMAND] = 1 + MISDEEDS.index(misdeed)
    kwargs = {"board": str(folder / "board"), "simulator": True}
    with al.ActorPool(StampedCartPole, make_network, env_kwargs=kwargs, num_actors=_ACTORS, logs_dir=folder) as actors:
        actors.collect(timeout=None)


if __name__ == "__main__":
    main()
