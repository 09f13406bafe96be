"""A search for settings with Optuna: each trial trains runs of some seeds, in processes of their own, or is pruned.

Its folder holds the runs of each trial, the study, unless that is elsewhere, `best.toml` and in the end a picture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.util
import json
import re
import secrets
import time
import tomllib
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.config.config import TrainConfig, check_known
from actor_learner.config.file import NOT_REPEATED, config_toml, file_value
from actor_learner.config.pool_checks import check_memory
from actor_learner.config.references import resolve_reference
from actor_learner.config.settings import names_of
from actor_learner.environments.factory import resolve_env
from actor_learner.reports.displays import Lines
from actor_learner.reports.status import printable
from actor_learner.runs import directory
from actor_learner.runs.directory import SEEDS_FILE, RunDirectory
from actor_learner.runs.metrics import MetricsReader, steps_of
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, flat_config
from actor_learner.seeds import SeedResults, check_parallel, check_seeds, train_seeds
from actor_learner.system.fields import check_choice, check_count, check_number, misfit, refusal
from actor_learner.system.files import one_line
from actor_learner.system.installation import install_command

try:
    import optuna
    from optuna.storages import RetryHeartbeatStaleTrialCallback as Retry
except ImportError:  # `sweep` names the extra
    optuna = None

_FORMS = "{ uniform = [LOW, HIGH] }, or with log_uniform, int or choice = [VALUE, ...]"
_METRIC = "evaluation/return_mean"
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 5, 30  # without a heartbeat, after which a trial's process counts as killed
_BEGIN_SECONDS = 60.0  # that a trial may take to draw its settings, before its first heartbeat
_LOCK_SECONDS = 60  # to wait for other processes that write to the same SQLite file
_LOOK_SECONDS = 1.0
_MAX_RETRIES = 3  # of a trial whose process was killed, interrupted or ended by an error
_MAX_SHOWN = 10
_MIN_IMPORTANCE = 50  # finished trials, so that the best tenth isn't one or two
_REHEARSED = 12  # trials, after which every sampler draws by what it has seen
_PER_MACHINE = {"seed", "num_actors", "envs_per_actor", "num_envs", "learner_threads"}


@dataclass(frozen=True)
class SweepResults:
    """The trials of a search.

    Attributes:
        study: Optuna's study; the `user_attrs` of a trial that failed have the reason, `failure`.
        run_dir: the folder of all.
        config: the settings of the best trial, which are in `best.toml` there; None if no trial finished.
        picture: the trials in parallel coordinates; None without matplotlib, or if no trial finished.
    """

    study: Any
    run_dir: Path
    config: TrainConfig | None = None
    picture: Path | None = None

    def table(self) -> str:
        """Return a line for each of the ten best trials, and the numbers of the others.

        From 50 finished trials on, a line says which settings set the best tenth apart (PED-ANOVA, arXiv:2304.10255).
        """
        found = self.study.get_trials(deepcopy=False)
        states = ("COMPLETE", "PRUNED", "FAIL")
        done, pruned, failed = ([trial for trial in found if trial.state.name == state] for state in states)
        names = sorted(done[0].params) if done else []
        best = sorted(done, key=lambda trial: -trial.value)[:_MAX_SHOWN]
        rows = [
            (str(each.number), f"{each.value:,.1f}", *(_text(each.params[name]) for name in names)) for each in best
        ]
        rows = [("trial", "return", *names), *rows] if done else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        failed = [trial for trial in failed if "failure" in trial.user_attrs]  # others are tried again
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        lines += [f"trial {trial.number} failed: {trial.user_attrs['failure']}" for trial in failed[:_MAX_SHOWN]]
        lines.append(f"{len(done)} finished, {len(pruned)} pruned, {len(failed)} failed")
        if len(done) >= _MIN_IMPORTANCE:
            with contextlib.suppress(ValueError, RuntimeError), _without_warnings():
                evaluator = optuna.importance.PedAnovaImportanceEvaluator()
                shares = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
                apart = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
                lines.append(f"what sets the best tenth apart: {apart}")
        return "\n".join(lines)


def sweep(
    config: TrainConfig,
    space: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    trials: int = 20,
    seeds: Iterable[int] = (0,),
    parallel: int = 1,
    study: str = "sweep",
    storage: Any = None,
    sampler: Any = "tpe",
    pruner: Any = "median",
) -> SweepResults:
    """Searches for settings with a high return, with Optuna. The same call goes on with the study, or joins it.

    A trial's return is the interquartile mean over its seeds, as in `train_seeds`. The pruner sees the mean of the
    first, second, ... evaluations of the seeds that begin a trial, `parallel` of them. A failed run ends its trial
    as failed, and the search goes on. A trial whose process was killed, interrupted or ended by another error is tried
    again from its checkpoints, three times at most.

    Args:
        config: The settings of all. Without `eval_every` and callbacks, runs evaluate after each tenth of their steps.
            `run_dir` is the folder of the trials; by default `runs/<env>/<algorithm>-<study>`.
        space: For each setting, also of the algorithm, {"uniform": (low, high)}, {"log_uniform": (low, high)},
            {"int": (low, high)}, ends included, or {"choice": [value, ...]}.
        trials: Trials of the study, those of other processes and failed ones included.
        seeds: Seeds of each trial.
        parallel: Runs of a trial at a time, as in `train_seeds`. Processes that share a study train trials at a time.
        study: The study's name.
        storage: URL of a database, as SQLAlchemy takes it, or an Optuna storage; by default `study.db` in the folder.
        sampler: Name of an Optuna sampler, such as "tpe", "random", "gp", "cmaes" or "qmc", or such an object.
        pruner: Name of an Optuna pruner, such as "median", "hyperband" or "none", or such an object.

    Raises:
        ValueError: An argument can't be used, or the study is one of another search; no trial was begun. Or
            `train_seeds` refuses a trial, as it does for a folder that can't be written.
        ImportError: Optuna, or a package that the sampler needs, isn't installed.
    """
    if optuna is None:
        raise ImportError(f"a sweep needs optuna 4.9 or newer: {install_command('actor-learner[sweep]')}")
    config.require_one_policy("a sweep")
    trials, seeds = check_count("trials", trials), check_seeds(seeds)
    check_parallel(parallel)
    if config.eval_every is None and not config.callbacks:
        config = config.replace(eval_every=max(1, config.all_steps // 10))
    config = directory.with_init_commit(config)
    settings = _read(space, config)
    _check_values(settings, config)
    directory.check_run_dir(config.replace(run_dir=None))
    resolve_env(**config.env_arguments)
    for name in (each for each in config.callbacks if isinstance(each, str)):
        if importlib.util.find_spec(re.split("[.:]", name)[0]) is None:
            raise refusal("callbacks", "of modules that are installed here", name)
    check_memory(config.local_actors * parallel)
    folder = Path(config.run_dir or directory.runs_of(config) / f"{config.algorithm_name}-{study}")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its trials are said here
    try:
        with _without_warnings():
            if isinstance(sampler, str):
                _rehearse(settings, sampler)
            tools = {"sampler": _named("sampler", sampler), "pruner": _named("pruner", pruner)}
            found, keeps_alive = _open(storage, study, folder, tools)
            drawn = {name: [kind, [*values]] for name, (kind, values) in settings.items()}
            _check_study(found, folder, space=drawn, seeds=seeds, config=config)
            search = _Trials(config, settings, seeds, parallel, folder)
            try:
                search.run(found, trials, wait=keeps_alive)
            except KeyboardInterrupt:
                search.say(SweepResults(found, folder).table())
                raise
            return _finish(found, config, settings, folder)
    finally:
        optuna.logging.set_verbosity(verbosity)


def read_space(source: str) -> Mapping[str, Any]:
    """Return the space in a TOML file, or that a module has: "module:name". Raises ValueError if there is none."""
    if ":" in source and not Path(source).exists():
        found: Mapping[str, Any] = resolve_reference(source, "space")
        return found
    try:
        return tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refusal("space", f"a TOML file, or module:name ({one_line(error)})", source) from error


_Space = Mapping[str, tuple[str, Mapping[Any, Any]]]
"""For each setting the kind of its values, and its values or their ends by what Optuna draws."""


def _read(space: Mapping[str, Any], config: TrainConfig) -> _Space:
    if not isinstance(space, Mapping) or not space:
        raise refusal("space", f"settings with their values, NAME = {_FORMS}", space)
    kind = type(config.algorithm)
    known = (names_of(TrainConfig) | names_of(kind)) - {"env", "seed", *NOT_REPEATED}
    hints = {**typing.get_type_hints(kind), **typing.get_type_hints(TrainConfig)}
    check_known(f"A space of TrainConfig and {kind.__name__} has", space, known)
    return {name: _values(name, form, hints.get(name, Any)) for name, form in space.items()}


def _values(name: str, form: Any, hint: Any) -> tuple[str, Mapping[Any, Any]]:
    kind, given = next(iter(form.items())) if isinstance(form, Mapping) and len(form) == 1 else ("", ())
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not (kind == "choice" or (kind in ("uniform", "log_uniform", "int") and len(given) == 2)):
        raise refusal("space", f"of the form {name} = {_FORMS}", {name: form})
    try:
        if kind == "choice":
            found = [file_value(value, hint, name) for value in given]
            values = {
                each if isinstance(each, bool | int | float | str | None) else json.dumps(each): each for each in found
            }
        else:
            found = [check_count(name, end, None) if kind == "int" else check_number(name, end) for end in given]
            values = dict(zip(found, found, strict=True))
        _draw(optuna.trial.FixedTrial({name: next(iter(values), None)}), name, kind, values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"`space`, {name}: {one_line(error)}") from error
    return kind, values


def _draw(trial: Any, name: str, kind: str, values: Mapping[Any, Any]) -> Any:
    if kind == "choice":
        return values[trial.suggest_categorical(name, [*values])]
    low, high = next(iter(values)), [*values][-1]
    return (
        trial.suggest_int(name, low, high)
        if kind == "int"
        else trial.suggest_float(name, low, high, log=kind != "uniform")
    )


def _with(config: TrainConfig, space: _Space, trial: Any) -> TrainConfig:
    """Return the config with the settings that a trial draws."""
    drawn = {name: _draw(trial, name, *values) for name, values in space.items()}
    own = {name: drawn.pop(name) for name in names_of(type(config.algorithm)) & drawn.keys()}
    return config.replace(**drawn, algorithm=dataclasses.replace(config.algorithm, **own) if own else config.algorithm)


def _check_values(space: _Space, config: TrainConfig) -> None:
    """Raise ValueError for an end, or a choice, that the config refuses, alone and beside each other one."""
    ends = [(name, value) for name, (_, values) in space.items() for value in values]
    for name, value in ends:
        refused = []
        for beside, other in ((name, value), *ends):
            fixed = {beside: other, name: value}
            try:
                _with(config, {each: space[each] for each in fixed}, optuna.trial.FixedTrial(fixed))
                break
            except ValueError as error:
                refused.append(error)
        else:
            raise ValueError(f"`space`, {name}: {refused[0]}") from refused[0]


def _named(name: str, given: Any) -> Any:
    """Return Optuna's sampler or pruner of a name; an object as it is."""
    module, kind = getattr(optuna, f"{name}s"), name.title()
    if isinstance(given, getattr(module, f"Base{kind}")):
        return given
    classes = {each.removesuffix(kind).lower(): getattr(module, each) for each in module.__all__ if each.endswith(kind)}
    known = {
        key.replace("nop", "none"): each for key, each in classes.items() if "base" not in key and not misfit(each)
    }
    try:
        return known[check_choice(name, given, known)](**({"constant_liar": True} if given == "tpe" else {}))
    except TypeError:  # of one that needs one of several arguments
        raise refusal(name, "one that needs no arguments; in Python an object", given) from None


