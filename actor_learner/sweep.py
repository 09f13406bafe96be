"""A search for settings by Optuna: each trial trains runs of some seeds in processes of their own, and may be pruned.

Its folder holds the runs of each trial, and in the end `best.toml` and `parallel.png`; the study, too, unless it is
stored elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import re
import time
import tomllib
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actor_learner.config.config import TrainConfig, unknown_field
from actor_learner.config.file import NOT_REPEATED, config_toml, file_value
from actor_learner.config.pool_checks import check_memory
from actor_learner.config.references import resolve_reference
from actor_learner.config.settings import names_of
from actor_learner.environments.factory import resolve_env
from actor_learner.reports.displays import Lines
from actor_learner.reports.plot import check_package, plot_parallel
from actor_learner.reports.status import printable
from actor_learner.runs import directory
from actor_learner.runs.directory import SEEDS_FILE, RunDirectory
from actor_learner.runs.metrics import MetricsReader, steps_of
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, flat_config
from actor_learner.seeds import check_parallel, check_seeds, train_seeds
from actor_learner.system.fields import check_choice, check_count, check_number, misfit, refusal
from actor_learner.system.files import one_line, write_atomically

_KINDS = ("uniform", "log_uniform", "int", "choice")
_FORMS = "{ uniform = [LOW, HIGH] }, or with log_uniform, int or choice = [VALUE, ...]"
_METRIC = "evaluation/return_mean"
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 5, 30  # after which a trial without a heartbeat counts as killed
_LOCK_SECONDS = 60  # to wait for other processes that write to the same SQLite file
_LOOK_SECONDS = 1.0
_BEGIN_SECONDS = 60.0  # that a trial may take to draw its settings, before its first heartbeat
_MAX_COMBINATIONS = 64  # of other settings, with which a value is tried that the config alone refuses
_MAX_SHOWN = 10
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

    @property
    def importance(self) -> dict[str, float]:
        """The share of each setting in the scatter of the returns (PED-ANOVA, arXiv:2304.10255), largest first."""
        import optuna

        with contextlib.suppress(ValueError, RuntimeError), _quiet_optuna():  # of too few trials
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(self.study, evaluator=evaluator))
        return {}

    def table(self) -> str:
        """Return a line for each of the ten best trials, the numbers of the others, and the settings' importance."""
        done = _in_state(self.study, "COMPLETE")
        names = sorted({name for trial in done for name in trial.params})
        rows = [("trial", "return", *names)]
        best = sorted(done, key=lambda each: -each.value)[:_MAX_SHOWN]
        rows += [(str(t.number), f"{t.value:,.1f}", *(_text(t.params.get(name)) for name in names)) for t in best]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows] if done else []
        failed = [trial for trial in _in_state(self.study, "FAIL") if "failure" in trial.user_attrs]
        lines += [f"trial {trial.number} failed: {trial.user_attrs['failure']}" for trial in failed[:_MAX_SHOWN]]
        lines.append(f"{len(done)} finished, {len(_in_state(self.study, 'PRUNED'))} pruned, {len(failed)} failed")
        if shares := self.importance:
            lines.append("importance: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
        return "\n".join(lines)


def sweep(
    config: TrainConfig,
    space: Mapping[str, Mapping[str, Any]],
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

    A trial's return is that of `train_seeds`: the interquartile mean over its seeds. Pruners see the evaluations of the
    seeds that begin a trial, `parallel` of them: the mean of their first, second, ... A run that fails makes its trial
    fail, and the search goes on. The trial of a killed process is tried again, from its checkpoints where its folder
    is; that of a process that was interrupted, too.

    Args:
        config: The settings of all. Without `eval_every` and callbacks, runs evaluate after each tenth of their steps.
            `run_dir` is the folder of the trials; by default `runs/<env>/<algorithm>-<study>`.
        space: For each setting, also of the algorithm, {"uniform": (low, high)}, {"log_uniform": (low, high)},
            {"int": (low, high)}, ends included, or {"choice": [value, ...]}.
        trials: Trials of the study, those of other processes and failed ones included.
        seeds: Seeds of each trial.
        parallel: Runs of a trial at a time, as in `train_seeds`. Processes with one study train trials side by side.
        study: The study's name.
        storage: URL of a database, as SQLAlchemy takes it, or an Optuna storage; by default `study.db` in the folder.
        sampler: Name of an Optuna sampler, such as "tpe", "random", "gp", "cmaes" or "qmc", or such an object.
        pruner: Name of an Optuna pruner, such as "median", "hyperband" or "none", or such an object.

    Raises:
        ValueError: An argument can't be used, or the study is one of another search; no trial was begun.
        ImportError: Optuna, or a package that the sampler or the storage needs, isn't installed.
    """
    check_package("optuna", "a sweep", "sweep")
    config.require_one_policy("a sweep")
    trials, seeds = check_count("trials", trials), check_seeds(seeds)
    check_parallel(parallel)
    if config.eval_every is None and not config.callbacks:
        config = config.replace(eval_every=max(1, config.all_steps // 10))
    config = directory.with_init_commit(config)
    settings = _read(space, config)
    _check_values(settings, config)
    tools = {"sampler": _named("sampler", sampler), "pruner": _named("pruner", pruner)}
    directory.check_run_dir(config.replace(run_dir=None))
    resolve_env(**config.env_arguments)
    check_memory(config.local_actors * parallel)
    folder = Path(config.run_dir or directory.runs_of(config) / f"{config.algorithm_name}-{study}")
    with _quiet_optuna():
        found, keeps_alive = _open(storage, study, folder, tools)
        _check_study(found, folder, space=space, seeds=seeds, config=config)
        _Trials(config, settings, seeds, parallel, folder).run(found, trials, wait=keeps_alive)
        return _finish(found, config, settings, folder)


def read_space(source: str) -> Mapping[str, Any]:
    """Return the space in a TOML file, or that a module has: "module:name". Raises ValueError if there is none."""
    if ":" in source and not Path(source).exists():
        found: Mapping[str, Any] = resolve_reference(source, "space")
        return found
    try:
        return tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refusal("space", f"a TOML file, or module:name ({one_line(error)})", source) from error


class _Setting(NamedTuple):
    """A setting of a space: Optuna's distribution, and the values that its choices stand for."""

    distribution: Any
    values: Mapping[Any, Any]

    def draw(self, trial: Any, name: str) -> Any:
        known = self.distribution
        if self.values:
            return self.values[trial.suggest_categorical(name, known.choices)]
        suggest = trial.suggest_int if isinstance(known.low, int) else trial.suggest_float
        return suggest(name, known.low, known.high, log=known.log)


def _read(space: Mapping[str, Any], config: TrainConfig) -> dict[str, _Setting]:
    if not isinstance(space, Mapping) or not space:
        raise refusal("space", f"settings with their values, NAME = {_FORMS}", space)
    kind = type(config.algorithm)
    known = (names_of(TrainConfig) | names_of(kind)) - {"seed", *NOT_REPEATED}
    hints = {**typing.get_type_hints(kind), **typing.get_type_hints(TrainConfig)}
    for name, form in space.items():
        if name not in known:
            raise unknown_field(f"A space of TrainConfig and {kind.__name__} has", name, form, known)
    return {name: _setting(name, form, hints.get(name, Any)) for name, form in space.items()}


def _setting(name: str, form: Any, hint: Any) -> _Setting:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kind, values = next(iter(form.items())) if isinstance(form, Mapping) and len(form) == 1 else (None, ())
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if kind not in _KINDS or not is_list or (kind != "choice" and len(values) != 2):
        raise refusal("space", f"of the form {name} = {_FORMS}", {name: form})
    try:
        if kind == "choice":
            found = [file_value(value, hint, name) for value in values]
            labels = [
                value if isinstance(value, bool | int | float | str | None) else json.dumps(value) for value in found
            ]
            return _Setting(CategoricalDistribution(labels), dict(zip(labels, found, strict=True)))
        if kind == "int":
            return _Setting(IntDistribution(*(check_count(name, value, None) for value in values)), {})
        ends = [check_number(name, value) for value in values]
        return _Setting(FloatDistribution(*ends, log=kind == "log_uniform"), {})
    except (ValueError, TypeError) as error:
        raise ValueError(f"`space`, {name}: {one_line(error)}") from error


def _with(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    own = {name: value for name, value in values.items() if name in names_of(type(config.algorithm))}
    algorithm = dataclasses.replace(config.algorithm, **own) if own else config.algorithm
    return config.replace(**{name: values[name] for name in values.keys() - own.keys()}, algorithm=algorithm)


def _check_values(settings: Mapping[str, _Setting], config: TrainConfig) -> None:
    """Raise ValueError for an end, or a choice, that the config refuses, whatever the other settings are."""
    tried = {
        name: [*each.values.values()] or [each.distribution.low, each.distribution.high]
        for name, each in settings.items()
    }
    for name, values in tried.items():
        others = {other: ends for other, ends in tried.items() if other != name}
        for value in values:
            refused: ValueError | None = None
            for combination in ((), *itertools.islice(itertools.product(*others.values()), _MAX_COMBINATIONS)):
                try:
                    _with(config, {**dict(zip(others, combination, strict=False)), name: value})
                    break
                except ValueError as error:
                    refused = refused or error
            else:
                raise ValueError(f"`space`, {name}: {refused}") from refused


def _named(name: str, given: Any) -> Any:
    """Return Optuna's sampler or pruner of a name; an object as it is."""
    import optuna

    module, kind = getattr(optuna, f"{name}s"), name.title()
    if isinstance(given, getattr(module, f"Base{kind}")):
        return given
    classes = {each.removesuffix(kind).lower(): getattr(module, each) for each in module.__all__ if each.endswith(kind)}
    known = {
        word.replace("nop", "none"): each for word, each in classes.items() if not misfit(each) and "base" not in word
    }
    try:
        return known[check_choice(name, given, known)]()
    except ImportError as error:
        raise ImportError(f"{name} {given!r}: {one_line(error)}") from error
    except TypeError:  # Optuna's of which one of several arguments must be given
        raise refusal(name, "one that needs no arguments; in Python an object", given) from None


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging what is said here, and from warnings about what it calls experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _retry(study: Any, trial: Any) -> None:
    """Queue a trial, whose process was killed or interrupted, with the same settings."""
    import optuna

    optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)


def _original(trial: Any) -> Any:
    """Return the number of the trial that this one tries again, or None."""
    import optuna

    return optuna.storages.RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)


def _open(storage: Any, name: str, folder: Path, tools: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the study, new or not, and True if its storage knows which trials are those of killed processes."""
    import optuna

    directory.check_writable(folder)
    url = f"sqlite:///{folder}/study.db" if storage is None else storage
    try:
        if storage is None:
            folder.mkdir(parents=True, exist_ok=True)
        if isinstance(url, str):
            options = {"connect_args": {"timeout": _LOCK_SECONDS}} if url.startswith("sqlite") else {}
            beats = {"heartbeat_interval": _HEARTBEAT_SECONDS, "grace_period": _GRACE_SECONDS}
            url = optuna.storages.RDBStorage(url, options, heartbeat_stale_trial_callback=_retry, **beats)
        study = optuna.create_study(study_name=name, storage=url, direction="maximize", load_if_exists=True, **tools)
    except Exception as error:  # of SQLAlchemy, of a driver, or of Optuna
        shown = re.sub(r"://[^@/]*@", "://***@", str(storage))  # a password
        raise refusal("storage", f"one that Optuna can open ({one_line(error)})", shown) from error
    return study, getattr(url, "get_heartbeat_interval", lambda: None)() is not None


def _check_study(study: Any, folder: Path, *, config: TrainConfig, **own: Any) -> None:
    """Raise ValueError if the study is of another search, or a new one in the folder of another."""
    skipped = (WITHOUT_EFFECT | _PER_MACHINE) - {"eval_every", "eval_episodes"}
    own |= {"num_envs": sum(config.env_counts), **flat_config(config.to_json(), skip=skipped)}
    own = json.loads(json.dumps(own))
    known = study.user_attrs.get("sweep", {} if study.trials else own)
    if not study.trials and any(folder.glob("trial-*")):
        raise refusal("run_dir", "a new folder for a new study", str(folder))
    if not study.trials:
        study.set_user_attr("sweep", known)
    for name in own:
        if known.get(name) != own[name]:
            raise refusal(name, f"as in the study {study.study_name!r}, {known.get(name)}", own[name])


class _Trials:
    """Trains the trials of this process."""

    def __init__(
        self, config: TrainConfig, settings: Mapping[str, _Setting], seeds: Sequence[int], parallel: int, folder: Path
    ) -> None:
        self._config, self._settings, self._folder = config, settings, folder
        self._seeds, self._parallel = seeds, parallel
        self._say = Lines("stdout", gone=config.quiet).say
        self._number = 0
        self._ended: BaseException | None = None  # by a signal

    def run(self, study: Any, trials: int, *, wait: bool) -> None:
        """Train until the study has so many trials, and wait for those of others, which may be killed."""
        import optuna

        waits = False
        while True:
            optuna.storages.fail_stale_trials(study)
            found = [trial for trial in study.get_trials(deepcopy=False) if not _is_lost(trial)]
            states = [trial.state.name for trial in found]
            if "WAITING" in states or sum(_original(trial) is None for trial in found) < trials:
                self._train(study)
            elif "RUNNING" not in states or not wait:
                return
            else:
                if not waits:
                    self._say("waiting for the trials of other processes")
                waits = True
                time.sleep(_LOOK_SECONDS)

    def _train(self, study: Any) -> None:
        try:
            study.optimize(self._objective, n_trials=1, catch=(Exception,), callbacks=[self._report])
        except KeyboardInterrupt:
            if self._ended is None:
                raise
            _retry(study, study.trials[self._number])
            raise self._ended from None

    def _objective(self, trial: Any) -> float:
        import optuna

        self._number = trial.number
        values = {name: setting.draw(trial, name) for name, setting in self._settings.items()}
        frozen = trial.study.trials[trial.number]
        again = _original(frozen)
        folder = self._folder / f"trial-{trial.number if again is None else again}"
        self._say(f"trial {trial.number}: " + ", ".join(f"{name} {_text(value)}" for name, value in values.items()))
        try:
            config = _with(self._config, values).replace(run_dir=folder)
            resume = (folder / SEEDS_FILE).is_file()
            pruning = _Pruning(trial, folder, self._seeds[: self._parallel], config.all_steps)
            results = train_seeds(config, self._seeds, parallel=self._parallel, resume=resume, stop=pruning)
            if results.failures and pruning.pruned:
                raise optuna.TrialPruned
            if results.failures or not results.returns:
                reasons = (f"seed {seed}: {reason}" for seed, reason in results.failures.items())
                raise RuntimeError("; ".join(reasons) or "no episode finished")
        except optuna.TrialPruned:
            raise
        except Exception as error:
            trial.set_user_attr("failure", printable(one_line(error)))
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            self._ended = error
            raise KeyboardInterrupt from error
        return results.iqm

    def _report(self, study: Any, trial: Any) -> None:
        said = {"COMPLETE": f"return {trial.value or 0:,.1f}", "PRUNED": "pruned"}
        self._say(f"trial {trial.number}: {said.get(trial.state.name) or trial.user_attrs.get('failure', 'failed')}")


def _is_lost(trial: Any) -> bool:
    """Return True for a trial whose process was killed before its first heartbeat, and before it had all settings."""
    age = datetime.datetime.now() - (trial.datetime_start or datetime.datetime.max)
    return trial.state.name == "RUNNING" and not trial.params and age.total_seconds() > _BEGIN_SECONDS


class _Pruning:
    """Reports the evaluations of a trial's first runs, and says when to stop."""

    def __init__(self, trial: Any, folder: Path, seeds: Sequence[int], all_steps: int) -> None:
        self.pruned = False
        self._trial, self._all_steps, self._reported = trial, all_steps, 0
        self._curves: list[tuple[MetricsReader, dict[int, float]]] = [
            (MetricsReader(RunDirectory(folder / f"seed-{seed}").metrics), {}) for seed in seeds
        ]

    def __call__(self) -> bool:
        for reader, curve in self._curves:
            curve |= {steps_of(row): row[_METRIC] for row in reader.read() if _METRIC in row}
        known = [[*curve.values()] for _, curve in self._curves]
        before, self._reported = self._reported, max(self._reported, min(map(len, known)))
        for number in range(before, self._reported):
            self._trial.report(float(np.mean([values[number] for values in known])), number + 1)
        goes_on = all(max(curve, default=0) < self._all_steps for _, curve in self._curves)
        self.pruned = self.pruned or (self._reported > before and goes_on and self._trial.should_prune())
        return self.pruned


def _in_state(study: Any, name: str) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == name]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finish(study: Any, config: TrainConfig, settings: Mapping[str, _Setting], folder: Path) -> SweepResults:
    if not (done := _in_state(study, "COMPLETE")):
        return SweepResults(study, folder)
    params = study.best_trial.params
    values = {name: each.values[params[name]] if each.values else params[name] for name, each in settings.items()}
    best, picture = _with(config, values).replace(run_dir=None, overwrite=False), None
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "best.toml", lambda file: file.write_text(config_toml(best), encoding="utf-8"))
    with contextlib.suppress(ImportError):
        axes = {name: each.distribution for name, each in settings.items()}
        picture = plot_parallel(axes, [(each.params, each.value) for each in done], folder / "parallel.png")
    return SweepResults(study, folder, best, picture)
