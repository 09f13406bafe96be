"""`actor-learner benchmark`: the speed of a setting, the speed it could reach, and what it loses in between."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from actor_learner.cli.flags import add_config_flags, add_env, add_number, named_before
from actor_learner.cli.output import one_line_warnings, origin, progress
from actor_learner.cli.parser import parse
from actor_learner.cli.train import train_config
from actor_learner.config.config import TrainConfig
from actor_learner.config.file import NO_FILE
from actor_learner.system import compile_cache
from actor_learner.system.fields import check_count, check_seconds
from actor_learner.system.keras_import import import_keras, prepare_process
from actor_learner.system.signals import exiting_on_signals

if TYPE_CHECKING:
    from actor_learner.benchmark.measure import Measured

_TIMEOUT_SECONDS = 24 * 3600.0  # for a stage of a measurement, which depends on the environment and on --seconds

HELP = "measure the speed of a setting, and what limits it"
DESCRIPTION = (
    "Measures environments, acting, copying and learning alone, then the whole system, in turns. The roof is the speed "
    "that a perfect overlap of the parts would reach on these cores. Given the directory of a run, it reads the same "
    "figures from the run's records."
)
USAGE = "actor-learner benchmark [ENV | RUN_DIR] [--FLAG VALUE ...]"


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.set_defaults(config_file=NO_FILE)
    add_env(parser, "as for train (default: CartPole-v1), or the directory of a run")
    group = parser.add_argument_group("measuring")
    add_number(group, "--rounds", 5, "N", "number of rounds")
    add_number(
        group, "--seconds", 1.0, "X", "seconds for each part and for the whole, in each round; at least one batch"
    )
    group.add_argument(
        "--compare-devices",
        nargs="+",
        choices=["cpu", "gpu"],
        help="learn on each of these devices, and print which is faster",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--output", metavar="PICTURE", help="draw the timeline of each process; .svg, .png or .pdf")
    group.add_argument("--trace", metavar="FILE", help="write the timeline as a trace for Perfetto or chrome://tracing")
    # This machine is measured, and nothing is recorded.
    others = [f.name for f in dataclasses.fields(TrainConfig) if f.metadata["owner"] in ("cluster", "run")]
    add_config_flags(parser, {}, named_before(argv, "--algorithm")[1], ("env", *others))
    for action in parser._actions:
        if action.dest == "num_actors":
            action.nargs = "+"
            action.help = "actor processes; several numbers are measured one after the other (default: 2)"


@exiting_on_signals()
def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the result."""
    if "env" in arguments and _is_run(arguments.env):
        return _run_of_directory(arguments)
    _check(arguments)
    from actor_learner.config.pool_checks import check_memory
    from actor_learner.environments.factory import resolve_env

    configs = _configs(arguments)
    config = configs[0]
    config.require_one_policy("benchmark")
    resolve_env(**config.env_arguments)  # refused before TensorFlow is loaded
    check_memory(max(each.num_actors for each in configs))
    if len(configs) > 1:
        return _measure_several(arguments)
    with _ready(config):
        return (_measure if arguments.compare_devices is None else _measure_devices)(arguments, config)


def _check(arguments: argparse.Namespace) -> None:
    from actor_learner.benchmark.text import check_folder, check_picture

    check_count("rounds", arguments.rounds)
    check_seconds("seconds", arguments.seconds)
    if arguments.output is not None:
        check_picture(arguments.output)
    if arguments.trace is not None:
        check_folder("trace", arguments.trace)
    several = len(getattr(arguments, "num_actors", ())) > 1
    for flag in ("output", "trace", "compare-devices"):
        value = getattr(arguments, flag.replace("-", "_"))
        if value is not None and (several or (flag != "compare-devices" and arguments.compare_devices)):
            beside = "several `--num-actors`" if several else "`--compare-devices`"
            raise ValueError(f"`--{flag}` can't be combined with {beside}. Received: --{flag} {value}")


def _configs(arguments: argparse.Namespace) -> list[TrainConfig]:
    if "num_actors" not in arguments:
        return [train_config(arguments)]
    given = [{**vars(arguments), "num_actors": count} for count in arguments.num_actors]
    return [train_config(argparse.Namespace(**each)) for each in given]


@contextlib.contextmanager
def _ready(config: TrainConfig) -> Iterator[None]:
    """Prepare this process for measuring; raise an actor's failure again, without its traceback."""
    from actor_learner.actors.group import ActorError

    prepare_process(config.num_actors, config.max_policy_lag)
    if config.deterministic_ops:
        compile_cache.use_deterministic_ops(config.device)
    compile_cache.begin(config.learner_threads)
    import_keras()
    try:
        yield
    except ActorError as error:
        raise RuntimeError(str(error).partition("\n")[0]) from error


def _measure(arguments: argparse.Namespace, config: TrainConfig) -> int:
    from actor_learner.benchmark.measure import measure_setting

    known: list[Measured] = []
    options: dict[str, Any] = {"rounds": arguments.rounds, "seconds": arguments.seconds, "after_round": known.append}
    try:
        with contextlib.redirect_stdout(sys.stderr), progress(stages=True) as say:  # environments may print, too
            measure_setting(config, say=say, **options)
    finally:  # a signal may have ended it early
        if known:
            _show(arguments, config, known[-1])
    return 0


