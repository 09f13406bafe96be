"""Settings from a file: TOML or JSON, written by hand, by `--print-config`, or a run's own config.json.

Keys are the fields of TrainConfig and of its algorithm: in a table `algorithm` with its `name`, or flat like flags. A
file can do no more than the same flags: `module:name` is imported from where the command line imports it, and Python's
own modules are refused, so that someone else's file can't call `os:system`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tomllib
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import Any

from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.config.config import FORMAT, RECORDED, TrainConfig, check_known, of_this_version
from actor_learner.config.presets import fields_below, over_preset, preset_fields, unknown_preset
from actor_learner.config.references import (
    FUNCTIONS,
    algorithm_class,
    ask_again,
    callable_marks,
    imported,
    is_pythons_own,
    resolve_recorded,
)
from actor_learner.config.settings import names_of
from actor_learner.system.fields import refusal
from actor_learner.system.files import unstamped
from actor_learner.system.keras_import import BACKENDS, import_keras_before, use_backend

_MAX_BYTES = 1 << 20
_RUN_KEY = "versions"  # a key that every run's config.json has, and no other file
OF_CHANGES = "hyperparameters that the run changed where it was resumed have their last values from the start here"
NOT_REPEATED = ("run_dir", "overwrite")  # the fields that name the directory of one run
_CODE_FIELDS = "env algorithm network critics compute_reward exploration wrappers callbacks policies".split()
_JSON_FIELDS = ("env_kwargs", "wrapper_kwargs", "policies")  # which may also be given as JSON, as by their flags


@dataclass(frozen=True)
class ConfigFile:
    """The contents of a config file."""

    path: str  # for messages
    fields: Mapping[str, Any]  # flat fields of TrainConfig and of the algorithm, and `preset`; `algorithm` is its name
    lines: Mapping[str, int]  # line of each field in the file, from 1, where it is known
    recorded: Mapping[str, Any] = field(default_factory=dict)  # versions, machine and git commit of a run's config.json

    @property
    def algorithm(self) -> str | None:
        """The algorithm's name; None if the file names none."""
        return self.fields.get("algorithm")

    @contextlib.contextmanager
    def naming_lines(self, *overridden: str) -> Iterator[None]:
        """Put file and line before a refusal of a field that the file has and nothing overrides."""
        try:
            yield
        except ValueError as error:
            pairs = re.findall(r"`(\w+)`|Received: (\w+)=", str(error))
            own = {*self.fields, *self.lines} - {*overridden}
            name = next((name for pair in pairs for name in pair if name in own), None)
            if name is None:
                raise
            raise ValueError(f"{self.where(name)}: {error}") from error

    def where(self, name: str) -> str:
        """Return the file, and the line of a field if it is known."""
        return f"{self.path}, line {self.lines[name]}" if name in self.lines else self.path


NO_FILE = ConfigFile("", {}, {})
"""A file without fields."""


def load_config(path: str | os.PathLike[str], **changes: Any) -> TrainConfig:
    """Return the config that a TOML or JSON file describes, with `changes` over it, flat as for `preset`.

    A run's `config.json` repeats that run, in a directory of its own: on a CPU, unless actors are `asynchronous`, with
    the same machine and versions, the weights are equal to the last bit. Any other file overrides the environment's
    preset, if there is one, unless it has `preset = "none"`. Modules that the file names are imported.

    Raises:
        ValueError: the file can't be read, holds unknown keys or unusable values (with their lines), or a callable that
            can't be imported by its name and isn't in `changes`.

    Example:
        >>> import actor_learner as al
        >>> config = al.load_config("runs/CartPole-v1/ppo-0-1/config.json", seed=1)
    """
    file = read_config_file(path)
    if file.recorded.get("changes"):
        warnings.warn(OF_CHANGES, stacklevel=2)
    return build(file, changes)


def build(file: ConfigFile, changes: Mapping[str, Any], preset: str | None = None) -> TrainConfig:
    """Return the config of three layers: `changes` over the file, the file over the preset.

    Raises ValueError as `load_config` does.
    """
    fields = _file_layer(file, changes)
    own = {name: value for name, value in fields.items() if name not in changes}
    if missing := {name: marks for name, value in own.items() if (marks := callable_marks(value))}:
        raise ValueError(f"{file.where(next(iter(missing)))}: a run's config.json {ask_again(missing)}")
    with file.naming_lines():
        fields |= {name: imported(value, name) for name, value in own.items()}
        for name in FUNCTIONS:
            if isinstance(own.get(name), str):
                fields[name] = resolve_recorded(own[name], name)
    layers = over_preset(preset_layer(file, changes, preset), {**fields, **changes})
    with file.naming_lines(*changes):
        return TrainConfig.from_fields({**layers, "algorithm": changes.get("algorithm") or file.algorithm})


