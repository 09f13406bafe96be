"""Runs of one config with several seeds, each in a process of its own: trained, watched, resumed and compared.

Their folder holds `seeds.json`, the config with the seeds, and a run's directory for each seed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from actor_learner.config.config import TrainConfig
from actor_learner.config.pool_checks import check_memory
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.reports.curves import bootstrap_interval, interquartile_mean
from actor_learner.reports.displays import Lines, is_terminal
from actor_learner.reports.plot import plot
from actor_learner.reports.status import line, printable
from actor_learner.reports.watch import WatchedRun
from actor_learner.runs import directory
from actor_learner.runs.directory import SEEDS_FILE, RunDirectory, read_config
from actor_learner.runs.metrics import read_metrics
from actor_learner.runs.resume import check_fits
from actor_learner.system.child import Child, ChildEndedError
from actor_learner.system.fields import check_count, refusal
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import prepare_process, use_backend
from actor_learner.system.machine import available_cores
from actor_learner.system.signals import Interrupts, exiting_on_signals

_LOOK_SECONDS = 0.5
_END_SECONDS = 10.0  # that a process has to end by itself after its run
_RETURNS = {"evaluation/return_mean": "of evaluations", "episode_return": "while training"}
"""The metrics that runs are compared by: the one that most of them have, or else the first; and each one's words."""


@dataclass(frozen=True)
class SeedResults:
    """Runs that differ in their seed alone.

    Attributes:
        run_dir: the folder of all.
        run_dirs: the directory of each seed's run.
        returns: the last return of each seed whose run has finished: of an evaluation, or else while training.
        failures: the reason of each other seed, in a line.
        curve: the picture of the returns with the interval; None without matplotlib, or if there is nothing to draw.
        metric: the returns' name in metrics.jsonl.
    """

    run_dir: Path
    run_dirs: Mapping[int, Path]
    returns: Mapping[int, float]
    failures: Mapping[int, str]
    curve: Path | None = None
    metric: str = "episode_return"

    @property
    def iqm(self) -> float:
        """The interquartile mean of the returns; NaN without any."""
        return float(interquartile_mean(self._values)[0]) if self.returns else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the interquartile mean, by the bootstrap over seeds; NaN without any."""
        low, high = bootstrap_interval(self._values) if self.returns else np.full((2, 1), math.nan)
        return float(low[0]), float(high[0])

    @property
    def kind(self) -> str:
        """The returns' kind: "of evaluations" or "while training"."""
        return _RETURNS[self.metric]

    @property
    def _values(self) -> Any:
        return np.array([*self.returns.values()])[:, None]

    def table(self) -> str:
        """Return a line for each seed, and one for all."""
        lines = [f"{'seed':>10}  {'return':>10}  run"]
        for seed, run_dir in self.run_dirs.items():
            found = f"{self.returns[seed]:10,.1f}" if seed in self.returns else f"{'-':>10}"
            why = self.failures.get(seed, "" if seed in self.returns else "no episode finished")
            lines.append(f"{seed:>10}  {found}  {run_dir}" + (f"  ({why})" if why else ""))
        low, high = self.interval
        about, of = f"interquartile mean {self.kind}", f"{len(self.returns)} of {len(self.run_dirs)} seeds"
        if len(self.returns) > 1:  # of one seed, the interval is a point
            about, of = f"{about}, 95% interval {low:,.1f} to {high:,.1f}", f"bootstrap over {of}"
        return "\n".join([*lines, f"{'all':>10}  {self.iqm:10,.1f}  {about} ({of})"])


def train_seeds(
    config: TrainConfig,
    seeds: Iterable[int] | None = None,
    *,
    parallel: int = 1,
    resume: bool = False,
    stop: Callable[[Mapping[int, str]], bool] = lambda failures: False,
) -> SeedResults:
    """Trains a run for each seed, each in a process of its own, and compares them. A failed run doesn't end the others.

    Ctrl-C, SIGTERM and SIGHUP let the runs save, as in `train`.

    Args:
        config: The settings of all. Its `run_dir` is the folder of their directories, `seed-N` each; by default
            `runs/<env>/<algorithm>-seeds-<n>`.
        seeds: Different numbers; None: 0 to 4, or those of the folder that is resumed.
        parallel: Runs at a time. Each has an equal share of the cores.
        resume: Goes on with the runs in `config.run_dir` that haven't finished.
        stop: Called about twice a second with the failures so far, a line by seed. Once it returns True, the runs save
            and end, and no other one begins.

    Raises:
        ValueError: An argument or a field can't be used; nothing was started.
        ImportError: The config needs a package that isn't installed.
    """
    config.require_one_policy("several seeds")
    check_parallel(parallel)
    wanted = None if seeds is None else check_seeds(seeds)
    folder, known = _resumed(config, wanted) if resume else (None, wanted or tuple(range(5)))
    config = config if resume else directory.with_init_commit(config)
    configs = {seed: config.replace(seed=seed, overwrite=False, quiet=True, verbose=False) for seed in known}
    if not resume:
        directory.check_run_dir(config.replace(run_dir=None))
    source = resolve_env(**config.env_arguments).source
    check_memory(config.local_actors * parallel)
    jobs = {seed: _packed(each, source if isinstance(source, EnvSpec) else None) for seed, each in configs.items()}
    folder = folder or _claim(config)
    directory.write_config(folder / SEEDS_FILE, config, seeds=list(known))  # resumed, too: runs' steps may have grown
    run_dirs = {seed: folder / f"seed-{seed}" for seed in known}
    runs = _Runs(jobs, run_dirs, config.all_steps, parallel, quiet=config.quiet)
    with Interrupts(quiet=config.quiet) as interrupts:
        runs.train(interrupts, stop)
        interrupts.raise_received(f"the runs are saved in {folder}, and go on from there with --resume (resume=True)")
    return _compare(folder, run_dirs, runs.failures)


