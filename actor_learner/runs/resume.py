"""Resuming a run: checks that it can be resumed, finds the checkpoint, and removes what was written after it.

The config must be the run's own, except for fields that don't change what is learned. `num_actors`,
`envs_per_actor` and `num_envs` may change if the number of all environments stays: then the rows of a batch, and the
environments that reward scaling tracks, stay as well.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actor_learner.actors.group import ActorError
from actor_learner.config.config import TrainConfig, of_this_version, plain_kwargs
from actor_learner.config.references import callable_marks, marked_name
from actor_learner.config.settings import OF_SCHEDULE, names_of
from actor_learner.runs import directory
from actor_learner.runs.artifacts import ENDED_BY, run_log
from actor_learner.runs.checkpoints import FINAL, RunState, checkpoint_folders, newest_whole, remove_folder
from actor_learner.runs.directory import RunDirectory, check_unlocked, run_lock
from actor_learner.runs.metrics import trim_metrics
from actor_learner.runs.recorded_config import RecordedConfig, change_text
from actor_learner.runs.tensorboard import PREFIX
from actor_learner.system.aborts import native_log
from actor_learner.system.fields import refusal, removed
from actor_learner.system.files import DamagedError, one_line
from actor_learner.system.hub import may_mean

_log = logging.getLogger("actor_learner")


@dataclass
class Start:
    """The point from which a run starts or is resumed."""

    run: RunDirectory
    checkpoint: Path | None = None  # the folder to resume from; None: start from the beginning
    state: RunState = RunState()  # at the checkpoint
    damages: tuple[DamagedError, ...] = ()  # of newer checkpoints
    finished: bool = False  # the run has taken all its steps
    updates_per_epoch: int | None = None  # as chosen when the run began; None: not chosen yet
    changes: Sequence[dict[str, Any]] = ()  # of hyperparameters, on this and earlier resumes
    precision: Any = None  # as chosen when the run began: a name, or one for each policy
    resumed: bool = False  # the run existed before
    confirmed: bool = False  # this process has learned something

    def commit(self, config: TrainConfig) -> None:
        """Restores the directory to its state at the checkpoint, once all parts of the run exist.

        Raises ValueError if the directory can't be written.
        """
        if self.resumed:
            with directory.writing(self.run.path):
                _restore_files(self, config)

    def confirm(self, *, learned: bool, **choices: Any) -> None:
        """Write the choices made by rule into config.json after the first update; deletes the replaced run.

        learned: False after an update that only filled a replay buffer: then a run that replaces another one waits.
        """
        if directory.replaces_another(self.run) and not learned:
            return
        self.confirmed = True
        directory.confirm_run(self.run)
        try:
            directory.record_choices(self.run, **choices)
        except OSError as error:
            _log.warning("%s", one_line(error))


@contextlib.contextmanager
def start_run(config: TrainConfig, *, resume: bool, change: Collection[str] = ()) -> Iterator[Start]:
    """Locks a run's directory and writes its log while entered; a resumed run waits for `Start.commit`.

    change: hyperparameters that may differ from the resumed run's.

    A new run that learned nothing is abandoned. For others, the log reports why they ended early.

    Raises ValueError as `check_resume` and `check_run_dir` do.
    """
    run = _named_run(config) if resume else directory.claim_run(config)
    with contextlib.ExitStack() as stack:
        with directory.writing(run.path):
            stack.enter_context(run_lock(run.path))
        stack.enter_context(run_log(run.logs, verbose=config.verbose))
        if resume:
            start = check_resume(config, lock=False, change=change)
        else:
            directory.begin_run(run, config)
            start = Start(run)
        stack.enter_context(native_log(run.logs))
        try:
            yield start
        except BaseException as error:
            if resume or start.confirmed:
                _log_end(error)
            elif isinstance(error, Exception) and not directory.replaces_another(run) and _has_logs(run):
                error.add_note(f"More is in {run.logs}")
            raise
        finally:
            if not resume and not start.confirmed:
                directory.abandon_run(run)


def _has_logs(run: directory.RunDirectory) -> bool:
    return any(log.stat().st_size for log in run.logs.glob("*.log"))


def _log_end(error: BaseException) -> None:
    """Log one line for an error that explains itself, a traceback for others."""
    described = " ".join((f"{type(error).__name__}: {one_line(error)}", *getattr(error, "__notes__", ())))
    if isinstance(error, KeyboardInterrupt | SystemExit):
        _log.info("the run was ended by %s", described)
    else:
        explains_itself = isinstance(error, ActorError) or "Received: " in str(error)
        _log.error("%s%s", ENDED_BY, described, exc_info=None if explains_itself else error)


def check_resume(config: TrainConfig, *, lock: bool = True, change: Collection[str] = ()) -> Start:
    """Return the point from which the run in `config.run_dir` can be resumed; writes nothing. change: see `start_run`.

    Raises ValueError if there is no run, if it has another config or holds links, if a living process trains it (with
    `lock`), or if it has checkpoints of which none is whole or one can't be read.
    """
    run = _named_run(config)
    directory.check_no_links(run)
    recorded = directory.read_config(run.path)
    check_fits(recorded, config, change)
    directory.check_writable(run.path)
    if lock:
        check_unlocked(run.path)
    checkpoint, state, damages = newest_whole(run.checkpoints)
    finished = recorded.finished_steps >= config.all_steps
    if damages and checkpoint is None and not finished:
        raise ValueError(
            f"`run_dir` has checkpoints, but none is whole; the newest: {str(damages[0]).partition(' Received: ')[0]} "
            "Start in another directory, or replace the run (overwrite=True). "
            f"Received: run_dir={str(config.run_dir)!r}"
        )
    chosen = recorded.integer("chosen", "updates_per_epoch")
    per_epoch = chosen if chosen and chosen > 0 else None
    precision = recorded.chosen.get("precision")
    changes = _changes(recorded, config, state, change)
    return Start(run, checkpoint, state, tuple(damages), finished, per_epoch, changes, precision, resumed=True)


def _changes(recorded: RecordedConfig, config: TrainConfig, state: RunState, names: Collection[str]) -> list[Any]:
    """Return the run's changes of hyperparameters, that of this resume last; those after the checkpoint begin at it."""
    here = {name: getattr(state, name) for name in ("updates", "env_steps", "offline_steps", "time_seconds")}
    earlier = [each | here if each["updates"] > state.updates else each for each in recorded.changes]
    before, now = recorded.get("algorithm") or {}, config.to_json()["algorithm"]
    pairs = {name: [before.get(name), now[name]] for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1] or isinstance(pair[0], Mapping)}
    return [*earlier, *([here | {"changed": changed}] if changed else [])]


