"""`actor-learner evaluate`: episodes with a trained policy."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from actor_learner.cli.flags import converter, json_object
from actor_learner.config import check_backend


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate",
        help="play episodes with a trained policy",
        description="Plays episodes with the policy that a run trained.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=run)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--env", metavar="ENV", help="another environment than the run's")
    parser.add_argument("--env-kwargs", type=json_object, metavar="JSON", help="its keyword arguments")
    parser.add_argument("--episodes", type=converter(int), default=20, metavar="N", help="episodes (default: 20)")
    parser.add_argument("--seed", type=converter(int), default=0, metavar="N", help="of the episodes (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", metavar="DIR", help="write a video of each episode there")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner evaluate`: plays episodes with a trained policy, without TensorFlow."""
    from actor_learner.run_directory import open_run

    open_run(arguments.run_dir)
    check_backend()
    from actor_learner.evaluate import evaluate

    environment: dict[str, Any] = {"env": arguments.env, "env_kwargs": arguments.env_kwargs}
    if arguments.video is not None:
        environment = {"env": _recorded(arguments), "env_kwargs": {}, "vectorization": "sync", "num_envs": 1}
    evaluation = evaluate(
        arguments.run_dir,
        **environment,
        episodes=arguments.episodes,
        seed=arguments.seed,
        deterministic=not arguments.stochastic,
    )
    if arguments.json:
        print(json.dumps(_evaluation_json(evaluation, arguments)))
    else:
        print(
            f"return {evaluation.mean:.1f} +- {evaluation.std:.1f} over {arguments.episodes} episodes "
            f"of {evaluation.mean_length:.1f} steps"
        )
    return 0


def _recorded(arguments: argparse.Namespace) -> Callable[..., Any]:
    """The environment of `evaluate`, as a factory of ones that write videos."""
    from actor_learner.run_directory import read_config
    from actor_learner.video import recorded

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, and looks for no display
    config = read_config(arguments.run_dir)
    env = arguments.env or config["env"]
    if not isinstance(env, str):
        raise ValueError(f"`--env` must be given, because the run's was the callable {env['callable']}. Received: none")
    env_kwargs = config["env_kwargs"] if arguments.env is None else None
    return recorded(env, arguments.env_kwargs or env_kwargs, arguments.video, arguments.episodes)


def _evaluation_json(evaluation: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "return_mean": float(evaluation.mean),
        "return_std": float(evaluation.std),
        "length_mean": evaluation.mean_length,
        "episodes": len(evaluation.returns),
        "seed": arguments.seed,
        "deterministic": not arguments.stochastic,
        "returns": [float(value) for value in evaluation.returns],
        "lengths": [int(value) for value in evaluation.lengths],
    }
