"""`actor-learner tune`: the fastest setting for this machine, as a table, a command and a config file."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.cli.flags import add_config_flags, add_env, add_number, converter, named_before
from actor_learner.cli.output import origin, progress
from actor_learner.cli.train import train_config
from actor_learner.config.file import NOT_REPEATED, config_toml
from actor_learner.system.installation import own_command
from actor_learner.system.machine import actors_with_room
from actor_learner.system.signals import exiting_on_signals

if TYPE_CHECKING:
    from rich.table import Table

    from actor_learner.benchmark.tune import Trial, Tuning
    from actor_learner.config.config import TrainConfig

HELP = "find the fastest setting for this machine"
DESCRIPTION = (
    "Measures --num-actors, --envs-per-actor, --max-policy-lag (0 and 1) and --learner-threads on this machine, "
    "and acting for the best of them. Each round measures the better half for longer. The fastest setting is written "
    "into a config file. The number of environments and all hyperparameters don't change; flags set them, as for "
    "train. --max-policy-lag and --learner-threads fix that setting."
)
USAGE = "actor-learner tune [ENV] [--budget SECONDS] [--FLAG VALUE ...]"


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    file, algorithm = named_before(argv, "--config", "--algorithm")
    parser.set_defaults(config_file=file)
    add_env(parser)
    group = parser.add_argument_group("search")
    add_number(group, "--budget", 120.0, "SECONDS", "seconds for the whole search")
    group.add_argument(
        "--allow",
        nargs="+",
        default=(),
        metavar="NAME",
        help="also change settings that alter learning, envs or unroll_length; with both, the batch keeps its size",
    )
    group.add_argument(
        "--most-actors", type=converter(int), metavar="N", help="most actors to try (default: four for each core)"
    )
    group.add_argument("--output", metavar="FILE", help="config file to write (default: <env>-tuned.toml)")
    group.add_argument("--config", metavar="FILE", help="settings from a TOML or JSON file, which flags override")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_flags(parser, {"search": group}, algorithm, ("env", *NOT_REPEATED))


@exiting_on_signals()
def run(arguments: argparse.Namespace) -> int:
    """Measure, print the result and write the config file."""
    from rich.console import Console

    from actor_learner.config.pool_checks import check_memory
    from actor_learner.environments.factory import resolve_env

    config = train_config(arguments)
    config.require_one_policy("tune")
    config.require_actors("tune")
    output = _new_file(arguments.output, config)
    resolve_env(**config.env_arguments)
    check_memory(config.num_actors)
    from actor_learner.benchmark.tune import tune

    with progress(quiet=config.quiet, stages=True) as say:
        tuning = tune(
            config,
            budget=arguments.budget,
            allow=arguments.allow,
            lags=_fixed(getattr(arguments, "max_policy_lag", None)),
            threads=_fixed(getattr(arguments, "learner_threads", None)),
            most_actors=arguments.most_actors,
            say=say,
        )
    if arguments.json:
        print(json.dumps({**_as_json(tuning, output), **origin("tune", arguments.argv)}))
    else:
        Console(force_jupyter=False).print(_table(tuning))
        print(*(_verdict(tuning), *_notes(tuning)), sep="\n")
    with open(output, "x", encoding="utf-8") as file:
        file.write(config_toml(tuning.config))
    if not arguments.json:
        print(f"The config is in {output}. Next:\n  {_command(output)}")
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in tuning.best.setting._asdict().items()]
        print(f"The same as flags: {' '.join(flags)}")
    return 0


def _fixed(value: int | None) -> tuple[int, ...] | None:
    return None if value is None else (value,)


def _new_file(path: str | None, config: TrainConfig) -> Path:
    """Return the path of the config file. Raises ValueError if it exists or can't be written."""
    from actor_learner.benchmark.text import check_folder

    name = re.sub(r"[^\w.-]+", "-", config.env_name).strip("-")
    output = Path(f"{name}-tuned.toml" if path is None else path)
    if os.path.lexists(output):
        raise ValueError(f"`--output` must be a new file, since none is overwritten. Received: --output {output}")
    check_folder("output", output)
    return output


