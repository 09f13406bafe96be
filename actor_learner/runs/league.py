"""The league of a run by self-play: its frozen versions, which of them are drawn how often, results and ratings.

A version is numbered when it is frozen: 0 is the run's first policy. The policy between versions n and n + 1 counts as
player n. Pure NumPy, in float64.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.config.self_play import SelfPlay
from actor_learner.environments.opponents import RANDOM
from actor_learner.system.types import Array

POINTS = 400 / math.log(10)
"""Points of Elo's scale for a factor of e in the odds."""
WINDOW = 200  # episodes of which the mean outcome is reported
VERSION_FILE = "opponent-{}.npy"
_DECAY = 0.995  # of a version's earlier results, by each new one
_RATED = 200  # players that are rated at a time, beside those in the pool
_APART = 2**40  # added to numbers of versions that aren't the players that they were
_MIN_GAMES = 50  # since the last version, before `above` may freeze another


def _add(record: list[float], outcome: float) -> None:
    record[0] += 1.0
    record[1] += outcome


@dataclass
class League:
    """The pool of versions, and what happened between them.

    pairs: (player, opponent) -> games and the player's score in them, of the last players and of those in the pool.
    """

    settings: SelfPlay
    versions: dict[int, Array] = field(default_factory=dict)  # number -> weights, float32 vectors
    count: int = 0  # versions that were ever frozen
    frozen_at: int = 0  # the update after which the newest was
    pairs: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    ratings: dict[int, float] = field(default_factory=dict)
    _recent: dict[int, list[float]] = field(default_factory=dict)  # opponent -> games and score, decayed
    _outcomes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _games: int = 0  # since the newest version

    @property
    def newest(self) -> int:
        """The number of the newest version, which is that of the present player."""
        return self.count - 1

    def record(self, results: Array) -> None:
        """Take the results of a batch, `[K, 2]`: the opponent's number, and the present player's outcome, 0 to 1."""
        for opponent, outcome in zip(results[:, 0].astype(int).tolist(), results[:, 1].tolist(), strict=True):
            pair = self.pairs.setdefault((self.newest, opponent), [0.0, 0.0])
            _add(pair, outcome)
            if opponent in self.versions or opponent < 0:
                recent = self._recent.setdefault(opponent, [0.0, 0.0])
                recent[:] = [_DECAY * value for value in recent]
                _add(recent, outcome)
            self._outcomes.append(outcome)
            self._games += 1

    def is_due(self, update: int) -> bool:
        """Return whether a version is to be frozen after so many updates."""
        if not self.count:
            return True
        if self.settings.above is None:
            return update - self.frozen_at >= self.settings.every
        return self._games >= _MIN_GAMES and self.score() > self.settings.above

    def freeze(self, weights: Array, update: int) -> int:
        """Add a version to the pool, which may drop another one; return its number."""
        self._rate()
        number, self.count, self.frozen_at, self._games = self.count, self.count + 1, update, 0
        self.versions[number] = weights
        self._shrink()
        return number

    def _shrink(self) -> None:
        """Drop versions beyond the size of the pool, and what is of no use without them."""
        while len(self.versions) > self.settings.size:
            dropped = self._superfluous()
            del self.versions[dropped]
            self._recent.pop(dropped, None)

        def stays(player: int) -> bool:
            return player < 0 or player in self.versions or player > self.newest - _RATED

        self.pairs = {pair: record for pair, record in self.pairs.items() if all(map(stays, pair))}
        self.ratings = {player: rating for player, rating in self.ratings.items() if stays(player)}

    def _superfluous(self) -> int:
        """Return the version to drop: the oldest, or the one whose neighbours are closest, relative to their age.

        With "spread", the first and the newest stay.
        """
        numbers = sorted(self.versions)
        if self.settings.keep == "newest" or len(numbers) < 3:
            return numbers[0]
        gaps = [
            (after - before) / (numbers[-1] - before + 1) for before, after in zip(numbers, numbers[2:], strict=False)
        ]
        return numbers[1 + int(np.argmin(gaps))]

    def score(self, opponent: int | None = None) -> float:
        """Return the present score against an opponent, or its mean over the pool: with one win and one loss added."""
        if opponent is None:
            return float(np.mean([self.score(number) for number in self.versions]))
        games, score = self._recent.get(opponent, (0.0, 0.0))
        return (score + 1.0) / (games + 2.0)

    def weights(self) -> dict[int, float]:
        """Return the shares of the draws, by number."""
        settings, numbers = self.settings, sorted(self.versions)
        anchors = dict.fromkeys(range(RANDOM, RANDOM - 1 - len(settings.players), -1), settings.random)
        shares = np.array(self._shares(numbers))
        shares *= (1 - sum(anchors.values())) / shares.sum()
        found = {number: share for number, share in anchors.items() if share}
        return {**found, **dict(zip(numbers, shares.tolist(), strict=True))}

    def _shares(self, numbers: Sequence[int]) -> list[float]:
        if self.settings.rule == "pfsp":
            return [(1 - self.score(number)) ** 2 + 0.01 for number in numbers]
        if self.settings.rule == "uniform" or len(numbers) == 1:
            return [1.0] * len(numbers)
        latest = self.settings.latest
        return [(1 - latest) / (len(numbers) - 1)] * (len(numbers) - 1) + [latest]

    def _rate(self) -> None:
        apart = _APART if self.settings.epsilon else 0  # a version with random actions is another player
        pairs = {(a, b + apart if b >= 0 else b): record for (a, b), record in self.pairs.items()}
        found = rate(pairs, start=self.ratings)
        self.ratings = {player: rating for player, rating in found.items() if player < _APART}

    def metrics(self) -> dict[str, float]:
        """Return the league's metrics. The rating is that of the newest version that has ended."""
        found = {"league/versions": float(self.count)}
        if self._outcomes:
            found["league/score"] = float(np.mean(self._outcomes))
        if RANDOM in self._recent:
            found["league/score_random"] = self.score(RANDOM)
        if (rated := max(self.ratings, default=RANDOM)) > RANDOM:
            found["league/rating"] = self.ratings[rated]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all but the weights as JSON types."""
        return {
            "count": self.count,
            "frozen_at": self.frozen_at,
            "versions": sorted(self.versions),
            "pairs": [[*pair, *record] for pair, record in self.pairs.items()],
            "ratings": list(self.ratings.items()),
            "recent": [[opponent, *record] for opponent, record in self._recent.items()],
            "outcomes": list(self._outcomes),
            "games": self._games,
        }

    @classmethod
    def from_json(cls, settings: SelfPlay, data: Mapping[str, Any], folder: Path) -> League:
        """Return the league of a checkpoint. Raises ValueError for a file that isn't of one."""
        league = cls(
            settings,
            versions={int(number): read_version(folder, int(number)) for number in data["versions"]},
            count=int(data["count"]),
            frozen_at=int(data["frozen_at"]),
            pairs={(int(a), int(b)): [float(games), float(score)] for a, b, games, score in data["pairs"]},
            ratings={int(number): float(rating) for number, rating in data["ratings"]},
            _recent={int(number): [float(games), float(score)] for number, games, score in data["recent"]},
            _games=int(data["games"]),
        )
        league._outcomes.extend(map(float, data["outcomes"]))
        league._shrink()  # the pool may be smaller now
        return league

    def write_versions(self, folder: Path, earlier: Path | None = None) -> None:
        """Write the pool's weights into a checkpoint's folder, as links to an earlier one's files where it has them."""
        for number, weights in self.versions.items():
            name = VERSION_FILE.format(number)
            if earlier is not None:
                with contextlib.suppress(OSError):  # it has no such file, or none can be linked here
                    os.link(earlier / name, folder / name)
                    continue
            np.save(folder / name, weights, allow_pickle=False)


