#!/usr/bin/env python3
"""Draws the live view of a run as it was at some moment, as a picture that needs no font from elsewhere.

scripts/measure live-view runs/LunarLander-v3/ppo-0-1 --output docs/pictures/live-view.svg --part 0.6
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from actor_learner.reports.layout import fit
from actor_learner.reports.status import Summary
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.metrics import MetricsReader

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">
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
"""As rich's own, but for the font that it would load from elsewhere."""


def main() -> None:
    """Draws it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--part", type=float, default=1.0, help="of the run's updates, after which it is drawn")
    arguments = parser.parse_args()
    run, config = open_run(arguments.run_dir), read_config(arguments.run_dir)
    rows = MetricsReader(run.metrics).read()
    summary = Summary(config, arguments.run_dir)
    for row in rows[: max(1, round(arguments.part * len(rows)))]:
        summary.add(row)
    console = Console(
        file=io.StringIO(),
        record=True,
        width=arguments.columns,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(fit(console, summary.look(over=arguments.part == 1), whole=True))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(theme=DIMMED_MONOKAI, code_format=SVG, font_aspect_ratio=0.602, unique_id="view", title="")
    arguments.output.write_text(svg)


if __name__ == "__main__":
    main()
