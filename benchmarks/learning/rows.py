"""The rows of the table of learning results, and what others publish of their environments."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from actor_learner.runs.recorded_config import algorithm_title

PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text("utf-8"))


class Published(NamedTuple):
    """A published return, of as many seeds as its source has. spread: Over these (0: not published)."""

    source: str
    kind: str
    seeds: int
    algorithm: str
    env: str
    value: float
    steps: int
    spread: float = 0.0

    def __str__(self) -> str:
        spread = f" +- {self.spread:,g}" if self.spread else ""
        return f"{self.source} {algorithm_title(self.algorithm)} ({self.kind}) {self.value:,.7g}{spread}"


FIGURES = [
    Published(source["name"], source["kind"], source["seeds"], *figure)
    for source in PUBLISHED["sources"]
    for figure in source["figures"]
]


@dataclass(frozen=True)
class Row:
    """A row of the table: each seed is `actor-learner train env --algorithm algorithm --seed N options`."""

    env: str
    algorithm: str
    seeds: int  # 0, 1, ...; presets were tuned on seeds from 100 on
    steps: int  # of a seed
    minutes: float  # of a seed on one core of the machine of the committed results
    options: tuple[str, ...] = ()
    variant: str = ""  # distinguishes rows of the same environment and algorithm
    episodes: int = 20
    note: str = ""
    library: str = "ours"  # or "sb3", "sbx": benchmarks/learning/sb3_zoo.py

    @property
    def name(self) -> str:
        """The name for `--only`."""
        return "/".join(filter(None, (self.env, self.algorithm, self.variant)))

    @property
    def slug(self) -> str:
        """The name of the row's files."""
        return re.sub("[/: ]", "-", self.name.lower())

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of `actor-learner`, without the seed."""
        return ("train", self.env, "--algorithm", self.algorithm, *self.options)

    @property
    def published(self) -> list[Published]:
        """What others publish of the environment in any version, which is part of the kind where it is another one."""
        found = []
        for each in FIGURES:
            if _unversioned(each.env) == _unversioned(self.env):
                version = "" if each.env == self.env else f"v{each.env.rpartition('-v')[2]}, "
                found.append(each._replace(kind=version + each.kind))
        return found

    @property
    def same(self) -> Published | None:
        """The strongest return that others publish of the same algorithm at as many steps; None if there is none."""
        return self._strongest(self.algorithm)

    @property
    def any(self) -> Published | None:
        """The strongest return that others publish of any algorithm at as many steps; None if there is none."""
        return self._strongest()

    def _strongest(self, *algorithms: str) -> Published | None:
        equal = (each for each in self.published if each.steps == self.steps)
        counted = (each for each in equal if not algorithms or each.algorithm in algorithms)
        return max(counted, key=lambda each: (each.value, each.algorithm == self.algorithm), default=None)


def _unversioned(env: str) -> str:
    return re.sub(r"-v\d+$", "", env)


def _read_rows() -> tuple[Row, ...]:
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["rows"]
    return tuple(Row(options=tuple(each.pop("options", ())), **each) for each in listed)


ROWS = _read_rows()