def with_own_defaults(config: TrainConfig) -> TrainConfig:
    """Return the config with the lag's settings and `precision` of the run to resume, unless others were given.

    They count as given where they aren't the default. Raises ValueError if there is no run.
    """
    recorded = of_this_version(directory.read_config(_named_run(config).path))
    names = [name for name in OF_SCHEDULE if name in config.left_open and isinstance(recorded.get(name), int)]
    own: dict[str, Any] = {name: recorded[name] for name in names}
    if config.precision == "auto":  # which earlier versions didn't have
        own["precision"] = recorded.get("precision")
    own = {name: value for name, value in own.items() if value != getattr(config, name)}
    return config.replace(**own) if own else config


def _named_run(config: TrainConfig) -> RunDirectory:
    if config.run_dir is None:
        raise ValueError("`run_dir` must name the run to resume. Received: run_dir=None")
    if (run := directory.open_run(config.run_dir)).checkpoint is not None:
        expected = (
            f"the run itself, {str(run.path)!r}: it goes on from its newest checkpoint; to begin at another one, take"
        )
        raise refusal("run_dir", f"{expected} that one as init_from", str(config.run_dir))
    return RunDirectory(Path(config.run_dir))


def check_fits(recorded: RecordedConfig, config: TrainConfig, change: Collection[str] = ()) -> None:
    """Raise ValueError, listing differences but those in `change`, if the run of a config.json can't be resumed."""
    may_differ = names_of(TrainConfig, "none", "pace")
    for name, value in recorded.items():
        if name not in may_differ and (text := removed(name, value)):
            raise ValueError(f"`run_dir` holds a run that can't go on: {text}")
    recorded = RecordedConfig(of_this_version(recorded))
    given = RecordedConfig(json.loads(json.dumps(config.to_json())))
    if isinstance(known := recorded.get("algorithm"), Mapping):  # an earlier version may have had fewer fields
        algorithm = {name: value for name, value in given["algorithm"].items() if name in known}
        given["algorithm"] = algorithm | {name: known[name] for name in known.keys() & {*change}}
    for each in (recorded, given):
        if isinstance(settings := each.get("self_play"), Mapping):  # the size of the pool may change
            each["self_play"] = {name: value for name, value in settings.items() if name != "size"}
    known_policies, policies = recorded.get("policies"), given.get("policies")
    if isinstance(known_policies, Mapping) and isinstance(policies, Mapping):
        given["policies"] = {name: _known(known_policies.get(name), policy) for name, policy in policies.items()}
    for name, value in plain_kwargs(config).items():
        if name in recorded and _equal(recorded[name], value):  # an earlier version wrote 5 for np.int64(5)
            given[name] = value
    differences = [
        _difference(name, recorded[name], value)
        for name, value in given.items()
        if name in recorded and name not in may_differ and not _equal(recorded[name], value)
    ]
    for name in ("policies", "policy_of"):  # on which random numbers depend, and which pattern counts
        orders = [list(each[name]) if isinstance(each.get(name), Mapping) else [] for each in (recorded, given)]
        if sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]:
            differences.append(_difference(f"the order of {name}", *orders))
    for name in ("total_steps", "offline_steps"):
        steps = recorded.integer(name)
        if steps is not None and getattr(config, name) < steps:
            differences.append(_difference(f"{name} (which may grow)", steps, getattr(config, name)))
    before, now = recorded.num_envs, given.num_envs
    if before is not None and before != now:
        differences.append(_difference("the number of environments", before, now))
    if differences:
        others = "or give another run_dir"
        if any("algorithm." in text for text in differences):
            others = (
                "change what may (--change learning_rate=1e-4), let a callback set the learning rate (--callback), or "
                "begin another one with its weights (--init-from)"
            )
        raise ValueError(
            f"`run_dir` holds a run with another config: {'; '.join(differences)}. Resume it with its own config, "
            f"{others}. Received: run_dir={str(config.run_dir)!r}"
        )