def read_version(folder: Path, number: int) -> Array:
    """Read a version's weights from a checkpoint."""
    weights: Array = np.load(folder / VERSION_FILE.format(number), allow_pickle=False)
    return weights


def rate(
    pairs: Mapping[tuple[int, int], Iterable[float]], zero: int = RANDOM, start: Mapping[int, float] | None = None
) -> dict[int, float]:
    """Return ratings of players on Elo's scale by the model of Bradley and Terry (1952), from all their games at once.

    P(a beats b) = 1 / (1 + 10^((rating_b - rating_a) / 400)). Each pair that met has half a drawn game more, so that
    ratings stay finite. Minorization-maximization (Hunter 2004, eq. 3) finds them.

    pairs: (a, b) -> games and a's score in them, a win being 1. zero: the player with rating 0; where it has no game,
    the lowest number has. start: ratings to start from.
    """
    met: dict[tuple[int, int], list[float]] = {}
    for (a, b), (games, score) in pairs.items():
        if a == b or not games:
            continue
        low, high = min(a, b), max(a, b)
        record = met.setdefault((low, high), [0.5, 0.25])
        record[0] += games
        record[1] += score if a == low else games - score
    players = sorted({player for pair in met for player in pair})
    if not players:
        return {}
    place = {player: index for index, player in enumerate(players)}
    first, second = (np.array([place[pair[side]] for pair in met]) for side in (0, 1))
    games, score = np.array(list(met.values())).T
    won = np.bincount(first, score, len(players)) + np.bincount(second, games - score, len(players))
    strength = np.exp([(start or {}).get(player, 0.0) / POINTS for player in players])
    for _ in range(1000):
        share = games / (strength[first] + strength[second])
        new = won / (np.bincount(first, share, len(players)) + np.bincount(second, share, len(players)))
        new /= np.exp(np.log(new).mean())
        converged = np.abs(np.log(new / strength)).max() < 1e-6
        strength = new
        if converged:
            break
    points = POINTS * np.log(strength)
    points -= points[place.get(zero, 0)]
    return dict(zip(players, points.tolist(), strict=True))
