"""From clone to trained agent, curve and video: three commands in a real terminal, timed, and a picture of it.

    scripts/measure three-commands --picture docs/pictures/three-commands.svg --output FILE.json

They are those of the README, in an empty folder, with the .venv that scripts/train has set up or another interpreter
(`--python PYTHON`). The terminal is that of tmux, which must be installed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.text import Text

from benchmarks.harness import ROOT, make_parser, origin, report
from benchmarks.pictures.live_view import recording_console, save_svg

RUN = "runs/CartPole-v1/ppo-0-1"
COMMANDS = (
    "scripts/train",
    f".venv/bin/actor-learner plot {RUN} --output curve.png",
    f".venv/bin/actor-learner evaluate {RUN} --video videos --episodes 3",
)
COLUMNS, LINES = 100, 60
MAX_SECONDS = 600

# Types the commands, as a person would at a prompt, and writes down the seconds of each.
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
    parser = make_parser("three-commands", __doc__ or "")
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    parser.add_argument("--python", metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder), arguments.python)
        screen = run_terminal(Path(folder))
        lines = [line.replace(",", ".").split() for line in Path(folder, "seconds").read_text().splitlines()]
        if any(status != "0" for _, _, status in lines):
            sys.exit(f"A command failed.\n{screen}")
        seconds = [round(float(ended) - float(started), 1) for started, ended, _ in lines]
        files = [Path(folder, "curve.png"), *sorted(Path(folder, "videos").iterdir())]
        sizes = {str(file.relative_to(folder)): file.stat().st_size for file in files}
    times = {"seconds": dict(zip(COMMANDS, seconds, strict=True)), "seconds_in_all": round(sum(seconds), 1)}
    report({**origin(parser), **times, "bytes": sizes}, arguments.output)
    if arguments.picture:
        clone = ROOT if arguments.python is None else Path(arguments.python).absolute().parents[2]
        console = recording_console(COLUMNS)
        relative = screen.replace(f"{clone}/", "")  # as in the clone, where a path begins with .venv
        console.print(Text.from_ansi(relative), no_wrap=True, crop=True)
        save_svg(console, arguments.picture, "three")


def make_folder(folder: Path, python: str | None) -> None:
    """Link the commands of the clone into a folder, or write two substitutes."""
    if python is None:
        for name in ("scripts", ".venv"):
            (folder / name).symlink_to(ROOT / name)
        return
    for name, command in (("scripts/train", " train"), (".venv/bin/actor-learner", "")):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -m actor_learner.cli{command} "$@"\n')
        file.chmod(0o755)


def run_terminal(folder: Path) -> str:
    """Type the commands in a terminal; return its content at the end, with colours."""
    socket = f"three-commands-{os.getpid()}"
    tmux = ["tmux", "-L", socket, "-f", os.devnull]
    commands = " ".join(map(shlex.quote, COMMANDS))
    (folder / "typist").write_text(TYPIST.format(commands=commands, socket=socket, most=MAX_SECONDS))
    environment = {**os.environ, "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    begin = ["new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "bash --norc typist"]
    subprocess.run([*tmux, *begin], check=True, cwd=folder, env=environment)
    try:
        subprocess.run([*tmux, "wait-for", "over"], check=True, timeout=MAX_SECONDS)
        capture = [*tmux, "capture-pane", "-e", "-p", "-S", "-"]
        return subprocess.run(capture, check=True, capture_output=True, text=True).stdout.rstrip()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
