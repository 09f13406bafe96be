"""Measures a run: the metrics in a row of metrics.jsonl, the meaning of each, and its computation."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from actor_learner.algorithms import BY_NAME
from actor_learner.algorithms.hyperparameters import Metric
from actor_learner.environments.calls import same_calls
from actor_learner.runs.checkpoints import RunState
from actor_learner.runs.league import League
from actor_learner.runs.metrics import HOST
from actor_learner.system.memory import MemorySampler
from actor_learner.system.policies import by_policy, prefix_of
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner
    from actor_learner.spaces.trajectory import Trajectory

EPISODE_WINDOW = 100
"""Metrics of episodes are means over this many last finished episodes, as in SB3."""

_NAMES = {"return": "episode_return", "length": "episode_length"}

_OF_ROWS = {
    "env_steps": Metric("env steps so far, over all environments", ""),
    "updates": Metric("updates of the learner so far", ""),
    "time_seconds": Metric("wall-clock seconds since the run began, without the time between a stop and a resume", ""),
    "steps_per_second": Metric("env steps per second since the last row", "speed", "max"),
    "episode_return": Metric(
        "mean return of the last 100 finished episodes: sums of raw rewards, without discount", "returns", "max"
    ),
    "episode_length": Metric("mean length of these episodes, in env steps", "returns", "max"),
    "episode/<key>": Metric(
        "mean of an entry of the last step's `info`, over these episodes; `info_keys` names the entries",
        "returns",
        "max",
    ),
    "policy_lag": Metric("mean age of the weights that collected the batch, in versions", "speed"),
    "policy_lag_max": Metric("greatest age of the weights that collected the batch, in versions", "speed"),
    "league/versions": Metric("versions of the policy that self-play has frozen so far", "returns"),
    "league/score": Metric(
        "mean outcome of the last 200 episodes of self-play: 1 for a win, 0.5 for a draw, 0 for a loss", "returns"
    ),
    "league/score_random": Metric("score against the random player, of which older games count less", "returns"),
    "league/rating": Metric(
        "rating of the policy before the newest version on Elo's scale, the random player's being 0", "returns"
    ),
    "time/learning": Metric("share of the learner's time in updates", ""),
    "time/collecting": Metric("share of the learner's time in which it waits for a batch", ""),
    "time/env": Metric("share of the actors' time in environments", ""),
    "time/acting": Metric("share of the actors' time in the policy", ""),
    "time/other": Metric("share of the actors' time in copying and in the rest of our code", ""),
    "time/waiting": Metric("share of the actors' time in which they wait for weights, or for other actors", ""),
    "actor_restarts": Metric("actors that were replaced so far", ""),
    "memory/<process>_mb": Metric(
        "memory of the learner or an actor with its children, in MB of 10^6 bytes", "processes"
    ),
    "cpu/<process>": Metric(
        "CPU time per second of the learner, an actor, or all other programs (`others`); 1 is one core", "processes"
    ),
    "cpu/pressure": Metric("share of the last ten seconds in which some process waited for a core", "processes"),
}
"""The metrics of `Meter.row`, without those of machines."""

METRICS: Mapping[str, Metric] = {
    **_OF_ROWS,
    "loss": Metric("the loss whose gradient is taken; like all losses, a mean over the update's minibatches"),
    **{
        name: metric
        for kind in BY_NAME.values()
        for base in kind.__mro__
        for name, metric in vars(base).get("METRICS", {}).items()
    },
    "learning_rate": Metric("step size of the optimizer, after the update"),
    "gradient_norm": Metric("global norm of the gradient before it is clipped"),
    "gradient_steps": Metric("gradient steps so far"),
    "gradient_steps_owed": Metric("gradient steps that are due for the env steps so far and aren't taken yet"),
    "offline_steps": Metric("gradient steps that a run took on the rows of its buffer before the first env step"),
    "buffer_rows": Metric("rows of the replay buffer that can be drawn"),
    "undone": Metric("1 if the update wasn't finite and was undone; otherwise absent", ""),
    "actor_restart_causes": Metric("causes of the replacements since the last row: a list of texts", ""),
    "host/<name>/steps_per_second": Metric("env steps per second of a machine's actors", "speed", "max"),
    "host/<name>/waiting": Metric("share of the time of a machine's actors in which they wait", "speed"),
    "host/<name>/megabytes_per_second": Metric("MB per second that a machine sends", "speed"),
    "host/<name>/receiving": Metric("share of time in which columns of a machine are on their way", "speed"),
    "evaluation/<figure>": Metric("a figure of the episodes that `al.callbacks.Evaluate` plays", "returns"),
    "diagnose/gradient_norm/<layer>": Metric(
        "norm of the gradient of a layer's weights, before it is clipped", "layers"
    ),
    "diagnose/update_ratio/<layer>": Metric(
        "norm of a gradient step of a layer's weights, divided by the norm of the weights after it", "layers"
    ),
    "diagnose/dead_units/<layer>": Metric(
        "share of the units of a layer with a ReLU that are 0 in all rows of a minibatch; of a convolution, channels",
        "layers",
    ),
    "<policy>/<metric>": Metric(
        "a metric of one policy, where several play; `episode_return` alone is then a mean over those"
    ),
}
"""Every metric that isn't a loss's or callback's of one's own; a name with <...> stands for several metrics."""


def look_up(name: str) -> Metric | None:
    """Return a metric; None if it isn't known, such as one of a custom loss."""
    for pattern, metric in METRICS.items():
        if re.fullmatch(re.sub(r"<\w+>", ".+", pattern), name):
            inner = look_up(name.partition("/")[2]) if pattern == "<policy>/<metric>" else None
            return metric if inner is None else metric._replace(subject=inner.subject, better=inner.better)
    return None


