"""The command line: `actor-learner train | evaluate | plot`, derived from TrainConfig and the algorithms' dataclasses.

`--help`, `plot` and every refused argument leave TensorFlow unloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import actor_learner
from actor_learner import presets
from actor_learner.config import TrainConfig, algorithm_class, check_backend, close_match, resolve_reference
from actor_learner.cores import available_cores
from actor_learner.quiet import import_keras

REFUSED = 2
INTERRUPTED = 130

_NO_FIELDS = ("command", "env", "preset", "resume")  # in a namespace, `env` is None where it isn't given
_CODE_ONLY = {"callbacks"}  # objects, which no flag can spell
_ALIASES = {"num_actors": ["--num-workers"]}
_NEGATIVE_NUMBER = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|-inf", re.IGNORECASE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        Exit code: 0; 2 with a line on stderr where something was refused or failed; 130 after Ctrl-C.
    """
    if os.getcwd() not in sys.path and not os.path.exists("config.json"):  # a run may come from a stranger
        sys.path.append(os.getcwd())  # for module:factory; last, so that it shadows nothing
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"actor-learner: interrupted; {interrupt.args[0]}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader went away: nothing is left to flush
        return 1
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if not _is_ours(error):
            raise
        print(f"actor-learner: error: {error}", file=sys.stderr)
        return REFUSED


def train(arguments: argparse.Namespace) -> int:
    """`actor-learner train`: trains, and says where the result is and what to type next."""
    from actor_learner.environments import resolve_env
    from actor_learner.run_directory import check_run_dir

    resume = arguments.resume is not None
    config = resumed_config(arguments) if resume else train_config(arguments)
    if resume and _has_finished(config):
        return 0
    if not resume:
        check_run_dir(config)
    resolve_env(config.env, config.env_kwargs, config.vectorization)  # refused before TensorFlow is loaded
    if not resume:
        _print_preset(arguments, config)
    prepare_process(config.num_actors, config.max_policy_lag)
    from actor_learner.train import train

    with _one_line_warnings():
        result = train(config, resume=resume)
    print(_what_next(result.run_dir))
    return 0


def _has_finished(config: TrainConfig) -> bool:
    """Whether the run has nothing left to do, which is said then. Raises ValueError if it can't go on."""
    from actor_learner.resume import check_resume

    start = check_resume(config)
    if start.finished:
        print(f"The run has finished: it took its {config.total_steps:,} steps. --total-steps N makes it go on.")
        print(_what_next(start.run.path))
    elif not config.quiet:
        where = "from the beginning" if start.checkpoint is None else f"after {start.state.env_steps:,} steps"
        print(f"The run goes on {where}.")
    return start.finished


def evaluate(arguments: argparse.Namespace) -> int:
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


def plot(arguments: argparse.Namespace) -> int:
    """`actor-learner plot`: draws learning curves."""
    from actor_learner.plot import plot

    print(plot(arguments.run_dirs, arguments.output, metric=arguments.metric))
    return 0


def prepare_process(num_actors: int = 0, max_policy_lag: int = 0) -> None:
    """Sets what can't change once TensorFlow has started, then imports it without its start-up messages.

    In lock-step the learner may use every core, since the actors wait; beside actors that go on, what they leave.
    """
    cores = available_cores()
    learner_cores = max(1, cores - num_actors) if max_policy_lag else cores
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(learner_cores))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    import_keras()


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Warnings without the line of code that they come from, which says nothing at a shell."""
    kept = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"actor-learner: warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = kept


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments -> a namespace of those that were given, and the command's function as `command`.

    Raises ValueError, in one line, for what can't be understood; `--help` exits.
    """
    argv = _join_negative_numbers(argv)
    parser = _Parser(prog="actor-learner", description="The actor-learner for Keras 3.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=actor_learner.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    options = {
        "train": _add_train(commands, argv),
        "evaluate": _add_evaluate(commands),
        "plot": _add_plot(commands),
    }
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [flag for action in options[argv[0]]._actions for flag in action.option_strings]
        raise _refused_argument(unknown, flags)
    return arguments


def _refused_argument(unknown: Sequence[str], flags: Sequence[str]) -> ValueError:
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        return ValueError(f"There is an argument too many. Received: {unknown[0]}")
    name = flag.partition("=")[0]
    return ValueError(f"There is no such flag{close_match(name, flags)}; --help lists all. Received: {name}")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            choices = [choice.strip(" '") for choice in match[2].split(",")]
            message = f"{message}{close_match(match[1], choices)}"
        raise ValueError(message)


