"""The picture of the scaling figures: throughput against ideal, heavy tails, and what a model says of more cores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

_SIZE = (6.4, 7.6)
"""Inches: a column's width, so that letters stay as large as the text's."""
_STYLE = {"svg.hashsalt": "scaling", "svg.fonttype": "path", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Writes the picture."""
    with pyplot.rc_context(_STYLE):
        figure, (measured, tails, cores) = pyplot.subplots(3, 1, figsize=_SIZE, layout="constrained")
        _draw_measured(measured, found)
        _draw_tails(tails, found)
        _draw_cores(cores, found["simulated"]["cores"])
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _draw_measured(axes: Any, found: Mapping[str, Any]) -> None:
    counts = [int(count) for count in found["actors"]]
    rounds = [[row["of_ideal"] for row in rows] for rows in found["rounds"].values()]
    medians = [row["of_ideal"] for row in found["actors"].values()]
    spread = [[middle - min(row) for middle, row in zip(medians, rounds, strict=True)]]
    spread.append([max(row) - middle for middle, row in zip(medians, rounds, strict=True)])
    axes.errorbar(counts, medians, spread, marker="o", capsize=3, label="throughput / ideal")
    axes.plot(counts, [row["cores"] for row in found["actors"].values()], "s--", color="gray", label="cores in use")
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="actors (8 environments each, 20 ms a step)", ylabel="share")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(loc="center left")
    axes.set_title(f"Measured on {found['machine'].split(' of ')[0]}", fontsize=10)


def _draw_tails(axes: Any, found: Mapping[str, Any]) -> None:
    lags = found["heavy_tails"]["lags"]
    simulated = found["simulated"]["heavy_tails_of_ideal"]
    names = {0: "lock-step", 1: "one batch ahead", 4: "running freely"}
    labels = [f"{names.get(int(lag), '')}\n(lag {lag})" for lag in lags]
    places = range(len(labels))
    axes.bar([place - 0.2 for place in places], [row["of_ideal"] for row in lags.values()], 0.36, label="measured")
    axes.bar(
        [place + 0.2 for place in places], [simulated[lag] for lag in simulated], 0.36, label="simulated", alpha=0.5
    )
    axes.set_xticks(places, labels)
    axes.set(ylim=(0, 1.15), ylabel="throughput / ideal")
    axes.legend(loc="upper left")
    actors, mean, exponent = found["heavy_tails"]["work"].values()
    axes.set_title(
        f"{actors} actors, steps of Pareto-distributed length (exponent {exponent:g}, mean {1e3 * mean:g} ms)",
        fontsize=10,
    )


def _draw_cores(axes: Any, simulated: Mapping[Any, Mapping[Any, float]]) -> None:
    for learners, shares in simulated.items():
        label = f"{learners} learner" + "s" * (int(learners) > 1)
        axes.plot([int(count) for count in shares], list(shares.values()), marker="o", label=label)
    counts = sorted({int(count) for shares in simulated.values() for count in shares})
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="cores", ylabel="of every core's full share")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(loc="lower left", ncols=2)
    axes.set_title("Simulated: environments that compute, 0.1 ms a step", fontsize=10)
