"""The run directory: a free name, config.json, metrics.jsonl, the saved network; never overwritten unasked.

config.json      the TrainConfig, what was chosen by rule, and versions
metrics.jsonl    one object per update
network.keras    the network (network.weights.h5 where Keras can't read it back)
checkpoints/     the learner's state
policy/          the exported policy, which needs no TensorFlow
logs/            stdout and stderr of the actors
"""

from __future__ import annotations

import errno
import importlib.metadata
import itertools
import json
import math
import numbers
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actor_learner.config import TrainConfig, refusal
from actor_learner.saving import network_file, write_atomically

_CONTENTS = (
    "config.json",
    "metrics.jsonl",
    "network.keras",
    "network.weights.h5",
    "checkpoints",
    "policy",
    "logs",
)
_REPLACED = ".replaced"  # holds the old run until the new one has made its first update
_PACKAGES = ("tensorflow", "keras", "ai-edge-litert", "gymnasium", "numpy")


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
        """The folder of the learner's states."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The folder of the exported policy."""
        return self.path / "policy"

    @property
    def logs(self) -> Path:
        """The folder of the actors' output."""
        return self.path / "logs"

    @property
    def exists(self) -> bool:
        """Whether a run is there."""
        return self.config.exists() or self.metrics.exists()


def create_run(config: TrainConfig) -> RunDirectory:
    """Makes the run's directory and writes its config.json.

    With `config.overwrite`, a run that is there already is set aside: `abandon_run` brings it back, and
    `confirm_run` deletes it.

    Raises ValueError if the directory holds a run already or can't be written.
    """
    if config.run_dir is None:
        run = _free_run(config)
    else:
        run = RunDirectory(Path(config.run_dir))
        check_run_dir(config)
        _writing(run.path, lambda: run.path.mkdir(parents=True, exist_ok=True))
        _writing(run.path, lambda: _set_aside(run))
    data = {**config.to_json(), "run_dir": str(run.path), "versions": _versions()}
    _writing(run.path, lambda: _write_json(run.config, data))
    return run


def check_run_dir(config: TrainConfig) -> None:
    """Looks for what `create_run` would refuse, and writes nothing.

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
    if not config.overwrite and RunDirectory(path).exists:
        raise ValueError(
            "`run_dir` holds a run already; give another name, or overwrite=True (--overwrite) to replace it. "
            f"Received: run_dir={str(path)!r}"
        )
    _writing(path, lambda: _check_writable(path.absolute()))


def confirm_run(run: RunDirectory) -> None:
    """The new run has something to show: deletes the run that it replaces."""
    shutil.rmtree(run.path / _REPLACED, ignore_errors=True)


def abandon_run(run: RunDirectory) -> None:
    """A run that never made an update leaves what its actors said, and what it was to replace comes back."""
    run.config.unlink(missing_ok=True)
    replaced = run.path / _REPLACED
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


def open_run(path: str | os.PathLike[str]) -> RunDirectory:
    """The run in a directory. Raises ValueError if there is none."""
    run = RunDirectory(Path(path))
    if not run.config.exists():
        what = "has no config.json" if run.path.is_dir() else "isn't there"
        raise ValueError(f"`run_dir` holds no run: the directory {what}. Received: run_dir={str(path)!r}")
    return run


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A run's config.json as a dict; `TrainConfig.from_json` makes a config of it.

    Raises ValueError if there is none, or if it isn't readable.
    """
    file = open_run(path).config
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json is damaged ({error}). Received: run_dir={str(path)!r}") from error
    if not isinstance(data, dict):
        raise ValueError(f"config.json must hold an object. Received: run_dir={str(path)!r}")
    return data


def record_choices(run: RunDirectory, **choices: Any) -> None:
    """Adds what was chosen by rule (compilation, epoch length) to config.json, under "chosen"."""
    data = read_config(run.path)
    data["chosen"] = {**data.get("chosen", {}), **choices}
    _write_json(run.config, data)


def append_metrics(run: RunDirectory, metrics: Mapping[str, Any]) -> None:
    """Adds one line to metrics.jsonl. Values are numbers; what isn't finite becomes null."""
    line = json.dumps({name: _json_number(value) for name, value in metrics.items()}, allow_nan=False)
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl, null as NaN; a last line that was cut off is left out.

    Raises ValueError if the directory has no metrics, or if a line before the last is damaged.
    """
    file = RunDirectory(Path(path)).metrics
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"metrics.jsonl is damaged in line {number}. Received: run_dir={str(path)!r}") from error
        rows.append({name: math.nan if value is None else value for name, value in values.items()})
    if not rows:
        raise ValueError(f"The directory has no metrics (metrics.jsonl). Received: run_dir={str(path)!r}")
    return rows


def _check_init_from(path: Path) -> None:
    try:
        network_file(path)
    except ValueError as error:
        raise ValueError(
            refusal("init_from", "a directory with a trained network (network.keras)", str(path))
        ) from error


def _free_run(config: TrainConfig) -> RunDirectory:
    parent = Path("runs") / re.sub(r"[^\w.-]+", "-", config.env_name).strip("-")
    _writing(parent, lambda: parent.mkdir(parents=True, exist_ok=True))
    for number in itertools.count(1):
        path = parent / f"{config.algorithm_name}-{config.seed}-{number}"
        try:
            _writing(path, path.mkdir)
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
        for name in _CONTENTS:
            if (run.path / name).exists():
                (run.path / name).rename(replaced / name)


def _remove_contents(path: Path) -> None:
    for name in _CONTENTS:
        entry = path / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _check_writable(path: Path) -> None:
    """Raises the OSError that making or filling a directory would raise, as far as that can be foreseen."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _writing(path: Path, write: Callable[[], object]) -> None:
    """Turns "can't be written", for whatever reason, into one error that names the argument."""
    try:
        write()
    except FileExistsError:
        if path.is_dir():
            raise
        raise ValueError(f"`run_dir` is a file. Received: run_dir={str(path)!r}") from None
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"`run_dir` can't be written: {reason}. Received: run_dir={str(path)!r}") from error


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=2) + "\n"
    write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"))


def _json_number(value: Any) -> float | int | None:
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: importlib.metadata.version(name) for name in _PACKAGES}}
