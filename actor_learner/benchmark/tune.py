"""Finds the fastest setting for a machine: successive halving over actors, lag and threads, by measured throughput.

Learning stays the same: the number of environments, `unroll_length`, the hyperparameters, and so the batch and its
minibatches. Lag 1 learns from batches that are one version of the weights old.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from actor_learner.benchmark.trial_worker import MeasuringProcess, Setting, Throughput
from actor_learner.config.config import TrainConfig
from actor_learner.config.file import config_toml
from actor_learner.config.pool_checks import check_memory
from actor_learner.config.references import callable_marks
from actor_learner.system.fields import check_count, check_seconds, refusal
from actor_learner.system.machine import available_cores, learner_cores

T = TypeVar("T")

ALLOWED = ("envs", "unroll_length")
"""The changes that alter learning, which are tried only on request."""

_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)  # for these changes, the likeliest first
_ACTORS_PER_CORE = 4
_MIN_RATIO = 0.98  # the part of the highest throughput from which on the simpler setting wins
_MAX_SHARE = 0.5  # of the time left, which a round may take beyond its own share, if single updates take long
_MAX_SECONDS = 10.0  # the longest measurement, even if this leaves a part of the budget unused
_MIN_TIMEOUT_SECONDS = 20.0  # beyond a setting's own time; three times the start of the process if that is longer


@dataclass
class Trial:
    """A setting, its measurement in each round, and why it can't be measured (None if it can)."""

    setting: Setting
    measured: list[Throughput] = field(default_factory=list)
    failure: str | None = None

    @property
    def rate(self) -> float:
        """The env steps per second over all rounds; 0 without measurements."""
        seconds = sum(throughput.seconds for throughput in self.measured)
        return sum(throughput.steps for throughput in self.measured) / seconds if seconds else 0.0

    def fail(self, error: Exception) -> None:
        """Record why the setting can't be measured."""
        self.failure = str(error)
        self.measured.clear()


@dataclass(frozen=True)
class Tuning:
    """The result of a search: the trials, the best one first; that of the original setting; the best config."""

    trials: tuple[Trial, ...]
    before: Trial
    config: TrainConfig
    seconds: float

    @property
    def best(self) -> Trial:
        return self.trials[0]


