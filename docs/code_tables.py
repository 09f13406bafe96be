"""Tables of the documentation that are made from the code, so that they are never older than it.

Those of docs/ are filled in where the site is made. `python docs/code_tables.py` writes those that a clone shows, too.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from actor_learner.algorithms import BY_NAME
from actor_learner.config.config import TrainConfig
from actor_learner.config.presets import PRESETS
from actor_learner.runs.meter import METRICS
from actor_learner.spaces.structure import action_structure, choices

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.figures import Sources  # noqa: E402

IN_CLONES = ("README.md", "docs/installation.md")
MARK = re.compile(r"^<!-- (\w+)((?: \w+)*) -->$(?:\n\|.*)*", re.MULTILINE)
"""The place of a table in a page, a line of its own: its name, and arguments. An older one may stand below it."""

_EFFECTS = {"learning": "learned", "pace": "pace", "none": "nothing"}
_ACTIONS = {
    "Discrete": Discrete(2),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(2),
    "Box": Box(-1.0, 1.0, (2,)),
    "Box without bounds": Box(-np.inf, np.inf, (2,)),
    "Dict and Tuple": Dict(a=Box(-1.0, 1.0, (2,)), b=Box(-1.0, 1.0, (1,))),
}


def fill(page: str, *, keep_marks: bool = False) -> str:
    """Return a page with its tables at their places, and their marks above them, if they are kept."""

    def made(mark: re.Match[str]) -> str:
        return (f"{mark[0].splitlines()[0]}\n" if keep_marks else "") + TABLES[mark[1]](*mark[2].split())

    return MARK.sub(made, page)


def default_of(field: dataclasses.Field[Any]) -> str | None:
    """Return a default as an expression; None if a value must be given."""
    if field.default is not dataclasses.MISSING:
        return getattr(field.default, "__qualname__", None) or repr(field.default)
    if field.default_factory is dataclasses.MISSING:
        return None
    made = field.default_factory()
    return f"{type(made).__name__}()" if dataclasses.is_dataclass(made) else repr(made)


def _algorithms() -> str:
    """Return what each algorithm takes, by its own checks."""
    rows = []
    for name, kind in BY_NAME.items():
        algorithm = kind()
        taken = [label for label, space in _ACTIONS.items() if _takes_actions(algorithm, space)]
        row = {
            "algorithm": f"[{name.upper()}]({_page(name, kind.__name__)})",
            "learns from": "a replay buffer" if kind.REPLAYS else "each batch once",
            "actions": "every kind" if len(taken) == len(_ACTIONS) else ", ".join(taken),
            "masks": _yes(any(choices(_ACTIONS[label]) for label in taken)),
            "memory": _yes(_accepts(TrainConfig, algorithm=algorithm, memory="lstm")),
            "older weights": _correction(algorithm),
            "default lag": str(algorithm.config_defaults["max_policy_lag"]),
            "devices": "several" if _accepts(algorithm.check_devices, 2) else "1",
            "default network": _network(**algorithm.config_defaults),
        }
        rows.append(row)
    return _table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _support() -> str:
    """Return which spaces and features each algorithm takes, by its own checks."""
    rows = []
    for name, kind in BY_NAME.items():
        algorithm = kind()
        spaces = [_tick(_takes_actions(algorithm, space)) for space in _ACTIONS.values()]
        features = (
            any(choices(space) and _takes_actions(algorithm, space) for space in _ACTIONS.values()),
            _accepts(TrainConfig, algorithm=algorithm, memory="lstm"),
            _accepts(algorithm.check_devices, 2),
            kind.REPLAYS,
            "hindsight" in kind.__dataclass_fields__ and _accepts(kind, hindsight="future"),
        )
        rows.append((f"[{_title(name)}](docs/{_page(name, kind.__name__)})", *spaces, *map(_tick, features)))
    actions = ("Discrete", "Multi-Discrete", "Multi-Binary", "Box", "unbounded Box", "Dict, Tuple")
    features = ("masks", "memory", "several GPUs (JAX)", "offline", "hindsight")
    return _table(("", *actions, *features), rows)


def _title(name: str) -> str:
    """Return the name of an algorithm as its page has it."""
    page = ROOT / "docs/algorithms" / f"{name}.md"
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _tick(value: bool) -> str:
    return "✓" if value else ""


def _page(name: str, title: str) -> str:
    own = f"algorithms/{name}.md"
    return own if (ROOT / "docs" / own).exists() else f"reference/algorithms/{title}.md"


def _takes_actions(algorithm: Any, space: Any) -> bool:
    return _accepts(algorithm.check_action_space, action_structure(space))


def _accepts(check: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        check(*args, **kwargs)
    except ValueError:
        return False
    return True


def _correction(algorithm: Any) -> str:
    if algorithm.REPLAYS:
        return "any age"
    if getattr(algorithm, "uses_vtrace", False):
        return "V-trace"
    return "V-trace with `vtrace`" if hasattr(algorithm, "vtrace") else "not corrected"


def _network(*, hidden_sizes: Sequence[int], activation: str, layer_norm: bool, **_: Any) -> str:
    return f"{', '.join(map(str, hidden_sizes))}, {activation}{', layer norm' if layer_norm else ''}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _metrics() -> str:
    pages = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs/algorithms").glob("*.md"))}

    def links(metric: str) -> str:
        """Return links to the sections of which a row or a point begins with the metric."""
        entry = re.compile(rf"^[|-] (?:`\w+`, )*`{re.escape(metric)}`", re.MULTILINE)
        found = {page: text[: match.start()] for page, text in pages.items() if (match := entry.search(text))}
        return ", ".join(f"[{_title(page)}](algorithms/{page}.md#{_last_anchor(text)})" for page, text in found.items())

    rows = [(f"`{name}`", meaning, links(name)) for name, (meaning, *_) in METRICS.items()]
    return _table(("metric", "meaning", "more about it"), rows)


def _last_anchor(text: str) -> str:
    """Return the anchor of a page's last heading, as the site makes it."""
    heading = re.findall(r"^## (.+)$", text, re.MULTILINE)[-1]
    return re.sub(r"\W+", "-", heading.lower())


