"""`actor-learner train`: the config from a preset, a file or a run, and the flags over it; then the run."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actor_learner.cli.flags import add_config_flags, add_env, converter, flag_text, given_fields, named_before
from actor_learner.cli.output import warn
from actor_learner.cli.parser import ShortHelp
from actor_learner.config.config import TrainConfig
from actor_learner.config.file import NOT_REPEATED, OF_CHANGES, build, config_toml, differences, preset_layer
from actor_learner.config.presets import with_preset
from actor_learner.config.references import FUNCTIONS, algorithm_class, callable_marks, import_network
from actor_learner.config.settings import names_of
from actor_learner.runs import tensorboard
from actor_learner.runs.recorded_config import provenance
from actor_learner.system.installation import install_command, own_command
from actor_learner.system.keras_import import keras_backend, prepare_process

_GROUPS = ("run", "checkpoints", "environment", "actors", "faults", "algorithm")

HELP = "train, and keep the run in a directory"
DESCRIPTION = (
    "Trains, and keeps the run in a directory. The environment's preset, if it has one, replaces the defaults below; "
    "--print-config prints the resulting settings."
)
USAGE = "actor-learner train [ENV] [--FLAG VALUE ...]"


COMMON = (
    *("algorithm", "total_steps", "seed", "seeds", "device", "run_dir", "resume", "config"),
    *("env_kwargs", "num_actors", "num_envs", "hidden_sizes", "eval_every"),
)
"""What people change, beside the first of these that the algorithm has."""
_COMMON_OF_ALGORITHMS = (
    *("learning_rate", "gamma", "minibatch_size", "epochs", "ent_coef", "clip_range", "gae_lambda", "buffer_size"),
    *("learning_starts", "updates_per_step", "max_grad_norm", "action_noise"),
)
_MAX_OF_ALGORITHM = 7


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    file, algorithm = named_before(argv, "--config", "--algorithm", "--resume")
    parser.set_defaults(config_file=file)
    add_env(parser)
    own = [name for name in _COMMON_OF_ALGORITHMS if name in names_of(algorithm) - {*algorithm.UNUSED}]
    common = ("env", "help", *own[:_MAX_OF_ALGORITHM], *COMMON)
    parser.add_argument("-h", action=ShortHelp, dest="help", nargs=0, const=common, help="show these flags, and exit")
    parser.add_argument("--help", action="help", help="show all flags, and exit")
    groups = {name: parser.add_argument_group(name) for name in _GROUPS}
    resume = "continue this run from its newest intact checkpoint; flags that change what is learned are refused"
    config = "settings from a TOML or JSON file, which flags override; a run's config.json repeats that run"
    print_config = "print all settings as a file for --config, and exit"
    groups["run"].add_argument("--resume", metavar="RUN_DIR", help=resume)
    change = "with --resume, a hyperparameter to change from here on, such as learning_rate=1e-4; may be repeated"
    groups["run"].add_argument("--change", metavar="NAME=VALUE", action="append", default=[], help=change)
    seeds = (
        "train a run for each of these seeds, 0-4 or 0,3,7, and compare them; --resume with their folder goes on with "
        "those that haven't finished"
    )
    groups["run"].add_argument("--seeds", metavar="N-N,N", type=parse_seeds, help=seeds)
    parallel = "with --seeds, runs at a time, each with its share of the cores (default: 1)"
    groups["run"].add_argument("--parallel", metavar="N", type=int, help=parallel)
    groups["run"].add_argument("--config", metavar="FILE", help=config)
    groups["run"].add_argument("--print-config", action="store_true", help=print_config)
    callback = (
        "a function without arguments that returns a Keras callback; may be repeated; none: no recorded callbacks"
    )
    options: dict[str, Any] = {"action": "append", "dest": "callbacks", "default": argparse.SUPPRESS}
    groups["run"].add_argument("--callback", metavar="MODULE:NAME", help=callback, **options)
    add_config_flags(parser, groups, algorithm)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print where the run is and what to type next."""
    from actor_learner.config.pool_checks import check_memory
    from actor_learner.environments.factory import resolve_env
    from actor_learner.runs.directory import check_run_dir, with_init_commit

    resume = arguments.resume is not None
    config = resumed_config(arguments) if resume else train_config(arguments)
    if change := _changed(arguments.change, type(config.algorithm)):
        config = config.replace(algorithm=config.algorithm.changed(change))
    if arguments.print_config:
        print(config_toml(config), end="")
        return 0
    if arguments.seeds is not None or arguments.parallel is not None or _is_of_seeds(arguments.resume):
        return _train_seeds(arguments, config)
    if resume and _has_finished(config, change):
        return 0
    if not resume:
        config = with_init_commit(config)
        check_run_dir(config)
    resolve_env(**config.env_arguments)  # refused before TensorFlow is loaded
    check_memory(config.local_actors)
    if not resume:
        _print_preset(arguments, config)
        recorded = arguments.config_file.recorded
        if recorded.get("changes"):
            warn(OF_CHANGES)
        if found := differences(recorded, provenance()) if recorded else []:
            warn(f"the run was made with {', '.join(found)}; results may differ in the last bits")
    prepare_process(config.local_actors, config.max_policy_lag)
    from actor_learner.runs.metrics import steps_of
    from actor_learner.train import train

    result = train(config, resume=resume, change=change)
    if result.stopped_by and result.metrics:
        again = f"{shlex.quote(own_command())} train --resume {shlex.quote(str(result.run_dir))}"
        steps = f"{int(steps_of(result.metrics)):,} of {config.all_steps:,} steps"
        print(f"{result.stopped_by} stopped the run at {steps}; {again} goes on from there.")
    print(_what_next(result.run_dir))
    if config.diagnose:
        print("The report draws what --diagnose measured of each layer.")
    return 0


