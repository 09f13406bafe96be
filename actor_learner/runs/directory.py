"""The run directory: a free name, config.json, metrics.jsonl, the saved network; overwritten only on request.

config.json      the TrainConfig, versions, machine, git commit, choices made by rule, and the end of a finished run
metrics.jsonl    one object per update
events.out...    the same for TensorBoard
network.keras    the network (network.weights.h5 where Keras can't read it back)
policy/          the exported policy, which needs no TensorFlow
policies/        with several policies: a folder for each, with its network and `policy/`
checkpoints/     what a resumed run starts from, by number of updates; `final` links to the last one of an ended run
incidents/       updates that were not finite
logs/            run.log, stdout and stderr of the actors, and native.log where native code aborted
.lock            held by the process that trains
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actor_learner.config.config import FORMAT, TrainConfig
from actor_learner.networks.saving import NETWORK_FILES, network_file
from actor_learner.replay import minari_datasets
from actor_learner.replay.saving import has_buffer
from actor_learner.runs import tensorboard
from actor_learner.runs.recorded_config import RecordedConfig, provenance
from actor_learner.system.fields import close_match, refusal
from actor_learner.system.files import NewerFormatError, open_plain, parse_json, stamped, unstamped, write_atomically
from actor_learner.system.hub import is_on_hub, local_path, newest_of, with_commit
from actor_learner.system.policies import POLICIES_FOLDER

_FILES = ("config.json", "metrics.jsonl", *NETWORK_FILES, "report.html")
_FOLDERS = ("checkpoints", "policy", "policies", "incidents", "logs")
SEEDS_FILE = "seeds.json"
"""In a folder of runs that differ in their seed: what config.json is for one of them, with the seeds."""
_MAX_NAMED = 5
_REPLACED = ".replaced"  # holds the old run until the new one has made its first update


class RunDirectory:
    """The paths of a run's parts; the module's docstring lists them. checkpoint: one of which the network is meant."""

    def __init__(self, path: Path, checkpoint: Path | None = None) -> None:
        self.path, self.checkpoint = path, checkpoint
        self.weights = checkpoint or path  # the folder of the network
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"
        self.incidents = path / "incidents"
        self.logs = path / "logs"

    @property
    def exists(self) -> bool:
        """True if the directory holds a run."""
        return os.path.exists(self.config) or os.path.exists(self.metrics)  # False where it can't be read


def claim_run(config: TrainConfig) -> RunDirectory:
    """Return the run's directory: `run_dir`, or a free name, whose folder is made here so that no other run takes it.

    Raises ValueError as `check_run_dir` does.
    """
    if config.run_dir is None:
        return free_run(config, str(config.seed))
    check_run_dir(config)
    return RunDirectory(Path(config.run_dir))


def begin_run(run: RunDirectory, config: TrainConfig) -> None:
    """Write config.json into a claimed directory.

    With `config.overwrite`, an earlier run in the directory is set aside: `abandon_run` restores it, `confirm_run`
    deletes it.

    Raises ValueError if the directory holds a run by now, or can't be written.
    """
    if config.run_dir is not None:
        _check_free(run.path, config)
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            _set_aside(run)
    write_config(run.config, config)


def write_config(file: Path, config: TrainConfig, **more: Any) -> None:
    """Write config.json, or seeds.json, and make its folder. Raises ValueError if it can't be written."""
    data = {**config.to_json(), "run_dir": str(file.parent), **provenance(), **more}
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_recorded(file, data)


def with_init_commit(config: TrainConfig) -> TrainConfig:
    """Return the config of a new run with the Hub's commit, or the checkpoint's folder, in `init_from`.

    Whatever reads it later, reads the same.
    """
    if config.init_from is None or (source := with_commit(config.init_from)) == config.init_from:
        return config
    return config.replace(init_from=source)


def check_run_dir(config: TrainConfig) -> None:
    """Check the directories of a new run, and write nothing.

    Raises ValueError if `run_dir` holds a run that may not be overwritten or can't be written, if `init_from` holds no
    network, or `init_buffer` names no buffer.
    """
    for source in (each.init_from for each in config.of_policies.values()):
        if source is None:
            continue
        try:
            network_file(local_path(source))
        except ValueError as error:
            expected = "a directory with a trained network (network.keras)"
            raise refusal("init_from", expected + newest_of(source), str(source)) from error
    if minari_datasets.is_name(config.init_buffer):
        minari_datasets.find_dataset(str(config.init_buffer), "init_buffer")
    elif config.init_buffer is not None and not has_buffer(config.init_buffer):
        expected = f"a folder that ReplayBuffer.save wrote, a checkpoint, or {minari_datasets.PREFIX}NAME"
        raise refusal("init_buffer", expected, str(config.init_buffer))
    if config.run_dir is None:
        return
    path = Path(config.run_dir)
    source = None if config.init_from is None else Path(config.init_from).resolve()
    if source is not None and source.parent.name == "checkpoints":  # a checkpoint of it
        source = source.parent.parent
    if source == path.resolve():
        raise ValueError(
            "`init_from` must be another directory than `run_dir`, whose run would be replaced. "
            f"Received: init_from={str(config.init_from)!r}"
        )
    _check_free(path, config)
    check_unlocked(path)
    check_writable(path)


