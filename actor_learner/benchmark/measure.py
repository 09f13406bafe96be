"""Measures the parts of a setting and the whole system in turns: its speed, and the speed that it could reach."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from actor_learner.actors.actor import make_startups
from actor_learner.actors.processes.group import variables_of
from actor_learner.benchmark.parts import PARTS, PartProcesses, Rollouts, unroll_cost
from actor_learner.benchmark.roofline import NAMES, Cost, Parts, Prospect, Roof, prospects, roof
from actor_learner.benchmark.whole import LEARNER, Run, System, process_order
from actor_learner.config.config import TrainConfig
from actor_learner.environments.factory import resolve_env
from actor_learner.spaces.trajectory import Trajectory, map_leaves
from actor_learner.system.machine import available_cores

if TYPE_CHECKING:
    import keras

Say = Callable[[str], None]

_SETTING = ("num_actors", "unroll_length", "max_policy_lag")


class Round(NamedTuple):
    """One round: the cost of each part alone, and the whole system."""

    costs: Mapping[str, Cost]
    run: Run


@dataclass(frozen=True)
class Measured:
    """The results of all rounds, of which medians count. batch: one that the actors collected."""

    config: TrainConfig
    cores: int
    rounds: list[Round]
    batch: Trajectory
    network: keras.Model

    @property
    def rows(self) -> int:
        """The rows of a batch, including those that only reset."""
        return int(self.batch.valid.size)

    @property
    def bytes_per_step(self) -> float:
        """The bytes of a row of the batch, which an actor on another machine sends, unless it can send less."""
        sizes: list[int] = []
        for field in filter(lambda field: field is not None, self.batch):
            map_leaves(lambda leaf: sizes.append(leaf.nbytes), field)
        return sum(sizes) / self.rows

    @property
    def achieved(self) -> float:
        return statistics.median(each.run.steps_per_second for each in self.rounds)

    @property
    def roof(self) -> Roof:
        return roof(self.parts)

    @property
    def ratio(self) -> float:
        return self.achieved / self.roof.steps_per_second

    @property
    def prospects(self) -> list[Prospect]:
        return prospects(self.parts)

    @property
    def parts(self) -> Parts:
        return self._parts({name: Cost.median([each.costs[name] for each in self.rounds]) for name in NAMES})

    @property
    def ratios(self) -> list[float]:
        """The achieved part of each round's own roof."""
        return [each.run.steps_per_second / roof(self._parts(each.costs)).steps_per_second for each in self.rounds]

    def _parts(self, costs: Mapping[str, Cost]) -> Parts:
        valid = sum(each.run.steps for each in self.rounds) / sum(each.run.rows for each in self.rounds)
        return Parts(
            steps=self.rows * valid,
            **costs,
            num_actors=self.config.num_actors,
            cores=self.cores,
            max_policy_lag=self.config.max_policy_lag,
            on_device=self.config.acts_on_device,
        )

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """The shares of each process's time, which add up to 1, and its `cpu` in CPU seconds per second."""
        total = sum(each.run.seconds for each in self.rounds)
        processes = sorted(self.rounds[0].run.cpu, key=process_order)
        found: dict[str, dict[str, float]] = {process: {} for process in processes}
        for each in self.rounds:
            for span in each.run.spans:
                own = found.setdefault(span.process, {})
                own[span.name] = own.get(span.name, 0.0) + (span.end - span.start) / total
        for process, own in found.items():
            own["other"] = max(0.0, 1.0 - sum(own.values()))
            own["cpu"] = statistics.median(each.run.cpu.get(process, 0.0) for each in self.rounds)
        return found

    @property
    def cores_used(self) -> dict[str, float]:
        """The use of the cores' time, in parts that add up to 1. `others`: by other programs."""
        used = dict.fromkeys((*NAMES.values(), "publishing"), 0.0)
        for process, own in self.shares.items():
            busy = {name: own.get(name, 0.0) for name in used}
            if process == LEARNER and not self.config.num_actors:  # collects batches itself
                own_actor = self.shares.get("actor_0", {})
                busy |= {name: own_actor.get(name, 0.0) for name in ("environments", "acting", "copying")}
            total = sum(busy.values())
            for name, part in busy.items():
                used[name] += own["cpu"] * part / total / self.cores if total else 0.0
        others = min(1.0, statistics.median(each.run.others for each in self.rounds) / self.cores)
        total = sum(used.values())  # may be too much: CPU time is told in hundredths of seconds
        fitting = min(total, 1.0 - others)
        scaled = {name: part * fitting / total if total else 0.0 for name, part in used.items()}
        return {**scaled, "others": others, "idle": 1.0 - others - fitting}

    @property
    def cpu_beside_parts(self) -> float:
        """The CPU time of a batch in the whole system, divided by that of its parts alone."""
        found = []
        for each in self.rounds:
            costs, run = each.costs, each.run
            actor = costs["env"].cpu + costs["acting"].cpu + costs["copying"].cpu
            parts = costs["update"].cpu + max(1, self.config.num_actors) * actor
            found.append(sum(run.cpu.values()) * run.seconds / run.batches / parts)
        return statistics.median(found)

    @property
    def slower_than_alone(self) -> dict[str, float]:
        """The time of each part in the whole system, divided by its time alone, where that isn't 0."""
        factors: dict[str, list[float]] = {name: [] for name in NAMES}
        actors = max(1, self.config.num_actors)
        for each in self.rounds:
            for name, label in NAMES.items():
                seconds = sum(span.end - span.start for span in each.run.spans if span.name == label)
                per_batch = seconds / each.run.batches / (1 if name == "update" else actors)
                if each.costs[name].wall > 0:
                    factors[name].append(per_batch / each.costs[name].wall)
        return {NAMES[name]: statistics.median(values) for name, values in factors.items() if values}


