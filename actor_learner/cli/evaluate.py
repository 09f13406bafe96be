"""`actor-learner evaluate`: episodes with a trained policy."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.cli.flags import add_number, converter, json_object
from actor_learner.system.keras_import import keras_backend

if TYPE_CHECKING:
    from actor_learner.evaluate import Evaluation

LEVEL = 0.95
ENVIRONMENT = ("env", "env_kwargs", "wrappers", "wrapper_kwargs")

HELP = "play episodes with a trained policy"
DESCRIPTION = "Plays episodes with the policy that a run trained, without TensorFlow."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run, RUN@best, or hf://owner/name")
    group = parser.add_argument_group("episodes")
    add_number(group, "--episodes", 20, "N", "number of episodes")
    add_number(group, "--seed", 0, "N", "seed of the episodes")
    group.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely")
    group.add_argument("--num-envs", type=converter(int), metavar="N", help="number of environments (default: 8)")
    add_environment(group)
    opponent = "in games: a run, random, or module:player, for the other seats (default: random)"
    group.add_argument("--opponent", metavar="PLAYER", help=opponent)
    seat = "in games: the policy's seat, from 0 on; both: all in turn (default: both)"
    group.add_argument("--seat", type=_seat, metavar="N", help=seat)
    policy = "with several policies: another one in place of the run's own, by its name; once for each"
    group.add_argument("--policy", type=_policy, metavar="NAME=RUN", action="append", default=[], help=policy)
    limit = "cut off episodes after so many steps (default: the environment ends them)"
    group.add_argument("--max-episode-steps", type=converter(int), metavar="STEPS", help=limit)
    group = parser.add_argument_group("output")
    group.add_argument("--table", action="store_true", help="print a line for each episode")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--video", metavar="DIR", help="write a video of each episode into this folder, as MP4")
    record = "write the episodes into a new Minari dataset"
    group.add_argument("--record", metavar="minari:NAME", help=record)
    group.add_argument("--render", choices=["human"], metavar="human", help="show the episodes in a window")


def _seat(text: str) -> int | None:
    """Return a number from 0 on; None for both."""
    if text not in ("both", "all") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0, 1, ... or both. Received: {text}")
    return int(text) if text.isdecimal() else None


def _policy(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"must be the name of a policy and a run, NAME=RUN. Received: {text}")
    return name, path


def add_environment(group: Any) -> None:
    """Add the flags of the environment, whose names are `ENVIRONMENT`."""
    group.add_argument("--env", metavar="ENV", help="environment to play instead of the run's")
    env_kwargs = "keyword arguments for the environment instead of the run's"
    group.add_argument("--env-kwargs", type=json_object, metavar="JSON", help=env_kwargs)
    wrappers = "wrappers around the environment instead of the run's; none: no wrappers"
    group.add_argument("--wrappers", metavar="MODULE:CLASS,...", help=wrappers)
    wrapper_kwargs = "keyword arguments of the wrappers, by class name"
    group.add_argument("--wrapper-kwargs", type=json_object, metavar="JSON", help=wrapper_kwargs)


def run(arguments: argparse.Namespace) -> int:
    """Play the episodes, and print the result."""
    from actor_learner.runs.directory import open_run

    arguments.run_dir = open_run(arguments.run_dir).weights
    keras_backend()
    from actor_learner.evaluate import evaluate

    names = ("episodes", "seed", "num_envs", "max_episode_steps", "record", "opponent", "seat")
    options = {name: getattr(arguments, name) for name in names}
    options |= {
        **_environment(arguments),
        "policies": dict(arguments.policy),
        "deterministic": not arguments.stochastic,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium\.")  # an existing folder, the making of a window
        evaluation = evaluate(arguments.run_dir, **options)
    if arguments.json:
        print(json.dumps(_as_json(evaluation, arguments)))
    else:
        print(_as_text(evaluation, table=arguments.table))
        if arguments.video is not None:
            print(f"The videos are in {arguments.video}.")
        if arguments.record is not None:
            print(f"The episodes are in {arguments.record}.")
    return 0


def _environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the environment, of which there is only one if it is shown or recorded."""
    given = {name: getattr(arguments, name) for name in ENVIRONMENT}
    if arguments.video is None and arguments.render is None:
        return given
    if arguments.video is not None and arguments.render is not None:
        raise ValueError(
            "`--render` and `--video` exclude each other: an environment draws either to a window or to a file. "
            f"Received: --render {arguments.render} --video {arguments.video}"
        )
    from actor_learner.environments.factory import resolve_env
    from actor_learner.environments.video import in_a_window, recorded, recording_arguments
    from actor_learner.evaluate import is_runs_own, run_environment
    from actor_learner.runs.directory import read_config

    config = read_config(arguments.run_dir)
    bare = resolve_env(**run_environment(config, **given), check_pickle=False)
    if arguments.video is not None:
        _check_no_videos(Path(arguments.video))
        factory = recorded(bare, arguments.video, arguments.episodes)
    else:
        factory = in_a_window(bare)
    return {**recording_arguments(factory), "calls": is_runs_own(config, given["env"], given["env_kwargs"])}


