"""The run directory: a free name, config.json, metrics.jsonl, the saved network; never overwritten unasked.

config.json      the TrainConfig, versions, machine, git commit, what was chosen by rule, and where the run has finished
metrics.jsonl    one object per update
events.out...    the same for TensorBoard
network.keras    the network (network.weights.h5 where Keras can't read it back)
policy/          the exported policy, which needs no TensorFlow
checkpoints/     what a run goes on from, by number of updates; `final` links to the last one of a run that has ended
incidents/       updates that gave what isn't finite
logs/            run.log, and stdout and stderr of the actors
.lock            held by the process that trains
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from actor_learner.config.config import TrainConfig
from actor_learner.networks.saving import network_file
from actor_learner.runs import tensorboard
from actor_learner.runs.lock import check_unlocked
from actor_learner.runs.provenance import provenance
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import close_match, refusal
from actor_learner.system.files import parse_json, write_atomically

T = TypeVar("T")

_CONTENTS = (
    "config.json",
    "metrics.jsonl",
    "network.keras",
    "network.weights.h5",
    "checkpoints",
    "policy",
    "incidents",
    "logs",
    "report.html",
)
_REPLACED = ".replaced"  # holds the old run until the new one has made its first update


@dataclass(frozen=True)
class RunDirectory:
    """Where the parts of a run stand."""

    path: Path

    @property
    def config(self) -> Path:
        """The run's config.json."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """The run's metrics.jsonl."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of what the run goes on from."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The folder of the exported policy."""
        return self.path / "policy"

    @property
    def incidents(self) -> Path:
        """The folder of updates that gave what isn't finite."""
        return self.path / "incidents"

    @property
    def logs(self) -> Path:
        """The folder of the run's log and the actors' output."""
        return self.path / "logs"

    @property
    def exists(self) -> bool:
        """Whether a run is there."""
        return self.config.exists() or self.metrics.exists()


def claim_run(config: TrainConfig) -> RunDirectory:
    """The run's directory: `run_dir`, or a free name, whose folder is made here so that nobody else takes it.

    Raises ValueError for what `check_run_dir` refuses.
    """
    if config.run_dir is None:
        return _free_run(config)
    check_run_dir(config)
    return RunDirectory(Path(config.run_dir))


def begin_run(run: RunDirectory, config: TrainConfig) -> None:
    """Writes config.json into a directory that is claimed.

    With `config.overwrite`, a run that is there already is set aside: `abandon_run` brings it back, and
    `confirm_run` deletes it.

    Raises ValueError if the directory holds a run by now, or can't be written.
    """
    if config.run_dir is not None:
        _check_free(run.path, config)
        writing(run.path, lambda: run.path.mkdir(parents=True, exist_ok=True))
        writing(run.path, lambda: _set_aside(run))
    write_config(run, config)


def write_config(run: RunDirectory, config: TrainConfig, **more: Any) -> None:
    """Writes config.json. Raises ValueError if the directory can't be written."""
    data = {**config.to_json(), "run_dir": str(run.path), **provenance(), **more}
    writing(run.path, lambda: _write_json(run.config, data))


def check_run_dir(config: TrainConfig) -> None:
    """Looks for what beginning a run would refuse, and writes nothing.

    Raises ValueError if `run_dir` holds a run that may not be overwritten or can't be written, or if
    `init_from` holds no network.
    """
    if config.init_from is not None:
        _check_init_from(Path(config.init_from))
    if config.run_dir is None:
        return
    path = Path(config.run_dir)
    if config.init_from is not None and path.resolve() == Path(config.init_from).resolve():
        raise ValueError(
            "`init_from` must be another directory than `run_dir`, whose run would be replaced. "
            f"Received: init_from={str(config.init_from)!r}"
        )
    _check_free(path, config)
    check_unlocked(path)
    check_writable(path)


def confirm_run(run: RunDirectory) -> None:
    """The new run has something to show: deletes the run that it replaces."""
    shutil.rmtree(run.path / _REPLACED, ignore_errors=True)


def abandon_run(run: RunDirectory) -> None:
    """A run that learned nothing: what it was to replace comes back.

    Where it replaces none, it leaves what its actors said, and all of itself if it has updates that were undone.
    """
    replaced = run.path / _REPLACED
    if not replaced.is_dir() and run.metrics.exists():
        return
    run.config.unlink(missing_ok=True)
    if replaced.is_dir():
        _remove_contents(run.path)
        for entry in list(replaced.iterdir()):
            entry.rename(run.path / entry.name)
        replaced.rmdir()
    for log in run.logs.glob("*.log"):
        if not log.stat().st_size:
            log.unlink()
    for folder in (run.checkpoints, run.policy, run.logs, run.path):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _close_run(path: Path) -> str:
    """The run beside it that was meant, perhaps: names of environments are written differently in paths."""
    runs = path.parent.parent.glob("*/*/config.json") if len(path.parts) > 2 else ()
    return close_match(str(path), [str(config.parent) for config in runs])