def measure_setting(
    config: TrainConfig,
    *,
    rounds: int,
    seconds: float,
    say: Say = lambda text: None,
    after_round: Callable[[Measured], None] = lambda measured: None,
) -> Measured:
    """Measure the parts and the whole in turns.

    seconds: for each part and for the whole, in each round; more where one batch takes longer. say: receives the
    progress. after_round: receives what is known after each round.
    """
    say(f"starting: batches of {config.unroll_length * sum(config.env_counts):,} env steps")
    with System(config) as system, _actors_alone(system) as alone:
        measured, so_far = Measured(config, available_cores(), [], system.batch, system.learner.network), ""
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}, of at least {system.least_updates} updates{so_far}")
            system.wait_until_idle()
            costs = {part: unroll_cost(alone.measure(part, seconds), config.unroll_length) for part in PARTS}
            costs["update"] = system.measure_update(seconds)
            measured.rounds.append(Round(costs, system.run(seconds)))
            after_round(measured)
            so_far = f"; so far {measured.achieved:,.0f} env steps/s, {measured.ratio:.0%} of the roof"
        return measured


def _actors_alone(system: System) -> PartProcesses | Rollouts:
    config, actors = system.config, system.actors
    if config.acts_on_device:
        return Rollouts(lambda: actors.collect(timeout=None), config.unroll_length)
    startups = make_startups(config.env_counts, config)
    factory = dataclasses.replace(resolve_env(**config.env_arguments), with_state=config.centralized_value)
    return PartProcesses(factory, startups, actors.exported, actors.layout, config.actor_timeout, variables_of(config))


def as_json(measured: Measured) -> dict[str, Any]:
    """Return the results as JSON, without command, machine and versions."""
    config, best, parts, rounds = measured.config, measured.roof, measured.parts, measured.rounds
    batch_seconds = statistics.median(each.run.seconds / each.run.batches for each in rounds)
    return {
        "achieved_steps_per_second": measured.achieved,
        "roof_steps_per_second": best.steps_per_second,
        "ratio": measured.ratio,
        "bytes_per_step": measured.bytes_per_step,
        "limit": best.limit,
        "expected": {prospect.change: prospect.gain for prospect in measured.prospects},
        "env": config.env_name,
        "algorithm": config.algorithm_name,
        **{name: getattr(config, name) for name in _SETTING},
        "num_envs": sum(config.env_counts),
        "batch_seconds": {"achieved": batch_seconds, "roof": best.seconds},
        "parts": {name: _part_json(getattr(parts, name), [each.costs[name] for each in rounds]) for name in NAMES},
        "slower_than_alone": measured.slower_than_alone,
        "cpu_beside_parts": measured.cpu_beside_parts,
        "shares": measured.shares,
        "cores": {"count": measured.cores, **measured.cores_used},
        "rounds": {"steps_per_second": [each.run.steps_per_second for each in rounds], "ratio": measured.ratios},
    }


def _part_json(cost: Cost, rounds: list[Cost]) -> dict[str, Any]:
    return {
        "wall_seconds": cost.wall,
        "cpu_seconds": cost.cpu,
        "rounds_wall_seconds": [each.wall for each in rounds],
        "rounds_cpu_seconds": [each.cpu for each in rounds],
    }