def preset_layer(file: ConfigFile, changes: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """Return the fields of the preset below a file: the named one, else the environment's own if it has one.

    A run's config.json is complete, and has no preset below it. Raises ValueError for a name without a preset.
    """
    named = preset or file.fields.get("preset")
    if named == "none" or (named is None and file.recorded):
        return {}
    algorithm = changes.get("algorithm") or file.algorithm or "ppo"
    own = {} if named is None or "*" in named else {"env": named}  # of a preset alone
    env = {"env": "CartPole-v1", **own, **file.fields, **changes}["env"]
    found = preset_fields(named or env, algorithm, env)
    if found is None and named is not None:
        with file.naming_lines(*(["preset"] if preset else [])):
            raise unknown_preset(named, algorithm)
    return fields_below(fields_below({**own, **(found or {})}, file.fields), changes)


def _file_layer(file: ConfigFile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's fields that count below `changes`.

    Another algorithm drops the hyperparameters, and of a run's config.json the defaults of the run's own algorithm.
    """
    given, own = changes.get("algorithm"), algorithm_class(file.algorithm or "ppo")
    fields = {name: value for name, value in file.fields.items() if name not in ("algorithm", "preset")}
    kind = algorithm_class(given) if isinstance(given, str) else own if given is None else type(given)
    if kind is not own:
        dropped = _own_defaults(file, own) if file.recorded else set()
        fields = {name: value for name, value in fields.items() if name in names_of(TrainConfig) - dropped}
    return fields_below(fields, changes)


def _own_defaults(file: ConfigFile, kind: type[Any]) -> set[str]:
    """Return the fields of the config that have the default which their algorithm gives them."""
    names = names_of(kind)
    fields = {name: value for name, value in file.fields.items() if name in names and not callable_marks(value)}
    plain = {name: imported(value, name) for name, value in fields.items()}
    defaults = getattr(kind(**plain), "config_defaults", Hyperparameters.CONFIG_DEFAULTS)
    as_json = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    return {name for name, value in defaults.items() if file.fields.get(name) in (value, as_json[name])}


def read_config_file(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a file and check its keys; `build` checks the values.

    Raises ValueError for a file that can't be read, isn't TOML or JSON, or has unknown keys.
    """
    name = os.fspath(path)
    text = _read(name)
    is_json = text.lstrip().startswith("{")
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        expected = f"a TOML or JSON file; as {'JSON' if is_json else 'TOML'}: {error}"
        if name.endswith((".yaml", ".yml")):
            expected = "a TOML or JSON file, not YAML: `key = value` in place of `key: value`"
        raise refusal("config", expected, name) from error
    return _flat(name, data, text)


def _read(name: str) -> str:
    if os.path.isdir(name):
        raise refusal("config", "a file; of a run it is config.json in the run's directory", name)
    try:
        with open(name, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"`config` can't be read: {error.strerror}. Received: config={name!r}") from error
    if len(content) > _MAX_BYTES:
        raise refusal("config", "a file of 1 MB at most", name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refusal("config", f"text in UTF-8 ({error.reason})", name) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key, as TOML does; JSON takes the last one."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is repeated")
        found[key] = value
    return found


def _line(text: str, key: str) -> int | None:
    """Return the line of a key in TOML or JSON; None unless exactly one place looks like the key."""
    pattern = rf"""(?:^|[{{,])\s*\[?\s*["']?(?:\w+\.)?{re.escape(key)}["']?\s*[\]=:.]"""
    ends = [match.end() for match in re.finditer(pattern, text, re.MULTILINE)]
    return 1 + text.count("\n", 0, ends[0]) if len(ends) == 1 else None


def _flat(path: str, data: Mapping[str, Any], text: str) -> ConfigFile:
    if _RUN_KEY in data:
        data = unstamped(Path(path), data, FORMAT)
    table = data.get("algorithm")
    nested = dict(table) if isinstance(table, Mapping) else {"name": table}
    top = {key: value for key, value in data.items() if key != "algorithm"}
    lines = {key: line for key in (*data, *nested) if (line := _line(text, key))}
    recorded = {key: top.pop(key, None) for key in RECORDED} if _RUN_KEY in top else {}
    if data.get("backend") in BACKENDS and "KERAS_BACKEND" not in os.environ:
        use_backend(data["backend"])  # before the algorithm's module may import Keras
    with ConfigFile(path, {**data, **nested}, lines).naming_lines():
        algorithm = _algorithm_name(nested.pop("name", None))
        cls = algorithm_class(algorithm or "ppo")
        _check_keys(top, nested, cls)
        hints = {**typing.get_type_hints(cls), **typing.get_type_hints(TrainConfig)}
        fields = {name: file_value(value, hints.get(name, Any), name) for name, value in {**top, **nested}.items()}
        _check_kinds(fields)
        for name in NOT_REPEATED if recorded else ():
            fields.pop(name, None)
        if algorithm is not None:
            fields["algorithm"] = algorithm
        _check_references(fields)
    return ConfigFile(path, of_this_version(fields) if recorded else fields, lines, recorded)


def _algorithm_name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise refusal("algorithm", "a name, or a table with one", name)
    if name is not None:
        _check_references({"algorithm": name})
        import_keras_before(name)
    return name


def _check_keys(top: Mapping[str, Any], nested: Mapping[str, Any], cls: type[Any]) -> None:
    own = names_of(cls)
    check_known(f"TrainConfig and {cls.__name__} have", top, names_of(TrainConfig) | own | {"preset"})
    check_known(f"{cls.__name__} has", nested, own)
    if repeated := top.keys() & nested.keys():
        name = min(repeated)
        raise ValueError(
            f"`{name}` is also in the file's table `algorithm`; leave one out. "
            f"Received: {name}={top[name]!r} and {nested[name]!r}"
        )


def _check_kinds(fields: Mapping[str, Any]) -> None:
    """Refuse values that no field can take, and fields that no file can give."""
    preset, callbacks = fields.get("preset", "none"), fields.get("callbacks", ())
    if not isinstance(preset, str):
        raise refusal("preset", "a name", preset)
    listed = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
    if not all(isinstance(callback, str) or callable_marks(callback) for callback in listed):
        raise ValueError(
            '`callbacks` must be names, as in ["module:factory"]; only Python can give objects: '
            f"al.load_config(file, callbacks=[...]). Received: callbacks={callbacks!r}"
        )
    for name, value in fields.items():
        if any(isinstance(leaf, (date, time)) for leaf in _leaves(value)):
            raise ValueError(
                f"`{name}` must not be or hold a date or time; quote it to give text. Received: {name}={value!r}"
            )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _check_references(fields: Mapping[str, Any]) -> None:
    for name in _CODE_FIELDS:
        for reference in _leaves(fields.get(name)):
            if isinstance(reference, str) and ":" in reference and is_pythons_own(reference):
                raise ValueError(f"`{name}` must not name one of Python's own modules. Received: {name}={reference!r}")


def file_value(value: Any, hint: Any, name: str) -> Any:
    """Return a value as the dataclasses take it: TOML writes None as "none", and neither format has tuples."""
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, str) and value.lower() == "none" and name != "preset" and {type(None), Any} & {*kinds}:
        return None
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)  # 1e6, as a flag takes it
    if isinstance(value, list) and name not in names_of(TrainConfig):
        return tuple(value)
    if name in _JSON_FIELDS and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)  # as the flag takes it
    return value