def direction(name: str) -> str | None:
    """Return the better direction of a metric, "max" or "min"; None if there is none."""
    metric = look_up(name)
    if metric is not None and metric.better is not None:
        return metric.better
    return "min" if re.fullmatch("(.*/)?(.*_)?loss", name) else None


def metric_names(config: TrainConfig, learned: Iterable[str]) -> list[str]:
    """Return the names of all metrics that a row may have; a metric without a value is absent from a row.

    learned: The names of the metrics that `Learner.update` returns.
    """
    processes = ("learner", *(f"actor_{actor}" for actor in range(config.num_actors)))
    names: list[str] = []
    for name in _OF_ROWS:
        if "<key>" in name:
            names += [
                f"{prefix}episode/{key}" for prefix in map(prefix_of, config.of_policies) for key in config.info_keys
            ]
        elif "<process>" in name:
            others = ("others",) if name.startswith("cpu/") else ()
            names += [name.replace("<process>", process) for process in (*processes, *others)]
        elif config.self_play is not None or not name.startswith("league/"):
            names.append(name)
    names += [f"{policy}/{name}" for policy in config.policies or () for name in _NAMES.values()]
    return [*names, *learned]


def check_apart(names: Iterable[str], own: frozenset[str], who: str) -> None:
    """Raise ValueError if a loss or a callback names a metric as the run names one of its own."""
    if taken := own.intersection(names):
        raise ValueError(f"{who} must have other names than the run's own. Received: {min(taken)!r}")


class EpisodeWindow:
    """The episodes that began and ended since a moment. They count once each environment has ended one.

    Short episodes end first: before long ones do, the mean return is that of the short ones alone. The mean is of the
    newest ones: a window may be long, and the policy of its beginning another one.

    begins: True if all environments begin an episode at that moment.
    """

    def __init__(self, num_envs: int, *, begins: bool) -> None:
        self._begun = np.full(num_envs, begins)  # True where the episode under way began in the window
        self._ended = np.zeros(num_envs, bool)
        self._count, self._returns = 0, deque[float](maxlen=max(EPISODE_WINDOW, num_envs))

    def add(self, envs: Array, returns: Array) -> None:
        """Add the episodes that ended in a batch: the environment of each, and its return."""
        counted = self._begun[envs] & np.isfinite(returns)
        self._ended[envs[counted]] = self._begun[envs] = True
        self._count += int(counted.sum())
        self._returns.extend(returns[counted].tolist())

    def is_whole(self, least: int = EPISODE_WINDOW) -> bool:
        return self._count >= least and bool(self._ended.all())

    @property
    def mean(self) -> float:
        return float(np.mean(self._returns))


