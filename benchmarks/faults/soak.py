"""A run of CartPole-v1 whose actors are killed, stopped and hung, with a check of every batch.

    scripts/measure soak --minutes 10 --fault-every 2 --output benchmarks/faults/soak.json

The stamps of the observations show whether a row is missing, doubled, or from elsewhere; log-probabilities must be
those of the weights that a column names. Afterwards: each replacement was reported with the fault's own cause, metrics
count up, nothing is left, the network has learned. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
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

from benchmarks.harness import Figures, make_parser, origin, report, tell
from benchmarks.processes import Leftovers, command_line, growth

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
SOLVED = 475.0
GROWTH = 0.01
RECOVERY_MEDIAN, RECOVERY_WORST = 0.5, 2.0
LONG_ENOUGH_MINUTES = 5.0  # shorter runs aren't held to the return and the growth of memory
_MAX_LOG_BYTES = 17 << 20  # bytes: an actor's output is kept in two files of 16 MiB


def main() -> None:
    numbers = {"minutes": 10.0, "fault_every": 2.0, "actors": 4, "lag": 1, "actor_timeout": 3.0}
    parser = make_parser("soak", __doc__ or "", seed=0, **numbers)
    parser.add_argument("--folder", type=Path, help="a new folder for the run (default: a temporary one)")
    arguments = parser.parse_args()
    if arguments.folder and arguments.folder.exists():
        parser.error(f"--folder must be a new one. Received: {arguments.folder}")
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        (temporary := folder / "tmp").mkdir(parents=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        result = soak(folder, arguments)
    report({**origin(parser), **result}, arguments.output)
    for problem in result["problems"]:
        tell(f"soak: {problem}")
    sys.exit(bool(result["problems"]))


def soak(folder: Path, arguments: argparse.Namespace) -> Figures:
    """Train for so many minutes with faults in the actors. Returns figures, and the "problems"."""
    import actor_learner as al
    from benchmarks.faults.chaos import Watch, make_network
    from benchmarks.faults.stamped import Board, StampedCartPole

    board = Board(folder / "board", arguments.actors)
    config = al.preset("CartPole-v1").replace(
        env=StampedCartPole,
        env_kwargs={"board": str(folder / "board"), "slow_seconds": arguments.actor_timeout / 2},
        network=make_network,
        num_actors=arguments.actors,
        max_policy_lag=arguments.lag,
        asynchronous=arguments.lag > 1,
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
    watch = Watch(board, arguments)
    printed = _Drain()
    with contextlib.redirect_stdout(printed):
        result = al.train(config.replace(run_dir=folder / "run", callbacks=[watch]))
    evaluation = al.evaluate(result.network, env=StampedCartPole, env_kwargs={}, episodes=20)
    watch.batches.finish()
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    logs = {file.name: file.stat().st_size for file in (result.run_dir / "logs").glob("actor-*")}
    pids = watch.batches.processes.values()
    problems = [
        *watch.problems(),
        *_check_metrics(rows, watch),
        *[f"logs/{name} has {size} bytes" for name, size in logs.items() if size > _MAX_LOG_BYTES],
        *[f"process {pid} of an actor is alive" for pid in pids if "actor-" in command_line(pid)],
        *Leftovers.now(folder / "tmp").since(before),
    ]
    memory = growth(watch.memory)
    recovery = _recovery(watch.chaos.caused)
    if arguments.minutes >= LONG_ENOUGH_MINUTES:
        problems += _check_figures(evaluation.mean, memory, recovery.get("SIGKILL", {}))
    return {
        **{name: getattr(arguments, name) for name in ("minutes", "actors", "seed", "actor_timeout")},
        "max_policy_lag": arguments.lag,
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
        "seconds_from_detection_to_replacement": _describe([restart.seconds for restart in watch.restarts]),
        "learner_memory_mb": memory,
    }


class _Drain(io.TextIOBase):
    """Counts what the actors print, and drops it."""

    characters = 0

    def write(self, text: str) -> int:
        self.characters += len(text)
        return len(text)


def _check_metrics(rows: Sequence[Figures], watch: Any) -> list[str]:
    """Check that counters count up, and that the rows report all replacements."""
    problems = [
        f"metrics.jsonl: {name} doesn't increase with each row"
        for name in ("env_steps", "updates", "time_seconds")
        if not all(earlier[name] < later[name] for earlier, later in itertools.pairwise(rows))
    ]
    if [row["updates"] for row in rows] != list(range(1, 1 + len(rows))):
        problems.append("metrics.jsonl: an update has no row, or two")
    if rows[-1]["env_steps"] != watch.batches.rows or len(rows) != watch.batches.batches:
        problems.append(f"metrics.jsonl: {rows[-1]['env_steps']} env steps, {watch.batches.rows} were collected")
    causes = [cause for row in rows for cause in row.get("actor_restart_causes", ())]
    if causes != [f"actor {restart.actor} {restart.cause}" for restart in watch.restarts]:
        problems.append("metrics.jsonl: the causes of the replacements differ from the pool's reports")
    return problems


def _check_figures(mean: float, memory: Figures, recovery: dict[str, float]) -> list[str]:
    problems = []
    if mean < SOLVED:
        problems.append(f"the return is {mean}, below {SOLVED}")
    if memory["growth"]["rss"] > GROWTH:
        problems.append(f"the learner's memory has grown by {memory['growth']['rss']:.2%}")
    if recovery and not (recovery["median"] < RECOVERY_MEDIAN and recovery["worst"] < RECOVERY_WORST):
        problems.append(f"recovery from SIGKILL took {recovery['median']} s, at worst {recovery['worst']} s")
    return problems


def _recovery(caused: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Return the recoveries by kind, without those during which another actor was out."""
    from benchmarks.faults.chaos import is_alone

    by_kind: dict[str, list[float]] = {}
    for fault in caused:
        if fault.recovery is not None and is_alone(fault, caused):
            by_kind.setdefault(fault.kind, []).append(fault.recovery)
    return {kind: _describe(seconds) for kind, seconds in sorted(by_kind.items())}


def _describe(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    found = {"best": ordered[0], "median": statistics.median(ordered), "90%": ordered[int(0.9 * len(ordered))]}
    figures = {name: round(value, 3) for name, value in {**found, "worst": ordered[-1]}.items()}
    return {"count": len(ordered), **figures}
