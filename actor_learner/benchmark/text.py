"""Measurements as sentences and tables for a terminal, as a picture, and as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.benchmark.measure import Measured
from actor_learner.benchmark.roofline import NAMES, Prospect
from actor_learner.benchmark.whole import LEARNER, Span, process_order
from actor_learner.reports.bottleneck import Bottleneck, bottleneck
from actor_learner.reports.plot import COLOURS, STYLE, checked_output
from actor_learner.runs.metrics import ACTOR_TIME, LEARNER_TIME
from actor_learner.system.fields import refusal
from actor_learner.system.files import write_atomically
from actor_learner.system.installation import check_package

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLUMNS = ("learning", "publishing", "rollouts", "environments", "acting", "copying", "waiting", "other")
_MIN_WARNED_SHARE = 0.1  # the share of the cores' time, used by other programs, from which on a warning is printed
_MAX_TOLD_SHARE = 0.2  # the share from which on waiting for a core can't be told from waiting for something else
_MIN_SLOWDOWN = 1.15  # the least factor by which a mentioned part takes longer in the whole system than alone


def show(measured: Measured, console: Console) -> None:
    config, others, ratios = measured.config, measured.cores_used["others"], measured.ratios
    actors = f"{config.num_actors} actor{'s'[: config.num_actors != 1]}"
    spread = f" ({min(ratios):.0%} to {max(ratios):.0%} in {len(ratios)} rounds)" if len(ratios) > 1 else ""
    for item in (
        f"{config.env_name}, {config.algorithm_name}: {'on the device' if config.acts_on_device else actors}, "
        f"{sum(config.env_counts)} environments x {config.unroll_length} steps, lag {config.max_policy_lag}, "
        f"{measured.cores} cores",
        _parts(measured),
        _processes(_shares(measured)),
        f"cores: {cores_line(measured.cores_used)}",
        f"CPU time of a batch: {measured.cpu_beside_parts:.2f} times that of its parts alone",
        f"achieved {measured.achieved:,.0f} steps/s, roof {measured.roof.steps_per_second:,.0f}: "
        f"[bold]{measured.ratio:.0%}[/bold]{spread}",
        sentence(measured),
        *([] if config.acts_on_device else [network_line(measured.bytes_per_step, measured.achieved)]),
    ):
        console.print(item, highlight=False, soft_wrap=isinstance(item, str))
    if _MAX_TOLD_SHARE > others >= _MIN_WARNED_SHARE:
        console.print(f"Other programs took {others:.0%} of the cores: measure again on an idle machine.")


def network_line(bytes_per_step: float, steps_per_second: float) -> str:
    """Return what a network would have to carry if all actors were on other machines."""
    megabytes = bytes_per_step * steps_per_second / 1e6
    return (
        f"actors on other machines would send {bytes_per_step:,.0f} bytes a step, at this speed {megabytes:,.1f} MB/s"
    )


def show_devices(found: Mapping[str, Any], console: Console) -> None:
    """Print a row for each device, and which is faster."""
    table = _table("learner on", "steps/s", "of the roof", "update, ms", "GPU busy")
    for name, own in found["devices"].items():
        busy = found["gpu_busy"][name]
        update = 1e3 * own["parts"]["update"]["wall_seconds"]
        cells = (f"{own['achieved_steps_per_second']:,.0f}", f"{own['ratio']:.0%}", f"{update:,.1f}")
        table.add_row(name, *cells, "" if busy is None else f"{busy:.0%}")
    console.print(table)
    if any(busy is not None for busy in found["gpu_busy"].values()):
        console.print(
            "GPU busy: the share of time in which it ran a kernel, of this or another program.", soft_wrap=True
        )
    console.print(verdict(found), highlight=False, soft_wrap=True)


def verdict(found: Mapping[str, Any]) -> str:
    """Return a sentence about the faster device, and about acting on a device."""
    names = list(found["devices"])
    text = f"Only {names[0]} was measured." if len(names) == 1 else f"{found['fastest']} is faster here."
    for name, own in found["acting"].items():
        better = own["roof_steps_per_second"] > own["roof_steps_per_second_in_actors"]
        text += f" Acting on {name} would {'raise' if better else 'not raise'} the roof: a call for all environments"
        text += f" takes {1e3 * own['seconds_a_step']:.2f} ms, for one actor's in its process "
        text += f"{1e3 * own['seconds_a_step_in_actors']:.2f} ms."
    return text


def sentence(measured: Measured) -> str:
    """Return the limit of a setting, advice, and the expected gains."""
    if (others := measured.cores_used["others"]) >= _MAX_TOLD_SHARE:
        reason = f"Other programs took {others:.0%} of the cores, so the parts can't be told apart"
        return f"{reason}: measure again on an idle machine."
    found = limited_by(measured)
    expected = expectations(measured.prospects)
    text = f"{found}." if found else ""
    slower = {name: factor for name, factor in measured.slower_than_alone.items() if factor >= _MIN_SLOWDOWN}
    if slower and measured.ratio < 1:
        listed = ", ".join(f"{name} {factor:.2f} times" for name, factor in slower.items())
        text += f" Beside each other they take longer than alone: {listed}."
    return f"{text} {expected}".strip()


def limited_by(measured: Measured) -> Bottleneck | None:
    actors, config = dict(measured.shares), measured.config
    learner = actors.pop(LEARNER)
    metrics = {f"time/{name}": learner.get(label, 0.0) for name, label in LEARNER_TIME.items()}
    for name, label in ACTOR_TIME.items():
        metrics[f"time/{name}"] = statistics.fmean(own.get(label, 0.0) for own in actors.values())
    metrics["time/waiting"] = 1 - sum(metrics[f"time/{name}"] for name in ("env", "acting", "other"))
    if config.num_actors:
        metrics |= {f"cpu/{process}": own["cpu"] for process, own in measured.shares.items() if "cpu" in own}
    return bottleneck(
        metrics,
        num_actors=config.num_actors,
        cores=measured.cores,
        max_policy_lag=config.max_policy_lag,
        replay=config.algorithm.REPLAYS,
        on_device=config.acts_on_device,
    )


def expectations(found: Sequence[Prospect]) -> str:
    """Return a sentence such as `Expected: one more actor +38%, max_policy_lag=1 +20%.`"""
    if not found:
        return "No single change is expected to raise the roof by 5%."
    return "Expected: " + ", ".join(f"{each.change} {each.gain:+.0%}" for each in found) + "."


def cores_line(used: Mapping[str, float]) -> str:
    """Return the uses of the cores, the largest first."""
    shown = sorted(((part, name) for name, part in used.items() if part >= 0.005), reverse=True)
    return ", ".join(f"{name} {part:.0%}" for part, name in shown)


def _parts(measured: Measured) -> Table:
    table = _table("part, alone", "milliseconds of", "wall", "CPU", "in the whole")
    parts, slower = measured.parts, measured.slower_than_alone
    for name, label in NAMES.items():
        cost = getattr(parts, name)
        if parts.on_device and not cost.wall:
            continue
        factor = f"{slower[label]:.2f}x" if label in slower else ""
        if name == "env":
            label = parts.stepping
        whose = "a batch" if name == "update" or parts.on_device else "an actor's unroll"
        table.add_row(label, whose, f"{1e3 * cost.wall:,.2f}", f"{1e3 * cost.cpu:,.2f}", factor)
    return table


def _shares(measured: Measured) -> Mapping[str, Mapping[str, float]]:
    """Return the shares of each process; a device's rollouts are the learner's."""
    if not measured.config.acts_on_device:
        return measured.shares
    own = dict(measured.shares[LEARNER])
    rollouts = own.pop("waiting", 0.0)
    return {LEARNER: {**own, "rollouts": rollouts}}


def _processes(shares: Mapping[str, Mapping[str, float]]) -> Table:
    columns = [name for name in _COLUMNS if any(own.get(name, 0.0) >= 0.005 for own in shares.values())]
    table = _table("process", *columns, "CPU")
    for process, own in shares.items():
        cells = [f"{own[name]:.0%}" if own.get(name, 0.0) >= 0.005 else "" for name in columns]
        table.add_row(process.replace("_", " "), *cells, f"{own['cpu']:.0%}")
    return table


def _table(first: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right")
    return table


_MAX_BATCHES = 8  # in the picture; the trace has all
_COLOURS = {
    "learning": COLOURS[0],
    "environments": COLOURS[1],
    "acting": COLOURS[2],
    "copying": COLOURS[3],
    "publishing": COLOURS[5],
    "waiting": "#DDDDDD",
}


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if a picture can't be written there; ImportError if matplotlib is missing."""
    checked_output(path)
    check_folder("output", path)
    check_package("matplotlib", "benchmark --output", "plots")