def of_episodes(name: str) -> bool:
    """Return whether a metric is a mean over the last episodes of training."""
    return re.fullmatch("(.*/)?episode[_/].+", name) is not None


class Meter:
    """Measures the updates of a run from its checkpoint on."""

    def __init__(
        self, state: RunState, config: TrainConfig, actors: ActorPool, learner: Learner, league: League | None
    ) -> None:
        self._state, self._config, self._actors, self._learner, self._league = state, config, actors, learner, league
        self._hosts = HostSampler(actors)
        self._memory = MemorySampler(lambda: actors.pids, second_after=1.0)
        self._previous = time.perf_counter()
        self._started = self._previous - state.time_seconds
        self._env_steps, self._ahead = learner.env_steps, 0
        self.windows = {
            prefix + name: deque[float](state.episodes.get(prefix + name, ()), maxlen=EPISODE_WINDOW)
            for prefix in map(prefix_of, config.of_policies)
            for name in ("return", "length", *config.info_keys)
        }
        """The figures of the last episodes, by name, of each policy where there are several."""
        self._calls = actors.calls
        self._all, self._recent = self._new_windows(begins=True), self._new_windows(begins=True)
        self._since_call: dict[str, EpisodeWindow] = {}
        self._own_names = frozenset(metric_names(config, ()))

    def _new_windows(self, *, begins: bool) -> dict[str, EpisodeWindow]:
        sizes = {policy.name: policy.layout.spec.num_envs for policy in self._actors.policies}
        return {name: EpisodeWindow(sizes[name], begins=begins) for name in self._learner.members}

    def _notice_calls(self) -> None:
        """Begin the windows anew where a call has changed the environments: returns before and after don't compare.

        Where calls come more often than a window lasts, the windows go on: else none would ever be whole.
        """
        if same_calls(self._calls, calls := self._actors.calls):
            return
        is_rare = all(window.is_whole() for window in self._since_call.values())
        self._calls, self._since_call = calls, self._new_windows(begins=False)
        if is_rare:
            self._all, self._recent = self._new_windows(begins=False), self._new_windows(begins=False)

    def is_settled(self, least: int = EPISODE_WINDOW, *, since_call: bool = False) -> bool:
        """Return whether so many episodes ended since the start, or the last call, and one of each environment.

        since_call: also where calls come more often than a window lasts.
        """
        self._notice_calls()
        windows = (self._since_call if since_call else {}) or self._all
        return all(window.is_whole(least) for window in windows.values())

    def judge(self) -> float | None:
        """Return the mean return of a whole window of episodes, and begin the next one; None until it is whole."""
        self._notice_calls()
        windows = self._recent.values()
        if not all(window.is_whole() for window in windows):
            return None
        self._recent = self._new_windows(begins=False)
        return float(np.mean([window.mean for window in windows]))

    @property
    def seconds(self) -> float:
        """The seconds of the run so far."""
        return time.perf_counter() - self._started

    @property
    def actor_restarts(self) -> int:
        """The actors that were replaced so far."""
        return self._state.actor_restarts + self._actors.restart_count

    def begin(self) -> int:
        """Take over the counters when training begins. Returns updates minus the actors' policy version."""
        self._env_steps = self._learner.env_steps
        self._ahead = self._learner.updates - self._actors.version
        return self._ahead

    def row(
        self, trajectory: Trajectory, losses: Mapping[str, float], collecting: float, learning: float
    ) -> dict[str, float]:
        """Return the metrics of the last update, before its weights are published.

        collecting, learning: Seconds that the learner waited for the batch, and that the update took.
        """
        check_apart(losses, self._own_names, "Metrics of a loss")
        now = time.perf_counter()
        lag = self._ahead + self._actors.version - np.asarray(trajectory.policy_version)
        self._notice_calls()
        ended_envs = by_policy(self._actors.ended_envs, self._config.of_policies)
        for policy, found in by_policy(self._actors.episodes, self._config.of_policies).items():
            for name, values in found.items():
                self.windows[prefix_of(policy) + name].extend(filter(math.isfinite, map(float, values)))
            for windows in (self._all, self._recent, self._since_call):
                if policy in windows:
                    windows[policy].add(ended_envs[policy], found["return"])
        seconds, self._previous = now - self._previous, now
        env_steps, self._env_steps = self._learner.env_steps - self._env_steps, self._learner.env_steps
        return {
            "env_steps": self._learner.env_steps,
            "updates": self._learner.updates,
            "time_seconds": self.seconds,
            "steps_per_second": env_steps / seconds,
            **self.episode_metrics(),
            "policy_lag": float(lag.mean()),
            "policy_lag_max": float(lag.max()),
            **({} if self._league is None else self._league.metrics()),
            **losses,
            "time/learning": learning / seconds,
            "time/collecting": collecting / seconds,
            **{f"time/{name}": share for name, share in self._actors.timings.items()},
            "actor_restarts": self.actor_restarts,
            **self._hosts.metrics(seconds),
            **self._memory.metrics(),
        }

    def offline_row(self, losses: Mapping[str, float], learning: float) -> dict[str, float]:
        """Return the metrics of an update without a batch. learning: Seconds that it took."""
        check_apart(losses, self._own_names, "Metrics of a loss")
        now = time.perf_counter()
        seconds, self._previous = now - self._previous, now
        return {
            "env_steps": self._learner.env_steps,
            "updates": self._learner.updates,
            "time_seconds": self.seconds,
            **losses,
            "time/learning": learning / seconds,
            **self._memory.metrics(),
        }

    def episode_metrics(self) -> dict[str, float]:
        """Return the means of the last episodes."""
        found = {}
        for key, values in self.windows.items():
            policy, _, name = key.partition("/") if self._config.policies else ("", "", key)
            if values:
                found[prefix_of(policy) + _NAMES.get(name, f"episode/{name}")] = float(np.mean(values))
        for name in _NAMES.values() if self._config.policies else ():
            of_policies = [found[f"{policy}/{name}"] for policy in self._learner.members if f"{policy}/{name}" in found]
            if of_policies:
                found[name] = float(np.mean(of_policies))
        return found


