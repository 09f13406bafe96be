"""Takes away what a run needs: file descriptors, shared memory, room on the disk.

    scripts/measure soak --what resources

A disk that is full is a tmpfs of a few megabytes where this may mount one (root), else a limit on the size of files.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

import actor_learner as al
from actor_learner.runs.checkpoints import newest_whole
from benchmarks.faults.checks import make_network
from benchmarks.faults.stamped import BatchCheck, StampedCartPole
from benchmarks.processes import Leftovers

_DISK_BYTES = 24 << 20
_UPDATES = 60
_FULL_FROM, _FULL_TO = 15, 40
_ENVS = 4
Result = dict[str, Any]


class BrokenPromiseError(Exception):
    """What should have held didn't."""


def soak_resources(folder: Path) -> Result:
    """Runs each case. Returns what was seen, and what was wrong as "problems"."""
    logging.getLogger("actor_learner").addHandler(logging.NullHandler())
    with _pool() as actors:  # what is loaded once is no leak
        actors.collect()
    _train(folder / "first", [], updates=2)
    problems, cases = [], {}
    for case in CASES:
        before, started = Leftovers.now(folder / "tmp"), time.monotonic()
        try:
            seen = case(folder)
        except Exception as error:
            seen = {"failed": repr(error)}
            problems.append(f"{case.__name__}: {error}" if isinstance(error, BrokenPromiseError) else _told(error))
        problems += [f"{case.__name__}: {thing}" for thing in Leftovers.now(folder / "tmp").since(before)]
        cases[case.__name__] = {"seconds": round(time.monotonic() - started, 1), **seen}
        print(f"{case.__name__}: {cases[case.__name__]}", file=sys.stderr)
    return {"command": "scripts/measure soak " + " ".join(sys.argv[1:]), "problems": problems, "cases": cases}


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def descriptors_short_for_a_while(folder: Path) -> Result:
    """The replacement comes when there are some again."""
    with _pool() as actors, _no_more_descriptors() as restore:
        os.kill(actors.pids[0], signal.SIGKILL)
        timer = threading.Timer(2.0, restore)
        timer.start()
        check = BatchCheck(_ENVS, 0)
        for _ in range(3):
            check.check(actors.collect(timeout=None), actors.restarts)
            actors.publish(actors.network.get_weights())
        timer.join()
        _promise(actors.restart_count == 1, f"{actors.restart_count} replacements")
    return {}


def descriptors_short_for_ever(folder: Path) -> Result:
    """One error that says so."""
    with _pool() as actors, _no_more_descriptors():
        os.kill(actors.pids[0], signal.SIGKILL)
        return _one_line(RuntimeError, functools.partial(actors.collect, timeout=None))


def more_memory_than_there_is(folder: Path) -> Result:
    """One error that says so, before anything is killed."""
    return _one_line(MemoryError, functools.partial(_pool, unroll_length=10**9))


def shared_memory_that_is_refused(folder: Path) -> Result:
    """The system says no where the batches should lie."""
    with _limited(resource.RLIMIT_FSIZE, 1 << 20):
        return _one_line(MemoryError, functools.partial(_pool, unroll_length=10**5))


def disk_full_for_a_while(folder: Path) -> Result:
    """Training goes on, what was saved stays whole, and afterwards everything is there."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=True)
        run = _train(disk / "run", [filler])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        _promise([row["updates"] for row in rows] == list(range(1, 1 + _UPDATES)), "metrics.jsonl lacks rows")
        newest, state, damages = newest_whole(run / "checkpoints")
        _promise(newest is not None and state.updates == _UPDATES, f"the newest checkpoint is of {state.updates}")
        _promise(not damages, f"damaged: {damages}")
        return {"full_by": filler.means, "while_full": filler.seen}


def disk_full_to_the_end(folder: Path) -> Result:
    """The last checkpoint before that stays, and the run can go on from it."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=False)
        said = "nothing"
        try:
            _train(disk / "run", [filler])
        except OSError as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            filler.empty()
        newest, state, damages = newest_whole(disk / "run/checkpoints")
        _promise(newest is not None and not damages, f"no whole checkpoint: {damages}")
        again = _train(disk / "run", [], resume=True, updates=_UPDATES + 5)
        _, end, _ = newest_whole(again / "checkpoints")
        _promise(end.updates == _UPDATES + 5, f"after going on there were {end.updates} updates")
        return {"full_by": filler.means, "said": said, "went_on_from": state.updates}


