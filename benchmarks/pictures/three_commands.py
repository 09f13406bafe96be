#!/usr/bin/env python3
"""From clone to trained agent, curve and video: three commands in a real terminal, timed, and what is to be seen.

    scripts/measure three-commands [--output PICTURE.svg] [--seconds FILE.json]

They are those of the README, in an empty folder, with the .venv that scripts/train has set up; `--python PYTHON` takes
another interpreter that has the project. The terminal is tmux's, which has to be installed: what it shows in the end,
the picture has. It takes as long as the commands do: less than a minute.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from benchmarks.harness import machine
from benchmarks.pictures.live_view import SVG

ROOT = Path(__file__).resolve().parents[2]
RUN = "runs/CartPole-v1/ppo-0-1"
COMMANDS = (
    "scripts/train",
    f".venv/bin/actor-learner plot {RUN} --output curve.png",
    f".venv/bin/actor-learner evaluate {RUN} --video videos --episodes 3",
)
COLUMNS, LINES = 100, 60
MOST_SECONDS = 600

# Types the commands, as a person would at a prompt, and writes down the seconds that each took.
TYPIST = """
for command in {commands}; do
    printf '\\033[1;32m$\\033[0m \\033[1m%s\\033[0m\\n' "$command"
    started=$EPOCHREALTIME
    eval "$command"
    status=$?
    printf '%s %s %s\\n' "$started" "$EPOCHREALTIME" "$status" >>seconds
    echo
done
tmux -L {socket} wait-for -S over
sleep {most}
"""


def main() -> None:
    """Runs, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=Path, metavar="FILE")
    parser.add_argument("--python", metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder), arguments.python)
        screen = terminal(Path(folder))
        lines = Path(folder, "seconds").read_text().splitlines()
        if any(line.split()[2] != "0" for line in lines):
            sys.exit(f"A command failed.\n{screen}")
        seconds = [measured(line) for line in lines]
        files = [Path(folder, "curve.png"), *sorted(Path(folder, "videos").iterdir())]
        made = {str(file.relative_to(folder)): file.stat().st_size for file in files}
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seconds": dict(zip(COMMANDS, seconds, strict=True)),
        "seconds_in_all": round(sum(seconds), 1),
        "bytes": made,
    }
    print(json.dumps(result, indent=2))
    if arguments.seconds:
        arguments.seconds.write_text(json.dumps(result, indent=2) + "\n")
    if arguments.output:
        clone = ROOT if arguments.python is None else Path(arguments.python).absolute().parents[2]
        draw(screen.replace(f"{clone}/", ""), arguments.output)  # as in the clone, where a path begins with .venv


def make_folder(folder: Path, python: str | None) -> None:
    """What the commands find where they are typed: those of the clone, or two that stand for them."""
    if python is None:
        for name in ("scripts", ".venv"):
            (folder / name).symlink_to(ROOT / name)
        return
    for name, command in (("scripts/train", " train"), (".venv/bin/actor-learner", "")):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -m actor_learner.cli{command} "$@"\n')
        file.chmod(0o755)


def terminal(folder: Path) -> str:
    """All that the terminal shows in the end, with its colours."""
    socket = f"three-commands-{os.getpid()}"
    tmux = ["tmux", "-L", socket, "-f", os.devnull]
    commands = " ".join(map(shlex.quote, COMMANDS))
    (folder / "typist").write_text(TYPIST.format(commands=commands, socket=socket, most=MOST_SECONDS))
    environment = {**os.environ, "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    begin = ["new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "bash --norc typist"]
    subprocess.run([*tmux, *begin], check=True, cwd=folder, env=environment)
    try:
        subprocess.run([*tmux, "wait-for", "over"], check=True, timeout=MOST_SECONDS)
        capture = [*tmux, "capture-pane", "-e", "-p", "-S", "-"]
        return subprocess.run(capture, check=True, capture_output=True, text=True).stdout.rstrip()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def measured(line: str) -> float:
    """Seconds that a command took."""
    started, ended, _ = line.split()
    return round(float(ended.replace(",", ".")) - float(started.replace(",", ".")), 1)


def draw(screen: str, output: Path) -> None:
    """The screen as a picture."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(Text.from_ansi(screen), no_wrap=True, crop=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(
        theme=DIMMED_MONOKAI, code_format=SVG, font_aspect_ratio=0.602, unique_id="three", title=""
    )
    output.write_text(svg)


if __name__ == "__main__":
    main()