def tune(
    config: TrainConfig,
    *,
    budget: float = 120.0,
    allow: Collection[str] = (),
    lags: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    most_actors: int | None = None,
    say: Callable[[str, str], None] = lambda stage, detail: None,
) -> Tuning:
    """Measure settings of a config on this machine, and halve their number until one is left.

    Args:
        config: environment, network and algorithm. A file must be able to hold it.
        budget: seconds for the whole search.
        allow: changes of ALLOWED, which alter learning.
        lags: to try. None: 0 and 1, or the config's own if that is above 1.
        threads: of the learner, to try. None: one, all cores, and powers of four between.
        most_actors: the most to try. None: four for each core.
        say: receives the progress: a stage, and a detail.

    Raises:
        ValueError: an argument can't be used (a config that no file can hold), or the budget is too short for one
            measurement.
        RuntimeError: an environment or a measuring process failed.
    """
    _check(config, budget, allow, most_actors)
    started = time.monotonic()
    before = setting_of(config)
    found = candidates(
        config,
        available_cores(),
        allow=allow,
        lags=lags or ((0, 1) if config.max_policy_lag <= 1 else (config.max_policy_lag,)),
        threads=threads or thread_counts(available_cores()),
        most_actors=most_actors or _ACTORS_PER_CORE * available_cores(),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.toml")
        file.write_text(config_toml(config.replace(run_dir=None, quiet=False, verbose=False)), encoding="utf-8")
        with contextlib.closing(Search(file, [before, *found], started + budget, say)) as search:
            search.prepare()
            # Where the policy runs is compared for the best setting alone, in a round of its own.
            ranking = successive_halving(found, lambda settings, left: search.measure(settings, left + 1))
            elsewhere = [setting.acting_elsewhere() for setting in ranking[:1]]
            try:
                search.measure([*ranking[:1], *elsewhere], 1)
            except RuntimeError as error:  # nobody asked for it, so it mustn't end the search
                for setting in elsewhere:
                    search.trials[setting].fail(error)
    best = choose([*ranking[:2], *elsewhere], search.trials, before)
    if best is None:
        raise _nothing_measured(search.trials.values(), budget)
    order = list(dict.fromkeys([best, *ranking, *search.trials]))
    return Tuning(
        tuple(search.trials[setting] for setting in order),
        search.trials[before],
        best.of(config),
        time.monotonic() - started,
    )


def _check(config: TrainConfig, budget: float, allow: Collection[str], most_actors: int | None) -> None:
    if marks := callable_marks(list(config.replace(callbacks=()).to_json().values())):
        raise refusal("config", "one that a file can hold, with functions of modules", ", ".join(marks))
    check_seconds("budget", budget)
    check_count("most_actors", most_actors, optional=True)
    if unknown := [name for name in allow if name not in ALLOWED]:
        raise ValueError(f"`allow` must be of {', '.join(ALLOWED)}. Received: allow={unknown[0]!r}")


def _nothing_measured(trials: Iterable[Trial], budget: float) -> Exception:
    if failure := next((trial.failure for trial in trials if trial.failure), None):
        return RuntimeError(f"No setting could be measured: {failure}")
    return ValueError(
        "`budget` is too short for one measurement, before which Keras and the actors start and the update is "
        f"compiled. Received: budget={budget:g}"
    )


def setting_of(config: TrainConfig) -> Setting:
    """Return the setting of a config; without actor processes, that of one actor.

    The threads are those of the command line without images, because observations aren't known here.
    """
    actors, lag = max(config.num_actors, 1), config.max_policy_lag
    threads = config.learner_threads or learner_cores(actors, lag)
    return Setting(actors, max(config.env_counts), config.unroll_length, lag, threads, config.acting)


def candidates(
    config: TrainConfig,
    cores: int,
    *,
    allow: Collection[str],
    lags: Sequence[int],
    threads: Sequence[int],
    most_actors: int,
) -> list[Setting]:
    """Return the settings to try: the likeliest of each number of actors, then the others, the likeliest first.

    The likeliest setting has as many actors as cores, and the default threads.
    """
    found = [
        Setting(actors, num_envs // actors, unroll_length, lag, count, config.acting)
        for num_envs, unroll_length in batches(config, allow)
        for actors in actor_counts(num_envs, cores, most_actors)
        for lag in lags
        for count in threads
    ]

    def unlikeliness(setting: Setting) -> float:
        rule = max(1, cores - setting.num_actors) if setting.max_policy_lag else cores
        return abs(math.log2(setting.num_actors / cores)) + abs(math.log2(setting.learner_threads / rule)) / 2

    found.sort(key=unlikeliness)
    first = {setting.num_actors: setting for setting in reversed(found)}
    return sorted(found, key=lambda setting: setting is not first[setting.num_actors])


def batches(config: TrainConfig, allow: Collection[str]) -> list[tuple[int, int]]:
    """Return the environments and steps to try. If both may change, the batch keeps its size."""
    num_envs, steps = sum(config.env_counts), config.unroll_length
    found: dict[tuple[int, int], None] = {}
    for factor in _FACTORS:
        envs = num_envs * factor if "envs" in allow else num_envs
        rows = steps * (1 / factor if "envs" in allow else factor) if "unroll_length" in allow else steps
        if envs == int(envs) and rows == int(rows):
            found[int(envs), int(rows)] = None
    possible = []
    for batch in found:
        with contextlib.suppress(ValueError):  # checks of the algorithm may depend on the length
            config.replace(unroll_length=batch[1])
            possible.append(batch)
    return possible


def actor_counts(num_envs: int, cores: int, most: int) -> list[int]:
    """Return divisors of the environments: the largest up to each power of two, to the cores and to one core less."""
    wanted = {*(2**power for power in range(most.bit_length())), cores - 1, cores, most}
    divisors = [count for count in range(1, min(num_envs, most) + 1) if num_envs % count == 0]
    return sorted({max(count for count in divisors if count <= limit) for limit in wanted if 1 <= limit <= most})


def thread_counts(cores: int) -> list[int]:
    """Return one, all cores, and the powers of four between, each of which needs a process."""
    return sorted({*(4**power for power in range(cores.bit_length()) if 4**power <= cores), cores})


def successive_halving(competitors: Sequence[T], measure: Callable[[Sequence[T], int], Mapping[T, float]]) -> list[T]:
    """Measure all, then the better half again, and so on until one is left (arXiv:1502.07943, algorithm 1).

    measure: (competitors of this round, rounds left with this one) -> scores, of which higher ones are better.

    Return the competitors with a score, the best first: those of later rounds are better.
    """
    remaining, out = list(competitors), list[T]()
    while remaining:
        scores = measure(remaining, rounds(len(remaining)))
        remaining = sorted((one for one in remaining if one in scores), key=lambda one: scores[one], reverse=True)
        half = math.ceil(len(remaining) / 2)
        remaining, out = remaining[:half], remaining[half:] + out
        if half <= 1:
            break
    return remaining + out


def rounds(count: int) -> int:
    """Return the number of halvings until one competitor is left; at least 1."""
    return max(1, math.ceil(math.log2(count)))


def choose(finalists: Iterable[Setting], trials: Mapping[Setting, Trial], before: Setting) -> Setting | None:
    """Return the fastest of the finalists and the original setting; of nearly equal ones, the cheapest; or None."""
    measured = [setting for setting in dict.fromkeys([before, *finalists]) if trials[setting].rate]
    if not measured:
        return None
    fast = max(trials[setting].rate for setting in measured)
    alike = [setting for setting in measured if trials[setting].rate >= _MIN_RATIO * fast]
    return min(alike, key=lambda s: (s.max_policy_lag, s != before, s.acting, s.num_actors, s.learner_threads))


class Search:
    """The measuring processes and their results.

    config: path of the file that they read. settings: candidates; the first, the original one, is in each round.
    deadline: on the monotonic clock. say: receives the progress.
    """

    def __init__(
        self, config: Path, settings: Sequence[Setting], deadline: float, say: Callable[[str, str], None]
    ) -> None:
        self.trials: dict[Setting, Trial] = {}
        self._config, self._deadline, self._say = config, deadline, say
        self._before = settings[0]
        self._processes: dict[int, MeasuringProcess] = {}
        self._patience = _MIN_TIMEOUT_SECONDS
        self._number = 0
        for setting in settings:
            self._trial(setting)

    def _trial(self, setting: Setting) -> Trial:
        if setting not in self.trials:
            trial = self.trials[setting] = Trial(setting)
            with _record_failure(trial):
                check_memory(setting.num_actors)
        return self.trials[setting]

    def prepare(self) -> None:
        """Start a process for each number of threads at once, and let each compile its functions."""
        possible = [trial for trial in self.trials.values() if trial.failure is None]
        first = {trial.setting.learner_threads: trial for trial in reversed(possible)}
        self._say("starting Keras", f"with {', '.join(map(str, sorted(first)))} threads")
        started = time.monotonic()
        for threads, trial in first.items():
            self._process(threads).ask(trial.setting, 0.0)
        for threads, trial in first.items():
            with _record_failure(trial), self._end_if_late(threads):
                self._processes[threads].answer(self._left())  # isn't counted: other processes run meanwhile
        self._patience = max(self._patience, 3 * (time.monotonic() - started))

    def measure(self, settings: Sequence[Setting], rounds_left: int) -> dict[Setting, float]:
        """Measure a round: a share of the time left, divided among these settings and the original one.

        If single updates take longer than that, the last settings of the list aren't measured (again). Where
        environments wait, settings with more actors come before other new ones.
        """
        self._number += 1
        trials = [self._trial(setting) for setting in dict.fromkeys([self._before, *settings])]
        chosen = [trial for trial in trials if trial.failure is None]
        seconds = min(self._left() / rounds_left / max(len(chosen), 1), _MAX_SECONDS)
        end = self._deadline - (self._left() * _MAX_SHARE if rounds_left > 1 else 0.0)
        for place in range(len(chosen)):
            if time.monotonic() >= end:
                break
            trial = chosen[place]
            detail = f"{place + 1} of {len(chosen)}: {trial.setting}"
            self._say(f"round {self._number} of {self._number + rounds_left - 1}", detail)
            self._measure(trial, seconds)
            if self._number == 1 and trial.measured and trial.measured[-1].waits:
                actors, rest = trial.setting.num_actors, chosen[place + 1 :]
                chosen[place + 1 :] = sorted(rest, key=lambda other: other.setting.num_actors <= actors)
        return {setting: self.trials[setting].rate for setting in settings if self.trials[setting].rate}

    def close(self) -> None:
        while self._processes:
            self._processes.popitem()[1].close()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _measure(self, trial: Trial, seconds: float) -> None:
        threads = trial.setting.learner_threads
        with _record_failure(trial), self._end_if_late(threads):
            process = self._process(threads)
            process.ask(trial.setting, seconds)
            trial.measured.append(process.answer(min(self._left(), seconds + self._patience)))

    def _process(self, threads: int) -> MeasuringProcess:
        if threads not in self._processes:
            self._processes[threads] = MeasuringProcess(self._config, threads)
        return self._processes[threads]

    @contextlib.contextmanager
    def _end_if_late(self, threads: int) -> Iterator[None]:
        """End a process that doesn't answer. At the end of the budget that isn't the setting's failure."""
        try:
            yield
        except TimeoutError:
            self._processes.pop(threads).close()
            if self._left():
                raise


@contextlib.contextmanager
def _record_failure(trial: Trial) -> Iterator[None]:
    """Record that a setting is too large or too slow. Other errors end the search."""
    try:
        yield
    except (MemoryError, TimeoutError) as error:
        trial.fail(error)
