"""Comparisons of programs of ours and of the peers on one thread, in turns, by CPU time."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Figures, make_parser, ratio_of, run_python
from benchmarks.peers.libraries import prepare

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")


def parse(topic: str, doc: str) -> tuple[argparse.ArgumentParser, argparse.Namespace, str]:
    """Return a topic's parser, its arguments, and the interpreter with SB3, SBX and torch, installed on first use."""
    parser = make_parser(topic, doc, rounds=5)
    parser.add_argument("--venvs", type=Path, default=Path("venvs"), help="folder of virtual environments")
    arguments = parser.parse_args()
    return parser, arguments, str(prepare("sb3", arguments.venvs))


def program(
    module: str, function: str, task: Figures, python: str = sys.executable, **environment: str
) -> Callable[[], Any]:
    """Return a function that runs a program's function on one thread, and returns its result."""
    words = ["-m", f"benchmarks.{module}", function, json.dumps(task)]
    run = functools.partial(run_python, words, environment={**THREADS, **environment}, python=python)
    return lambda: json.loads(run())


def compare_figures(
    found: Mapping[str, Sequence[float]], pairs: Iterable[tuple[str, str]], unit: float = 1.0, digits: int = 3
) -> Figures:
    """Return the rounds' figures in a unit, and the ratio of the programs of each pair."""
    ratios = {f"{this} / {other}": ratio_of(found[this], found[other])._asdict() for this, other in pairs}
    return {**{name: [round(unit * seconds, digits) for seconds in row] for name, row in found.items()}, **ratios}
