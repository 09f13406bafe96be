"""`actor-learner train`: the config from a preset or a run, and the flags over it; then the run."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import shlex
import shutil
import sys
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actor_learner.cli.flags import add_flag, flag_text
from actor_learner.config.config import TrainConfig, algorithm_class, callable_marks, check_backend, resolve_reference
from actor_learner.config.file import (
    NO_FILE,
    ConfigFile,
    build,
    config_toml,
    differences,
    preset_below,
    read_config_file,
)
from actor_learner.runs import tensorboard
from actor_learner.runs.provenance import provenance
from actor_learner.system.keras_import import freeze_what_is_imported, import_keras_before
from actor_learner.system.machine import learner_cores, suggest_threads

_NO_FIELDS = (
    "command",
    "env",
    "preset",
    "resume",
    "config",
    "config_file",
    "print_config",
)  # in a namespace, `env` is None where it isn't given

_GROUPS = ("run", "checkpoints", "environment", "actors", "faults", "algorithm")


def add_parser(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    file = config_file(argv, "train")
    algorithm = named_algorithm(argv, file)
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train, and keep the run in a directory",
        usage="actor-learner train [ENV] [--FLAG VALUE ...]",
        description="Trains with num_actors processes and keeps the run in a directory. An environment's preset, where "
        "it has one, replaces defaults; --print-config prints what comes of it all.",
    )
    parser.set_defaults(command=run, config_file=file)
    parser.add_argument(
        "env", nargs="?", metavar="ENV", help="Gymnasium id, module:Id-v0 or module:factory (default: CartPole-v1)"
    )
    groups = {name: parser.add_argument_group(name) for name in _GROUPS}
    groups["run"].add_argument(
        "--resume",
        metavar="RUN_DIR",
        help="go on with this run, from its newest whole checkpoint; flags that change what is learned are refused",
    )
    groups["run"].add_argument(
        "--config",
        metavar="FILE",
        help="settings from a TOML or JSON file, below the flags; a run's config.json repeats that run",
    )
    groups["run"].add_argument(
        "--print-config", action="store_true", help="print all settings as a file for --config, and end"
    )
    add_config_flags(parser, groups, algorithm)
    return parser


def add_config_flags(
    parser: argparse.ArgumentParser,
    groups: dict[str, Any],
    algorithm: type[Any],
    leave_out: Collection[str] = ("env",),
) -> None:
    """A flag for each field of TrainConfig but those to leave out, and for each hyperparameter; and `--preset`.

    groups: of the parser, by the name that fields give theirs; those that are missing are made.
    """
    fields = [field for field in dataclasses.fields(TrainConfig) if field.name not in (*leave_out, "callbacks")]
    for field in fields:
        if (name := field.metadata["group"]) != "network" and name not in groups:
            groups[name] = parser.add_argument_group(name)
    title = f"{algorithm.__name__} (--algorithm NAME --help lists another's)"
    groups["hyperparameters"] = parser.add_argument_group(title)
    groups["network"] = parser.add_argument_group("network")
    groups["algorithm"].add_argument(
        "--preset", metavar="NAME", help="settings of this environment id; none: no settings (default: ENV's own)"
    )
    hints = typing.get_type_hints(TrainConfig)
    for field in fields:
        add_flag(groups[field.metadata["group"]], field, hints[field.name])
    hints = typing.get_type_hints(algorithm)
    for field in dataclasses.fields(algorithm):
        if field.init:
            add_flag(groups["hyperparameters"], field, hints[field.name])


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner train`: trains, and says where the result is and what to type next."""
    from actor_learner.actors.capacity import check_memory
    from actor_learner.environments.factory import resolve_env
    from actor_learner.runs.directory import check_run_dir

    resume = arguments.resume is not None
    config = resumed_config(arguments) if resume else train_config(arguments)
    if arguments.print_config:
        print(config_toml(config), end="")
        return 0
    if resume and _has_finished(config):
        return 0
    if not resume:
        check_run_dir(config)
    resolve_env(config.env, config.env_kwargs, config.vectorization)  # refused before TensorFlow is loaded
    check_memory(config.num_actors)
    if not resume:
        _print_preset(arguments, config)
        _warn_of_differences(arguments.config_file)
    prepare_process(config.num_actors, config.max_policy_lag)
    from actor_learner.train import train

    with one_line_warnings():
        result = train(config, resume=resume)
    print(_what_next(result.run_dir))
    return 0


