"""The cost of policies that remember: against RecurrentPPO, torch's nn.LSTM, and policies that don't.

    scripts/measure recurrent --output benchmarks/recurrent/recurrent.json    # 8 minutes

One thread, CPU time, programs in turns; ratios are medians of the rounds' ratios. SB3-contrib and torch are installed
into a virtual environment of `--venvs` on first use.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from benchmarks.harness import Found, in_turns, make_parser, origin, ratio_of, report, run_python
from benchmarks.peers.libraries import prepare

RUN = {"units": 64, "envs": 8, "steps": 32, "minibatch_size": 256, "epochs": 10, "batches": 20}
UPDATES = {
    f"{kind} {units}, {steps} x {columns}": {
        "kind": kind,
        "units": units,
        "steps": steps,
        "columns": columns,
        "epochs": 5,
        "updates": 5,
    }
    for kind, units, steps, columns in (("lstm", 128, 16, 32), ("lstm", 128, 128, 4), ("gru", 128, 16, 32))
}
ACTING = [{"units": 64, "rows": 8}, {"units": 128, "rows": 32}]
COMPILED = [("none", 16), ("lstm", 16), ("lstm", 128)]
PROGRAMS = "benchmarks.recurrent.programs"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def main() -> None:
    parser = make_parser("recurrent", __doc__ or "", rounds=5)
    parser.add_argument("--venvs", type=Path, default=Path("venvs"), help="folder of virtual environments")
    arguments = parser.parse_args()
    torch = str(prepare("sb3", arguments.venvs))
    rounds = arguments.rounds
    found = {
        "cartpole without velocities, LSTM 64": whole(torch, rounds),
        "minibatch of 512 rows": {name: minibatch(torch, task, rounds) for name, task in UPDATES.items()},
        "acting": {f"{task['units']} units, {task['rows']} rows": acting(task, rounds) for task in ACTING},
        "first update": first_updates(rounds),
    }
    report({**origin(parser), "rounds": rounds, **found}, arguments.output)


def child(program: str, function: str, task: Found, python: str = sys.executable, **environment: str) -> Found:
    """Return what a program prints, on one thread."""
    words = ["-m", f"{PROGRAMS}.{program}", function, json.dumps(task)]
    changes = {**dict.fromkeys(THREADS, "1"), **environment}
    found: Found = json.loads(run_python(words, environment=changes, python=python))
    return found


def whole(torch: str, rounds: int) -> Found:
    """Return microseconds of an env step and an update, ours and RecurrentPPO's, and the ratios."""
    runs = {
        "ours": functools.partial(child, "ours", "run", RUN),
        "RecurrentPPO": functools.partial(child, "recurrent_ppo", "run", RUN, torch),
    }
    return compared(in_turns(runs, rounds), "RecurrentPPO", "ours")


def minibatch(torch: str, task: Found, rounds: int) -> Found:
    """Return a minibatch's microseconds, and our time as a part of nn.LSTM's; GRU has no row of torch's."""
    runs = {"ours": functools.partial(child, "ours", "update", task)}
    if task["kind"] == "lstm":
        runs["torch"] = functools.partial(child, "torch_lstm", "update", task, torch)
    found = in_turns(runs, rounds)
    return compared(found, "ours", "torch") if "torch" in found else microseconds(found)


def microseconds(found: dict[str, list[Found]]) -> Found:
    """Return the rounds' figures in microseconds."""
    return {
        name: {part: [round(1e6 * row[part], 1) for row in rows] for part in rows[0]} for name, rows in found.items()
    }


def compared(found: dict[str, list[Found]], this: str, other: str) -> Found:
    """Return the rounds' figures in microseconds, and for each the ratio of two of the programs."""
    ratios = {
        part: ratio_of([row[part] for row in found[this]], [row[part] for row in found[other]])._asdict()
        for part in found[this][0]
    }
    return {**microseconds(found), f"{this} / {other}": ratios}


def acting(task: Found, rounds: int) -> Found:
    """Return a step's microseconds for each kind of policy, and its multiple of one that doesn't remember."""
    found = child("ours", "acting", {**task, "rounds": rounds, "calls": 1000})
    return {
        "microseconds": {kind: round(1e6 * seconds, 1) for kind, seconds in found.items()},
        "times_feedforward": {kind: round(seconds / found["none"], 2) for kind, seconds in found.items()},
        "attention_times_lstm": round(found["attention"] / found["lstm"], 2),
    }


def first_updates(rounds: int) -> Found:
    """Return the seconds of a first update without any cache, and the multiple of one without memory."""
    runs = {
        f"{kind}, {steps} steps": functools.partial(
            *(child, "ours", "first_update"),
            {"kind": kind, "units": 128, "steps": steps, "columns": 512 // steps, "epochs": 5},
            ACTOR_LEARNER_CACHE="",
        )
        for kind, steps in COMPILED
    }
    found = {name: [row["first_update"] for row in rows] for name, rows in in_turns(runs, rounds).items()}
    first, *others = found
    ratios = {f"{name} / {first}": ratio_of(found[name], found[first])._asdict() for name in others}
    return {**{name: [round(seconds, 2) for seconds in row] for name, row in found.items()}, **ratios}
