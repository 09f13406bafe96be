#!/usr/bin/env python3
"""Trains CartPole-v1 while its actors are killed, stopped and hung, and checks that all is as if nothing had been.

    scripts/measure soak --minutes 10 --fault-every 2 --output benchmarks/faults/soak    # writes .json, .md and .log
    scripts/measure soak --what learner --times 100                               # kills the learner's process instead
    scripts/measure soak --what resources                                         # takes descriptors, memory, disk

Each row's observation carries a stamp: actor, environment, process, step, last action, checksum. Every batch that is
learned from is checked: no row missing, twice, of another environment or process; the observation that the batch before
ended with goes on; each action and each episode's end where the environment had it; log-probabilities those of the
weights that the column names. Afterwards: each replacement was told with the fault's own cause, and none that had none;
metrics count up; nothing is left (processes, descriptors, threads, memory, files); the network has learned.

Which faults, in which order, when and to whom follows from --seed. Exits with 1, and says why, if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.processes import growth

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
SOLVED = 475.0
GROWTH = 0.01
RECOVERY_MEDIAN, RECOVERY_WORST = 0.5, 2.0
LONG_ENOUGH_MINUTES = 5.0
"""For figures that need time: memory that grows, and the return."""


def main() -> None:
    """Runs what is asked for, prints and writes what came of it."""
    arguments = (parser := _parser()).parse_args()
    if arguments.folder and arguments.folder.exists():
        parser.error(f"--folder must be a new one. Received: {arguments.folder}")
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        result = _run(arguments, folder)
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), **result}
    faults = result.pop("faults", [])
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(text + "\n")
    if arguments.output and faults:
        arguments.output.with_suffix(".md").write_text(table(result))
        arguments.output.with_suffix(".log").write_text("\n".join(faults) + "\n")
    for problem in result["problems"]:
        print(f"soak: {problem}", file=sys.stderr)
    sys.exit(bool(result["problems"]))


def _run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if arguments.what == "learner":
        from benchmarks.faults.soak_learner import soak_learner

        return soak_learner(folder, arguments.times, arguments.seed)
    if arguments.what == "resources":
        from benchmarks.faults.soak_resources import soak_resources

        return soak_resources(folder)
    return soak_actors(folder, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("actors", "learner", "resources"), default="actors")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--fault-every", type=float, default=2.0, help="seconds between faults, on average")
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--lag", type=int, default=1, help="max_policy_lag")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actor-timeout", type=float, default=3.0)
    parser.add_argument("--times", type=int, default=100, help="how often the learner is killed")
    parser.add_argument("--folder", type=Path, help="where the run is kept; a temporary one by default")
    parser.add_argument("--output", type=Path, help="name of the files to write, without .json, .md and .log")
    return parser


def soak_actors(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains for so many minutes with faults in the actors. Returns figures, and what was wrong as "problems"."""
    import actor_learner as al
    from benchmarks.faults.checks import Watch, make_network
    from benchmarks.faults.stamped import Board, StampedCartPole
    from benchmarks.processes import Leftovers

    board = Board(folder / "board", arguments.actors)
    config = al.preset("CartPole-v1").replace(
        env=StampedCartPole,
        env_kwargs={"board": str(folder / "board"), "slow_seconds": arguments.actor_timeout / 2},
        network=make_network,
        num_actors=arguments.actors,
        max_policy_lag=arguments.lag,
        seed=arguments.seed,
        actor_timeout=arguments.actor_timeout,
        start_timeout=60.0,
        max_restarts=100_000,
        total_steps=10**9,
        quiet=True,
    )
    al.train(config.replace(total_steps=1, run_dir=folder / "before"))  # what is loaded once is no leak
    board.words.fill(0)
    before = Leftovers.now(folder / "tmp")
    lines: list[str] = []
    watch = Watch(board, arguments, functools.partial(_log, lines))
    printed = _Drain()
    with contextlib.redirect_stdout(printed):
        result = al.train(config.replace(run_dir=folder / "run", callbacks=[watch]))
    evaluation = al.evaluate(result.network, env=StampedCartPole, env_kwargs={}, episodes=20)
    watch.check_end()
    problems = [
        *watch.problems(),
        *_check_metrics(al_metrics(result.run_dir), watch),
        *_check_logs(result.run_dir / "logs"),
        *[f"process {pid} of an actor is alive" for pid in watch.batches.processes.values() if _is_actor(pid)],
        *Leftovers.now(folder / "tmp").since(before),
    ]
    memory = growth(watch.memory)
    recovery = _recovery(watch.chaos.caused)
    if arguments.minutes >= LONG_ENOUGH_MINUTES:
        problems += _check_figures(evaluation.mean, memory, recovery.get("SIGKILL", {}))
    return {
        "command": "scripts/measure soak " + " ".join(sys.argv[1:]),
        "minutes": arguments.minutes,
        "actors": arguments.actors,
        "max_policy_lag": arguments.lag,
        "seed": arguments.seed,
        "actor_timeout": arguments.actor_timeout,
        "problems": problems,
        "faults_caused": len(watch.chaos.caused),
        "faults_by_kind": dict(Counter(caused.kind for caused in watch.chaos.caused)),
        "replacements": len(watch.restarts),
        "batches_checked": watch.batches.batches,
        "rows_checked": watch.batches.rows,
        "columns_with_log_probs_checked": watch.policies.columns,
        "printed_by_actors_mb": round(printed.characters / 1e6, 1),
        "evaluation": {"mean": evaluation.mean, "std": evaluation.std, "episodes": len(evaluation.returns)},
        "seconds_from_fault_to_first_row": recovery,
        "seconds_from_detection_to_replacement": _distribution([restart.seconds for restart in watch.restarts]),
        "learner_memory_mb": memory,
        "faults": lines,
    }