def _check_no_videos(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`--video` must be a folder. Received: --video {folder}")
    if any(folder.glob("evaluation-*.mp4")):
        raise ValueError(f"`--video` must be a folder without earlier videos. Received: --video {folder}")


def _as_text(evaluation: Evaluation, *, table: bool) -> str:
    lines = _table(evaluation) if table else []
    for policy, own in evaluation.policies.items():
        lines += [f"{policy}: {line}" for line in _as_text(own, table=False).splitlines()]
    return "\n".join(lines if evaluation.policies else [*lines, *_summary(evaluation)])


def _summary(evaluation: Evaluation) -> list[str]:
    low, high = evaluation.confidence_interval(LEVEL)
    count, lines = len(evaluation.returns), []
    lines.append(
        f"return {_number(evaluation.mean)} +- {_number(evaluation.std)} (std) over {count} "
        f"{'episode' if count == 1 else 'episodes'} of {evaluation.mean_length:,.1f} steps"
    )
    if low < high:  # neither NaN nor a point, of equal returns
        lines.append(f"mean: {_number(low)} to {_number(high)} ({LEVEL:.0%} confidence, bootstrap)")
    for name, values in evaluation.info.items():  # over the episodes that have the entry
        low, high = evaluation.confidence_interval(LEVEL, name)
        interval = f", {_number(low)} to {_number(high)} ({LEVEL:.0%} confidence)" if low < high else ""
        lines.append(f"{name}: {_number(values[values == values].mean())}{interval}")
    return lines


def _table(evaluation: Evaluation) -> list[str]:
    """Return a line for each episode: number, return, steps, and entries of the environment's info."""
    columns = [
        ["episode", *map(str, range(1, len(evaluation.returns) + 1))],
        ["return", *map(_number, evaluation.returns)],
        ["steps", *(f"{length:,}" for length in evaluation.lengths)],
        *([name, *map(_number, values)] for name, values in evaluation.info.items()),
    ]
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _number(value: float) -> str:
    """Format large numbers to a tenth, and small ones to three digits."""
    return f"{value:,.1f}" if not math.isfinite(value) or abs(value) >= 10 or value == round(value) else f"{value:.3g}"


def _as_json(evaluation: Evaluation, arguments: argparse.Namespace) -> dict[str, Any]:
    policies = evaluation.policies
    return {
        "return_mean": float(evaluation.mean),
        "return_std": float(evaluation.std),
        "return_interval": _interval(evaluation),
        "interval": {"level": LEVEL, "method": "bootstrap"},
        "length_mean": evaluation.mean_length,
        "episodes": len(evaluation.returns),
        "seed": arguments.seed,
        "deterministic": not arguments.stochastic,
        "returns": [float(value) for value in evaluation.returns],
        "lengths": [int(value) for value in evaluation.lengths],
        "info": {name: [_finite(value) for value in values] for name, values in evaluation.info.items()},
        "info_intervals": {name: _interval(evaluation, name) for name in evaluation.info},
        **({"policies": {name: _as_json(own, arguments) for name, own in policies.items()}} if policies else {}),
    }


def _interval(evaluation: Evaluation, key: str | None = None) -> list[float | None]:
    return [_finite(end) for end in evaluation.confidence_interval(LEVEL, key)]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
