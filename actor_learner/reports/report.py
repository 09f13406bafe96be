"""A run in one HTML file that stands alone: for a colleague, the appendix of a paper, oneself in a year.

The run may come from elsewhere: all text of its files is escaped, and the page forbids scripts and every request.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from actor_learner import algorithms
from actor_learner.config.config import TrainConfig
from actor_learner.reports.curves import SMOOTHING, series, smooth, smoothing_window
from actor_learner.reports.plot import STYLE, naming_output, score_table
from actor_learner.reports.status import RunStatus, duration, summarize
from actor_learner.runs import artifacts
from actor_learner.runs.checkpoints import RunState, checkpoint_folders
from actor_learner.runs.directory import RunDirectory, is_locked, open_run, read_config
from actor_learner.runs.meter import look_up
from actor_learner.runs.metrics import ACTOR_TIME, LEARNER_TIME, MetricsReader, has_undone, steps_of
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, RecordedConfig, Value, change_text, flat_config
from actor_learner.system import __version__
from actor_learner.system.fields import refusal
from actor_learner.system.files import write_atomically
from actor_learner.system.hub import is_on_hub
from actor_learner.system.installation import check_package
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from markupsafe import Markup

NAME = "report.html"

_MAX_EMBEDDED_BYTES = 4 << 20  # bytes of a video; larger ones are linked
_MAX_VIDEOS = 3
_MAX_RESTARTS = 50
_LOG_LINES = 40
_COLOURS = {"learning": 1, "environments": 1, "acting": 2, "copying": 3, "waiting": 4}


class TimeShare(NamedTuple):
    """A part of a process's time, from 0 to 1, and the number of its colour in the page."""

    name: str
    part: float
    colour: int