def replaces_another(run: RunDirectory) -> bool:
    """Return whether the directory holds the run that the new one replaces, until the new one has learned."""
    return (run.path / _REPLACED).is_dir()


def confirm_run(run: RunDirectory) -> None:
    """Delete the run that the new one replaces: the new one has learned something."""
    shutil.rmtree(run.path / _REPLACED, ignore_errors=True)


def abandon_run(run: RunDirectory) -> None:
    """Remove a run that learned nothing, and restore the run that it would have replaced.

    If it replaces none, the actors' output stays; all of the run stays if it has undone updates.
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


def open_run(path: str | os.PathLike[str]) -> RunDirectory:
    """Return the run in a directory, or on the Hub, or of a checkpoint (see `hub.local_path`).

    Raises ValueError if there is none, or if a part of it is a link or a pipe, and what `local_path` raises.
    """
    run = RunDirectory(local_path(path))
    if (run.path / "run.json").is_file() and (run.path.parent.parent / "config.json").is_file():
        run = RunDirectory(run.path.parent.parent, run.path)
    if not run.config.exists():
        runs = run.path.parent.parent.glob("*/*/config.json") if len(run.path.parts) > 2 else ()
        similar = close_match(str(run.path), [str(file.parent) for file in runs])
        reason = "it is a file" if run.path.exists() else f"the directory isn't there{similar}"
        if run.path.is_dir():
            reason = f"the directory has no config.json{_runs_below(run)}"
        if run.path.suffix == ".keras" or (run.path / "network.keras").is_file():  # a callback's, or a checkpoint's
            reason += f"; in Python, al.evaluate(al.load_network({str(path)!r}), env=...) plays its network"
        raise ValueError(f"`run_dir` holds no run: {reason}. Received: run_dir={str(path)!r}")
    check_no_links(run)
    for file in (run.config, run.metrics):
        if file.exists() and not file.is_file():  # a reader would wait forever at a pipe
            raise ValueError(f"{file.name} must be a plain file. Received: run_dir={str(path)!r}")
    return run


def open_policy(path: str | os.PathLike[str]) -> RunDirectory:
    """Return the directory of a policy: a run's, as `open_run`, or `policies/<name>` in a run with several."""
    folder = Path(path)
    if is_on_hub(path) or folder.parent.name != POLICIES_FOLDER or not folder.is_dir():
        return open_run(path)
    open_run(folder.parent.parent)
    return RunDirectory(folder)


def _runs_below(run: RunDirectory) -> str:
    """Return which runs a folder without one holds, or that a run left only its logs there."""
    if run.logs.is_dir():
        return ", only the logs of a run that ended before its first update"
    found = sorted(str(file.parent) for below in ("*", "*/*") for file in run.path.glob(f"{below}/config.json"))
    more = f" and {len(found) - _MAX_NAMED} others" if len(found) > _MAX_NAMED else ""
    return f", but these runs: {', '.join(found[:_MAX_NAMED])}{more}" if found else ""


def read_config(path: str | os.PathLike[str]) -> RecordedConfig:
    """Return a run's config.json. Raises ValueError if there is none, or if it isn't readable."""
    file = Path(path) / SEEDS_FILE
    file = file if file.is_file() else open_run(path).config
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it must hold an object")
        return RecordedConfig(unstamped(file, data, FORMAT))
    except NewerFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is damaged ({error}). Received: run_dir={str(path)!r}") from error


def record_choices(run: RunDirectory, **choices: Any) -> None:
    """Add choices made by rule (compilation, epoch length) to config.json, under "chosen"."""
    data = read_config(run.path)
    data["chosen"] = {**data.chosen, **choices}
    write_recorded(run.config, data)


def record_finished(run: RunDirectory, env_steps: int, offline_steps: int = 0) -> None:
    """Record in config.json that the run took all its steps, and that network and policy are the last ones."""
    finished = {"env_steps": env_steps} | ({"offline_steps": offline_steps} if offline_steps else {})
    write_recorded(run.config, {**read_config(run.path), "finished": finished})