def check_parallel(parallel: int) -> None:
    """Raise ValueError unless there is a core for each of so many runs."""
    if not 1 <= check_count("parallel", parallel) <= available_cores():
        raise refusal("parallel", f"at most {available_cores()}, the cores that this process may use", parallel)


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds as integers. Raises ValueError unless they are different ones."""
    found = tuple(check_count("seeds", seed, 0) for seed in (seeds if isinstance(seeds, Iterable) else ()))
    if not found or len({*found}) < len(found):
        raise refusal("seeds", "different numbers", found or seeds)
    return found


def _resumed(config: TrainConfig, wanted: tuple[int, ...] | None) -> tuple[Path, tuple[int, ...]]:
    folder = Path(config.run_dir or "")
    if config.run_dir is None or not (folder / SEEDS_FILE).is_file():
        raise refusal("run_dir", f"a folder that `train_seeds` (--seeds) made, with {SEEDS_FILE}", config.run_dir)
    recorded = read_config(folder)
    seeds = check_seeds(recorded.get("seeds") or ())
    if wanted not in (None, seeds):
        raise refusal("seeds", f"left out, or the folder's own, {seeds}", wanted)
    check_fits(recorded, config)
    return folder, seeds


def _claim(config: TrainConfig) -> Path:
    """Return the folder of new runs. Raises ValueError if it isn't a new one."""
    if config.run_dir is None:
        return directory.free_run(config, "seeds").path
    folder = Path(config.run_dir)
    if (folder / SEEDS_FILE).exists():
        expected = "a new folder; resume the runs of this one by --resume (resume=True)"
        raise refusal("run_dir", expected, str(folder))
    directory.check_writable(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise refusal("run_dir", "a new or empty folder for runs of `seeds`", str(folder))
    return folder


def _packed(config: TrainConfig, spec: EnvSpec | None) -> bytes:
    try:
        return bytes(cloudpickle.dumps((config, spec)))
    except Exception as error:
        expected = "of objects that can be given to another process (a network: a function that builds it)"
        raise ValueError(
            f"`config` must be {expected}: {one_line(error)}. Received: run_dir={config.run_dir}"
        ) from error


class _Runs:
    """The processes of runs: the first ones, and those that follow where one has ended."""

    def __init__(
        self, jobs: Mapping[int, bytes], run_dirs: Mapping[int, Path], steps: int, parallel: int, *, quiet: bool
    ) -> None:
        self.failures: dict[int, str] = {}
        self._jobs, self._run_dirs, self._steps, self._parallel = jobs, run_dirs, steps, parallel
        self._waiting = list(jobs)
        self._children: dict[int, tuple[int, Child, WatchedRun]] = {}  # seed -> its share of the cores, process, run
        self._ended: list[str] = []  # lines that are to be shown
        self._screen, self._drawn, self._tenths = Lines("stdout", gone=quiet), 0, dict.fromkeys(jobs, 0)
        self._in_place = not getattr(sys.stdout, "closed", True) and is_terminal(sys.stdout)

    def train(self, interrupts: Interrupts, stop: Callable[[Mapping[int, str]], bool]) -> None:
        """Train all, and return when all have ended. After a signal, or `stop`, those that train save and end."""
        stopping = False
        with contextlib.ExitStack() as children:
            while self._children or self._waiting:
                while self._waiting and len(self._children) < self._parallel and not interrupts.requested:
                    seed = self._waiting.pop(0)
                    try:
                        self._start(seed, children)
                    except (ValueError, OSError, RuntimeError) as error:
                        self.failures[seed] = printable(one_line(error))
                        self._ended.append(f"seed {seed}: {self.failures[seed]}")
                for seed in [*self._children]:
                    self._look(seed)
                self._show()
                if not stopping and (interrupts.requested or stop(self.failures)):
                    stopping = True
                    self._waiting.clear()
                    for _, child, _ in self._children.values():
                        child.interrupt()

    def _start(self, seed: int, children: contextlib.ExitStack) -> None:
        run = RunDirectory(self._run_dirs[seed])
        if run.exists and read_config(run.path).finished_steps >= self._steps:
            return
        share = next(each for each in range(self._parallel) if each not in [s for s, *_ in self._children.values()])
        watched, child = WatchedRun(run), Child(f"{__name__}:main", name=f"seed-{seed}")
        children.callback(child.close)
        self._children[seed] = share, child, watched
        with contextlib.suppress(ChildEndedError):  # `_look` says why
            child.send((self._jobs[seed], str(run.path), run.exists, (share, self._parallel)))

    def _look(self, seed: int) -> None:
        """Read a run's new rows, or take its end."""
        _, child, run = self._children[seed]
        try:
            failure = child.receive(_LOOK_SECONDS / self._parallel)
        except TimeoutError:
            with contextlib.suppress(ValueError, OSError, RuntimeError):  # the run says itself what it can't read
                run.refresh()
            return
        except ChildEndedError as error:
            failure = str(error)
        child.close(_END_SECONDS)
        del self._children[seed]
        try:
            run.refresh()
        except (ValueError, OSError, RuntimeError) as error:
            failure = failure or one_line(error)
        if failure is not None:
            self.failures[seed] = printable(failure)
        self._ended.append(f"seed {seed}: {line(run.status())}" + (f"  {printable(failure)}" if failure else ""))

    def _show(self) -> None:
        """Draw a line for each run, in place on a terminal; elsewhere, a line for each tenth of a run."""
        live = {seed: run.status() for seed, (_, _, run) in self._children.items()}
        lines = [f"seed {seed}: {line(status)}" for seed, status in live.items()]
        shown, self._ended = self._ended, []
        if self._in_place and (shown or lines):
            columns = shutil.get_terminal_size().columns
            above = f"\033[{self._drawn}A\033[J" if self._drawn else ""
            shown = [above + "\n".join(text[: columns - 1] for text in [*shown, *lines])]
            self._drawn = len(lines)
        for seed, text in zip(live, lines, strict=True):
            if self._tenths[seed] < (tenth := int(10 * live[seed].part_done)) < 10 and not self._in_place:
                self._tenths[seed] = tenth
                self._screen.say(text)
        for text in shown:
            self._screen.say(text)


def main(descriptor: str) -> None:
    """Train a run in this process, and send None, or why it failed."""
    connection: Connection[Any, Any] = Connection(int(descriptor))
    job, run_dir, resume, (share, shares) = connection.recv()
    if shares > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[share::shares])
    try:
        config, spec = cloudpickle.loads(job)
        config = config.replace(run_dir=run_dir)
        use_backend(config.backend)
        try:
            resolve_env(**config.env_arguments)
        except EnvError:  # the script that called registered its id
            if spec is None:
                raise
            gym.registry[spec.id] = spec
        prepare_process(config.local_actors, config.max_policy_lag)
        from actor_learner.train import train

        log = logging.getLogger("actor_learner")
        warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)  # into run.log: stderr isn't kept
        with exiting_on_signals():
            train(config, resume=resume)
    except (KeyboardInterrupt, SystemExit) as error:
        connection.send(f"stopped: {one_line(error)}".removesuffix(f": {128 + signal.SIGTERM}"))
    except Exception as error:
        connection.send(one_line(error))
    else:
        connection.send(None)


def _compare(folder: Path, run_dirs: Mapping[int, Path], failures: dict[int, str]) -> SeedResults:
    rows = {}
    for seed in run_dirs.keys() - failures.keys():
        try:
            rows[seed] = read_metrics(run_dirs[seed])
        except (ValueError, OSError) as error:
            failures[seed] = printable(one_line(error))
    last = {seed: _last_returns(rows[seed]) for seed in run_dirs if seed in rows}
    metric = max(_RETURNS, key=lambda name: sum(name in found for found in last.values()))
    returns = {seed: found[metric] for seed, found in last.items() if metric in found}
    curve = None
    with contextlib.suppress(ValueError, ImportError):
        dirs = [run_dirs[seed] for seed in returns]
        curve = plot(dirs, folder / "curve.png", metrics=[metric], band="bootstrap")
    return SeedResults(folder, run_dirs, returns, failures, curve, metric)


def _last_returns(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: row[name] for row in rows for name in _RETURNS if math.isfinite(row.get(name, math.nan))}
