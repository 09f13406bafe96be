"""Small curves of a single run as SVG inside a page, with the page's colours and fonts."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actor_learner.reports.curves import SMOOTHING, series, smooth, smoothing_window
from actor_learner.reports.plot import STYLE
from actor_learner.runs.meter import look_up
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from markupsafe import Markup

_SIZE = (4.0, 2.3)  # inches
_LARGE_SIZE = (4.5, 2.5)
_MAX_POINTS = 600
_MARKED_POINTS = 20  # a line alone would hide the times of a few evaluations
_MAX_METRICS = 80  # a run from elsewhere may have any number
_INK, _CURVE = "#010203", "#010204"  # are replaced by the page's colours
_STYLE: Any = {
    **STYLE,
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "grid.color": _INK,
}
_FIRST = ("episode_return", "episode_length")


class Chart(NamedTuple):
    """One metric over env steps. large: for the most important metrics."""

    metric: str
    svg: Markup
    large: bool


class Charts(NamedTuple):
    """A run's curves by subject, constant metrics with their values, and the number of further metrics."""

    groups: dict[str, list[Chart]]
    constant: list[tuple[str, str]]
    left_out: int


def charts(rows: Sequence[dict[str, Any]]) -> Charts:
    """Return the curves of a run's rows of metrics. Needs matplotlib and markupsafe."""
    groups: dict[str, list[Chart]] = {"returns": [], "learning": [], "speed": [], "processes": []}
    constant = []
    found = {name: look_up(name) for name in dict.fromkeys(name for row in rows for name in row)}
    names = [name for name, known in found.items() if known is None or known.subject]
    for metric in names[:_MAX_METRICS]:
        steps, values = series(rows, metric)
        if len(values) and values.min() == values.max():
            constant.append((metric, f"{values[0]:.6g}"))
        elif len(values) > 1:
            group = known.subject if (known := found[metric]) is not None else "learning"
            groups[group].append(Chart(metric, _svg(metric, steps, values, group == "returns"), group == "returns"))
    groups["returns"].sort(key=lambda chart: _FIRST.index(chart.metric) if chart.metric in _FIRST else len(_FIRST))
    return Charts({name: group for name, group in groups.items() if group}, constant, len(names[_MAX_METRICS:]))


def _svg(metric: str, steps: Array, values: Array, large: bool) -> Markup:
    """Draw each update faintly, and the moving average."""
    import matplotlib as mpl
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that matplotlib's font lacks: the page has its own
        figure = Figure(figsize=_LARGE_SIZE if large else _SIZE, layout="constrained")
        axes = figure.subplots()
        few = np.unique(np.linspace(0, len(values) - 1, _MAX_POINTS).astype(int))
        mean = smooth(values, smoothing_window(values, SMOOTHING))
        axes.plot(steps[few], values[few], color=_CURVE, linewidth=0.8, alpha=0.3)
        marker = "o" if len(values) <= _MARKED_POINTS else ""
        axes.plot(steps[few], mean[few], color=_CURVE, linewidth=1.8, marker=marker, markersize=4)
        axes.set_title(metric.replace("_", " "))
        axes.set_xlabel("env steps")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(alpha=0.15)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    return Markup(_embed(picture.getvalue(), metric))  # noqa: S704 - matplotlib has escaped the text


def _embed(svg: str, name: str) -> str:
    """Return the picture without a file's header, with identifiers that are unique in the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r'\1role="img"', svg, count=1)
    prefix = name.encode().hex()
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return svg.replace(_INK, "currentColor").replace(_CURVE, "var(--curve)")