def disk_full_at_the_start(folder: Path) -> Result:
    """One line, and nothing begun."""
    with _small_disk(folder / "disk") as disk:
        filler = Filler(disk, empty_again=False)
        filler.fill()
        try:
            return _one_line(Exception, functools.partial(_train, disk / "run", []))
        finally:
            filler.empty()


CASES: tuple[Callable[[Path], Result], ...] = (
    descriptors_short_for_a_while,
    descriptors_short_for_ever,
    more_memory_than_there_is,
    shared_memory_that_is_refused,
    disk_full_for_a_while,
    disk_full_to_the_end,
    disk_full_at_the_start,
)


class Filler(keras.callbacks.Callback):  # type: ignore[misc]
    """Fills a disk at one update, empties it at another."""

    def __init__(self, disk: Path, *, empty_again: bool) -> None:
        super().__init__()
        self._file, self._empty_again = disk / "filler", empty_again
        self._updates = 0
        self._stack = contextlib.ExitStack()
        self.means = "a tmpfs" if disk.is_mount() else "a limit on the size of files; nothing can be mounted here"
        self.seen: Result = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        self._updates += 1
        if self._updates == _FULL_FROM:
            self.fill()
        if self._updates == _FULL_TO and self._empty_again:
            newest, state, damages = newest_whole(self._file.parent / "run/checkpoints")
            self.seen = {"newest_checkpoint": state.updates, "damaged": len(damages)}
            _promise(newest is not None and not damages, f"while the disk was full: {damages or 'no checkpoint'}")
            self.empty()

    def fill(self) -> None:
        """To the last byte."""
        if not self._file.parent.is_mount():
            self._stack.enter_context(_limited(resource.RLIMIT_FSIZE, 1))
            return
        with contextlib.suppress(OSError), open(self._file, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    def empty(self) -> None:
        """There is room again."""
        self._stack.close()
        self._file.unlink(missing_ok=True)


def _pool(**changes: Any) -> Any:
    arguments = {"num_actors": 2, "envs_per_actor": _ENVS, "unroll_length": 32, **changes}
    return al.ActorPool(StampedCartPole, make_network, **arguments)


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
    """An empty tmpfs, or where that can't be had an ordinary folder."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield path
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", path], check=True)  # what is open on it still is told of as left
        else:
            subprocess.run(["rm", "-r", path], check=True)


@contextlib.contextmanager
def _limited(which: int, value: int) -> Iterator[Callable[[], None]]:
    """A soft limit of this process, until the function that is given is called, or to the end."""
    soft, hard = resource.getrlimit(which)
    restore = functools.partial(resource.setrlimit, which, (soft, hard))
    resource.setrlimit(which, (value, hard))
    try:
        yield restore
    finally:
        restore()


@contextlib.contextmanager
def _no_more_descriptors() -> Iterator[Callable[[], None]]:
    with _limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1) as restore:
        yield restore


def _one_line(kind: type[Exception], action: Callable[[], Any]) -> Result:
    """What an action says with its exception, which must be of this kind and one line."""
    try:
        action()
    except kind as error:
        _promise("\n" not in str(error), f"it took several lines to say: {error}")
        return {"said": f"{type(error).__name__}: {error}"}
    raise BrokenPromiseError("there was no error")


def _promise(condition: Any, otherwise: str) -> None:
    if not condition:
        raise BrokenPromiseError(otherwise)