def _known(recorded: Any, given: Any) -> Any:
    """Return a policy's settings without fields of its algorithm that an earlier version didn't have."""
    before = recorded.get("algorithm") if isinstance(recorded, Mapping) else None
    if not isinstance(before, Mapping) or not isinstance(given.get("algorithm"), Mapping):
        return given
    return {**given, "algorithm": {name: value for name, value in given["algorithm"].items() if name in before}}


def _difference(name: str, before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping) and not (marked_name(before) or marked_name(now)):
        names = [key for key in {**before, **now} if not _equal(before.get(key), now.get(key))]
        return ", ".join(_difference(f"{name}.{key}", before.get(key), now.get(key)) for key in names)
    texts = [text if len(text) <= 80 else f"{text[:80]}..." for text in (_to_text(before), _to_text(now))]
    return f"{name} is {texts[0]} there, {texts[1]} here"


def _to_text(value: Any) -> str:
    """Return JSON, with a callable written as on the command line."""
    return json.dumps(marked_name(value) or value, sort_keys=True)


def _equal(before: Any, now: Any) -> bool:
    """Compare as JSON, so that NaN equals itself, and true isn't 1; a callable equals its name on the command line."""
    if _to_text(before) == _to_text(now) or _may_be_callable(before, now) or may_mean(now, before):
        return True
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return all(map(_equal, before, now))
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.keys() == now.keys():
        return all(_equal(value, now[key]) for key, value in before.items())
    return not isinstance(before, bool) and not isinstance(now, bool) and bool(before == now)  # 1 is 1.0