def open_run(path: str | os.PathLike[str]) -> RunDirectory:
    """The run in a directory. Raises ValueError if there is none, or if a part of it leads elsewhere or never ends."""
    run = RunDirectory(Path(path))
    if not run.config.exists():
        what = "has no config.json" if run.path.is_dir() else f"isn't there{_close_run(run.path)}"
        raise ValueError(f"`run_dir` holds no run: the directory {what}. Received: run_dir={str(path)!r}")
    check_no_links(run)
    for file in (run.config, run.metrics):
        if file.exists() and not file.is_file():  # a pipe, say, which a reader would wait at for ever
            raise ValueError(f"{file.name} must be a plain file. Received: run_dir={str(path)!r}")
    return run


def read_config(path: str | os.PathLike[str]) -> RecordedConfig:
    """Return a run's config.json. Raises ValueError if there is none, or if it isn't readable."""
    file = open_run(path).config
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"config.json is damaged ({error}). Received: run_dir={str(path)!r}") from error
    if not isinstance(data, dict):
        raise ValueError(f"config.json must hold an object. Received: run_dir={str(path)!r}")
    return RecordedConfig(data)


def record_choices(run: RunDirectory, **choices: Any) -> None:
    """Adds what was chosen by rule (compilation, epoch length) to config.json, under "chosen"."""
    data = read_config(run.path)
    data["chosen"] = {**data.chosen, **choices}
    _write_json(run.config, data)


def record_finished(run: RunDirectory, env_steps: int) -> None:
    """Notes in config.json that the run took all its steps, and that network and policy are those of the last."""
    _write_json(run.config, {**read_config(run.path), "finished": {"env_steps": env_steps}})


def check_no_links(run: RunDirectory) -> None:
    """Raises ValueError if a part of the run is a link: what is written or removed there might be anybody's."""
    logs = [f"{run.logs.name}/{entry.name}" for entry in run.logs.iterdir()] if run.logs.is_dir() else []
    for name in (*_contents(run.path), _REPLACED, *logs):
        if (run.path / name).is_symlink():
            raise ValueError(
                f"`run_dir` holds a link, {name}, which may lead out of it; put the real one there. "
                f"Received: run_dir={str(run.path)!r}"
            )


def writing(path: Path, write: Callable[[], T]) -> T:
    """Turns "can't be written", for whatever reason, into one error that names the argument."""
    try:
        return write()
    except FileExistsError:
        if path.is_dir():
            raise
        raise ValueError(f"`run_dir` is a file. Received: run_dir={str(path)!r}") from None
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"`run_dir` can't be written: {reason}. Received: run_dir={str(path)!r}") from error


def _check_free(path: Path, config: TrainConfig) -> None:
    if not config.overwrite and RunDirectory(path).exists:
        raise ValueError(
            "`run_dir` holds a run already; give another name, go on with it (resume=True, --resume), or replace it "
            f"(overwrite=True, --overwrite). Received: run_dir={str(path)!r}"
        )


def _check_init_from(path: Path) -> None:
    try:
        network_file(path)
    except ValueError as error:
        raise refusal("init_from", "a directory with a trained network (network.keras)", str(path)) from error


def _free_run(config: TrainConfig) -> RunDirectory:
    parent = Path("runs") / re.sub(r"[^\w.-]+", "-", config.env_name).strip("-")
    writing(parent, lambda: parent.mkdir(parents=True, exist_ok=True))
    for number in itertools.count(1):
        path = parent / f"{config.algorithm_name}-{config.seed}-{number}"
        try:
            writing(path, path.mkdir)
        except FileExistsError:
            continue
        return RunDirectory(path)
    raise AssertionError("unreachable")


def _set_aside(run: RunDirectory) -> None:
    replaced = run.path / _REPLACED
    if replaced.is_dir():  # by a run that was killed before its first update: it has nothing to keep
        _remove_contents(run.path)
        return
    if run.exists:
        replaced.mkdir()
        for name in _contents(run.path):
            if (run.path / name).exists():
                (run.path / name).rename(replaced / name)


def _contents(path: Path) -> list[str]:
    """Names of the parts that a run in this directory has, or may have."""
    return [*_CONTENTS, *(file.name for file in path.glob(f"{tensorboard.PREFIX}*"))]


def _remove_contents(path: Path) -> None:
    for name in _contents(path):
        entry = path / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises ValueError if a directory can't be made or filled, as far as that can be foreseen."""
    writing(path, lambda: _check_writable(path.absolute()))


def _check_writable(path: Path) -> None:
    """Raises the OSError that making or filling a directory would raise, as far as that can be foreseen."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=2) + "\n"
    write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"))