def _verdict(tuning: Tuning) -> str:
    """Describe the best setting, if it was compared with another."""
    best, before = tuning.best, tuning.before
    if not _is_compared(tuning):
        if left := _count_unmeasured(tuning):
            return (
                f"--budget was too short to compare: {left} of {len(tuning.trials)} settings weren't measured. "
                f"About --budget {_enough(tuning)} measures all."
            )
        return "No other setting could be measured."
    if best is before:
        count = sum(bool(trial.measured) for trial in tuning.trials)
        measured = f" of the {count} measured" if _count_unmeasured(tuning) else ""
        return f"The current setting is the fastest{measured}, or as fast as the fastest."
    gain = f", {best.rate / before.rate:.2f} times the current setting's" if before.rate else ""
    return f"{best.rate:,.0f} steps/s with {best.setting}{gain}."


def _is_compared(tuning: Tuning) -> bool:
    return sum(bool(trial.measured) for trial in tuning.trials) > 1


def _count_unmeasured(tuning: Tuning) -> int:
    return sum(not trial.measured and trial.failure is None for trial in tuning.trials)


def _enough(tuning: Tuning) -> int:
    """Return the seconds after which every setting would have been measured, at the pace so far."""
    count = len(tuning.trials)
    return math.ceil(tuning.seconds * count / max(count - _count_unmeasured(tuning), 1) / 10) * 10


def _unmeasured(tuning: Tuning) -> str:
    """Return the numbers of actors of which no setting was measured, else a setting."""
    left = [trial.setting for trial in tuning.trials if not trial.measured and trial.failure is None]
    counts = {setting.num_actors for setting in left}
    counts -= {trial.setting.num_actors for trial in tuning.trials if trial.measured}
    return f"all with {', '.join(map(str, sorted(counts)))} actors" if counts else str(left[0])


def _notes(tuning: Tuning) -> list[str]:
    """Return what to know before using the best setting."""
    failures = [f"Left out: {trial.setting}: {trial.failure}" for trial in tuning.trials if trial.failure]
    if not _is_compared(tuning):
        return failures
    notes = []
    if tuning.best.setting.max_policy_lag and not tuning.before.setting.max_policy_lag:
        lag = tuning.best.setting.max_policy_lag
        notes.append(
            f"Lag {lag} learns from batches that are {lag} version of the weights old; --max-policy-lag 0 avoids that."
        )
    if tuning.best.setting.max_policy_lag and tuning.best.setting.num_actors > (room := actors_with_room()):
        notes.append(f"So many actors leave the learner no core of its own; --num-actors {room} does.")
    if left := _count_unmeasured(tuning):
        notes.append(
            f"{left} of {len(tuning.trials)} settings weren't measured, among them {_unmeasured(tuning)}; "
            f"about --budget {_enough(tuning)} measures all."
        )
    notes += failures
    if tuning.best.setting.num_actors == max(trial.setting.num_actors for trial in tuning.trials):
        notes.append("The largest number of actors is the fastest; --most-actors N tries more.")
    from actor_learner.benchmark.text import network_line

    best = tuning.best
    line = network_line(best.measured[0].bytes_per_step, best.rate)
    return [*notes, f"{line[0].upper()}{line[1:]}."]


def _table(tuning: Tuning) -> Table:
    """Return a table with a row for each measured setting, the best first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("actors", "envs each", "steps", "lag", "threads", "acting", "steps/s", "ratio", "rounds"):
        table.add_column(heading, justify="right")
    before = tuning.before.rate
    for trial in tuning.trials:
        if trial.measured:
            ratio = "current" if trial is tuning.before else f"{trial.rate / before:.2f}" if before else ""
            numbers = (*map(str, trial.setting), f"{trial.rate:,.0f}", ratio, str(len(trial.measured)))
            table.add_row(*numbers, style="bold" if trial is tuning.best else None)
    return table


def _command(output: Path) -> str:
    return f"{shlex.quote(own_command())} train --config {shlex.quote(str(output))}"


def _as_json(tuning: Tuning, output: Path) -> dict[str, Any]:
    best, before = tuning.best, tuning.before
    return {
        "best": _trial_as_json(best),
        "before": _trial_as_json(before),
        "ratio": best.rate / before.rate if before.rate else None,
        "trials": [_trial_as_json(trial) for trial in tuning.trials],
        "seconds": tuning.seconds,
        "config": str(output),
        "next": _command(output),
    }


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    return {
        **trial.setting._asdict(),
        "steps_per_second": trial.rate or None,
        "bytes_per_step": trial.measured[0].bytes_per_step if trial.measured else None,
        "rounds": len(trial.measured),
        "measured_seconds": sum(throughput.seconds for throughput in trial.measured),
        "failure": trial.failure,
    }
