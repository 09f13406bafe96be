"""The consequences of the measured figures for other machines: more cores, several learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.harness import Found
from benchmarks.scaling.pool_simulation import Setting, Update, fit_update, throughput

CORES = (8, 16, 32, 64, 128, 256)
LEARNERS = (1, 2, 4, 8)
STEP_SECONDS_OF_AN_ENV = 1e-4
"""A step of MuJoCo's HalfCheetah on one core; the actors' own work is measured."""
_ENVS, _ROWS, _BATCHES = 8, 256, 12


def line_through(points: Mapping[int, float]) -> tuple[float, float]:
    """Return the value at 0 and the slope, by least squares."""
    slope, base = np.polyfit(list(points), list(points.values()), 1)
    return float(base), float(slope)


def simulate(found: Mapping[str, Any]) -> Found:
    """Simulate the measured setting, as a check of the model; then up to 256 cores with computing environments."""
    work, hand_out_seconds = found["work"], found["learner"]["pool_seconds_per_actor_and_batch"]
    rows = {int(count): row for count, row in found["actors"].items()}
    actor_seconds = own_seconds(found)
    shares = {}
    for count, row in rows.items():
        setting = Setting(
            *(count, work["envs_per_actor"], work["unroll_length"], 1, lambda _: work["step_seconds"]),
            actor_seconds=actor_seconds,
            update_seconds=row["update_seconds"],
            hand_out_seconds=hand_out_seconds,
        )
        shares[count] = round(row["steps_per_second"] / throughput(setting), 4)
    update = update_of(found)
    return {
        "actor_seconds_per_step": actor_seconds,
        "minibatch": {"call_seconds": update.call_seconds, "row_seconds": update.row_seconds},
        "measured_over_simulated": shares,
        "heavy_tails_of_ideal": _simulate_tails(found, actor_seconds),
        "cores": many_cores(update, rows[max(rows)]["actor_cpu_seconds"], hand_out_seconds),
    }


def own_seconds(found: Mapping[str, Any]) -> float:
    """Return an actor's own seconds in each step: what one actor alone is slower by than ideal."""
    alone = min(found["actors"].items(), key=lambda item: int(item[0]))[1]
    return float(found["work"]["step_seconds"] * (1 / alone["of_ideal"] - 1))


def update_of(found: Mapping[str, Any]) -> Update:
    """Fit the update's time to the size of its minibatches."""
    work = found["work"]
    seconds = {int(size): value for size, value in found["minibatches"].items()}
    call, row = fit_update(seconds, 64 * work["unroll_length"], work["epochs"])
    return Update(call, row, work["epochs"], work["minibatch_size"])


def _simulate_tails(found: Mapping[str, Any], actor_seconds: float) -> dict[int, float]:
    """Return throughput / ideal of the heavy-tailed measurement, simulated long enough for its mean."""
    tails, work = found["heavy_tails"], found["work"]
    actors, mean, exponent = tails["work"].values()
    shortest = mean * (exponent - 1) / exponent
    ideal = actors * work["envs_per_actor"] / mean
    simulated = {}
    for lag, row in tails["lags"].items():
        setting = Setting(
            *(actors, work["envs_per_actor"], work["unroll_length"], int(lag)),
            lambda generator: shortest * (1 + generator.pareto(exponent)),
            actor_seconds,
            row["update_seconds"],
            found["learner"]["pool_seconds_per_actor_and_batch"],
        )
        simulated[int(lag)] = round(throughput(setting, batches=100) / ideal, 4)
    return simulated


def many_cores(update: Update, actor_seconds: float, hand_out_seconds: float) -> dict[int, dict[int, float]]:
    """Return throughput / (cores x an actor's own), by number of learners and cores; each learner takes a core.

    actor_seconds: CPU time of an actor's process in each step; its environments hardly count in it.
    """
    alone = _ENVS / (_ENVS * STEP_SECONDS_OF_AN_ENV + actor_seconds)
    found: dict[int, dict[int, float]] = {learners: {} for learners in LEARNERS}
    for learners, shares in found.items():
        for cores in CORES:
            if (actors := cores - learners) < learners:
                continue
            setting = Setting(
                *(actors, _ENVS, _ROWS, 1, lambda _: _ENVS * STEP_SECONDS_OF_AN_ENV, actor_seconds),
                update_seconds=update.seconds(actors * _ENVS * _ROWS, learners),
                hand_out_seconds=hand_out_seconds / learners,
            )
            shares[cores] = round(throughput(setting, _BATCHES) / (cores * alone), 4)
    return found
