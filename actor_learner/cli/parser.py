"""The parser of the command line: one-line errors with suggestions, and help of at most 100 columns."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from actor_learner.algorithms import BY_NAME
from actor_learner.config.config import TrainConfig
from actor_learner.config.settings import names_of
from actor_learner.system import __version__
from actor_learner.system.fields import close_match

_TEXTS = ("help", "description", "usage", "epilog")
_NEGATIVE_NUMBER = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|-inf", re.IGNORECASE)

FIELDS = names_of(TrainConfig) | {field.name for kind in BY_NAME.values() for field in dataclasses.fields(kind)}
"""All that a run may be given, flat."""

_EXAMPLES = """\
examples:
  actor-learner train CartPole-v1         prints the commands to run next
  actor-learner train HalfCheetah-v5 --num-actors 4 --seed 1
  actor-learner evaluate runs/CartPole-v1/ppo-0-1 --table
"""

Commands = Mapping[str, ModuleType]
"""Name of a command -> its module, with HELP, DESCRIPTION, `add_arguments` and `run`."""


class Formatter(argparse.HelpFormatter):
    """A formatter that prints a flag and its opposite as one word, and texts of several lines unchanged."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(100, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **{"width": width, "max_help_position": 26, **options})

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += 2  # argparse does not count the indentation of commands

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


class ShortHelp(argparse.Action):
    """A flag that shows the arguments that `const` names, each with its first words, and exits.

    Groups have the order of `const`.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        shown = {name: place for place, name in enumerate(self.const)}
        for action in parser._actions:
            first = re.sub(r"(; |\. ).*?(?= \(default|$)", "", action.help or "")
            action.help = first if action.dest in shown else argparse.SUPPRESS
        parser._action_groups.sort(key=lambda group: min([shown.get(each.dest, 99) for each in group._group_actions]))
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError with one line instead of exiting. Flags can't be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Formatter, **options})

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"(?:argument )?(\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            choices = [choice.strip(" '") for choice in match[3].split(",")]
            hint = close_match(match[2], choices)
            message = f"{match[1]} must be one of {', '.join(choices)}{hint}. Received: {match[2]}"
        elif "required" in message or "expected" in message:
            message = f"{message}; see --help. Received: none"
        raise ValueError(message)


def make_parser(commands: Commands, argv: Sequence[str]) -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """Return the parser for these arguments, and those of its commands: some flags depend on the algorithm."""
    parser = Parser(prog="actor-learner", description="The actor-learner for Keras 3.", epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=__version__)
    group = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, module in commands.items():
        texts: Any = {text: getattr(module, text.upper(), None) for text in _TEXTS}
        parsers[name] = group.add_parser(name, add_help=not hasattr(module, "COMMON"), **texts)
        parsers[name].set_defaults(command=module.run)
        module.add_arguments(parsers[name], argv[1:] if argv[:1] == [name] else ())
    return parser, parsers


def parse(commands: Commands, argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments that were given, and beside them `command`, the command's function, `argv` and `commands`.

    Raises ValueError, in one line, for arguments that aren't understood; `--help` exits.
    """
    argv = _join_negative_numbers(argv) or ["--help"]
    parser, parsers = make_parser(commands, argv)
    arguments, unknown = parser.parse_known_args(argv, argparse.Namespace(argv=argv[1:], commands=commands))
    if unknown:
        raise _unknown(unknown, [flag for action in parsers[argv[0]]._actions for flag in action.option_strings])
    return arguments


def _unknown(words: Sequence[str], flags: Sequence[str]) -> ValueError:
    flag = next((word for word in words if word.startswith("-")), None)
    if flag is None:
        return ValueError(f"Unexpected argument; see --help. Received: {words[0]}")
    name = flag.partition("=")[0]
    spelled = name.replace("_", "-")
    hint = f" (did you mean {spelled!r}?)" if spelled in flags else _owner(name) if "--algorithm" in flags else ""
    hint = hint or close_match(name, flags)
    if not hint and "--env-kwargs" in flags:
        hint = " (an environment's own arguments go into --env-kwargs)"
    return ValueError(f"There is no such flag{hint}; --help lists all. Received: {name}")


def _owner(flag: str) -> str:
    """Return ` for this algorithm, ...` for a flag that another algorithm has, or an empty string."""
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    owners = [known for known, kind in BY_NAME.items() if name in names_of(kind) - {*kind.UNUSED}]
    return f" for this algorithm (--algorithm {' or '.join(owners)} has it)" if owners else ""


def in_flags(message: str, argv: Sequence[str]) -> str:
    """Return a message in a shell's words: `--num-actors` where Python says `num_actors`, or `num_actors=-1`.

    The keys of a config file stay as they are, and so do the lines below the first, of a traceback.
    """
    pairs = zip(argv, [*argv[1:], ""], strict=False)
    files = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == "--config"]
    if files and message.startswith(files[-1]):
        return message
    spelled = _spellings(argv)

    def spell(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in spelled:
            return match[0]
        if value in ("True", "False"):
            return spelled[name] if value == "True" else spelled[name].replace("--", "--no-")
        return f"{spelled[name]} {'none' if value == 'None' else value.strip(chr(39))}"

    first, *others = message.split("\n")
    text, received, values = first.rpartition("Received: ") if "Received: " in first else (first, "", "")
    text = re.sub(r"`(\w+)`", lambda match: f"`{spelled.get(match[1], match[1])}`", text)
    said = re.compile(r"`\w+\([^`]*`|(?<!\w\()\b(\w+)=(True|False|None|\d+|'\w+')(?![\w.])")  # a call is Python's
    text = said.sub(lambda match: spell(match) if match[1] else match[0], text)
    text = re.sub(r"(--[\w-]+)(?:, \1| \(\1\))", r"\1", text.replace(" or None", " or none"))  # was said in both words
    values = re.sub(r"(?<!\S)(\w+)=(True\b|False\b|None\b|'[\w./:@+-]+'|)", spell, values)
    if re.fullmatch(r"--[\w-]+ [\d.e+-]+", values) and not values.startswith(tuple(_typed(argv))):
        values += " (not typed: from a preset, a file or the defaults)"
    return "\n".join([f"{text}{received}{values}", *others])


def _typed(argv: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in argv if word.startswith("--")}


def _spellings(argv: Sequence[str]) -> dict[str, str]:
    """Return what stands at a shell for the names of fields and arguments: the flags of a command that it may have."""
    typed = _typed(argv)
    names = {flag[2:].replace("-", "_") for flag in typed} | {"env", "env_kwargs", "output"}
    command = argv[0] if argv else ""
    if command == "evaluate":
        names.add("max_episode_steps")
    if configures := command in ("train", "benchmark", "sweep", "tune"):
        names |= FIELDS - {"callbacks"} | {"resume"}
    spelled = {name: f"--{name.replace('_', '-')}" for name in names}
    if configures:
        spelled |= {"env": "ENV", "callbacks": "--callback"}
    if "--resume" in typed:
        spelled["run_dir"] = "--resume"
    arguments = {**dict.fromkeys(("run_dir", "run_dirs"), "RUN_DIR"), "repo": "OWNER/NAME"}
    return spelled if command in ("train", "sweep") else spelled | arguments


def _join_negative_numbers(argv: Sequence[str]) -> list[str]:
    """Replace `--flag -1e-3`, which argparse takes for two flags, with `--flag=-1e-3`."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and _NEGATIVE_NUMBER.fullmatch(word):
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined
