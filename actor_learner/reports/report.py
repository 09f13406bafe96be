"""A run in one HTML file, which needs nothing beside itself: for a colleague, a paper's appendix, oneself in a year.

The run may be a stranger's: all that comes from its files is escaped, and the page forbids scripts and every request.
"""

from __future__ import annotations

import base64
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from actor_learner import algorithms
from actor_learner.config.config import TrainConfig
from actor_learner.reports.bottleneck import bottleneck
from actor_learner.reports.charts import charts
from actor_learner.reports.plot import check_matplotlib
from actor_learner.reports.status import duration
from actor_learner.runs import artifacts
from actor_learner.runs.config_table import ASIDE, Value, flat_config
from actor_learner.runs.directory import RunDirectory, open_run, read_config
from actor_learner.runs.lock import is_locked
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import refusal
from actor_learner.system.files import write_atomically
from actor_learner.system.version import __version__

NAME = "report.html"

_LARGEST_EMBEDDED = 4 << 20  # bytes of a video; larger ones are linked
_MOST_VIDEOS = 3
_MOST_RESTARTS = 50
_LOG_LINES = 40
_PALE = 4
_LEARNER_PARTS = {"learning": ("learning", 1), "collecting": ("waiting for batches", _PALE)}
_ACTOR_PARTS = {
    "env": ("environments", 1),
    "acting": ("acting", 2),
    "other": ("copying", 3),
    "waiting": ("waiting", _PALE),
}


@dataclass(frozen=True)
class Share:
    """A part of somebody's time, from 0 to 1, and the number of its colour: waiting is pale."""

    name: str
    part: float
    colour: int


@dataclass(frozen=True)
class Setting:
    """An entry of config.json. changed: it isn't the default."""

    name: str
    value: str
    changed: bool


@dataclass(frozen=True)
class Video:
    """A video beside or inside the report: `source` is a data URI or a relative link."""

    name: str
    source: str
    embedded: bool