def _without_warnings() -> Any:
    return warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning)


def _rehearse(space: _Space, sampler: Any) -> None:
    """Raise ValueError or ImportError for a name of a sampler that can't draw from the space, or lacks a package."""
    rehearsal = optuna.create_study(sampler=_named("sampler", sampler))

    def objective(trial: Any) -> float:
        return float(trial.number) / len([_draw(trial, name, *values) for name, values in space.items()])

    try:
        rehearsal.optimize(objective, n_trials=_REHEARSED)
    except ImportError as error:
        raise ImportError(f"the sampler {sampler!r} needs a package: {one_line(error)}") from error
    except ValueError as error:
        raise refusal("sampler", f"one for this space ({one_line(error)})", sampler) from error


def _open(storage: Any, name: str, folder: Path, tools: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the study, new or not, and True if its storage knows which trials are those of killed processes."""
    directory.check_writable(folder)
    if storage is None:
        with directory.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{folder}/study.db"
    url, options = storage, {"connect_args": {"timeout": _LOCK_SECONDS}} if str(storage).startswith("sqlite") else {}
    beats: dict[str, Any] = {"heartbeat_interval": _HEARTBEAT_SECONDS, "grace_period": _GRACE_SECONDS}
    for tries_left in (2, 1, 0):  # two processes may make the tables of a new database at the same time
        try:
            if isinstance(url, str):
                beats["heartbeat_stale_trial_callback"] = Retry(max_retry=_MAX_RETRIES)
                storage = optuna.storages.RDBStorage(url, options, **beats)
            found = {"study_name": name, "storage": storage, "direction": "maximize", "load_if_exists": True}
            study = optuna.create_study(**found, **tools)
            break
        except Exception as error:  # of SQLAlchemy, of a driver, or of Optuna
            if not tries_left:
                shown = re.sub(r".*@", "***@", str(url))  # a password
                raise refusal("storage", f"one that Optuna can open ({one_line(error)})", shown) from error
            time.sleep(_LOOK_SECONDS)
    return study, getattr(storage, "get_heartbeat_interval", lambda: None)() is not None


def _check_study(study: Any, folder: Path, *, config: TrainConfig, **own: Any) -> None:
    """Raise ValueError if the study is of another search, or a new one in the folder of another."""
    skipped = (WITHOUT_EFFECT | _PER_MACHINE) - {"eval_every", "eval_episodes"}
    own |= {"num_envs": sum(config.env_counts), **flat_config(config.to_json(), skip=skipped)}
    own = json.loads(json.dumps(own))
    other: Mapping[str, Any] = {"space": None} if study.trials else own | {"id": secrets.token_hex(8)}
    known = study.user_attrs.get("sweep", other)  # the id tells the folder from another study's
    if any(folder.glob("trial-*")) and not (folder / f".study-{known.get('id')}").exists():
        raise refusal("run_dir", "a new folder, or the study's own", str(folder))
    if not study.trials:
        study.set_user_attr("sweep", known)
    for name in own:
        if name in known and known[name] != own[name]:  # a later version has more settings
            raise refusal(name, f"as in the study {study.study_name!r}, {known[name]}", own[name])


class _TrialError(Exception):
    """Settings that the config refuses, or runs that failed."""


@dataclass
class _Trials:
    """Trains the trials of this process."""

    config: TrainConfig
    space: _Space
    seeds: Sequence[int]
    parallel: int
    folder: Path
    number: int | None = None
    ended: BaseException | None = None  # by a signal, or by an error that isn't the trial's own

    def say(self, text: str) -> None:
        Lines("stdout", gone=self.config.quiet).say(text)

    def run(self, study: Any, trials: int, *, wait: bool) -> None:
        """Train until the study has so many trials, and wait for those of others, which may be killed."""
        unsaid, sampler = ["waiting for the trials of other processes"], type(study.sampler).__name__
        while True:
            optuna.storages.fail_stale_trials(study)
            found = [trial for trial in study.get_trials(deepcopy=False) if not _is_lost(trial)]
            states = {trial.state.name for trial in found}
            begun = sum(Retry.retried_trial_number(trial) is None for trial in found)
            if "WAITING" in states or (begun < trials and study.user_attrs.get("stopped") != sampler):
                self._train(study)
                _write_best(study, self.config, self.space, self.folder)
                if study._stop_flag:  # by a sampler that has drawn all
                    study.set_user_attr("stopped", sampler)
            elif "RUNNING" not in states or not wait:
                return
            else:
                while unsaid:
                    self.say(unsaid.pop())
                time.sleep(_LOOK_SECONDS)

    def _train(self, study: Any) -> None:
        self.number = self.ended = None
        try:
            study.optimize(self._objective, n_trials=1, catch=(_TrialError,))
        except Exception:
            if self.number is None or study.trials[self.number].state.name != "FAIL":
                raise
            self.say(f"trial {self.number} went to another process")  # which had no sign of life from this one
            if isinstance(self.ended, Exception):
                return
        except KeyboardInterrupt:
            if self.ended is None:
                raise
            Retry(max_retry=_MAX_RETRIES)(study, study.trials[self.number])
        if self.ended is not None:
            raise self.ended from None

    def _objective(self, trial: Any) -> float:
        self.number = trial.number
        try:
            results = self._results(trial)
            self.say(f"trial {trial.number}: return {results.kind} {results.iqm:,.1f}")
            return results.iqm
        except optuna.TrialPruned:
            self.say(f"trial {trial.number}: pruned")
            raise
        except _TrialError as error:
            trial.set_user_attr("failure", reason := printable(one_line(error)))
            self.say(f"trial {trial.number}: failed: {reason}")
            raise
        except BaseException as error:
            message = "the same command goes on with the study"
            self.ended = KeyboardInterrupt(message) if isinstance(error, KeyboardInterrupt) else error
            raise KeyboardInterrupt from error  # on SystemExit, Optuna would leave the trial running

    def _results(self, trial: Any) -> SeedResults:
        try:
            config = _with(self.config, self.space, trial)
        except ValueError as error:
            raise _TrialError(one_line(error)) from error
        tries = Retry.retry_history(trial.study.trials[trial.number])
        if len(tries) == _MAX_RETRIES:
            trial.set_user_attr("failure", f"its process ended {_MAX_RETRIES + 1} times")  # if it ends no other way
        folder = self.folder / f"trial-{[*tries, trial.number][0]}"
        self.say(
            f"trial {trial.number}: " + ", ".join(f"{name} {_text(value)}" for name, value in trial.params.items())
        )
        while any(directory.is_locked(folder / f"seed-{seed}") for seed in self.seeds):  # by one that was only asleep
            time.sleep(_LOOK_SECONDS)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f".study-{trial.study.user_attrs['sweep']['id']}").touch()
        pruning = _Pruning(trial, folder, self.seeds[: self.parallel], config.all_steps)
        resume = (folder / SEEDS_FILE).is_file()
        config = config.replace(run_dir=folder)
        results = train_seeds(config, self.seeds, parallel=self.parallel, resume=resume, stop=pruning)
        if results.failures and pruning.pruned:
            raise optuna.TrialPruned
        if results.failures or not results.returns:
            reasons = [f"seed {seed}: {reason}" for seed, reason in results.failures.items()]
            raise _TrialError([*reasons, "no episode finished"][0])  # the first failure stopped the other seeds
        return results


def _is_lost(trial: Any) -> bool:
    """Return True for a trial whose process was killed before its first heartbeat, when it had no settings yet."""
    age = datetime.datetime.now() - (trial.datetime_start or datetime.datetime.max)
    return trial.state.name == "RUNNING" and not trial.params and age.total_seconds() > _BEGIN_SECONDS


class _Pruning:
    """Reports the evaluations of a trial's first runs, and says when to stop."""

    def __init__(self, trial: Any, folder: Path, seeds: Sequence[int], all_steps: int) -> None:
        self.pruned, self._trial, self._all_steps, self._reported = False, trial, all_steps, 0
        self._readers = [MetricsReader(RunDirectory(folder / f"seed-{seed}").metrics) for seed in seeds]
        self._curves: list[dict[int, float]] = [{} for _ in seeds]  # by steps, since a resumed run's rows come again

    def __call__(self, failures: Mapping[int, str]) -> bool:
        if failures:
            return True
        for reader, curve in zip(self._readers, self._curves, strict=True):
            curve |= {steps_of(row): row[_METRIC] for row in reader.read() if _METRIC in row}
        before, self._reported = self._reported, max(self._reported, min(map(len, self._curves)))
        for number in range(before, self._reported):
            value = float(np.mean([[*curve.values()][number] for curve in self._curves]))
            self._trial.report(value, number + 1)
        goes_on = all(max(curve, default=0) < self._all_steps for curve in self._curves)
        self.pruned = self.pruned or (self._reported > before and goes_on and self._trial.should_prune())
        return self.pruned


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_best(study: Any, config: TrainConfig, space: _Space, folder: Path) -> TrainConfig | None:
    try:
        best = _with(config, space, study.best_trial).replace(run_dir=None, overwrite=False)
    except ValueError:  # no trial has finished
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "best.toml").write_text(config_toml(best), encoding="utf-8")  # another process may write it, too
    return best


def _finish(study: Any, config: TrainConfig, space: _Space, folder: Path) -> SweepResults:
    if (best := _write_best(study, config, space, folder)) is None:
        return SweepResults(study, folder)
    picture = None
    with contextlib.suppress(ImportError):
        from matplotlib import pyplot

        with pyplot.style.context("default"), warnings.catch_warnings(action="ignore"):  # of an axis with one value
            axes = optuna.visualization.matplotlib.plot_parallel_coordinate(study, target_name="return")
            figure, lines = axes.figure, axes.collections[0]
            axes.set_title("")
            lines.set_cmap("viridis_r")  # in Optuna's own colours the lowest return is white
            lines.colorbar.remove()  # says what the first axis says
            figure.set_size_inches(2.5 + 1.5 * len(study.best_trial.params), 3.6)
            figure.savefig(picture := folder / "parallel.png", dpi=200, bbox_inches="tight")
            pyplot.close(figure)
    return SweepResults(study, folder, best, picture)