def _has_finished(config: TrainConfig) -> bool:
    """Whether the run has nothing left to do, which is said then. Raises ValueError if it can't go on."""
    from actor_learner.runs.resume import check_resume

    start = check_resume(config)
    if start.finished:
        print(f"The run has finished: it took its {config.total_steps:,} steps. --total-steps N makes it go on.")
        print(_what_next(start.run.path))
    elif not config.quiet:
        where = "from the beginning" if start.checkpoint is None else f"after {start.state.env_steps:,} steps"
        print(f"The run goes on {where}.")
    return start.finished


def prepare_process(num_actors: int = 0, max_policy_lag: int = 0) -> None:
    """Sets what can't change once TensorFlow has started."""
    suggest_threads(learner_cores(num_actors, max_policy_lag))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    freeze_what_is_imported()  # TensorFlow's own objects stay; the collector needn't walk through them again and again


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings without the line of code that they come from, which says nothing at a shell."""
    kept = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: _as_warning(message)
    try:
        yield
    finally:
        warnings.formatwarning = kept


def config_file(argv: Sequence[str], command: str) -> ConfigFile:
    """What a command's `--config` names, or a file that says nothing.

    It may name the algorithm, so it is read before parsing.
    """
    path = _flag_value(argv, "--config") if argv[:1] == [command] else None
    return NO_FILE if path is None else read_config_file(path)


def named_algorithm(argv: Sequence[str], file: ConfigFile) -> type[Any]:
    """The class that `--algorithm` names: its hyperparameters are flags, so it is looked up before parsing."""
    name = _flag_value(argv, "--algorithm") or file.algorithm
    if name is None and (run_dir := _flag_value(argv, "--resume")) is not None:
        name = _recorded_algorithm(run_dir)
    name = name or "ppo"
    import_keras_before(name)
    return algorithm_class(name)


def _flag_value(argv: Sequence[str], flag: str) -> str | None:
    value = None
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            value = argv[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def _recorded_algorithm(run_dir: str) -> str | None:
    """What a run's config.json calls its algorithm; a file without it is refused later, by what reads it all."""
    from actor_learner.runs.directory import read_config

    algorithm = read_config(run_dir).get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    return name if isinstance(name, str) else None


def train_config(arguments: argparse.Namespace) -> TrainConfig:
    """The preset, if there is one, with the file over it, if there is one, and the flags that were given over both.

    Raises ValueError for what the dataclasses refuse, and for an unknown preset.
    """
    check_backend()
    file = arguments.config_file
    changes = {**_changes(arguments), **_no_callbacks(file.fields, f"al.load_config({file.path!r}, callbacks=[...])")}
    return build(file, changes, arguments.preset)


def _no_callbacks(recorded: Mapping[str, Any], in_python: str) -> dict[str, Any]:
    """A run's callbacks are left out, which is said: no flag can give them again."""
    if not recorded.get("callbacks"):
        return {}
    names = ", ".join(mark.rpartition(":")[2] for mark in callable_marks(list(recorded["callbacks"])))
    _warn(f"{names} of the run are left out; Python can give them: {in_python}")
    return {"callbacks": ()}


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given at the shell, with a network's name replaced by what it stands for."""
    given = _given(arguments)
    if "network" in given:
        import_keras_before(given["network"])
        given["network"] = resolve_reference(given["network"], "network")
    if arguments.env is not None:
        given["env"] = arguments.env
    return given


