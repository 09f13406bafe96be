"""The cost of policies that remember: against RecurrentPPO, torch's nn.LSTM, and policies that don't.

    scripts/measure recurrent --output benchmarks/recurrent/recurrent.json    # 8 minutes

One thread, CPU time, programs in turns; ratios are medians of the rounds' ratios. SB3-contrib and torch are installed
into a virtual environment of `--venvs` on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Figures, origin, report, run_in_turns
from benchmarks.one_thread import compare_figures, parse, program

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
OURS, PEERS = "recurrent.programs.ours", "recurrent.programs.peers"


def main() -> None:
    parser, arguments, torch = parse("recurrent", __doc__ or "")
    rounds = arguments.rounds
    whole = {"ours": program(OURS, "run", RUN), "RecurrentPPO": program(PEERS, "run", RUN, torch)}
    found = {
        "cartpole without velocities, LSTM 64": by_part(whole, rounds, ("RecurrentPPO", "ours")),
        "minibatch of 512 rows": {name: minibatch(torch, task, rounds) for name, task in UPDATES.items()},
        "acting": {f"{task['units']} units, {task['rows']} rows": acting(task, rounds) for task in ACTING},
        "first update": first_updates(rounds),
    }
    report({**origin(parser), "rounds": rounds, **found}, arguments.output)


def minibatch(torch: str, task: Figures, rounds: int) -> Figures:
    """Return a minibatch's microseconds, and our time as a part of nn.LSTM's; GRU has no row of torch's."""
    runs = {"ours": program(OURS, "update", task)}
    if task["kind"] != "lstm":
        return by_part(runs, rounds)
    return by_part({**runs, "torch": program(PEERS, "update", task, torch)}, rounds, ("ours", "torch"))


def by_part(runs: dict[str, Callable[[], Any]], rounds: int, *pairs: tuple[str, str]) -> Figures:
    """Return the rounds' figures of each part in microseconds, and the ratios of pairs of programs."""
    found = run_in_turns(runs, rounds)
    parts = {
        part: compare_figures({name: [row[part] for row in rows] for name, rows in found.items()}, pairs, 1e6, 1)
        for part in found["ours"][0]
    }
    names = [*found, *(f"{this} / {other}" for this, other in pairs)]
    return {name: {part: figures[name] for part, figures in parts.items()} for name in names}


def acting(task: Figures, rounds: int) -> Figures:
    """Return a step's microseconds for each kind of policy, and its multiple of one that doesn't remember."""
    found = program(OURS, "acting", {**task, "rounds": rounds, "calls": 1000})()
    return {
        "microseconds": {kind: round(1e6 * seconds, 1) for kind, seconds in found.items()},
        "times_feedforward": {kind: round(seconds / found["none"], 2) for kind, seconds in found.items()},
        "attention_times_lstm": round(found["attention"] / found["lstm"], 2),
    }


def first_updates(rounds: int) -> Figures:
    """Return the seconds of a first update without any cache, and the multiple of one without memory."""
    runs = {}
    for kind, steps in COMPILED:
        task = {"kind": kind, "units": 128, "steps": steps, "columns": 512 // steps, "epochs": 5}
        runs[f"{kind}, {steps} steps"] = program(OURS, "first_update", task, ACTOR_LEARNER_CACHE="")
    found = {name: [row["first_update"] for row in rows] for name, rows in run_in_turns(runs, rounds).items()}
    first, *others = found
    return compare_figures(found, [(name, first) for name in others], digits=2)