def _may_be_callable(before: Any, now: Any) -> bool:
    """Return whether a recorded callable that can't be imported may be the one given now."""
    if not (isinstance(before, Mapping) and set(before) == {"callable"}) or now is None:
        return False
    module, _, name = str(before["callable"]).partition(":")
    if module == "__main__":  # a script has another module name when it is imported
        return "<" in name or _to_text(now).strip('"').partition(":")[2] == name
    return "<" in name or module.partition(".")[0] in {"keras", *sys.stdlib_module_names}  # a lambda, model or partial


def _restore_files(start: Start, config: TrainConfig) -> None:
    """Restores the directory to its state at the checkpoint, and writes the present config.json."""
    run, state = start.run, start.state
    for damage in start.damages:
        _log.warning("a damaged checkpoint is skipped: %s", damage)
    if start.checkpoint is None:
        _log.warning("%s has no checkpoint: the run starts from the beginning", run.path)
        if run.metrics.exists():
            names = (run.metrics.with_name(f"{run.metrics.name}.{number}") for number in itertools.count(1))
            run.metrics.rename(next(name for name in names if not os.path.lexists(name)))
    else:
        directory.confirm_run(run)
        _log.info("the run is resumed from %s, at %d env steps", start.checkpoint, state.env_steps)
    recorded = directory.read_config(run.path)
    if marks := [mark for name in ("env_kwargs", "wrapper_kwargs") for mark in callable_marks(recorded.get(name))]:
        text = "the objects in env_kwargs and wrapper_kwargs are taken as given: config.json has only their types (%s)"
        _log.warning(text, ", ".join(marks))
    for path in checkpoint_folders(run.checkpoints):
        if int(path.name) > state.updates:  # damaged: kept, but not read
            aside = path.with_name(f"{path.name}.damaged")
            if aside.exists():
                remove_folder(aside)
            path.rename(aside)
    if (run.checkpoints / FINAL).is_symlink():
        (run.checkpoints / FINAL).unlink()
    if removed := trim_metrics(run.metrics, state.updates, state.metrics_size):
        _log.info("%d later rows of metrics.jsonl are removed", removed)
    trim_event_files(run.path, state.event_files)
    if len(start.changes) > len(recorded.changes):
        _log.info("changed at %d env steps: %s", state.env_steps, change_text(start.changes[-1]))
    more = {"changes": start.changes} if start.changes else {}
    directory.write_config(run.config, config, chosen=recorded.chosen, **more)


def event_files(folder: Path) -> dict[str, int]:
    """Return the sizes of TensorBoard's event files in a folder and below, by relative path."""
    return {str(file.relative_to(folder)): file.stat().st_size for file in _event_files(folder)}


def trim_event_files(folder: Path, sizes: Mapping[str, int]) -> None:
    """Remove event files that aren't in `sizes`, and cut others to their size."""
    for file in _event_files(folder):
        size = sizes.get(str(file.relative_to(folder)))
        if size is None:
            file.unlink()
        elif 0 <= size < file.stat().st_size:
            os.truncate(file, size)


def _event_files(folder: Path) -> list[Path]:
    """Return the event files, without those of other runs below, and without links, which may lead out of it."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not Path(parent, name, "config.json").exists()]
        files += [Path(parent, name) for name in names if name.startswith(PREFIX)]
    return [file for file in files if not file.is_symlink()]