def _changed(words: Sequence[str], algorithm: type[Any]) -> dict[str, Any]:
    """Return the hyperparameters that `--change` gives new values."""
    hints = typing.get_type_hints(algorithm)
    pairs = [(name.replace("-", "_"), text) for name, _, text in (word.partition("=") for word in words)]
    try:
        return {name: converter(hints.get(name, Any), name)(text) for name, text in pairs}
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"A value of `--change` {error}") from error


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the numbers of "0-4" or "0,3,7"."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise argparse.ArgumentTypeError(f"must be numbers or ranges, such as 0-4 or 0,3,7. Received: {text}")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def _is_of_seeds(folder: str | None) -> bool:
    from actor_learner.runs.directory import SEEDS_FILE

    return folder is not None and (Path(folder) / SEEDS_FILE).is_file()


def _train_seeds(arguments: argparse.Namespace, config: TrainConfig) -> int:
    """Train runs of several seeds, and print their table. The exit code is 1 if one of them failed."""
    from actor_learner.reports.displays import Lines
    from actor_learner.seeds import train_seeds

    resume, given = arguments.resume is not None, vars(arguments)
    if not resume and arguments.seeds is None:
        raise ValueError(f"`--parallel` needs `--seeds`. Received: --parallel {arguments.parallel}")
    for name in ("seed", "overwrite", "change", *(["seeds"] if resume else [])):
        if given.get(name):
            other = "`--resume` of runs of `--seeds`" if resume else "`--seeds`"
            raise ValueError(f"`--{name}` can't be combined with {other}. Received: --{name}")
    if not resume:
        _print_preset(arguments, config)
        if len(arguments.seeds) == 1 and (seed := arguments.seeds[0]) > 1:
            warn(f"--seeds {seed} is seed {seed} alone; {seed} seeds are --seeds 0-{seed - 1}")
    results = train_seeds(config, arguments.seeds, parallel=arguments.parallel or 1, resume=resume)
    say = Lines("stdout").say
    say(results.table())
    if results.curve is not None:
        say(f"The curve with its interval is in {results.curve}.")
    if results.failures:
        again = f"{shlex.quote(own_command())} train --resume {shlex.quote(str(results.run_dir))}"
        say(f"{again} goes on with those that haven't finished.")
    elif results.returns:
        best = max(results.returns, key=results.returns.__getitem__)
        say(f"Seed {best} has the highest return. {_what_next(results.run_dirs[best])}")
    return 1 if results.failures else 0


def _has_finished(config: TrainConfig, change: Mapping[str, Any]) -> bool:
    """Print where the run continues, and return whether it has finished. Raises ValueError if it can't be resumed."""
    from actor_learner.runs.resume import check_resume

    start = check_resume(config, change=change)
    if start.finished:
        longer = "--total-steps or --offline-steps" if config.offline_steps else "--total-steps"
        print(f"The run has finished: it took its {config.all_steps:,} steps. A larger {longer} continues it.")
        print(_what_next(start.run.path))
    elif not config.quiet:
        where = "from the start" if start.checkpoint is None else f"after {start.state.env_steps:,} steps"
        print(f"The run continues {where}.")
    return start.finished


def train_config(arguments: argparse.Namespace) -> TrainConfig:
    """Build the config: the flags that were given over the file, the file over the preset.

    Raises ValueError for values that the dataclasses refuse, and for an unknown preset.
    """
    keras_backend()
    file = arguments.config_file
    in_python = f"al.load_config({file.path!r}, callbacks=[...])"
    changes = _changes(arguments)
    return build(file, {**_named_callbacks(file.fields, changes, in_python), **changes}, arguments.preset)