class HostSampler:
    """Compares what has come from each machine with the last time."""

    def __init__(self, actors: ActorPool) -> None:
        self._actors = actors
        self._before: dict[str, tuple[int, float]] = {}

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return the metrics of the last batch, `host/<name>/...`. seconds: since the last call.

        `steps_per_second`: env steps of its actors. `waiting`: their share of time without anything to do.
        `megabytes_per_second`, of 10^6 bytes, over the network. `receiving`: the share of time in which their columns
        were on their way.
        """
        found: dict[str, float] = {}
        present = self._actors.hosts
        for name in dict.fromkeys(host.name for host in present):
            hosts = [host for host in present if host.name == name]  # those of several shares
            actors = {actor for host in hosts for actor in host.actors}
            unrolls = [unroll for unroll in self._actors.unrolls if unroll.actor in actors]
            worked = sum(unroll.env + unroll.acting + unroll.other for unroll in unrolls)
            waited = sum(unroll.waiting for unroll in unrolls)
            now = sum(host.received for host in hosts), sum(host.receiving for host in hosts)
            before = self._before.get(name, now)
            self._before[name] = now
            received, receiving = (max(0.0, new - old) for new, old in zip(now, before, strict=True))
            key = f"{HOST}{name}/"
            steps = (
                self._actors.policies[0].layout.spec.unroll_length * sum(host.num_envs for host in hosts) / len(actors)
            )
            found[f"{key}steps_per_second"] = len(unrolls) * steps / seconds
            found[f"{key}waiting"] = waited / (worked + waited) if worked + waited else 0.0
            found[f"{key}megabytes_per_second"] = received / 1e6 / seconds
            found[f"{key}receiving"] = receiving / seconds
        return found
