"""`actor-learner sweep`: a search for settings with Optuna, in one process or several that share a study."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from actor_learner.cli.flags import add_config_flags, add_env, add_number, named_before
from actor_learner.cli.train import parse_seeds, train_config
from actor_learner.system.installation import own_command

HELP = "search for settings with a high return"
DESCRIPTION = (
    "Searches for settings with a high return, with Optuna. The same command goes on with a study that was interrupted "
    "or killed; in another shell, or on another machine with the same --storage, it joins the study."
)
USAGE = "actor-learner sweep [ENV] --space FILE [--FLAG VALUE ...]"


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    file, algorithm = named_before(argv, "--config", "--algorithm")
    parser.set_defaults(config_file=file)
    add_env(parser)
    group = parser.add_argument_group("search")
    space = "settings and their values: a TOML file with lines such as learning_rate = { log_uniform = [1e-5, 1e-2] }, "
    space += "or with uniform, int or choice; or a dict of them in Python, module:name"
    group.add_argument("--space", metavar="FILE", required=True, help=space)
    add_number(group, "--trials", 20, "N", "trials of the study, those of other processes included")
    seeds = "seeds of each trial, 0-4 or 0,3,7 (default: 0)"
    group.add_argument("--seeds", metavar="N-N,N", type=parse_seeds, default=(0,), help=seeds)
    add_number(group, "--parallel", 1, "N", "runs of a trial at a time, each with its share of the cores")
    group.add_argument("--study", metavar="NAME", default="sweep", help="the study's name (default: sweep)")
    storage = "database of the study, such as sqlite:///FILE or mysql://... (default: study.db in --run-dir)"
    group.add_argument("--storage", metavar="URL", help=storage)
    sampler = "Optuna's sampler: tpe, random, gp, cmaes, qmc, ... (default: tpe)"
    group.add_argument("--sampler", metavar="NAME", default="tpe", help=sampler)
    pruner = (
        "Optuna's pruner, which sees the evaluations of --eval-every: median, hyperband, none, ... (default: median)"
    )
    group.add_argument("--pruner", metavar="NAME", default="median", help=pruner)
    group.add_argument("--config", metavar="FILE", help="settings from a TOML or JSON file, which flags override")
    add_config_flags(parser, {"search": group}, algorithm, ("env", "seed", "overwrite"))


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the best trials. The exit code is 1 if no trial finished."""
    from actor_learner.sweep import read_space, sweep

    names = ("trials", "seeds", "parallel", "study", "storage", "sampler", "pruner")
    given = {name: getattr(arguments, name) for name in names}
    results = sweep(train_config(arguments), read_space(arguments.space), **given)
    print(results.table())
    if results.config is None:
        return 1
    if results.picture is not None:
        print(f"The trials are drawn in {results.picture}.")
    best = shlex.quote(str(results.run_dir / "best.toml"))
    print(f"The best settings are in {best}. Next, with as many steps as you need and other seeds:")
    print(f"  {shlex.quote(own_command())} train --config {best} --total-steps N --seeds 1-5")
    return 0