def resumed_config(arguments: argparse.Namespace) -> TrainConfig:
    """Build the config of the run to resume, with the flags that were given over it.

    Raises ValueError where there is no run, and for values that the dataclasses refuse.
    """
    from actor_learner.runs.directory import read_config

    keras_backend()
    recorded = read_config(arguments.resume)
    changes = _changes(arguments)
    for name, value in {"preset": arguments.preset, "config": arguments.config, **changes}.items():
        if name in ("preset", "config", *NOT_REPEATED) and value is not None:
            flag = name.replace("_", "-")
            raise ValueError(f"`--{flag}` can't be combined with `--resume`. Received: {name}={value}")
    hyperparameters = {name: changes.pop(name) for name in changes.keys() - names_of(TrainConfig)}
    name = changes.pop("algorithm", None)
    function, own = ("train_seeds", "seeds.json") if _is_of_seeds(arguments.resume) else ("train", "config.json")
    file = str(Path(arguments.resume) / own)
    in_python = f"al.{function}(al.load_config({file!r}, run_dir={arguments.resume!r}, callbacks=[...]), resume=True)"
    changes = {**_named_callbacks(recorded, changes, in_python), **changes}
    config = TrainConfig.from_json(recorded, **changes, run_dir=arguments.resume, overwrite=False)
    if name is not None and algorithm_class(name) is not type(config.algorithm):
        return config.replace(algorithm=algorithm_class(name)(**hyperparameters))
    if not hyperparameters:
        return config
    return config.replace(algorithm=dataclasses.replace(config.algorithm, **hyperparameters))


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that were given, with functions instead of their names."""
    given = given_fields(arguments)
    for one, other in (("quiet", "verbose"), ("verbose", "quiet")):  # over what a file or the run to resume has
        given |= {other: False} if given.get(one) and other not in given else {}
    if "callbacks" in given:
        given["callbacks"] = [name for name in given["callbacks"] if name != "none"]
    return {**given, **{name: import_network(given[name], name) for name in FUNCTIONS if name in given}}


def _named_callbacks(recorded: Mapping[str, Any], changes: Mapping[str, Any], in_python: str) -> dict[str, Any]:
    """Return a run's callbacks that are given by name; warn that its objects are left out, unless flags replace all."""
    callbacks = recorded.get("callbacks")
    if not callbacks or "callbacks" in changes:
        return {}
    if marks := callable_marks(list(callbacks)):
        names = ", ".join(mark.rpartition(":")[2] for mark in marks)
        again = f"--callback module:factory, or in Python: {in_python}"
        warn(f"the run's callbacks are left out ({names}); to give them again: {again}")
    return {"callbacks": [callback for callback in callbacks if isinstance(callback, str)]}


def _print_preset(arguments: argparse.Namespace, config: TrainConfig) -> None:
    file, given = arguments.config_file, given_fields(arguments)
    fields = preset_layer(file, given, arguments.preset)
    used = {name: value for name, value in fields.items() if name not in {*given, *file.fields}}
    kwargs = fields.get("env_kwargs", {}).items()
    if left := {key: value for key, value in kwargs if config.env_kwargs.get(key) == value}:
        used["env_kwargs"] = left
    listed = " ".join(_as_flag(name, value) for name, value in used.items())
    if listed and not config.quiet:
        name = arguments.preset or file.fields.get("preset") or config.env
        print(f"Preset for {name} (flags override it, --preset none disables it): {listed}")
    elif arguments.preset is None and (other := with_preset(config.env_name, config.algorithm)) and not config.quiet:
        print(f"{config.env_name} has no preset, but {other} has one: --preset {other} takes its settings.")


def _as_flag(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    text = json.dumps(value) if isinstance(value, Mapping) else "none" if value is None else flag_text(value)
    return f"--{flag} {shlex.quote(text)}"


def _what_next(run_dir: str | os.PathLike[str]) -> str:
    command, run = shlex.quote(own_command()), shlex.quote(str(run_dir))
    next_commands = (f"evaluate {run}", f"plot {run}{_metric(Path(run_dir))} --output curve.png", f"report {run}")
    lines = [f"The run is in {run}. Next:", *(f"  {command} {words}" for words in next_commands)]
    if any(Path(run_dir).glob(f"{tensorboard.PREFIX}*")):
        folder, installed = shlex.quote(_folder_of_runs(Path(run_dir))), importlib.util.find_spec("tensorboard")
        viewer = shlex.quote(own_command("tensorboard")) if installed else "tensorboard"
        missing = "" if installed else f", after {install_command('actor-learner[tensorboard]')}"
        lines.append(f"This run and those beside it: {viewer} --logdir {folder}{missing}")
    return "\n".join(lines)


def _metric(run_dir: Path) -> str:
    """Return the option of `plot` for a run without episodes, one that learned offline alone."""
    from actor_learner.runs.directory import RunDirectory
    from actor_learner.runs.metrics import last_metrics

    found = last_metrics(RunDirectory(run_dir).metrics)
    names = [name for name in ("evaluation/return_mean", "critic_loss", "loss") if name in found]
    return f" --metric {names[0]}" if names and "episode_return" not in found else ""


def _folder_of_runs(run_dir: Path) -> str:
    """Return the folder that holds the run, or the run itself where that folder holds other things, too."""
    general = (Path.cwd(), Path.home(), Path(run_dir.anchor or "/"))
    return str(run_dir if run_dir.resolve().parent in general else run_dir.parent)