def _settings() -> str:
    rows = [
        (
            f"`{field.name}`",
            f"`{default_of(field)}`",
            escape(field.metadata["help"]),
            _EFFECTS[field.metadata["effect"]],
        )
        for field in dataclasses.fields(TrainConfig)
        if field.init
    ]
    return _table(("setting", "default", "meaning", "changes"), rows)


def _hyperparameters(*names: str) -> str:
    """Return the hyperparameters of these algorithms, or of all: a column of defaults for each."""
    kinds = {name: BY_NAME[name] for name in names or BY_NAME}
    fields = [{field.name: field for field in dataclasses.fields(kind)} for kind in kinds.values()]
    rows = []
    for name in dict.fromkeys(name for own in fields for name in own):
        owners: dict[str, list[str]] = {}
        for kind, own in zip(kinds, fields, strict=True):
            if name in own:
                owners.setdefault(own[name].metadata.get("help", ""), []).append(kind)
        meaning = "; ".join(text if len(owners) == 1 else f"{text} ({', '.join(of)})" for text, of in owners.items())
        defaults = [f"`{default_of(own[name])}`" if name in own else "-" for own in fields]
        rows.append((f"`{name}`", meaning, *defaults))
    return _table(("hyperparameter", "meaning", *(kinds if len(kinds) > 1 else ("default",))), rows)


def _results(algorithm: str) -> str:
    """Return an algorithm's rows of the table of results."""
    found = list(_measured(algorithm))
    header = ("`actor-learner train` ...", "env steps", "seeds", "return", "strongest published, same algorithm")
    return _table((*header, "ours - theirs", "strongest, any algorithm"), found)


def _measured(algorithm: str) -> Iterator[Sequence[str]]:
    for line in read("benchmarks/learning/learning.md").splitlines():
        command, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|")))
        if f" --algorithm {algorithm} " in command:
            steps, seeds, evaluation, _, _, *compared = cells[:8]
            words = re.sub(rf"^`train | --algorithm {algorithm}| --seed N`$", "", command)
            yield f"`{words}`", steps, seeds, evaluation, *compared


def _presets() -> str:
    """Return the ids with a preset, by algorithm."""
    rows = []
    for name, kind in BY_NAME.items():
        ids = [f"every `{env[:-1]}...`" if env.endswith("*") else f"`{env}`" for env in PRESETS if name in PRESETS[env]]
        if ids:
            rows.append((f"[{_title(name)}]({_page(name, kind.__name__)})", ", ".join(ids)))
    return _table(("algorithm", "ids with a preset"), rows)


def _figures(name: str) -> str:
    """Return a table of figures.toml, with the figures of its sources."""
    listed = tomllib.loads(read("benchmarks/figures.toml"))
    return Sources(ROOT / "benchmarks", listed["names"]).format(listed["tables"][name]).rstrip()


def _readme() -> str:
    """Return the README as a page of the site."""
    page = fill(read("README.md")).replace("# actor-learner\n", "", 1)
    return re.sub(r"(\]\(|src=\")docs/", r"\1", page)


def _extras() -> str:
    """Return what users may install beside the package."""
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    rows = [
        (f"`[{name}]`", ", ".join(f"`{re.split('[><=;]', each)[0].strip()}`" for each in needed))
        for name, needed in extras.items()
        if name not in ("docs", "test", "dev")
    ]
    return _table(("extra", "installs"), rows)


def _citation() -> str:
    """Return CITATION.cff as BibTeX."""
    cited = dict(re.findall(r"^([\w-]+): (.+)$", read("CITATION.cff"), re.MULTILINE))
    authors = " and ".join(f"{{{name}}}" for name in re.findall(r"name: (.+?) *[},]", cited["authors"]))
    fields = {
        "title": cited["title"].strip('"'),
        "author": authors,
        "version": cited["version"],
        "url": cited["repository-code"],
    }
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"```bibtex\n@software{{actor_learner,\n{lines}}}\n```"


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["-"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[..., str]] = {
    "algorithms": _algorithms,
    "citation": _citation,
    "extras": _extras,
    "figures": _figures,
    "hyperparameters": _hyperparameters,
    "metrics": _metrics,
    "presets": _presets,
    "readme": _readme,
    "results": _results,
    "settings": _settings,
    "support": _support,
}
"""What a page may ask for, by the name in its mark."""

if __name__ == "__main__":
    for page in IN_CLONES:
        (ROOT / page).write_text(fill(read(page), keep_marks=True), encoding="utf-8")