class _Drain(io.TextIOBase):
    """What the actors print is counted, and gone."""

    characters = 0

    def write(self, text: str) -> int:
        self.characters += len(text)
        return len(text)


def _log(lines: list[str], line: str) -> None:
    lines.append(line)
    print(line, file=sys.stderr)


def al_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, with what is no number."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def _check_metrics(rows: Sequence[dict[str, Any]], watch: Any) -> list[str]:
    """Counters count up, and all replacements are told of."""
    problems = [
        f"metrics.jsonl: {name} doesn't go up with each row"
        for name in ("env_steps", "updates", "time_seconds")
        if not all(earlier[name] < later[name] for earlier, later in itertools.pairwise(rows))
    ]
    if [row["updates"] for row in rows] != list(range(1, 1 + len(rows))):
        problems.append("metrics.jsonl: an update has no row, or two")
    if rows[-1]["env_steps"] != watch.batches.rows or len(rows) != watch.batches.batches:
        problems.append(f"metrics.jsonl: {rows[-1]['env_steps']} env steps, {watch.batches.rows} were collected")
    told = [cause for row in rows for cause in row.get("actor_restart_causes", ())]
    if told != [f"actor {restart.actor} {restart.cause}" for restart in watch.restarts]:
        problems.append("metrics.jsonl: the causes of the replacements aren't those that the pool told")
    return problems


def _check_logs(folder: Path) -> list[str]:
    """What actors print may not fill the disk: two files of 16 MiB each."""
    sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.name.startswith("actor-")}
    return [f"logs/{name} has {size} bytes" for name, size in sizes.items() if size > 17 << 20]


def _is_actor(pid: int) -> bool:
    from benchmarks.processes import command_line

    return "actor-" in command_line(pid)


def _check_figures(mean: float, memory: dict[str, Any], recovery: dict[str, float]) -> list[str]:
    problems = []
    if mean < SOLVED:
        problems.append(f"the return is {mean}, below {SOLVED}")
    if memory["growth"]["rss"] > GROWTH:
        problems.append(f"the learner's memory has grown by {memory['growth']['rss']:.2%}")
    if recovery and not (recovery["median"] < RECOVERY_MEDIAN and recovery["worst"] < RECOVERY_WORST):
        problems.append(f"recovery from SIGKILL took {recovery['median']} s, at worst {recovery['worst']} s")
    return problems


def _recovery(caused: Sequence[Any]) -> dict[str, dict[str, float]]:
    """By kind, of those during which no other actor was out, for whose columns the replaced one may have waited."""
    from benchmarks.faults.chaos import alone

    by_kind: dict[str, list[float]] = {}
    for fault in caused:
        if fault.recovery is not None and alone(fault, caused):
            by_kind.setdefault(fault.kind, []).append(fault.recovery)
    return {kind: _distribution(seconds) for kind, seconds in sorted(by_kind.items())}


def _distribution(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    quantiles = {"median": statistics.median(ordered), "90%": ordered[int(0.9 * len(ordered))], "worst": ordered[-1]}
    return {"count": len(ordered), **_rounded({"best": ordered[0], **quantiles}, 3)}


def _rounded(values: dict[str, float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in values.items()}


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    kinds = result["seconds_from_fault_to_first_row"]
    lines = [
        "# A soak: CartPole-v1 while its actors are killed, stopped and hung",
        "",
        f"{result['date']}; {result['machine']}. Made by `{result['command']}`; figures are in "
        "soak.json, each fault in soak.log.",
        "",
        f"{result['minutes']:g} minutes, {result['actors']} actors, max_policy_lag={result['max_policy_lag']}, "
        f"actor_timeout={result['actor_timeout']:g} s: {result['faults_caused']} faults, {result['replacements']} "
        f"replacements; {result['batches_checked']:,} batches, together {result['rows_checked']:,} rows, were "
        f"checked. Wrong: {'; '.join(result['problems']) or 'nothing'}. Return afterwards, deterministic, "
        f"{result['evaluation']['episodes']} episodes: {result['evaluation']['mean']:.1f}.",
        "",
    ]
    if growth := result["learner_memory_mb"]["growth"]:
        memory = result["learner_memory_mb"]
        lines += [
            f"The learner's memory over the last four fifths: {memory['after_a_fifth']['rss']:.1f} MB resident, then "
            f"{memory['end']['rss']:.1f} MB ({growth['rss']:+.2%}; what no file stands for "
            f"{growth['anonymous']:+.2%}; PSS, which depends on how many actors share libraries with it, "
            f"{growth['pss']:+.2%}).",
            "",
        ]
    lines += [
        "Seconds from the fault to the first row of the process that took the place, where no other actor was out at "
        "that time (where an actor gave no sign of life, `actor_timeout` is in it):",
        "",
        "| fault | caused | alone | best | median | 90% | worst |",
        "|-|-|-|-|-|-|-|",
    ]
    for kind, count in result["faults_by_kind"].items():
        found = kinds.get(kind)
        names = ("count", "best", "median", "90%", "worst")
        figures = " | ".join("" if found is None else f"{found[name]:g}" for name in names)
        lines.append(f"| {kind} | {count} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
