"""Commands, flags, names and scripts that the pages mention or show without running them."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner import algorithms, cli
from actor_learner.cli.parser import make_parser
from actor_learner.config.presets import PRESETS
from actor_learner.system.fields import ELSEWHERE
from benchmarks.__main__ import TOPICS

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
PAGES = {
    path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(actor-learner|scripts/train)((?: .*)?)$")
OTHERS = {"--no-deps", "--logdir"}
"""Flags of pip and of tensorboard."""


def flags():
    """Map each command to its flags, `train` with those of every algorithm."""
    found: dict[str, set[str]] = {}
    for name in algorithms.BY_NAME:
        for command, parser in make_parser(cli.COMMANDS, ["train", "--algorithm", name])[1].items():
            found.setdefault(command, set()).update(parser._option_string_actions)
    return found


def shown(page):
    """Return the lines of the blocks that aren't run."""
    return [line for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]


def commands(page):
    """Yield the commands in blocks that aren't run and in sentences, except those shown to be refused."""
    lines = [*shown(page), ""]
    accepted = [line for line, next_one in itertools.pairwise(lines) if "error: " not in next_one]
    for line in [*accepted, *re.findall(r"`([^`\n]+)`", page)]:
        if match := COMMAND.match(line.partition("  #")[0].strip()):
            words = shlex.split(match[2])
            yield ["train", *words] if match[1] == "scripts/train" else words


def python_blocks(page):
    return [block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if re.search("^import ", block, re.M)]


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_their_flags_exist(name):
    known = flags()
    for words in commands(PAGES[name]):
        if words and not words[0].startswith("-"):
            assert words[0] in known
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= known[words[0]], words


@pytest.mark.parametrize("name", PAGES)
def test_flags_within_a_sentence_exist(name):
    page = re.sub(r"^\| (?:[^|]|\\\|)* \|", "", PAGES[name], flags=re.M) if name == "coming_from.md" else PAGES[name]
    sources = [
        script.read_text(encoding="utf-8")
        for script in (*(ROOT / "scripts").iterdir(), *(ROOT / "benchmarks").rglob("*.py"))
    ]
    of_scripts = {flag for source in sources for flag in re.findall(r"--[a-z][a-z-]*", source)}
    known = set().union(*flags().values()) | of_scripts | OTHERS
    page = re.sub(r"`scripts/(?!train)[^`]*`", "", page)
    found = {flag for code in re.findall(r"`([^`\n]+)`", page) for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)}
    assert found <= known


@pytest.mark.parametrize("name", PAGES)
def test_names_of_the_package_exist(name):
    for dotted in set(re.findall(r"\bal\.([A-Za-z_][\w.]*\w)", PAGES[name])):
        if dotted.partition(".")[0] not in ("py", "html"):
            attrgetter(dotted)(al)


def test_scripts_exist():
    for name, page in PAGES.items():
        for script in set(re.findall(r"\bscripts/[\w./-]*\w", page)):
            assert (ROOT / script).exists(), f"{name}: {script}"


def test_the_table_of_presets_is_complete():
    for algorithm in ("PPO", "A2C", "IMPALA"):
        (row,) = (line for line in PAGES["training.md"].splitlines() if line.startswith(f"| {algorithm} |"))
        names = re.split(r", (?:every )?", row.split(" | ")[1].removesuffix(" |").replace("`", ""))
        presets = {name for name, settings in PRESETS.items() if algorithm.lower() in settings}
        patterns = [re.escape(name).replace(r"MuJoCo's\ \.\.\.", r"\w+").replace(r"\.\.\.", ".*") for name in names]
        assert all(any(re.fullmatch(pattern, name) for pattern in patterns) for name in presets)
        assert all(any(re.fullmatch(pattern, name) for name in presets) for pattern in patterns)


def test_measured_topics_exist():
    topics = {topic for page in PAGES.values() for topic in re.findall(r"`scripts/measure ([a-z-]+)", page)}
    assert len(topics) > 5
    assert topics <= set(TOPICS)


def test_python_that_is_not_run_is_python():
    blocks = [block for page in PAGES.values() for block in python_blocks(page)]
    assert len(blocks) >= 2
    for block in blocks:
        ast.parse("\n".join(line for line in block.splitlines() if not line.startswith("actor-learner ")))


def words(cell):
    """Return the words of a cell as Python would spell them."""
    return {word.strip("_") for word in re.findall(r"\w+", cell.replace("-", "_"))}


def test_coming_from_says_what_messages_say():
    """The page's tables list each name of another library that messages translate, beside our field or flag."""
    rows = [line.split(" | ") for line in PAGES["coming_from.md"].splitlines() if line.startswith("| `")]
    checked: set[str] = set()
    for theirs, *_, ours in rows:
        checked |= {name for name in words(theirs) if ELSEWHERE.get(name) in words(ours)}
    assert set(ELSEWHERE) - checked <= {"lr", "clipnorm", "global_clipnorm"}  # which are Keras's
