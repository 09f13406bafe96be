"""The figures of the scaling measurement as Markdown, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Figures, table


def line_through(points: Mapping[int, float]) -> tuple[float, float]:
    """Return the value at 0 and the slope, by least squares."""
    slope, base = np.polyfit(list(points), list(points.values()), 1)
    return float(base), float(slope)


def page(found: Figures) -> str:
    """Return all figures as Markdown."""
    found = _with_numbers(found)
    parts = [_origin(found), _actors(found), _costs(found), _heavy_tails(found)]
    return "\n\n".join(["# Speed and memory with 1 to 64 actors", *("\n".join(part) for part in parts)]) + "\n"


def _with_numbers(found: Any) -> Any:
    """Return figures whose keys are numbers again: JSON has text alone."""
    if not isinstance(found, dict):
        return found
    return {int(key) if str(key).isdigit() else key: _with_numbers(value) for key, value in found.items()}


def _origin(found: Figures) -> list[str]:
    work, rounds = found["work"], len(next(iter(found["rounds"].values())))
    return [
        f"{found['date']}; {found['machine']}. Made by `{found['command']}` in {found['minutes']:g} minutes; medians "
        f"of {rounds} rounds. {work['envs_per_actor']} environments per actor, {1e3 * work['step_seconds']:g} ms a "
        f"step, unrolls of {work['unroll_length']}."
    ]


def _actors(found: Figures) -> list[str]:
    header = "actors|steps/s|of ideal|cores in use|MB each (PSS)|pool, ms a batch|update, ms".split("|")
    rows = [
        (
            *(str(count), f"{row['steps_per_second']:,.0f}", f"{row['of_ideal']:.3f}"),
            f"{row['cores']:.0%}",
            f"{found['memory_mb'][count]['pss']:.1f}",
            *(f"{1e3 * row['pool_seconds']:.2f}", f"{1e3 * row['update_seconds']:.1f}"),
        )
        for count, row in found["actors"].items()
    ]
    return table(header, rows)


def _costs(found: Figures) -> list[str]:
    learner = found["learner"]
    _, megabytes = line_through({count: count * row["pss"] for count, row in found["memory_mb"].items()})
    return [
        f"One more actor costs {megabytes:.1f} MB, and "
        f"{1e6 * learner['pool_seconds_per_actor_and_batch']:.0f} us of the learner's process for each batch: "
        f"{learner['share_of_2048_steps']:.2%} of its time for 2,048 env steps. "
        f"The learner ({learner['steps_per_second_of_the_update_alone']:,} steps/s alone) is saturated by "
        f"{learner['saturated_by_actors']:,} such actors."
    ]


def _heavy_tails(found: Figures) -> list[str]:
    work = found["heavy_tails"]["work"]
    rows = [
        (str(lag), f"{row['of_ideal']:.3f}", f"{row['of_lock_step']:.2f}")
        for lag, row in found["heavy_tails"]["lags"].items()
    ]
    return [
        f"Steps of Pareto-distributed length ({work['actors']} actors, mean {1e3 * work['mean_step_seconds']:g} ms, "
        f"exponent {work['pareto_exponent']:g}):",
        "",
        *table(("max_policy_lag", "of ideal", "x lock-step"), rows),
    ]


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture: throughput against ideal, and heavy tails."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found = _with_numbers(dict(found))
    style: Any = {"svg.hashsalt": "scaling", "svg.fonttype": "path", "font.size": 10}  # the same SVG each time
    pyplot.rcParams.update({**style, "axes.grid": True, "grid.alpha": 0.3})
    size = (6.4, 5.2)  # inches: a column's width, so that letters stay as large as the text's
    figure, (measured, tails) = pyplot.subplots(2, 1, figsize=size, layout="constrained")
    _draw_measured(measured, found)
    _draw_tails(tails, found)
    figure.savefig(path, metadata={"Date": None})


def _draw_measured(axes: Any, found: Mapping[str, Any]) -> None:
    counts = list(found["actors"])
    rounds = [[row["of_ideal"] for row in rows] for rows in found["rounds"].values()]
    middle = [row["of_ideal"] for row in found["actors"].values()]
    below = [median - min(row) for median, row in zip(middle, rounds, strict=True)]
    above = [max(row) - median for median, row in zip(middle, rounds, strict=True)]
    axes.errorbar(counts, middle, [below, above], marker="o", capsize=3, label="throughput / ideal")
    axes.plot(counts, [row["cores"] for row in found["actors"].values()], "s--", color="gray", label="cores in use")
    axes.set(ylim=(0, 1.05), xlabel="actors (8 environments each, 20 ms a step)", ylabel="share", xscale="log")
    axes.set_xticks(counts, list(map(str, counts)))
    axes.minorticks_off()
    axes.legend(loc="center left")
    axes.set_title(f"Measured on {found['machine'].split(' of ')[0]}", fontsize=10)


def _draw_tails(axes: Any, found: Mapping[str, Any]) -> None:
    lags = found["heavy_tails"]["lags"]
    names = {0: "lock-step", 1: "one batch ahead", 4: "running freely"}
    axes.bar(range(len(lags)), [row["of_ideal"] for row in lags.values()], 0.5)
    axes.set_xticks(range(len(lags)), [f"{names.get(lag, '')}\n(lag {lag})" for lag in lags])
    axes.set(ylim=(0, 1.05), ylabel="throughput / ideal")
    actors, mean, exponent = found["heavy_tails"]["work"].values()
    axes.set_title(
        f"{actors} actors, steps of Pareto-distributed length (exponent {exponent:g}, mean {1e3 * mean:g} ms)",
        fontsize=10,
    )