def _show(arguments: argparse.Namespace, config: TrainConfig, measured: Measured) -> None:
    from rich.console import Console

    from actor_learner.benchmark.measure import as_json
    from actor_learner.benchmark.text import draw, show, write_trace

    last = measured.rounds[-1].run.spans
    if arguments.output is not None:
        draw(last, f"{config.env_name}: {measured.ratio:.0%} of the roof", arguments.output)
    if arguments.trace is not None:
        write_trace(last, arguments.trace)
    if arguments.json:
        _print_json(arguments, as_json(measured))
    else:
        show(measured, Console(soft_wrap=not sys.stdout.isatty()))


def _measure_devices(arguments: argparse.Namespace, config: TrainConfig) -> int:
    from rich.console import Console

    from actor_learner.benchmark.devices import compare_devices, present
    from actor_learner.benchmark.text import show_devices

    devices, missing = present(arguments.compare_devices)
    if missing:
        print(f"There is no {missing[0]} here; only {devices[0]} is measured.", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr), progress() as say:
        found = compare_devices(
            config, {device: device for device in devices}, rounds=arguments.rounds, seconds=arguments.seconds, say=say
        )
    if arguments.json:
        return _print_json(arguments, {**found, "missing": missing})
    show_devices(found, Console(soft_wrap=not sys.stdout.isatty()))
    return 0


def _measure_several(arguments: argparse.Namespace) -> int:
    """Measure each setting in a process of its own, because TensorFlow's threads can't be changed."""
    from actor_learner.system.child import Child

    found = []
    for index in range(len(arguments.num_actors)):
        words = (index, int(sys.stderr.isatty()), *arguments.argv)
        with contextlib.closing(Child(f"{__name__}:main", words, name="benchmark")) as child:
            while isinstance(answer := child.receive(_TIMEOUT_SECONDS), str):
                print(answer, end="", file=sys.stderr, flush=True)
        if isinstance(answer, Exception):
            raise answer
        found.append({**answer, **origin("benchmark", arguments.argv)})
    best = max(found, key=lambda each: each["achieved_steps_per_second"])
    if arguments.json:
        return _print_json(arguments, {**best, "settings": found})
    print("num_actors   achieved       roof   ratio")
    for each in found:
        achieved, roof = each["achieved_steps_per_second"], each["roof_steps_per_second"]
        print(f"{each['num_actors']:>10} {achieved:>10,.0f} {roof:>10,.0f} {each['ratio']:>7.0%}")
    return 0


def _print_json(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    print(json.dumps({**found, **origin("benchmark", arguments.argv)}))
    return 0


class _Forwarding(io.TextIOBase):
    """Sends what is written to the process that shows it."""

    def __init__(self, send: Callable[[str], None], is_terminal: bool) -> None:
        self._send, self._is_terminal, self._lock = send, is_terminal, threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._send(text)
        return len(text)

    def isatty(self) -> bool:
        return self._is_terminal


def main(descriptor: str, index: str, is_terminal: str, *argv: str) -> None:
    """Measure one of several settings in a process of its own, and send what is written, then the result or the error.

    index: of the setting's `num_actors`. argv: the words of the command.
    """
    from multiprocessing.connection import Connection

    from actor_learner.benchmark.measure import as_json, measure_setting

    connection: Connection[Any, Any] = Connection(int(descriptor))
    answer: dict[str, Any] | Exception
    shown = _Forwarding(connection.send, is_terminal == "1")
    words = ["benchmark", *argv]
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown), one_line_warnings(words):
        try:
            arguments = parse({"benchmark": sys.modules[__name__]}, words)
            config = _configs(arguments)[int(index)]
            with _ready(config), progress() as say:
                measured = measure_setting(config, rounds=arguments.rounds, seconds=arguments.seconds, say=say)
            answer = as_json(measured)
        except (ValueError, OSError, ImportError, RuntimeError, MemoryError, FloatingPointError) as error:
            answer = error
    connection.send(answer)


def _is_run(env: str) -> bool:
    """Return True for a run's directory, and False for an environment with the name of a folder."""
    is_path = env in (os.curdir, os.pardir) or env.startswith((f".{os.sep}", f"..{os.sep}", os.sep))
    return os.path.isdir(env) and (is_path or os.path.exists(os.path.join(env, "config.json")))


def _run_of_directory(arguments: argparse.Namespace) -> int:
    from actor_learner.benchmark.from_records import describe_run, read_run_speed

    if given := [word.partition("=")[0] for word in arguments.argv if word.startswith("--") and word != "--json"]:
        raise ValueError(f"The directory of a run can only be combined with `--json`. Received: {given[0]}")
    found = read_run_speed(arguments.env)
    if arguments.json:
        return _print_json(arguments, found)
    print(describe_run(found))
    return 0
