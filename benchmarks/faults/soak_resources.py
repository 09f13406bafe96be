"""Takes away what a run needs: file descriptors and room on the disk.

The full disk is a tmpfs of a few megabytes where this process may mount one (root), else a limit on the size of files.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import resource
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

import actor_learner as al
from actor_learner.runs.checkpoints import newest_whole
from benchmarks.faults.chaos import make_network
from benchmarks.faults.stamped import StampedCartPole
from benchmarks.harness import Figures, tell
from benchmarks.processes import Leftovers

_DISK_BYTES = 24 << 20
_ENVS, _UPDATES, _FULL_FROM, _FULL_TO = 4, 60, 15, 40


class RequirementError(Exception):
    """Something that must hold didn't."""


def soak(folder: Path, _: argparse.Namespace) -> Figures:
    """Run each case. Returns what it reports, and the "problems"."""
    logging.getLogger("actor_learner").addHandler(logging.NullHandler())
    with _pool() as actors:  # what is loaded once is no leak
        actors.collect()
    _train(folder / "first", [], updates=2)
    problems, cases = [], {}
    for case in CASES:
        name, before, started = case.__name__, Leftovers.now(folder / "tmp"), time.monotonic()
        try:
            seen = case(folder)
        except Exception as error:
            seen = {"failed": repr(error)}
            is_requirement = isinstance(error, RequirementError)
            problems.append(f"{name}: {error}" if is_requirement else "".join(traceback.format_exception(error)))
        problems += [f"{name}: {thing}" for thing in Leftovers.now(folder / "tmp").since(before)]
        cases[name] = {"seconds": round(time.monotonic() - started, 1), **seen}
        tell(f"{name}: {cases[name]}")
    return {"problems": problems, "cases": cases}


def descriptors_short_for_ever(_: Path) -> Figures:
    """One error says so."""
    with _pool() as actors, _set_limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1):
        os.kill(actors.pids[0], signal.SIGKILL)
        return _expect_one_line(RuntimeError, functools.partial(actors.collect, timeout=None))


def disk_full_for_a_while(folder: Path) -> Figures:
    """Training continues, saved files stay whole, and afterwards everything is there."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=True)
        run = _train(disk / "run", [filler])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        _require([row["updates"] for row in rows] == list(range(1, 1 + _UPDATES)), "metrics.jsonl lacks rows")
        newest, state, damages = newest_whole(run / "checkpoints")
        _require(newest is not None and state.updates == _UPDATES, f"the newest checkpoint is of {state.updates}")
        _require(not damages, f"damaged: {damages}")
        return {"full_by": filler.means, "while_full": filler.seen}


def disk_full_to_the_end(folder: Path) -> Figures:
    """Check that the last checkpoint before that stays, and that the run can be resumed from it."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=False)
        message = "nothing"
        try:
            _train(disk / "run", [filler])
        except OSError as error:
            message = f"{type(error).__name__}: {error}"
        finally:
            filler.empty()
        newest, state, damages = newest_whole(disk / "run/checkpoints")
        _require(newest is not None and not damages, f"no whole checkpoint: {damages}")
        again = _train(disk / "run", [], resume=True, updates=_UPDATES + 5)
        _, end, _ = newest_whole(again / "checkpoints")
        _require(end.updates == _UPDATES + 5, f"after resuming there were {end.updates} updates")
        return {"full_by": filler.means, "said": message, "went_on_from": state.updates}


def disk_full_at_the_start(folder: Path) -> Figures:
    """One line says so, and no run begins."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=False)
        filler.fill()
        try:
            return _expect_one_line(Exception, functools.partial(_train, disk / "run", []))
        finally:
            filler.empty()


CASES = (descriptors_short_for_ever, disk_full_for_a_while, disk_full_to_the_end, disk_full_at_the_start)


class Filler(keras.callbacks.Callback):  # type: ignore[misc]
    """Fills a disk at one update, empties it at another."""

    def __init__(self, disk: Path, *, empty_again: bool) -> None:
        super().__init__()
        self._file, self._empty_again = disk / "filler", empty_again
        self._updates = 0
        self._stack = contextlib.ExitStack()
        self.means = "a tmpfs" if disk.is_mount() else "a limit on the size of files; nothing can be mounted here"
        self.seen: Figures = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._updates += 1
        if self._updates == _FULL_FROM:
            self.fill()
        if self._updates == _FULL_TO and self._empty_again:
            newest, state, damages = newest_whole(self._file.parent / "run/checkpoints")
            self.seen = {"newest_checkpoint": state.updates, "damaged": len(damages)}
            _require(newest is not None and not damages, f"while the disk was full: {damages or 'no checkpoint'}")
            self.empty()

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        if not self._file.parent.is_mount():
            self._stack.enter_context(_set_limit(resource.RLIMIT_FSIZE, 1))
            return
        with contextlib.suppress(OSError), open(self._file, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    def empty(self) -> None:
        """Make room again."""
        self._stack.close()
        self._file.unlink(missing_ok=True)


def _pool() -> Any:
    return al.ActorPool(StampedCartPole, make_network, num_actors=2, envs_per_actor=_ENVS, unroll_length=32)


def _train(run_dir: Path, callbacks: list[Any], *, updates: int = _UPDATES, resume: bool = False) -> Path:
    config = al.preset("CartPole-v1").replace(
        env=StampedCartPole,
        network=make_network,
        num_actors=2,
        envs_per_actor=_ENVS,
        algorithm=al.PPO(epochs=2, minibatch_size=None),
        total_steps=updates * 2 * _ENVS * 32,
        checkpoint_updates=1,
        run_dir=run_dir,
        callbacks=callbacks,
        quiet=True,
    )
    return al.train(config, resume=resume).run_dir


@contextlib.contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    """Mount an empty tmpfs; where that isn't allowed, make an ordinary folder."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield path
    finally:  # --lazy: files that are still open are reported as left over
        subprocess.run(["umount", "--lazy", path] if mounted else ["rm", "-r", path], check=True)


@contextlib.contextmanager
def _set_limit(which: int, value: int) -> Iterator[None]:
    """Set a soft limit of this process."""
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


def _expect_one_line(kind: type[Exception], action: Callable[[], Any]) -> Figures:
    """Return the message of the exception that an action raises; it must be of this kind and one line."""
    try:
        action()
    except kind as error:
        _require("\n" not in str(error), f"the message has several lines: {error}")
        return {"said": f"{type(error).__name__}: {error}"}
    raise RequirementError("there was no error")


def _require(condition: Any, otherwise: str) -> None:
    if not condition:
        raise RequirementError(otherwise)
