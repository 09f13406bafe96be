"""Checkpoints, from which a run is resumed: written whole or not at all, and removed by age, sooner on a full disk.

checkpoints/<updates, 10 digits>/   the learner (`Learner.save`), and run.json: the state of the run beside it;
                                    opponent-<number>.npy: the weights of a frozen version, with `self_play`;
                                    policies/<name>/: the learner of each policy, with `policies`
                                    callbacks.npz: the states of callbacks, where one has any
checkpoints/final                   a link to the last checkpoint of an ended run
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from actor_learner.environments.calls import Calls, make_call
from actor_learner.replay.saving import BUFFER_FILES
from actor_learner.system.files import (
    DamagedError,
    Entry,
    NewerFormatError,
    check_folder,
    damaged,
    one_line,
    stamped,
    unstamped,
    write_folder_atomically,
)
from actor_learner.system.hub import local_path
from actor_learner.system.policies import POLICIES_FOLDER

FORMAT = 1
RUN_FILE = "run.json"
FINAL = "final"
TRAINING_RETURN = "episode_return"

_NAME = re.compile(r"\d{10}")
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)  # the errors of a disk, or a quota, without room
T = TypeVar("T")
SaveLearner = Callable[[Path, Path | None], Mapping[str, Entry]]
_log = logging.getLogger("actor_learner")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run beside its learner."""

    env_steps: int = 0
    offline_steps: int = 0  # gradient steps before the first env step
    updates: int = 0
    time_seconds: float = 0.0  # of training, earlier processes included
    actor_restarts: int = 0
    episodes: Mapping[str, list[float]] = field(default_factory=dict)  # the last of "return", "length", `info_keys`
    best_return: float | None = None  # the highest return of any checkpoint so far
    best_metric: str = TRAINING_RETURN  # the metric that this return is of
    best: bool = False  # this checkpoint has the highest return so far
    milestone: bool = False  # this checkpoint is never removed
    metrics_size: int = 0  # bytes of metrics.jsonl
    event_files: Mapping[str, int] = field(default_factory=dict)  # bytes of each of TensorBoard's files
    calls: Sequence[Sequence[Any]] = field(default_factory=list)  # as `ActorPool.calls` returns them
    league: Mapping[str, Any] | None = None  # as `League.to_json` returns it
    policies: Sequence[str] = field(default_factory=list)  # the names of several policies

    @classmethod
    def read(cls, folder: Path) -> RunState:
        """Return a checkpoint's state.

        Raises DamagedError for a damaged file, ValueError if it can't be read or a newer version wrote it.
        """
        try:
            content = (folder / RUN_FILE).read_bytes()
        except OSError as error:
            kind = DamagedError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"{RUN_FILE} can't be read ({one_line(error)}). Received: folder={str(folder)!r}") from error
        try:
            data = unstamped(folder / RUN_FILE, json.loads(content.decode("utf-8")), FORMAT)
            if missing := {"env_steps", "updates"} - data.keys():
                raise ValueError(f"{min(missing)} is missing")
            state = cls(**data)
            state._check()
        except NewerFormatError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(folder, f"{RUN_FILE} holds no state of a run ({one_line(error)})") from error
        return state

    def write(self, folder: Path) -> None:
        """Write the state into a checkpoint's folder."""
        text = json.dumps(stamped(dataclasses.asdict(self), FORMAT), allow_nan=False)
        (folder / RUN_FILE).write_text(text, encoding="utf-8")

    def _check(self) -> None:
        """Raise ValueError or TypeError for values that no run has."""
        for name in ("env_steps", "offline_steps", "updates", "actor_restarts", "metrics_size"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(f"{name} must be a count")
        if type(self.best) is not bool or type(self.milestone) is not bool:
            raise ValueError("best and milestone must be true or false")
        best = 0.0 if self.best_return is None else self.best_return
        numbers = [self.time_seconds, best, *(value for window in self.episodes.values() for value in window)]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("a number is not finite")
        if not all(type(size) is int for size in self.event_files.values()):
            raise ValueError("event_files must be sizes")
        if not all(isinstance(name, str) and os.path.basename(name) == name for name in self.policies):
            raise ValueError("policies must be names")
        calls = Calls()
        for name, args in self.calls:
            if type(args) is not list:
                raise ValueError("the arguments of a call must be a list")
            calls.add(make_call(name, args))


class Checkpoints:
    """The checkpoints of a run in `folder`: the `keep` newest, the last `keep_best` of the best so far, all milestones.

    On a full disk fewer: `with_room` removes all but the newest and the milestones, one by one.
    """

    def __init__(self, folder: Path, keep: int, keep_best: int = 1) -> None:
        self.folder, self._keep, self._keep_best = folder, keep, keep_best
        self._marks: dict[str, tuple[bool, bool]] = {}
        self._was_full = False

    def path(self, updates: int) -> Path:
        """Return the path of the checkpoint after so many updates, written or not."""
        return self.folder / f"{updates:010}"

    def write(self, state: RunState, save_learner: SaveLearner) -> Path:
        """Write a checkpoint, then remove old ones. Return its folder.

        save_learner: writes into a folder; gets the newest checkpoint, too, whose files it may link. Returns the
        manifest's entries of these.

        Raises OSError if it can't be written; then no other is removed, unless the disk is full.
        """
        linked: dict[str, Entry] = {}

        def write(partial: Path) -> None:
            linked.clear()
            newest = next(iter(checkpoint_folders(self.folder)), None)
            linked.update(save_learner(partial, newest))
            state.write(partial)

        path = self.path(state.updates)
        self.with_room(lambda: write_folder_atomically(path, write, linked))
        self._marks[path.name] = state.best, state.milestone
        for old in self._removable(self._keep, self._keep_best):
            remove_folder(old)
        return path

    def link_final(self) -> None:
        """Links `final` to the newest checkpoint. Raises OSError if the link can't be made."""
        newest = checkpoint_folders(self.folder)[0]
        partial = self.folder / f".partial-{FINAL}"
        partial.unlink(missing_ok=True)
        self.with_room(lambda: partial.symlink_to(newest.name))
        os.replace(partial, self.folder / FINAL)

    def with_room(self, write: Callable[[], T]) -> T:
        """Call `write` and return its result; while the disk is full, remove a checkpoint and call it again.

        The oldest checkpoint goes first, the best one last; milestones and the newest one stay. Raises what `write`
        raises once none is left that may go.
        """
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _DISK_FULL_ERRORS or not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Remove a checkpoint. Returns False if none may go, or if it can't be removed."""
        found = self._removable(1, self._keep_best) or self._removable(1, 0)
        if not found:
            return False
        if not self._was_full:
            _log.warning("the disk is full: old checkpoints are removed to make room, %s first", found[0])
        self._was_full = True
        remove_folder(found[0])
        return not found[0].exists()

    def _removable(self, keep: int, keep_best: int) -> list[Path]:
        """Return the checkpoints that are neither among the newest, nor among the best, nor milestones; oldest first.

        A process that resumes the run reads the marks. One that can't be read stays, for somebody to look at.
        """
        folders = checkpoint_folders(self.folder)
        for path in folders:
            if path.name not in self._marks:
                try:
                    state = RunState.read(path)
                except ValueError:
                    state = RunState(milestone=True)
                self._marks[path.name] = state.best, state.milestone
        best = [path for path in folders if self._marks[path.name][0]][:keep_best]
        return [path for path in reversed(folders[keep:]) if path not in best and not self._marks[path.name][1]]


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first, whole or damaged; links are left out."""
    entries = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in entries if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    return sorted(found, reverse=True)


def last_calls(folder: Path) -> Sequence[Sequence[Any]]:
    """Return the calls of the newest checkpoint in a folder that can be read."""
    for path in checkpoint_folders(folder):
        with contextlib.suppress(ValueError):
            return RunState.read(path).calls
    return []


def newest_whole(folder: Path) -> tuple[Path | None, RunState, list[DamagedError]]:
    """Return the newest undamaged checkpoint, its state, and the damages of newer ones.

    Raises ValueError if a checkpoint can't be read at present, or was written by a newer version.
    """
    damages: list[DamagedError] = []
    for path in checkpoint_folders(folder):
        try:
            if RUN_FILE not in check_folder(path, leave_out=BUFFER_FILES):  # a damaged buffer is filled anew
                raise damaged(path, f"it has no {RUN_FILE}")
            state = RunState.read(path)
            for policy in state.policies:
                check_folder(path / POLICIES_FOLDER / policy, leave_out=BUFFER_FILES)
            if state.updates != int(path.name):
                raise damaged(path, "its name states another number of updates")
            return path, state, damages
        except DamagedError as error:
            damages.append(error)
    return None, RunState(), damages


def learner_folder(run: str | os.PathLike[str]) -> Path | None:
    """Return the saved learner of a network: its own folder, or the newest whole checkpoint of its run.

    run: the path of the network or of its folder, "hf://owner/name", or RUN/policies/NAME of a run with several.

    None: there is none. Raises ValueError as `newest_whole` does.
    """
    path = Path(os.path.abspath(local_path(run)))
    folder = path if path.is_dir() else path.parent
    if (folder / "learner.npz").is_file():
        return folder
    newest = newest_whole(folder / "checkpoints")[0]
    if newest is None and folder.parent.name == POLICIES_FOLDER:
        newest = newest_whole(folder.parent.parent / "checkpoints")[0]
        newest = newest and newest / POLICIES_FOLDER / folder.name
    return newest if newest is not None and (newest / "learner.npz").is_file() else None


def remove_folder(path: Path) -> None:
    """Remove a checkpoint, renamed first so that none is half removed. If it can't be renamed, it stays."""
    removed = path.with_name(".removed")
    shutil.rmtree(removed, ignore_errors=True)  # left by a killed process
    try:
        path.rename(removed)
    except OSError as error:
        _log.info("%s can't be removed: %s", path, error)
    shutil.rmtree(removed, ignore_errors=True)
