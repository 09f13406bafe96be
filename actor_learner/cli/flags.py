"""Flags from dataclasses: one per field, with its documentation and default, and converters for their values."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from actor_learner.cli.parser import FIELDS, Parser
from actor_learner.config.config import ENV_HELP, TrainConfig
from actor_learner.config.file import NO_FILE, ConfigFile, read_config_file
from actor_learner.config.references import algorithm_class, imported
from actor_learner.config.self_play import SelfPlay
from actor_learner.config.settings import names_of
from actor_learner.system.fields import removed
from actor_learner.system.keras_import import BACKENDS, import_keras_before, use_backend

_UNITS = {"steps": "STEPS", "updates": "UPDATES", "epoch": "UPDATES", "minutes": "MINUTES", "timeout": "SECONDS"}
"""The unit of a field, by the last word of its name."""


def named_before(argv: Sequence[str], *flags: str) -> tuple[ConfigFile, type[Any]]:
    """Return the config file and the algorithm that `--config`, `--algorithm` and `--resume` name.

    They are read before the other flags, because each algorithm has flags of its own. So is `--backend`: importing the
    module of an algorithm may import Keras.

    flags: those among the three that the command has.
    """
    parser = Parser(add_help=False)
    for flag in (*flags, "--backend"):
        parser.add_argument(flag)
    given = vars(parser.parse_known_args(argv)[0])
    recorded = {} if given.get("resume") is None else _recorded(given["resume"])
    if (backend := given["backend"] or recorded.get("backend")) in BACKENDS:
        use_backend(backend)
    file = read_config_file(given["config"]) if given.get("config") is not None else NO_FILE
    name = given.get("algorithm") or file.algorithm or recorded.get("algorithm")
    import_keras_before(name or "ppo")
    return file, algorithm_class(name or "ppo")


def _recorded(run_dir: str) -> dict[str, str]:
    """Return the algorithm's name and the backend in a run's config.json, where resuming won't refuse the file."""
    from actor_learner.runs.directory import read_config

    config = read_config(run_dir)
    algorithm = config.get("algorithm")
    names = {
        "algorithm": algorithm.get("name") if isinstance(algorithm, dict) else None,
        "backend": config.get("backend"),
    }
    return {key: name for key, name in names.items() if isinstance(name, str)}


def add_number(group: Any, flag: str, default: float, metavar: str, help: str) -> None:
    """Add a flag for a number of the default's type, with the default in its help."""
    text = f"{help} (default: {flag_text(default)})"
    group.add_argument(flag, type=converter(type(default)), default=default, metavar=metavar, help=text)


def add_env(parser: argparse.ArgumentParser, help: str = f"{ENV_HELP} (default: CartPole-v1)") -> None:
    """Add the environment, which leaves nothing in the namespace unless it is given."""
    parser.add_argument("env", nargs="?", default=argparse.SUPPRESS, metavar="ENV", help=help)


def add_config_flags(
    parser: argparse.ArgumentParser, groups: dict[str, Any], algorithm: type[Any], leave_out: Collection[str] = ("env",)
) -> None:
    """Add a flag for each field of TrainConfig and each hyperparameter, and `--preset`.

    groups: the parser's groups by name; missing ones are added. leave_out: fields of TrainConfig without a flag.
    """
    fields = [field for field in dataclasses.fields(TrainConfig) if field.name not in (*leave_out, "callbacks")]
    for field in fields:
        if (name := field.metadata["group"]) != "network" and name not in groups:
            groups[name] = parser.add_argument_group(name)
    title = f"{algorithm.__name__} (--algorithm NAME --help lists another algorithm's)"
    hyperparameters = parser.add_argument_group(title)
    groups["network"] = parser.add_argument_group("network")
    preset = "use the settings of this environment's preset; none: no preset (default: ENV's preset)"
    groups["algorithm"].add_argument("--preset", metavar="NAME", help=preset)
    hints = typing.get_type_hints(TrainConfig)
    for field in fields:
        _add_flag(groups[field.metadata["group"]], field, hints[field.name])
    hints = typing.get_type_hints(algorithm)
    for field in dataclasses.fields(algorithm):
        if field.init and field.name not in algorithm.UNUSED:
            _add_flag(hyperparameters, field, hints[field.name])
    parser.set_defaults(field_names=names_of(TrainConfig) | names_of(algorithm))


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the config and of its algorithm that were given, flat."""
    return {name: value for name, value in vars(arguments).items() if name in arguments.field_names}


def _add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    """Add a flag for a dataclass field; a flag that isn't given leaves nothing in the namespace."""
    flags = ["--" + field.name.replace("_", "-"), *filter(None, [field.metadata.get("alias")])]
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = converter(hint, field.name)
        options["metavar"] = field.metadata.get("metavar") or _metavar(field.name, hint)
        if (text := field.metadata.get("const")) is not None:
            options |= {"nargs": "?", "const": text}
    group.add_argument(*flags, **options)


_of_python = re.compile(r"[;,.]? in python\b.*", re.IGNORECASE)
_field = re.compile(rf"(?<![\w/])(?:{'|'.join(name for name in FIELDS if '_' in name)})(?!\w)")


def _help(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata.get("help", "")).replace("%", "%%")
    text = _of_python.sub("", _field.sub(lambda name: f"--{name[0].replace('_', '-')}", text))
    if "default:" in text or field.default is None or field.default is dataclasses.MISSING:
        return text
    return f"{text} (default: {flag_text(field.default)})"


def flag_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


def _metavar(name: str, hint: Any) -> str:
    kinds = _alternatives(hint)
    for kind in kinds:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is Literal:
            return "{" + ",".join(map(str, inner)) + "}"
        if origin is tuple:
            return "N,N" if inner[0] is int else "NAME,NAME"
        if origin in (Mapping, os.PathLike):
            return "JSON" if origin is Mapping else "DIR"
    if (unit := _UNITS.get(name.rpartition("_")[2])) is not None:
        return unit
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def converter(hint: Any, name: str = "") -> Callable[[str], Any]:
    """Return a function from text to a value of one of the hint's types; the dataclasses check ranges.

    name: the field's. A value of it that an earlier version took is passed on to the dataclass, which names another.
    """

    def convert(text: str) -> Any:
        for kind in sorted(_alternatives(hint), key=lambda kind: kind is str):
            try:
                return _convert(text, kind)
            except (TypeError, ValueError):
                continue
        if removed(name, text):
            return text
        raise argparse.ArgumentTypeError(f"must be {_expected(hint)}. Received: {text}")

    return convert


def _convert(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is type(None) and text.lower() == "none":
        return None
    if kind is int and re.fullmatch(r"\d+(\.\d+)?e\d+", text) and float(text).is_integer():
        return int(float(text))
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    if origin is tuple:
        return tuple(_convert(part, typing.get_args(kind)[0]) for part in text.split(",") if part)
    if origin is Literal and text in typing.get_args(kind):
        return text
    if origin is Mapping and typing.get_args(kind)[1] is Any:
        return json_object(text)
    if origin is Mapping:  # {pattern: policy}, or a file of policies
        return text
    if kind is str or kind is Any or kind is SelfPlay or origin is os.PathLike:
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


def json_object(text: str) -> dict[str, Any]:
    """Parse a flag's JSON object, and import what it names as a run's config.json does."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object ({error}). Received: {text}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object. Received: {text}")
    try:
        return {name: imported(item, name) for name, item in value.items()}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
