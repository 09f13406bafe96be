"""The bottleneck of a run, according to the shares of time in its metrics, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from actor_learner.runs.metrics import ACTOR_TIME, HOST

_MIN_IDLE = 0.1  # a learner that overlaps with its actors limits the run if it waits for a smaller part of its time
_MIN_UNEVEN = 0.25  # actors that wait for each other for this part of their time are unevenly fast
_MAX_ASLEEP = 0.5  # actors whose CPU time is less than this part of their working time have environments that wait
_MIN_WAITING = 0.9  # environments that take this part of the time and hardly compute limit a run on a busy machine, too
_MAX_COMPUTING = 0.2  # the CPU time up to which they hardly compute, as a part of the actors' working time
MIN_UPDATES = 20  # with fewer updates, work that is done once, such as the first checkpoint, may seem to limit a run
_MIN_FULL = 0.85  # where processes use this part of the cores, one that gets little of them need wait for nothing else
_MAX_PRESSURE = 0.3  # where processes wait for a core for this part of the time, only one that hardly computes waits
_MIN_DISTURBING = 0.2  # other programs that use this part of the cores may limit a run, if there are too few cores
_MIN_PRESSURE = 0.1  # there are too few cores if a process waits for one for this part of the time
_MIN_RECEIVING = 0.5  # columns of one host that are on their way for this part of the time wait for the network
_MIN_GAIN = 0.2  # the least part of the time that overlapping has to save before it is advised
OTHERS = "other programs"

_WORK = ("env", "acting", "other")


class Bottleneck(NamedTuple):
    """The limiting part of a run, and advice; as text `limited by: environments; another actor would help`."""

    part: str
    advice: str

    def __str__(self) -> str:
        return f"limited by: {self.part}; {self.advice}"


def bottleneck(
    metrics: Mapping[str, float],
    *,
    num_actors: int,
    cores: int,
    max_policy_lag: int,
    updates: float = math.inf,
    replay: bool = False,
    on_device: bool = False,
) -> Bottleneck | None:
    """Return the bottleneck of a run; None if the metrics lack shares of time.

    The learner's time consists of learning, collecting (waiting for a batch) and the rest: callbacks, checkpoints and
    publishing. The largest part limits the run. If that is collecting, the largest part of the actors' work limits it.
    A learner that overlaps with its actors (`max_policy_lag` above 0) limits them as soon as it hardly waits. Where
    other programs use the cores that processes wait for, no part of the run can be named, but for environments that
    wait and hardly compute.

    Args:
        metrics: a row of metrics.jsonl, or means of several: `time/learning` and `time/collecting` (shares of the
            learner's time), `time/env`, `time/acting`, `time/other` and `time/waiting` (shares of the actors' time),
            `cpu/actor_<n>`, `cpu/others` and `cpu/pressure` if known.
        num_actors: the number of actor processes; 0: the learner's process steps the environments.
        cores: the number of cores that the run may use.
        max_policy_lag: the most versions that actors may be behind.
        updates: the number of updates that the run has made.
        replay: whether the run learns from a replay buffer.
        on_device: whether the learner's device steps the environments.
    """
    shares = {name: _share(metrics, name) for name in ("learning", *ACTOR_TIME)}
    if any(map(math.isnan, shares.values())):
        return None
    others, pressure = metrics.get("cpu/others", 0.0), metrics.get("cpu/pressure", 0.0)
    disturbed = others >= _MIN_DISTURBING * cores and pressure >= _MIN_PRESSURE
    if disturbed and not environments_wait(metrics, cores, _MIN_WAITING, _MAX_COMPUTING):
        advice = f"they use {others:.1f} of {cores} cores, and processes wait for a core {pressure:.0%} of the time"
        return Bottleneck(OTHERS, f"{advice}: only on an idle machine can more be told")
    collecting = _share(metrics, "collecting")
    if math.isnan(collecting):
        collecting = 1 - shares["learning"]
    between = max(0.0, 1 - shares["learning"] - collecting)
    overlaps = max_policy_lag > 0 and num_actors > 0
    if between > max(shares["learning"], collecting):
        if updates < MIN_UPDATES:
            return Bottleneck("work that is done once, such as the first checkpoint", "more updates would tell more")
        return Bottleneck("callbacks and checkpoints between updates", "do them less often")
    if shares["learning"] >= collecting or (overlaps and collecting < _MIN_IDLE):
        return Bottleneck("learning", _faster_learning(collecting, num_actors, cores, overlaps, replay))
    if on_device:
        return Bottleneck("environments on the device", "a larger num_envs may use more of it")
    network = max(
        (value for name, value in metrics.items() if name.startswith(HOST) and name.endswith("/receiving")), default=0.0
    )
    if network > _MIN_RECEIVING:
        return Bottleneck("the network", "fewer bytes for each env step or a faster network would help")
    uneven = shares["waiting"] if overlaps else shares["waiting"] - shares["learning"] - between
    if num_actors > 1 and uneven > max(_MIN_UNEVEN, *(shares[name] for name in _WORK)):
        larger = "a larger max_policy_lag" if max_policy_lag > 1 else "max_policy_lag=3"
        return Bottleneck("the slowest actor", f"{larger} would let the others go on")
    part = max(_WORK, key=shares.__getitem__)
    asleep = num_actors > 0 and environments_wait(metrics, cores, 0.0)
    return Bottleneck(ACTOR_TIME[part], _faster_actors(part, shares["learning"], num_actors, cores, overlaps, asleep))


def environments_wait(metrics: Mapping[str, float], cores: int, least: float, most: float = _MAX_ASLEEP) -> bool:
    """Return whether environments take a part of the actors' time, and wait in it rather than compute.

    Where the cores are full, actors that compute wait for a core, too: then it is False, or `most` is less.

    least: that part of the time. most: the CPU time of an actor that waits, as a part of its working time.
    """
    used = {name: value for name, value in metrics.items() if name.startswith("cpu/")}
    pressure = used.pop("cpu/pressure", 0.0)
    if sum(used.values()) >= _MIN_FULL * cores:
        return False
    most = min(most, _MAX_COMPUTING) if pressure >= _MAX_PRESSURE else most
    cpu = [value for name, value in used.items() if name.startswith("cpu/actor_")]
    working = 1 - _share(metrics, "waiting")
    return _share(metrics, "env") >= least and sum(cpu) < len(cpu) * most * working


def _share(metrics: Mapping[str, float], name: str) -> float:
    return metrics.get(f"time/{name}", math.nan)


def _faster_learning(collecting: float, num_actors: int, cores: int, overlaps: bool, replay: bool) -> str:
    if num_actors and cores > 1 and not overlaps and collecting >= _MIN_GAIN:
        return "max_policy_lag=1 would let the actors collect meanwhile"
    if replay:
        return "smaller minibatches, a smaller updates_per_step or a GPU would help"
    return "fewer epochs, larger minibatches or a GPU would help"


def _faster_actors(part: str, learning: float, num_actors: int, cores: int, overlaps: bool, asleep: bool) -> str:
    if num_actors == 0:
        return "num_actors=1 or more would step them in other processes"
    if part == "env" and asleep:
        return "they wait rather than compute, so more actors than cores would help"
    if num_actors + overlaps * learning < cores:
        return "another actor would help"
    if part == "acting":
        return "more envs_per_actor or a smaller network would help"
    if not overlaps and cores > 1 and learning >= _MIN_GAIN:
        return "every core has an actor; max_policy_lag=1 may help"
    return "every core has an actor, so more cores or a faster environment would help"