def report(run_dir: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Describe a run in one HTML file, whether it is finished, stopped or still going. Returns the file.

    Args:
        run_dir: the run's directory, or "hf://owner/name".
        output: the file, .html, which is replaced; by default report.html in the run's directory, or, for a run on the
            Hub, in the working directory.

    Raises:
        ValueError: the directory holds no run, holds links, its config.json is damaged, or the file can't be written.
        ImportError: jinja2 or matplotlib isn't installed.
    """
    run = open_run(run_dir)
    output = (Path() if is_on_hub(run_dir) else run.path) / NAME if output is None else Path(output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise refusal("output", "a file name that ends in .html", str(output))
    for package in ("matplotlib", "jinja2"):
        check_package(package, "report", "report")
    facts = read_facts(run, output.parent)
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = resources.files(__package__).joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = environment.from_string(template).render(facts)
    with naming_output(output):
        write_atomically(output, lambda partial: partial.write_text(page, encoding="utf-8", errors="replace"))
    return output


def read_facts(run: RunDirectory, folder: Path) -> dict[str, Any]:
    """Return the values of the template. Relative links start from `folder`, that of the page.

    Raises ValueError for a config.json that can't be read.
    """
    config = read_config(run.path)
    flat = flat_config(config)
    rows = [row for row in MetricsReader(run.metrics).read() if "env_steps" in row]
    planned = config.all_steps
    took_all = bool(rows) and planned is not None and steps_of(rows[-1]) >= planned
    has_finished = took_all or config.finished_steps > 0
    error = artifacts.last_error(run)
    ended = "finished" if has_finished else "failed" if error else "stopped"
    state = "running" if is_locked(run.path) else ended
    status = summarize(config, rows)
    changes = [
        f"Changed by a resume after {each['updates']:,} updates: {change_text(each)}." for each in config.changes
    ]
    knows_limit = status.limited_by and None not in map(config.integer, ("num_actors", "max_policy_lag"))
    return {
        "env": str(flat.get("env", "unknown environment")),
        "algorithm": config.algorithm_title,
        "name": run.path.resolve().name,
        "status": state,
        "notices": [*_notices(run, rows, state, error), *changes, *_advice(rows, flat)],
        "figures": _figures(rows, config),
        "charts": charts(rows),
        "league": _league(run),
        "learner_time": _learner_time(status),
        "actor_time": _shares(status, ACTOR_TIME),
        "limited_by": f"L{str(status.limited_by)[1:]} (over the whole run)." if knows_limit else "",
        "incidents": [_incident(found) for found in artifacts.incidents(run)],
        "undone": sum(map(has_undone, rows)),
        "restarts": _restarts(rows),
        "most_restarts": _MAX_RESTARTS,
        "evaluation": _last_values(rows, "evaluation/"),
        "videos": [_video(file, run, folder) for file in artifacts.videos(run, _MAX_VIDEOS)],
        "commands": _commands(run, state),
        "settings": _settings(flat),
        "surroundings": _surroundings(config),
        "log": artifacts.log_lines(run, _LOG_LINES),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
    }


def _league(run: RunDirectory) -> list[list[str]]:
    """Return the table of self-play of the newest checkpoint that can be read; nothing without self-play."""
    for folder in checkpoint_folders(run.checkpoints):
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
            return score_table(RunState.read(folder).league or {})
    return []


def _notices(run: RunDirectory, rows: Sequence[Mapping[str, Any]], state: str, error: str) -> Iterator[str]:
    if state == "failed":
        yield f"The run failed: {error}"
    if state == "running":
        yield "The run is still going: the report shows its state at the time of writing."
    if state == "stopped":
        yield "The run stopped before it had taken all its steps."
    if not rows:
        yield "No update has been recorded yet, so there are no curves."
    lines = run.metrics.read_bytes().count(b"\n") if run.metrics.is_file() else 0
    if lines > len(rows):
        yield f"{lines - len(rows)} of {lines} lines of metrics.jsonl are damaged and left out."


def _advice(rows: Sequence[Mapping[str, Any]], flat: Mapping[str, Value]) -> Iterator[str]:
    """Yield what the tutorial says of metrics that stay where they shouldn't, through each quarter of the run."""
    scaled = flat.get("algorithm.normalize_reward") is True
    explained, kl = _quarters(rows, "explained_variance"), _quarters(rows, "approx_kl")
    if explained and max(explained) < 0.1:
        remedy = "check gamma" if scaled else "scale rewards (normalize_reward), check gamma"
        yield f"explained_variance stays near 0, so values say nothing about returns: {remedy}."
    if kl and min(kl) > 0.1:
        yield "approx_kl stays above 0.1, so updates change the policy too much: lower learning_rate or epochs."


def _quarters(rows: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Return the mean of a metric in each quarter of a run; [] if it has too few values."""
    values = [row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))]
    size = len(values) // 4
    return [sum(values[part * size : (part + 1) * size]) / size for part in range(4)] if size >= 2 else []


def _figures(rows: Sequence[Mapping[str, Any]], config: RecordedConfig) -> list[tuple[str, str]]:
    last = rows[-1] if rows else {}
    steps, seconds = last.get("env_steps", 0), last.get("time_seconds", math.nan)
    planned = config.integer("total_steps")
    offline = last.get("offline_steps")
    without_steps = [row["time_seconds"] for row in rows if row.get("offline_steps") and not row.get("env_steps")]
    stepping = seconds - max(without_steps, default=0.0)
    figures = [
        ("return, last 100 episodes", _number(last.get("episode_return", math.nan))),
        ("env steps", _number(steps) + (f" of {planned:,}" if planned is not None and planned > steps else "")),
        ("gradient steps offline", "" if offline is None else _number(offline)),
        ("updates", _number(last.get("updates", math.nan))),
        ("time", _time(seconds)),
        ("env steps per second", _number(steps / stepping) if steps and stepping > 0 else ""),
        ("actor restarts", _number(last.get("actor_restarts", math.nan))),
    ]
    return [(name, text) for name, text in figures if text]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else ""


def _learner_time(status: RunStatus) -> list[TimeShare]:
    shares = _shares(status, LEARNER_TIME)
    left = 1 - sum(share.part for share in shares)
    return [*shares, TimeShare("callbacks, checkpoints, publishing", left, 3)] if shares and left > 0 else shares


def _shares(status: RunStatus, labels: Mapping[str, str]) -> list[TimeShare]:
    known = {label: status.shares[name] for name, label in labels.items() if math.isfinite(status.shares[name])}
    return [TimeShare(label, min(max(part, 0.0), 1.0), _COLOURS[label]) for label, part in known.items()]


def _restarts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (_number(row["env_steps"]), _time(row.get("time_seconds", math.nan)), str(cause))
        for row in rows
        for cause in row.get("actor_restart_causes", ())
    ]


def _incident(found: Mapping[str, Any]) -> dict[str, str]:
    names = [found.get(key) for key in ("metrics_not_finite", "state_not_finite")]
    listed = [str(name) for of_kind in names if isinstance(of_kind, list) for name in of_kind]
    more = f" and {len(listed) - 5} others" if len(listed) > 5 else ""
    values = {key: str(found.get(key, "")) for key in ("update", "env_steps", "folder")}
    return {**values, "not_finite": ", ".join(listed[:5]) + more}


def _last_values(rows: Sequence[Mapping[str, Any]], prefix: str) -> list[tuple[str, str]]:
    last: dict[str, float] = {}
    for row in rows:
        last |= {name: value for name, value in row.items() if name.startswith(prefix) and math.isfinite(value)}
    return [(name.removeprefix(prefix).replace("_", " "), _number(value)) for name, value in last.items()]


def _video(file: Path, run: RunDirectory, folder: Path) -> dict[str, Any]:
    """Return a video inside the report, whose source is a data URI, or beside it, with a relative link."""
    name = str(file.relative_to(run.path))
    content = artifacts.read_plain(file, _MAX_EMBEDDED_BYTES + 1) or b""
    if 0 < len(content) <= _MAX_EMBEDDED_BYTES:
        kind = file.suffix.lower().removeprefix(".")
        source = f"data:video/{kind};base64,{base64.b64encode(content).decode()}"
        return {"name": name, "source": source, "embedded": True}
    return {"name": name, "source": quote(os.path.relpath(file, folder)), "embedded": False}


def _commands(run: RunDirectory, state: str) -> list[tuple[str, str]]:
    path = shlex.quote(str(run.path))
    config = shlex.quote(str(run.config))
    resume = [("resume it where it stopped", f"actor-learner train --resume {path}")]
    return [
        *(resume if state in ("stopped", "failed") else ()),
        ("train it again, from the beginning", f"actor-learner train --config {config}"),
        ("play episodes with the trained policy", f"actor-learner evaluate {path} --episodes 20"),
        ("draw its curves", f"actor-learner plot {path} --output curve.svg"),
    ]


def _settings(flat: Mapping[str, Value]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of hyperparameters and of other settings. Nothing that the config names is imported."""
    known = algorithms.BY_NAME.get(str(flat.get("algorithm.name")))
    defaults = flat_config((TrainConfig(algorithm=known()) if known else TrainConfig()).to_json())
    tables: dict[str, list[dict[str, Any]]] = {"hyperparameters": [], "run": []}
    for name, value in flat.items():
        of_algorithm = name.startswith("algorithm.")
        comparable = name in defaults and not (of_algorithm and known is None)
        changed = comparable and defaults[name] != value and name not in {*WITHOUT_EFFECT, "algorithm.name"}
        if of_algorithm or name.partition(".")[0] in {*defaults, "env_kwargs", "wrapper_kwargs"}:
            setting = {"name": name.removeprefix("algorithm."), "value": str(value), "changed": changed}
            tables["hyperparameters" if of_algorithm else "run"].append(setting)
    return tables


def _surroundings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries of config.json beside the config: versions, the machine, settings chosen by rule."""
    own = {*TrainConfig().to_json(), "finished", "changes"}
    flat = flat_config({name: value for name, value in config.items() if name not in own})
    return [(name.removeprefix("versions."), str(value)) for name, value in flat.items()]


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
    groups: dict[str, list[Chart]] = {"returns": [], "learning": [], "layers": [], "speed": [], "processes": []}
    constant = []
    found = {name: look_up(name) for name in dict.fromkeys(name for row in rows for name in row)}
    names = [name for name, known in found.items() if known is None or known.subject]
    names.sort(key=lambda name: (known := found[name]) is not None and known.subject == "layers")  # they may be many
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