def _add_train(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    algorithm = _named_algorithm(argv)
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train, and keep the run in a directory",
        usage="actor-learner train [ENV] [--FLAG VALUE ...]",
        description="Trains with num_actors processes and keeps the run in a directory.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=train)
    parser.add_argument(
        "env", nargs="?", metavar="ENV", help="Gymnasium id, module:Id-v0 or module:factory (default: CartPole-v1)"
    )
    groups = {name: parser.add_argument_group(name) for name in ("run", "environment", "actors", "algorithm")}
    title = f"{algorithm.__name__} (--algorithm NAME --help lists another's)"
    groups["hyperparameters"] = parser.add_argument_group(title)
    groups["network"] = parser.add_argument_group("network")
    groups["algorithm"].add_argument(
        "--preset", metavar="NAME", help="settings of this environment id; none: no settings (default: ENV's own)"
    )
    groups["run"].add_argument(
        "--resume",
        metavar="RUN_DIR",
        help="go on with this run, from its newest whole checkpoint; flags that change what is learned are refused",
    )
    hints = typing.get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        if field.name != "env":
            _add_flag(groups.get(field.metadata["group"]), field, hints[field.name])
    hints = typing.get_type_hints(algorithm)
    for field in dataclasses.fields(algorithm):
        if field.init:
            _add_flag(groups["hyperparameters"], field, hints[field.name])
    return parser


def _add_evaluate(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate",
        help="play episodes with a trained policy",
        description="Plays episodes with the policy that a run trained.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=evaluate)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--env", metavar="ENV", help="another environment than the run's")
    parser.add_argument("--env-kwargs", type=_json_object, metavar="JSON", help="its keyword arguments")
    parser.add_argument("--episodes", type=_converter(int), default=20, metavar="N", help="episodes (default: 20)")
    parser.add_argument("--seed", type=_converter(int), default=0, metavar="N", help="of the episodes (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", metavar="DIR", help="write a video of each episode there")
    return parser


def _add_plot(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "plot",
        help="draw learning curves",
        description="Draws learning curves; runs of one environment and algorithm as mean, minimum and maximum.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=plot)
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR", help="directories of runs")
    parser.add_argument("--output", default="curve.png", metavar="FILE", help=".png, .svg, .pdf (default: curve.png)")
    parser.add_argument(
        "--metric", default="episode_return", metavar="NAME", help="from metrics.jsonl (default: episode_return)"
    )
    return parser


def _named_algorithm(argv: Sequence[str]) -> type[Any]:
    """The class that `--algorithm` names: its hyperparameters are flags, so it is looked up before parsing."""
    name = _flag_value(argv, "--algorithm")
    if name is None and (run_dir := _flag_value(argv, "--resume")) is not None:
        name = _recorded_algorithm(run_dir)
    name = name or "ppo"
    _import_keras_before(name)
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
    from actor_learner.run_directory import read_config

    algorithm = read_config(run_dir).get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    return name if isinstance(name, str) else None


def _import_keras_before(reference: str) -> None:
    """Whoever writes an algorithm or a network imports keras; imported by us, TensorFlow says nothing on stderr."""
    module, separator, _ = reference.partition(":")
    if separator and importlib.util.find_spec(module.partition(".")[0] or "?") is not None:
        import_keras()


def _add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    """One flag for a dataclass field. It leaves nothing in the namespace unless it is given."""
    if field.name in _CODE_ONLY:
        return
    flag = "--" + field.name.replace("_", "-")
    options: dict[str, Any] = {
        "dest": field.name,
        "default": argparse.SUPPRESS,
        "help": _help(field),
    }
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = _FLAG_TYPES.get(field.name) or _converter(hint)
        options["metavar"] = _metavar(field.name, hint)
    group.add_argument(flag, *_ALIASES.get(field.name, []), **options)


def _help(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata.get("help", "")).replace("%", "%%")
    if field.name in ("env_kwargs", "algorithm", "network") or "default" in text:
        return text
    if field.default is None or field.default is dataclasses.MISSING:
        return text
    return f"{text} (default: {_flag_text(field.default)})"


def _flag_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _metavar(name: str, hint: Any) -> str:
    if name in ("env_kwargs", "algorithm", "network"):
        return {"env_kwargs": "JSON", "algorithm": "NAME", "network": "MODULE:NAME"}[name]
    kinds = _alternatives(hint)
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            return "{" + ",".join(map(str, typing.get_args(kind))) + "}"
    if name in ("run_dir", "init_from"):
        return "DIR"
    if name in ("hidden_sizes", "info_keys"):
        return {"hidden_sizes": "N,N", "info_keys": "NAME,NAME"}[name]
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _converter(hint: Any) -> Callable[[str], Any]:
    """Text -> a value of one of the hint's types. Ranges are the dataclasses' business."""

    def convert(text: str) -> Any:
        for kind in sorted(_alternatives(hint), key=lambda kind: kind is str):
            try:
                return _convert(text, kind)
            except (TypeError, ValueError):
                continue
        raise argparse.ArgumentTypeError(f"must be {_expected(hint)}. Received: {text}")

    return convert


def _convert(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is type(None) and text.lower() == "none":
        return None
    if kind is int:
        return int(float(text)) if re.fullmatch(r"\d+(\.\d+)?e\d+", text) else int(text)
    if kind is float:
        return float(text)
    if origin is tuple:
        return tuple(_convert(part, typing.get_args(kind)[0]) for part in text.split(",") if part)
    if origin is Literal and text in typing.get_args(kind):
        return text
    if kind is str or kind is Any or origin is os.PathLike:
        return text
    raise ValueError(text)


def _expected(hint: Any) -> str:
    names = {int: "an integer", float: "a number", type(None): "none"}
    parts = []
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is Literal:
            parts.append(", ".join(map(str, typing.get_args(kind))))
        elif typing.get_origin(kind) is tuple:
            parts.append("integers separated by commas")
        elif kind in names:
            parts.append(names[kind])
    return " or ".join(parts)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object ({error}). Received: {text}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object. Received: {text}")
    return value


_FLAG_TYPES: dict[str, Callable[[str], Any]] = {"env_kwargs": _json_object, "algorithm": str, "network": str}


def train_config(arguments: argparse.Namespace) -> TrainConfig:
    """The preset, if there is one, with the flags that were given over it.

    Raises ValueError for what the dataclasses refuse, and for an unknown preset.
    """
    check_backend()
    given = _given(arguments)
    algorithm = given.pop("algorithm", "ppo")
    if "network" in given:
        _import_keras_before(given["network"])
        given["network"] = resolve_reference(given["network"], "network")
    base = {**_preset_fields(arguments), "env": _env(arguments)}
    return presets.build_config(base, given, algorithm=algorithm)


def resumed_config(arguments: argparse.Namespace) -> TrainConfig:
    """The run's own config, with the flags that were given over it. The path that it was written with counts nothing.

    Raises ValueError where there is no run, or for what the dataclasses refuse.
    """
    from actor_learner.run_directory import read_config

    check_backend()
    recorded = read_config(arguments.resume)
    given = _given(arguments)
    for name, value in {"preset": arguments.preset, **given}.items():
        if name in ("preset", "run_dir", "overwrite") and value is not None:
            flag = name.replace("_", "-")
            raise ValueError(
                f"`--{flag}` can't stand beside `--resume`, which goes on as before. Received: {name}={value}"
            )
    if "network" in given:
        _import_keras_before(given["network"])
        given["network"] = resolve_reference(given["network"], "network")
    if arguments.env is not None:
        given["env"] = arguments.env
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    changes = {name: given.pop(name) for name in names & set(given)}
    algorithm = changes.pop("algorithm", None)
    config = TrainConfig.from_json(recorded, **changes, run_dir=arguments.resume, overwrite=False)
    if algorithm is not None and algorithm_class(algorithm) is not type(config.algorithm):
        return config.replace(algorithm=algorithm_class(algorithm)(**given))
    return config.replace(algorithm=dataclasses.replace(config.algorithm, **given)) if given else config


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of the config and of the algorithm that flags name."""
    return {name: value for name, value in vars(arguments).items() if name not in _NO_FIELDS}


def _env(arguments: argparse.Namespace) -> str:
    return "CartPole-v1" if arguments.env is None else str(arguments.env)


def _preset_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.preset == "none":
        return {}
    algorithm = _given(arguments).get("algorithm", "ppo")
    fields = presets.preset_fields(arguments.preset or _env(arguments), algorithm)
    if fields is None and arguments.preset is not None:
        raise presets.unknown_preset(arguments.preset, algorithm)
    return fields or {}


def _print_preset(arguments: argparse.Namespace, config: TrainConfig) -> None:
    fields = {name: value for name, value in _preset_fields(arguments).items() if name not in _given(arguments)}
    if fields and not config.quiet:
        listed = ", ".join(f"{name}={_flag_text(value)}" for name, value in fields.items())
        name = arguments.preset or _env(arguments)
        print(f"Preset for {name} (flags override it, --preset none refuses it): {listed}")


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


def _what_next(run_dir: str | os.PathLike[str]) -> str:
    command, run = shlex.quote(_own_command()), shlex.quote(str(run_dir))
    return f"The run is in {run}. Next:\n  {command} evaluate {run}\n  {command} plot {run} --output curve.png"


def _own_command() -> str:
    """What to type to get this command: its name where the shell finds it, else its path."""
    if shutil.which("actor-learner"):
        return "actor-learner"
    path = Path(sys.prefix) / "bin" / "actor-learner"
    return os.path.relpath(path) if path.is_relative_to(os.getcwd()) else str(path)


def _join_negative_numbers(argv: Sequence[str]) -> list[str]:
    """`--flag -1e-3` -> `--flag=-1e-3`: argparse takes that for a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and _NEGATIVE_NUMBER.fullmatch(word):
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised it, with a line of its own; the traceback of anything else is worth showing."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = str(frames[-1][0].f_globals.get("__package__")) if frames else ""
    return package.partition(".")[0] == "actor_learner"


if __name__ == "__main__":
    sys.exit(main())
