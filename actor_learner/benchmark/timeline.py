"""The timeline of all processes: as a picture, and as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actor_learner.benchmark.whole import Span, process_order
from actor_learner.reports.plot import COLOURS, FORMATS, STYLE, check_package
from actor_learner.system.fields import refusal
from actor_learner.system.files import write_atomically

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
    if Path(path).suffix.lower() not in FORMATS:
        raise refusal("output", f"a file name that ends in {', '.join(FORMATS)}", str(path))
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

    start, end = _window(spans)
    processes = _processes(spans)
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
    numbers = {process: number for number, process in enumerate(_processes(spans), 1)}
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


def _processes(spans: Sequence[Span]) -> list[str]:
    return sorted({span.process for span in spans}, key=process_order)


def _window(spans: Sequence[Span]) -> tuple[float, float]:
    """Return the beginning and the end of the batches in the picture."""
    start = min(span.start for span in spans)
    learned = sorted(span.end for span in spans if span.name == "learning")
    return start, learned[min(_MAX_BATCHES, len(learned)) - 1] if learned else max(span.end for span in spans)
