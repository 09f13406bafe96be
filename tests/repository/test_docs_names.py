"""Commands, flags, names and scripts that the pages mention or show without running them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import itertools
import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner import algorithms, cli
from actor_learner.cli.parser import make_parser
from actor_learner.runs.meter import look_up
from actor_learner.system.fields import ELSEWHERE
from benchmarks.__main__ import TOPICS
from tests.repository.test_repository import FLOORS

ROOT = Path(__file__).parents[2]
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("docs/algorithms/*.md")))
}
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(actor-learner|scripts/train)((?: .*)?)$")
OTHERS = {"--no-deps", "--logdir", "--shm-size", "--cpus", "--multirun"}
"""Flags of pip, tensorboard, docker and Hydra."""
OTHER_WORDS = {
    *("n_envs", "n_steps", "train_freq", "policy_kwargs"),
    *("n_critics", "n_quantiles", "top_quantiles_to_drop_per_net"),
    "memfd_create",
}
"""Names of SB3 and of the system, which the guides mention."""


@functools.cache
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


def test_commands_and_their_flags_exist():
    for name, page in PAGES.items():
        for words in commands(page):
            if words and not words[0].startswith("-"):
                used = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert used <= flags()[words[0]], f"{name}: {words}"


def test_flags_within_a_sentence_exist():
    sources = [*(ROOT / "scripts").iterdir(), *(ROOT / "benchmarks").rglob("*.py")]
    of_scripts = {flag for file in sources for flag in re.findall(r"--[a-z][a-z-]*", file.read_text(encoding="utf-8"))}
    known = set().union(*flags().values()) | of_scripts | OTHERS
    for name, page in PAGES.items():
        ours = re.sub(r"^\| (?:[^|]|\\\|)* \|", "", page, flags=re.M) if name == "coming_from.md" else page
        ours = re.sub(r"`scripts/(?!train)[^`]*`", "", ours)
        quoted = " ".join(re.findall(r"`([^`\n]+)`", ours))
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", quoted)) <= known, name


def test_names_of_the_package_exist():
    for page in PAGES.values():
        for dotted in set(re.findall(r"\bal\.([A-Za-z_][\w.]*\w)", page)):
            if dotted.partition(".")[0] not in ("py", "html"):
                attrgetter(dotted)(al)


@pytest.fixture
def code_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("code_tables")


def test_pages_ask_for_tables_that_there_are(code_tables):
    assert [name for name, page in PAGES.items() if "\n<!--" in code_tables.fill(page)] == []


def test_the_readmes_table_is_as_the_code_makes_it_and_is_on_the_first_page(code_tables):
    for page in code_tables.IN_CLONES:
        text = code_tables.read(page)
        assert code_tables.fill(text, keep_marks=True) == text, "python docs/code_tables.py writes it"
    readme = PAGES["README.md"]
    row = next(line for line in readme.splitlines() if line.startswith("| [SAC]"))
    assert [cell.strip() for cell in row.split("|")[2:8]] == ["✓", "", "", "✓", "", "✓"]
    assert row.replace("docs/", "") in code_tables.fill(PAGES["index.md"])


def test_the_table_of_algorithms_says_what_they_take(code_tables):
    header, _, *lines = (line.strip("| ").split(" | ") for line in code_tables.TABLES["algorithms"]().splitlines())
    found = [dict(zip(header, line, strict=True)) for line in lines]
    rows = {re.findall(r"\w+", row["algorithm"])[0].lower(): row for row in found}
    assert rows.keys() == algorithms.BY_NAME.keys()
    ppo, dqn, sac = rows["ppo"], rows["dqn"], rows["sac"]
    assert (ppo["actions"], ppo["masks"], ppo["memory"], ppo["devices"]) == ("every kind", "yes", "yes", "several")
    assert (dqn["actions"], dqn["masks"], dqn["memory"], dqn["devices"]) == ("Discrete", "yes", "no", "1")
    assert (sac["actions"], sac["masks"]) == ("Discrete, Box, Dict and Tuple", "yes")
    assert sac["learns from"] == "a replay buffer"
    assert {rows[name]["actions"] for name in ("tqc", "crossq", "td3")} == {"Box, Dict and Tuple"}


def test_metrics_and_settings_of_the_guides_exist():
    """Words like `explained_variance`, in the pages that say what to look at and what to set."""
    kinds = (al.TrainConfig, *algorithms.BY_NAME.values())
    known = {field.name for kind in kinds for field in dataclasses.fields(kind)} | OTHER_WORDS
    guides = ("tips.md", "troubleshooting.md", *(f"{name}.md" for name in algorithms.BY_NAME))
    for name in guides:
        words = re.findall(r"(?<!\$)`([a-z]+(?:[_/][a-z]+)+)`", re.sub(r"```.*?```", "", PAGES[name], flags=re.DOTALL))
        assert [word for word in words if word not in known and look_up(word) is None] == [], name


def test_the_messages_of_troubleshooting_are_in_the_code():
    """The first cells of its tables; `...` stands for what differs."""
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "actor_learner").rglob("*.py")]
    joined = "".join(re.sub(r'"\s*\n\s*f?"', "", text) for text in code)  # of strings that follow one another
    first_cells = re.findall(r"^\| `([^`]+ [^`]+)` \|", PAGES["troubleshooting.md"], re.MULTILINE)
    messages = [part for cell in first_cells if "RUN_DIR" not in cell for part in cell.split(" ... ")]
    assert len(messages) > 30
    assert [message for message in messages if message not in joined] == []


def test_every_algorithm_is_named_where_they_are_listed():
    readme = PAGES["README.md"].partition("\n## ")[0]
    keywords = [
        re.search(r"keywords(?: =|:) \[(.*?)\]", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)[1]
        for name in ("pyproject.toml", "CITATION.cff")
    ]
    for text in (readme, *keywords):
        assert set(re.findall(r"\w+", text.lower().replace("-", ""))) >= algorithms.BY_NAME.keys()


def test_measured_topics_and_scripts_exist():
    topics = {topic for page in PAGES.values() for topic in re.findall(r"`scripts/measure ([a-z-]+)", page)}
    assert len(topics) > 5
    assert topics <= set(TOPICS)
    scripts = {script for page in PAGES.values() for script in re.findall(r"\bscripts/[\w./-]*\w", page)}
    assert [script for script in scripts if not (ROOT / script).exists()] == []


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


def test_how_it_works_lists_the_floors_and_every_folder_of_the_package():
    rows = re.findall(r"^\| (\d*) ?\| ((?:`[a-z/_.]+`(?:, )?)+) \|", PAGES["how_it_works.md"], re.MULTILINE)
    floors, names = [], []
    for number, cell in rows:
        if number:
            floors.insert(0, set())
        listed = [name.rstrip("/").removesuffix(".py") for name in re.findall("`(.*?)`", cell)]
        names += listed
        floors[0] |= {name.partition("/")[0] for name in listed}
    package = ROOT / "actor_learner"
    assert {name for name in names if (package / name).is_dir()} == {
        file.parent.relative_to(package).as_posix() for file in package.glob("*/**/__init__.py")
    }
    expected = [set(line.split()) - {"__init__"} for line in FLOORS.strip().splitlines()]
    assert floors == expected
    assert [number for number, _ in rows if number] == [str(number) for number in range(len(floors), 0, -1)]


def test_the_tours_name_functions_that_there_are():
    """`file:name`, of the package or of the repository."""
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGES["how_it_works.md"] + PAGES["contributing.md"])
    assert len(places) > 50
    for file, name in places:
        path = next(path for path in (ROOT / "actor_learner" / file, ROOT / file) if path.exists())
        node = ast.parse(path.read_text(encoding="utf-8"))
        for part in name.split("."):
            node = next((each for each in node.body if part in names_of(each)), None)
            assert node is not None, f"{file}:{name}"


def names_of(node):
    """What a statement of a module or class defines."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)} - {None}