def report(run_dir: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Describes a run in one HTML file. It may be finished, stopped or still going, which the report says.

    Args:
        run_dir: the run's directory.
        output: the file, .html; by default report.html in the run's directory. One that is there is replaced.

    Returns:
        The file.

    Raises:
        ValueError: the directory holds no run, holds links, its config.json is damaged, or the file can't be written.
        ImportError: jinja2 or matplotlib isn't installed.
    """
    output = Path(run_dir, NAME) if output is None else Path(output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise refusal("output", "a file name that ends in .html", str(output))
    run = open_run(run_dir)
    facts = read_facts(run, output.parent)
    check_matplotlib("report", "report")
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("report needs jinja2: pip install 'actor-learner[report]'") from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = resources.files(__package__).joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = environment.from_string(template).render(facts)
    try:
        write_atomically(output, lambda partial: partial.write_text(page, encoding="utf-8", errors="replace"))
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"`output` can't be written: {reason}. Received: output={str(output)!r}") from error
    return output


def read_facts(run: RunDirectory, folder: Path) -> dict[str, Any]:
    """All that the page says.

    Args:
        run: the run.
        folder: where the page will stand, from which links lead.

    Raises ValueError for a config.json that can't be read.
    """
    config = read_config(run.path)
    flat = flat_config(config)
    rows = [row for row in MetricsReader(run.metrics).read() if "env_steps" in row]
    status = "running" if is_locked(run.path) else "finished" if _has_finished(rows, config) else "stopped"
    return {
        "env": str(flat.get("env", "unknown environment")),
        "algorithm": str(flat.get("algorithm.name", "")).rpartition(":")[2].upper(),
        "name": run.path.resolve().name,
        "status": status,
        "notices": list(_notices(run, rows, status)),
        "figures": _figures(rows, config),
        "charts": charts(rows),
        "learner_time": _learner_time(rows),
        "actor_time": _shares(rows, _ACTOR_PARTS),
        "limited_by": _limited_by(rows, config),
        "incidents": [_incident(found) for found in artifacts.incidents(run)],
        "undone": sum("undone" in row for row in rows),
        "restarts": _restarts(rows),
        "most_restarts": _MOST_RESTARTS,
        "evaluation": _last_values(rows, "evaluation/"),
        "videos": [_video(file, run, folder) for file in artifacts.videos(run, _MOST_VIDEOS)],
        "commands": _commands(run, status),
        "settings": _settings(flat),
        "surroundings": _surroundings(config),
        "log": artifacts.log_lines(run, _LOG_LINES),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
    }


def _has_finished(rows: Sequence[Mapping[str, Any]], config: RecordedConfig) -> bool:
    planned = config.integer("total_steps")
    took_all = bool(rows) and planned is not None and rows[-1]["env_steps"] >= planned
    return took_all or config.finished_steps > 0


def _notices(run: RunDirectory, rows: Sequence[Mapping[str, Any]], status: str) -> Iterator[str]:
    """What a reader must know before believing the rest."""
    if status == "running":
        yield "The run is still going: this is how it stood when the report was written."
    if status == "stopped":
        yield "The run stopped before it had taken all its steps."
    if not rows:
        yield "No update has been recorded yet, so there are no curves."
    lines = run.metrics.read_bytes().count(b"\n") if run.metrics.is_file() else 0
    if lines > len(rows):
        yield f"{lines - len(rows)} of {lines} lines of metrics.jsonl are damaged and left out."


def _figures(rows: Sequence[Mapping[str, Any]], config: RecordedConfig) -> list[tuple[str, str]]:
    """The run in a few numbers."""
    last = rows[-1] if rows else {}
    steps, seconds = last.get("env_steps", 0), last.get("time_seconds", math.nan)
    planned = config.integer("total_steps")
    figures = [
        ("return, last 100 episodes", _number(last.get("episode_return", math.nan))),
        ("env steps", _number(steps) + (f" of {planned:,}" if planned is not None and planned > steps else "")),
        ("updates", _number(last.get("updates", math.nan))),
        ("time", _time(seconds)),
        ("env steps per second", _number(steps / seconds) if seconds > 0 else ""),
        ("actors replaced", _number(last.get("actor_restarts", math.nan))),
    ]
    return [(name, text) for name, text in figures if text]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else ""


def _learner_time(rows: Sequence[Mapping[str, Any]]) -> list[Share]:
    shares = _shares(rows, _LEARNER_PARTS)
    left = 1 - sum(share.part for share in shares)
    rest = (
        ("callbacks, checkpoints, publishing", 3) if len(shares) > 1 else ("waiting for batches, and all else", _PALE)
    )
    return [*shares, Share(rest[0], left, rest[1])] if shares and left > 0 else shares


def _shares(rows: Sequence[Mapping[str, Any]], parts: Mapping[str, tuple[str, int]]) -> list[Share]:
    """Means over the run's time."""
    means = {name: _mean(rows, f"time/{name}") for name in parts}
    return [Share(label, mean, colour) for name, (label, colour) in parts.items() if (mean := means[name]) is not None]


def _mean(rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Of a metric, each row counting as much as the time since the one before; None if it has no values."""
    total = weight = before = 0.0
    for row in rows:
        seconds, before = max(0.0, row.get("time_seconds", before) - before), row.get("time_seconds", before)
        if math.isfinite(value := row.get(metric, math.nan)):
            total += min(max(value, 0.0), 1.0) * seconds
            weight += seconds
    return total / weight if weight > 0 else None


def _limited_by(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    """What limited the run; nothing where that can't be told."""
    machine = config.get("machine")
    cores = machine.get("cores") if isinstance(machine, Mapping) else None
    counts = [config.get("num_actors"), config.get("max_policy_lag"), cores]
    names = {name for row in rows for name in row if name.startswith(("time/", "cpu/"))}
    means = {name: mean for name in names if (mean := _mean(rows, name)) is not None}
    if not all(isinstance(count, int) for count in counts):
        return ""
    actors, lag, cores = counts
    found = bottleneck(means, num_actors=actors, cores=cores, max_policy_lag=lag, updates=len(rows))  # type: ignore[arg-type]
    return "" if found is None else f"Limited by: {found.part}; {found.advice} (over the whole run)."


def _restarts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(env steps, time, cause) of actors that were replaced."""
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
    """The last value of each metric whose name begins so."""
    last: dict[str, float] = {}
    for row in rows:
        last |= {name: value for name, value in row.items() if name.startswith(prefix) and math.isfinite(value)}
    return [(name.removeprefix(prefix).replace("_", " "), _number(value)) for name, value in last.items()]


def _video(file: Path, run: RunDirectory, folder: Path) -> Video:
    name = str(file.relative_to(run.path))
    content = artifacts.read_plain(file, _LARGEST_EMBEDDED + 1) or b""
    if 0 < len(content) <= _LARGEST_EMBEDDED:
        kind = file.suffix.lower().removeprefix(".")
        return Video(name, f"data:video/{kind};base64,{base64.b64encode(content).decode()}", embedded=True)
    return Video(name, quote(os.path.relpath(file, folder)), embedded=False)


def _commands(run: RunDirectory, status: str) -> list[tuple[str, str]]:
    path = shlex.quote(str(run.path))
    config = shlex.quote(str(run.config))
    found = [
        ("train it again, from the beginning", f"actor-learner train --config {config}"),
        ("play episodes with what it learned", f"actor-learner evaluate {path} --episodes 20"),
        ("draw its curves", f"actor-learner plot {path} --output curve.svg"),
    ]
    return (
        [("go on where it stopped", f"actor-learner train --resume {path}"), *found] if status == "stopped" else found
    )


def _settings(flat: Mapping[str, Value]) -> dict[str, list[Setting]]:
    """Tables of the config: hyperparameters, then all else. Nothing that the config names is imported."""
    known = algorithms.BY_NAME.get(str(flat.get("algorithm.name")))
    defaults = flat_config((TrainConfig(algorithm=known()) if known else TrainConfig()).to_json())
    tables: dict[str, list[Setting]] = {"hyperparameters": [], "run": []}
    for name, value in flat.items():
        of_algorithm = name.startswith("algorithm.")
        comparable = name in defaults and not (of_algorithm and known is None)
        changed = comparable and defaults[name] != value and name not in {*ASIDE, "algorithm.name"}
        if of_algorithm or name.partition(".")[0] in {*defaults, "env_kwargs"}:
            table = tables["hyperparameters" if of_algorithm else "run"]
            table.append(Setting(name.removeprefix("algorithm."), str(value), changed))
    return tables


def _surroundings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What config.json has beside the config: versions, the machine, what was chosen by rule."""
    own = {*TrainConfig().to_json(), "finished"}
    flat = flat_config({name: value for name, value in config.items() if name not in own})
    return [(name.removeprefix("versions."), str(value)) for name, value in flat.items()]