def config_toml(config: TrainConfig) -> str:
    """Return a config as a TOML file that `read_config_file` takes, with a comment on each field."""
    values = config.to_json()
    algorithm = values.pop("algorithm")
    values["callbacks"] = [callback for callback in values["callbacks"] if isinstance(callback, str)]
    lines = ["# actor-learner train --config FILE", 'preset = "none"  # all settings are in this file', ""]
    groups: dict[str, list[str]] = {}
    for part in dataclasses.fields(TrainConfig):
        if part.name in values:
            groups.setdefault(part.metadata["group"], []).append(_toml_line(part, values[part.name]))
    for group, settings in groups.items():
        lines += [f"# {group}", *settings, ""]
    lines += ["[algorithm]", f"name = {_toml(algorithm.pop('name'))}"]
    parts = [part for part in dataclasses.fields(config.algorithm) if part.init]
    return "\n".join(lines + [_toml_line(part, algorithm[part.name]) for part in parts]) + "\n"


def _toml_line(part: dataclasses.Field[Any], value: Any) -> str:
    if part.name in _JSON_FIELDS and value is not None and _has_none(value):
        value = json.dumps(value)  # TOML has no null
    setting, comment = f"{part.name} = {_toml(value)}", part.metadata.get("help", "")
    if callable_marks(value):
        setting = f"# {setting}"  # a default of one's own algorithm, which a file can't give
    return f"{setting:<34}  # {comment}" if comment else setting


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
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
    """Return what differs between a run and this process, as "keras 3.14.0 (here 3.15.1)"."""
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