def remove_result(run: RunDirectory) -> None:
    """Remove the network and the policies that a run wrote when it ended: since then it was resumed, and has learned.

    So a path of a run never means a policy that is older than its checkpoints.
    """
    for name in NETWORK_FILES:
        (run.path / name).unlink(missing_ok=True)
    for folder in (run.policy, run.path / POLICIES_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)


def check_no_links(run: RunDirectory) -> None:
    """Raise ValueError if a part of the run is a link: writing or removing there could reach any file."""
    logs = [f"{run.logs.name}/{entry.name}" for entry in run.logs.iterdir()] if run.logs.is_dir() else []
    for name in (*_contents(run.path), _REPLACED, *logs):
        if (run.path / name).is_symlink():
            raise ValueError(
                f"`run_dir` holds a link, {name}, which may lead out of it; replace it by the real file. "
                f"Received: run_dir={str(run.path)!r}"
            )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a ValueError that names the argument."""
    try:
        yield
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
            "`run_dir` already holds a run; give another name, resume it (resume=True, --resume), or replace it "
            f"(overwrite=True, --overwrite). Received: run_dir={str(path)!r}"
        )


def runs_of(config: TrainConfig) -> Path:
    """Return the folder of an environment's runs: runs/<env>."""
    return Path("runs") / re.sub(r"[^\w.-]+", "-", config.env_name.removeprefix("__main__:")).strip("-")


def free_run(config: TrainConfig, label: str) -> RunDirectory:
    """Make and return a new directory: runs/<env>/<algorithm>-<label>-<n>."""
    parent = runs_of(config)
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = parent / f"{config.algorithm_name}-{label}-{number}"
        with contextlib.suppress(FileExistsError), writing(path):
            path.mkdir()
            return RunDirectory(path)
    raise AssertionError("unreachable")


def _set_aside(run: RunDirectory) -> None:
    replaced = run.path / _REPLACED
    if replaced.is_dir():  # left by a run that was killed before its first update, of which nothing is kept
        _remove_contents(run.path)
    elif run.exists:
        replaced.mkdir()
        for name in _contents(run.path):
            if (run.path / name).exists():
                (run.path / name).rename(replaced / name)


def _contents(path: Path) -> list[str]:
    return [*_FILES, *_FOLDERS, *(file.name for file in path.glob(f"{tensorboard.PREFIX}*"))]


def _remove_contents(path: Path) -> None:
    for name in _contents(path):
        entry = path / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise ValueError if a directory can't be made or written, as far as permissions show."""
    with writing(path):
        existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_recorded(file: Path, data: Mapping[str, Any]) -> None:
    """Write the content of a config.json, with the number of its format."""
    text = json.dumps(stamped(data, FORMAT), indent=2) + "\n"
    write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"))


LOCK_FILE = ".lock"
_MAX_TRIES, _TRY_SECONDS = 20, 0.01  # `is_locked` holds the lock for a moment, on a busy machine for longer
_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock while entered. The kernel releases it when the process ends; actors never inherit it.

    Makes the folder if needed, and removes it if it stays empty. On a file system without locks, nothing is checked.

    Raises:
        ValueError: A living run holds the lock.
        OSError: The folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while (descriptor := _lock(folder)) is None:
        pass
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but names no process
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder isn't empty, or was removed
            (folder / LOCK_FILE).unlink(missing_ok=True)
            folder.rmdir()
        os.close(descriptor)


def check_unlocked(folder: Path) -> None:
    """Raise ValueError if a living run holds the folder's lock. Writes nothing."""
    try:
        descriptor = open_plain(folder / LOCK_FILE)
    except OSError:
        return
    try:
        _take(descriptor, folder)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return True if a living run holds the folder's lock. Without locks: if a run has begun and not ended.

    Writes nothing, and delays other processes for a moment at most.
    """
    try:
        descriptor = open_plain(folder / LOCK_FILE)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(folder: Path) -> int | None:
    """Return the descriptor of the locked file; None if its last owner has just removed it."""
    descriptor = open_plain(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        _take(descriptor, folder)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK_FILE)):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _take(descriptor: int, folder: Path) -> None:
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if tries_left:
                time.sleep(_TRY_SECONDS)
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRORS:
                raise
            return
    owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    process = f" (process {owner})" if owner.isdigit() else ""
    raise ValueError(
        f"`run_dir` is in use by a living run{process}; wait for it or stop it. Received: run_dir={str(folder)!r}"
    )
