"""Draws the live view of a run at some moment, as an SVG that needs no font from elsewhere.

scripts/measure live-view runs/LunarLander-v3/ppo-0-1 --output docs/pictures/live-view.svg --part 0.6
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from actor_learner.reports.layout import fit
from actor_learner.reports.status import Summary
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.metrics import MetricsReader
from benchmarks.harness import make_parser

_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">
<style>
text {{ font: {char_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
{matrix}
</g>
</svg>
"""
"""The format of rich, without the font that it loads from elsewhere."""


def main() -> None:
    parser = make_parser("live-view", __doc__ or "", output="SVG file to write", columns=100, part=1.0)
    parser.add_argument("run_dir")
    arguments = parser.parse_args()
    run, config = open_run(arguments.run_dir), read_config(arguments.run_dir)
    rows = MetricsReader(run.metrics).read()
    summary = Summary(config, arguments.run_dir)
    for row in rows[: max(1, round(arguments.part * len(rows)))]:
        summary.add(row)
    console = recording_console(arguments.columns)
    console.print(fit(console, summary.status(over=arguments.part == 1), whole=True))
    save_svg(console, arguments.output or Path("live-view.svg"), "view")


def recording_console(columns: int) -> Any:
    """Return a console that prints nowhere and keeps what it prints."""
    return Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor")


def save_svg(console: Any, path: Path, name: str) -> None:
    """Write what a console has kept. name: begins the names of the picture's styles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    style = {"theme": DIMMED_MONOKAI, "code_format": _SVG, "font_aspect_ratio": 0.602}
    path.write_text(console.export_svg(title="", unique_id=name, **style))
