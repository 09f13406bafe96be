"""The rows of the table of learning results, each beside what others publish."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """A published return. spread: Of seeds (0: a single run). steps: Env steps at which it was reached."""

    source: str
    value: float
    steps: int
    spread: float = 0.0

    def __str__(self) -> str:
        spread = f" +- {self.spread:g}" if self.spread else ""
        return f"{self.source} {self.value:g}{spread}"


@dataclass(frozen=True)
class Row:
    """A row of the table: each seed is `actor-learner train env --algorithm algorithm --seed N options`."""

    env: str
    algorithm: str
    seeds: int  # 0, 1, ...; presets were tuned on seeds from 100 on
    steps: int  # of a seed
    minutes: float  # of a seed on one core of the machine of the committed results
    published: tuple[Published, ...] = ()
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
    def goal(self) -> Published | None:
        """The strongest return that others publish at as many steps; None if there is none."""
        known = [published for published in self.published if published.steps == self.steps]
        return max(known, key=lambda published: published.value, default=None)


def _read_rows() -> tuple[Row, ...]:
    rows = []
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["rows"]:
        published = tuple(Published(*one) for one in each.pop("published", ()))
        rows.append(Row(published=published, options=tuple(each.pop("options", ())), **each))
    return tuple(rows)


ROWS = _read_rows()