def check_folder(name: str, path: str | os.PathLike[str]) -> None:
    """Raise ValueError if no file can be written there."""
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise refusal(name, "a file in a folder that can be written", str(path))


def draw(spans: Sequence[Span], title: str, output: str | os.PathLike[str]) -> None:
    """Draw a row for each process, the learner's at the top."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    start, learned = min(span.start for span in spans), sorted(s.end for s in spans if s.name == "learning")
    end = learned[min(_MAX_BATCHES, len(learned)) - 1] if learned else max(span.end for span in spans)
    processes = _processes_of(spans)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 1.2 + 0.35 * len(processes)), layout="constrained")
        axes = figure.subplots()
        for row, process in enumerate(processes):
            own = [span for span in spans if span.process == process and span.end > start and span.start < end]
            for name, colour in _COLOURS.items():
                bars = [(1e3 * (s.start - start), 1e3 * (s.end - s.start)) for s in own if s.name == name]
                axes.broken_barh(bars, (row - 0.4, 0.8), color=colour, linewidth=0)
        axes.set_yticks(range(len(processes)), [process.replace("_", " ") for process in processes])
        axes.invert_yaxis()
        axes.set_xlim(0, 1e3 * (end - start))
        axes.set_xlabel("milliseconds")
        axes.set_title(title, fontsize="medium")
        shown = {span.name for span in spans}
        patches = [Patch(color=colour, label=name) for name, colour in _COLOURS.items() if name in shown]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
        suffix = Path(output).suffix[1:].lower()
        options: Any = {"metadata": {"Date": None}} if suffix == "svg" else {}
        write_atomically(Path(output), lambda partial: figure.savefig(partial, format=suffix, dpi=150, **options))


def write_trace(spans: Sequence[Span], output: str | os.PathLike[str]) -> None:
    """Write the spans in Chrome's trace format, which Perfetto reads too."""
    first = min((span.start for span in spans), default=0.0)
    numbers = {process: number for number, process in enumerate(_processes_of(spans), 1)}
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": process}}
        for process, number in numbers.items()
    ]
    events += [
        {
            "name": span.name,
            "cat": "waiting" if span.name == "waiting" else "work",
            "ph": "X",
            "ts": round(1e6 * (span.start - first), 3),
            "dur": round(1e6 * (span.end - span.start), 3),
            "pid": numbers[span.process],
            "tid": 0,
        }
        for span in spans
    ]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    write_atomically(Path(output), lambda partial: partial.write_text(text, encoding="utf-8"))


def _processes_of(spans: Sequence[Span]) -> list[str]:
    return sorted({span.process for span in spans}, key=process_order)
