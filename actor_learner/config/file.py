"""Settings from a file: TOML or JSON, written by hand, by `--print-config`, or a run's own config.json.

Keys are the fields of TrainConfig, and the algorithm's: in a table `algorithm` with its `name`, or flat like flags. A
file does what the same flags would do and no more: `module:name` is imported from where the command line would import
it, and Python's own modules are refused, so that a stranger's file calls nothing like `os:system`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any

from actor_learner.config import presets
from actor_learner.config.config import (
    DEFAULT_NETWORK_FIELDS,
    RECORDED,
    TrainConfig,
    algorithm_class,
    ask_again,
    callable_marks,
    recorded_network,
)
from actor_learner.system.fields import close_match
from actor_learner.system.keras_import import import_keras_before

_MOST_BYTES = 1 << 20
_OF_A_RUN = "versions"  # a key that only a run's config.json has
_NOT_REPEATED = ("run_dir", "overwrite")
_OWN_KEYS = {"preset"}
_NAMED = ("env", "algorithm", "network")
"""Fields whose values may name code."""

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]|\n')
_TOML_HEADER = re.compile(r"\s*(\[[^\[\]]+\])\s*(#.*)?$")
_TOML_KEY = re.compile(r"\s*([^\s#\[=][^#\[=]*?)\s*=")


@dataclass(frozen=True)
class ConfigFile:
    """What a config file says.

    Attributes:
        path: of the file, for messages.
        fields: flat, by name: those of TrainConfig, of the algorithm, and `preset`. `algorithm` is its name.
        lines: line of each field in the file, from 1.
        recorded: versions, machine and git commit, where the file is a run's config.json.
    """

    path: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int]
    recorded: Mapping[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str | None:
        """What names the algorithm; None where the file doesn't."""
        return self.fields.get("algorithm")

    @contextlib.contextmanager
    def naming_lines(self, *overridden: str) -> Iterator[None]:
        """Puts file and line before what is refused of a field that the file has and that nothing overrides."""
        try:
            yield
        except ValueError as error:
            named = re.findall(r"`(\w+)`|Received: (\w+)=", str(error))
            names = [name for pair in named for name in pair if name in self.lines and name not in overridden]
            if not names:
                raise
            raise ValueError(f"{self.where(names[0])}: {error}") from error

    def where(self, name: str) -> str:
        """File and line of a field, as messages have it."""
        return f"{self.path}, line {self.lines[name]}" if name in self.lines else self.path


NO_FILE = ConfigFile("", {}, {})
"""Says nothing."""


def load_config(path: str | os.PathLike[str], **changes: Any) -> TrainConfig:
    """The config that a TOML or JSON file describes, with `changes` over it, flat as for `preset`.

    A run's `config.json` gives that run once more, in a directory of its own: at lag 0 or 1 on a CPU, with the same
    machine and versions, it has the same weights to the last bit. Any other file stands over the environment's preset,
    if there is one, unless it has `preset = "none"`. Modules that the file names are imported.

    Raises:
        ValueError: the file can't be read, holds unknown keys or values that can't work (with their lines), or holds a
            callable that can't be imported by its name, which isn't among `changes`.

    Example:
        >>> import actor_learner as al
        >>> config = al.load_config("runs/CartPole-v1/ppo-0-1/config.json", seed=1)
    """
    return build(read_config_file(path), changes)


def build(file: ConfigFile, changes: Mapping[str, Any], preset: str | None = None) -> TrainConfig:
    """The config of a file with `changes` over it, and what the preset says below it.

    Raises ValueError as `load_config` does.
    """
    fields = _kept(file, changes)
    _check_callables(file, {key: value for key, value in fields.items() if key not in changes})
    if isinstance(fields.get("network"), str) and "network" not in changes:
        with file.naming_lines():
            fields["network"] = recorded_network(fields["network"])
    base = {**preset_below(file, changes, preset), **fields}
    name = _algorithm(file, changes)
    over = {key: value for key, value in changes.items() if key != "algorithm" or value is not name}
    with file.naming_lines(*changes):
        return presets.build_config(base, over, algorithm=name)