def resumed_config(arguments: argparse.Namespace) -> TrainConfig:
    """The run's own config, with the flags that were given over it. The path that it was written with counts nothing.

    Raises ValueError where there is no run, or for what the dataclasses refuse.
    """
    from actor_learner.runs.directory import read_config

    check_backend()
    recorded = read_config(arguments.resume)
    given = _given(arguments)
    for name, value in {"preset": arguments.preset, "config": arguments.config, **given}.items():
        if name in ("preset", "config", "run_dir", "overwrite") and value is not None:
            flag = name.replace("_", "-")
            raise ValueError(
                f"`--{flag}` can't stand beside `--resume`, which goes on as before. Received: {name}={value}"
            )
    given = _changes(arguments)
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    changes = {name: given.pop(name) for name in names & set(given)}
    algorithm = changes.pop("algorithm", None)
    file = str(Path(arguments.resume) / "config.json")
    in_python = f"al.train(al.load_config({file!r}, run_dir={arguments.resume!r}, callbacks=[...]), resume=True)"
    changes |= _no_callbacks(recorded, in_python)
    config = TrainConfig.from_json(recorded, **changes, run_dir=arguments.resume, overwrite=False)
    if algorithm is not None and algorithm_class(algorithm) is not type(config.algorithm):
        return config.replace(algorithm=algorithm_class(algorithm)(**given))
    return config.replace(algorithm=dataclasses.replace(config.algorithm, **given)) if given else config


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of the config and of the algorithm that flags name."""
    return {name: value for name, value in vars(arguments).items() if name not in _NO_FIELDS}


def _print_preset(arguments: argparse.Namespace, config: TrainConfig) -> None:
    file, given = arguments.config_file, _given(arguments)
    changes = given if arguments.env is None else {**given, "env": arguments.env}
    below = preset_below(file, changes, arguments.preset)
    listed = ", ".join(
        f"{name}={flag_text(value)}" for name, value in below.items() if name not in {*given, *file.fields}
    )
    if listed and not config.quiet:
        name = arguments.preset or file.fields.get("preset") or config.env
        print(f"Preset for {name} (flags override it, --preset none refuses it): {listed}")


def _warn_of_differences(file: ConfigFile) -> None:
    """Says where a run that is repeated was made otherwise."""
    if found := differences(file.recorded, provenance()) if file.recorded else []:
        _warn(f"the run was made with {', '.join(found)}; the last bits may come out otherwise")


def _warn(text: str) -> None:
    print(_as_warning(text), file=sys.stderr, end="")


def _as_warning(message: object) -> str:
    return f"actor-learner: warning: {message}\n"


def _what_next(run_dir: str | os.PathLike[str]) -> str:
    command, run = shlex.quote(own_command()), shlex.quote(str(run_dir))
    lines = [f"The run is in {run}. Next:", f"  {command} evaluate {run}", f"  {command} plot {run} --output curve.png"]
    lines.append(f"  {command} report {run}")
    if any(Path(run_dir).glob(f"{tensorboard.PREFIX}*")):
        missing = "" if importlib.util.find_spec("tensorboard") else ", after pip install 'actor-learner[tensorboard]'"
        lines.append(f"With all beside it: tensorboard --logdir {shlex.quote(_folder_of_runs(Path(run_dir)))}{missing}")
    return "\n".join(lines)


def _folder_of_runs(run_dir: Path) -> str:
    """The folder that a run is in, unless that is one that has anything in it: then the run itself."""
    anything = (Path.cwd(), Path.home(), Path(run_dir.anchor or "/"))
    return str(run_dir if run_dir.resolve().parent in anything else run_dir.parent)


def own_command() -> str:
    """What to type to get this command: its name where the shell finds it, else its path."""
    if shutil.which("actor-learner"):
        return "actor-learner"
    path = Path(sys.prefix) / "bin" / "actor-learner"
    return os.path.relpath(path) if path.is_relative_to(os.getcwd()) else str(path)
