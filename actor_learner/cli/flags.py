"""Flags from dataclasses: one per field, with its documentation and default, and converters for their values."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

_CODE_ONLY = {"callbacks"}  # objects, which no flag can spell
_UNITS = {"steps": "STEPS", "updates": "UPDATES", "epoch": "UPDATES", "minutes": "MINUTES", "timeout": "SECONDS"}
"""What a field counts, by the last word of its name."""
_ALIASES = {"num_actors": ["--num-workers"]}


class Formatter(argparse.HelpFormatter):
    """Help at most 100 columns wide: flags and their opposites in one word, texts of several lines as they are."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(100, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **{"width": width, "max_help_position": 26, **options})

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += 2  # commands are indented, which argparse forgets

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        if len(action.option_strings) < 2 or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, '')}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(f"{indent}{line}\n" for line in text.splitlines())


def add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
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
        options["type"] = _FLAG_TYPES.get(field.name) or converter(hint)
        options["metavar"] = _metavar(field.name, hint)
    group.add_argument(flag, *_ALIASES.get(field.name, []), **options)


def _help(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata.get("help", "")).replace("%", "%%")
    if field.name in ("env_kwargs", "algorithm", "network") or "default" in text:
        return text
    if field.default is None or field.default is dataclasses.MISSING:
        return text
    return f"{text} (default: {flag_text(field.default)})"


def flag_text(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


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
    if (unit := _UNITS.get(name.rpartition("_")[2])) is not None:
        return unit
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def converter(hint: Any) -> Callable[[str], Any]:
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


def json_object(text: str) -> dict[str, Any]:
    """The object that a flag's JSON stands for."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object ({error}). Received: {text}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object. Received: {text}")
    return value


_FLAG_TYPES: dict[str, Callable[[str], Any]] = {"env_kwargs": json_object, "algorithm": str, "network": str}