def preset_below(file: ConfigFile, changes: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """The fields that a preset sets below a file: the one that is named, else the environment's own if it has one.

    A run's config.json says everything itself. Raises ValueError for a name that has no preset.
    """
    named = preset or file.fields.get("preset")
    if named == "none" or (named is None and file.recorded):
        return {}
    algorithm = _algorithm(file, changes)
    found = presets.preset_fields(named or changes.get("env", file.fields.get("env", "CartPole-v1")), algorithm)
    if found is None and named is not None:
        with file.naming_lines(*(["preset"] if preset else [])):
            raise presets.unknown_preset(named, algorithm)
    brings_network = any(file.fields.get(name) is not None for name in ("network", "init_from"))
    dropped = {*DEFAULT_NETWORK_FIELDS} if brings_network else set()
    return {name: value for name, value in (found or {}).items() if name not in dropped}


def _algorithm(file: ConfigFile, changes: Mapping[str, Any]) -> str:
    """The name of the algorithm; where an instance is given, that of whose preset lies below it."""
    given = changes.get("algorithm")
    return given if isinstance(given, str) else file.algorithm or "ppo"


def _kept(file: ConfigFile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What of a file's fields counts: another algorithm's hyperparameters don't."""
    given, own = changes.get("algorithm"), file.algorithm or "ppo"
    same = given is None or (isinstance(given, str) and algorithm_class(given) is algorithm_class(own))
    known = None if same else _config_names()
    dropped = ("algorithm", "preset")
    return {k: v for k, v in file.fields.items() if k not in dropped and (known is None or k in known)}


def _check_callables(file: ConfigFile, fields: Mapping[str, Any]) -> None:
    missing = {name: marks for name, value in fields.items() if (marks := callable_marks(value))}
    if missing:
        raise ValueError(f"{file.where(next(iter(missing)))}: a run's config.json {ask_again(missing)}")


def read_config_file(path: str | os.PathLike[str]) -> ConfigFile:
    """Reads and checks a file's keys; values are checked where a config is built of them.

    Raises ValueError for a file that can't be read, isn't TOML or JSON, or has keys that nobody knows.
    """
    name = os.fspath(path)
    text = _read(name)
    is_json = text.lstrip().startswith("{")
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise ValueError(
            f"`config` must be a TOML or JSON file; as {kind}: {error}. Received: config={name!r}"
        ) from error
    lines = _json_lines(text) if is_json else _toml_lines(text)
    return _flat(name, data, lines)


def _read(name: str) -> str:
    if os.path.isdir(name):
        raise ValueError(
            f"`config` must be a file; of a run it is config.json in the run's directory. Received: config={name!r}"
        )
    try:
        with open(name, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"`config` can't be read: {error.strerror}. Received: config={name!r}") from error
    if len(content) > _MOST_BYTES:
        raise ValueError(f"`config` must be a file of 1 MB at most. Received: config={name!r}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"`config` must be text in UTF-8 ({error.reason}). Received: config={name!r}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """TOML refuses a key that stands twice; JSON would take the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands there twice")
        found[key] = value
    return found


def _flat(path: str, data: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> ConfigFile:
    table = data.get("algorithm")
    nested = dict(table) if isinstance(table, Mapping) else {"name": table}
    top = {key: value for key, value in data.items() if key != "algorithm"}
    at = {key: lines[key,] for key in data if (key,) in lines}
    at |= {key: lines["algorithm", key] for key in nested if ("algorithm", key) in lines}
    recorded = {key: top.pop(key, None) for key in RECORDED} if _OF_A_RUN in top else {}
    file = ConfigFile(path, {**top, **nested}, at)
    algorithm = _algorithm_name(file, nested.pop("name", None))
    with file.naming_lines():
        cls = algorithm_class(algorithm or "ppo")
    _check_keys(file, top, nested, cls)
    fields = _converted({**top, **nested}, cls)
    _check_kinds(file, fields)
    for name in _NOT_REPEATED if recorded else ():
        fields.pop(name, None)
    if algorithm is not None:
        fields["algorithm"] = algorithm
    _check_references(file, fields)
    return ConfigFile(path, fields, at, recorded)


def _algorithm_name(file: ConfigFile, name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ValueError(
            f"{file.where('algorithm')}: `algorithm` must be a name, or a table with one. Received: algorithm={name!r}"
        )
    if name is not None:
        _check_reference(file, "algorithm", name)
        import_keras_before(name)
    return name


def _check_keys(file: ConfigFile, top: Mapping[str, Any], nested: Mapping[str, Any], cls: type[Any]) -> None:
    own = {part.name for part in dataclasses.fields(cls) if part.init}
    for keys, known, who in (
        (top, _config_names() | own | _OWN_KEYS, f"TrainConfig and {cls.__name__} have"),
        (nested, own, f"{cls.__name__} has"),
    ):
        for key, value in keys.items():
            if key not in known:
                hint = close_match(key, known)
                raise ValueError(f"{file.where(key)}: {who} no such field{hint}. Received: {key}={value!r}")
    if twice := top.keys() & nested.keys():
        name = min(twice)
        raise ValueError(
            f"{file.where(name)}: `{name}` stands in the file's table `algorithm` too; leave one out. "
            f"Received: {name}={top[name]!r} and {nested[name]!r}"
        )


def _check_kinds(file: ConfigFile, fields: Mapping[str, Any]) -> None:
    """What TOML can say and no field can take, and what no file can say."""
    preset, callbacks = fields.get("preset", "none"), fields.get("callbacks", ())
    if not isinstance(preset, str):
        raise ValueError(f"{file.where('preset')}: `preset` must be a name. Received: preset={preset!r}")
    if callbacks and not callable_marks(callbacks):
        raise ValueError(
            f"{file.where('callbacks')}: `callbacks` are objects, which Python alone can give: "
            f"al.load_config(file, callbacks=[...]). Received: callbacks={callbacks!r}"
        )
    for name, value in fields.items():
        if any(isinstance(leaf, (date, time)) for leaf in _leaves(value)):
            raise ValueError(
                f"{file.where(name)}: `{name}` must not be or hold a date or time; as text, it is quoted. "
                f"Received: {name}={value!r}"
            )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _check_references(file: ConfigFile, fields: Mapping[str, Any]) -> None:
    for name in _NAMED:
        if isinstance(fields.get(name), str):
            _check_reference(file, name, fields[name])


def _check_reference(file: ConfigFile, name: str, reference: str) -> None:
    module, separator, _ = reference.partition(":")
    if separator and module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"{file.where(name)}: `{name}` must not name one of Python's own modules. Received: {name}={reference!r}"
        )


def _config_names() -> set[str]:
    return {part.name for part in dataclasses.fields(TrainConfig)}


def _converted(fields: Mapping[str, Any], cls: type[Any]) -> dict[str, Any]:
    """Values as the dataclasses want them: TOML has no null, which "none" stands for, and both know no tuples."""
    hints = {**typing.get_type_hints(cls), **typing.get_type_hints(TrainConfig)}
    return {name: _value(value, hints.get(name, Any), name) for name, value in fields.items()}


def _value(value: Any, hint: Any, name: str) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, str) and value.lower() == "none" and name != "preset" and {type(None), Any} & {*kinds}:
        return None
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)  # 1e6, as a flag takes it
    if isinstance(value, list) and name not in _config_names():
        return tuple(value)
    if name == "env_kwargs" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)  # as the flag takes it
    return value


def _json_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key, by its path."""
    lines: dict[tuple[str, ...], int] = {}
    path: list[str] = []
    line, string, key = 1, "", ""
    for match in _JSON_TOKEN.finditer(text):
        found = match[0]
        if found == "\n":
            line += 1
        elif found == ":":
            key = json.loads(string)
            lines[*path[1:], key] = line
        elif found in "{[":
            path.append(key)
        elif found in "}]":
            path.pop()
        else:
            string = found
    return lines


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key that begins one, by its path. What only looks like a key, in a long string, does no harm."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _TOML_HEADER.match(line):
            path = table = _toml_path(header[1])
        elif key := _TOML_KEY.match(line):
            path = table + _toml_path(f"{key[1]} = 0")
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _toml_path(line: str) -> tuple[str, ...]:
    """The keys that lead to what a line begins; none where it isn't TOML."""
    path: tuple[str, ...] = ()
    with contextlib.suppress(tomllib.TOMLDecodeError):
        value: Any = tomllib.loads(line)
        while isinstance(value, dict) and value:
            ((key, value),) = value.items()
            path += (key,)
    return path


def config_toml(config: TrainConfig) -> str:
    """A config as a TOML file that `read_config_file` takes, with a comment on each field. Callables stand by name."""
    values = config.to_json()
    algorithm = values.pop("algorithm")
    lines = ["# actor-learner train --config FILE", 'preset = "none"  # all is said here', ""]
    groups = dict.fromkeys(part.metadata["group"] for part in dataclasses.fields(TrainConfig))
    for group in groups:
        parts = [part for part in dataclasses.fields(TrainConfig) if part.metadata["group"] == group]
        told = [_toml_line(part, values[part.name]) for part in parts if part.name in values and group != "code"]
        lines += [f"# {group}", *told, ""] if told else []
    lines += ["[algorithm]", f"name = {_toml(algorithm.pop('name'))}"]
    parts = [part for part in dataclasses.fields(config.algorithm) if part.init]
    return "\n".join(lines + [_toml_line(part, algorithm[part.name]) for part in parts]) + "\n"


def _toml_line(part: dataclasses.Field[Any], value: Any) -> str:
    if part.name == "env_kwargs" and _has_none(value):
        value = json.dumps(value)  # TOML has no null
    setting, comment = f"{part.name} = {_toml(value)}", part.metadata.get("help", "")
    return f"{setting:<34}  # {comment}" if comment else setting


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping) and set(value) == {"callable"}:
        return _toml(value["callable"])
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _has_none(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_none, value.values()))
    return any(map(_has_none, value)) if isinstance(value, list) else value is None


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What a run had otherwise than this process, as "keras 3.14.0 (here 3.15.1)": it may change the last bits."""
    found = []
    for group in ("versions", "machine"):
        before, now = recorded.get(group), here.get(group)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += [
                f"{name} {value} (here {now[name]})"
                for name, value in before.items()
                if name in now and name != "memory_gb" and value != now[name]
            ]
    return found
