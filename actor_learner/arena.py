"""A round robin among players of a game: trained policies, the random player, and players of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actor_learner.environments.environments import ENDLESS_STEPS, GAME_LIMIT, Environments
from actor_learner.environments.errors import closing
from actor_learner.environments.factory import EnvFactory, resolve_env
from actor_learner.environments.opponents import Opponent, Opponents
from actor_learner.environments.self_play import OUTCOME, SelfPlayVectorEnv
from actor_learner.evaluate import RANDOM_PLAYER, Sitting, run_environment
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.league import rate
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import check_count, refusal
from actor_learner.system.types import Array

MAX_GAMES = 32  # that are played at a time
_RESAMPLES = 200


@dataclass(frozen=True)
class Standings:
    """The results of a round robin.

    Attributes:
        names: The players.
        games: `[N, N]` int64, the games of each pair.
        scores: `[N, N]` float64, the mean outcome of the row's player against the column's: a win is 1, a draw 0.5. NaN
            where they didn't meet.
        ratings: `[N]` float64, on Elo's scale by the model of Bradley and Terry; the random player's is 0, or that of
            the first player. Ratings hide circles: see `scores`.
        intervals: `[N, 2]` float64, the ends of 95% intervals of the ratings, by bootstrap over games.
    """

    names: tuple[str, ...]
    games: Array
    scores: Array
    ratings: Array
    intervals: Array

    def __repr__(self) -> str:
        ranked = ", ".join(f"{self.names[i]} {self.ratings[i]:+.0f}" for i in np.argsort(-self.ratings))
        return f"Standings({ranked})"

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON types."""
        scores = [[None if np.isnan(score) else float(score) for score in row] for row in self.scores]
        return {
            "names": list(self.names),
            "games": self.games.tolist(),
            "scores": scores,
            "ratings": self.ratings.tolist(),
            "intervals": self.intervals.tolist(),
            "interval": {"level": 0.95, "method": "bootstrap"},
        }


def arena(
    players: Sequence[Any] | Mapping[str, Any],
    env: str | Callable[..., Any] | EnvFactory | None = None,
    games: int = 100,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Standings:
    """Let each pair of players play, with every seat as often.

    Args:
        players: Runs (directories, or "hf://owner/name"), policies, "random", and callables (observation, mask,
            generator) -> action, or their "module:function". A dict names them. Policies sample their actions.
        env: A game in PettingZoo's AEC or Parallel interface, as for `train`; by default that of the first run.
        games: Games of each pair. They are shared by the seats, so that their number is rounded up.
        seed: Seeds games and players.
        env_kwargs: Keyword arguments of the game; by default the run's, if the game is the run's.

    Raises:
        ValueError: There are fewer than two players, two have one name, there is no game, or a policy is of another.
    """
    named = _named(players)
    check_count("games", games)
    check_count("seed", seed, 0)
    config = _first_config(named)
    factory = resolve_env(**run_environment(config, env=env, env_kwargs=env_kwargs), check_pickle=False)
    sittings = {name: Sitting.of(player) for name, player in named.items()}
    outcomes: dict[tuple[int, int], Array] = {}
    for number, (a, b) in enumerate(itertools.combinations(range(len(named)), 2)):
        first, second = list(sittings.values())[a], list(sittings.values())[b]
        outcomes[a, b] = _match(first, second, factory, config, games, seed + number * MAX_GAMES)
    return _standings(tuple(named), outcomes, seed)


def _named(players: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(players, str | os.PathLike) or not isinstance(players, Sequence | Mapping) or len(players) < 2:
        raise refusal("players", "at least two players", players)
    if isinstance(players, Mapping):
        return dict(players)
    names = [os.fspath(player) if isinstance(player, str | os.PathLike) else _name(player) for player in players]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"`players` must have different names; a dict gives them. Received: {repeated[0]!r} twice")
    return dict(zip(names, players, strict=True))


def _name(player: Any) -> str:
    return str(getattr(player, "__name__", type(player).__name__))


def _first_config(players: Mapping[str, Any]) -> RecordedConfig:
    """Return the config of the first run among the players."""
    for player in players.values():
        if isinstance(player, str | os.PathLike) and player != RANDOM_PLAYER:
            with contextlib.suppress(ValueError):
                return read_config(open_run(player).path)
    return RecordedConfig()


def _match(
    first: Sitting, second: Sitting, factory: EnvFactory, config: Mapping[str, Any], games: int, seed: int
) -> Array:
    """Return the first player's outcomes of so many games, in each seat as often as in the others."""
    seats = second.seats(config, None)
    factory = dataclasses.replace(factory, seats=seats)
    with closing(factory.make(min(games, MAX_GAMES), seed), f"env `{factory.name}`") as vector_env:
        environments = Environments(vector_env, info_keys=(), name=factory.name)
        assert isinstance(vector_env, SelfPlayVectorEnv)
        second.sit_down(environments)
        first.check(environments)
        spaces = vector_env.single_observation_space, vector_env.single_action_space
        chooser = Opponents(*spaces, first.players)
        if (policy := first.policy) is not None:
            chooser.attach(lambda _: policy)
        chooser.set_table([Opponent(first.number)])
        number = chooser.draw(np.random.default_rng(seed))
        vector_env.reset(seed=seed)
        quotas = vector_env.quotas(games)
        outcomes: list[float] = []
        steps = 0  # since a game has ended
        while any(quotas.values()):
            seats_before = vector_env.seats_taken
            *_, infos = vector_env.step_each(chooser.act(number, vector_env.requests()))
            final = infos.get("final_info", {})
            steps = 0 if OUTCOME in final else steps + 1
            if steps == ENDLESS_STEPS:
                text = f"no game of `{factory.name}` has ended in {steps:,} steps, and the arena waits for one"
                warnings.warn(f"{text}: {GAME_LIMIT}", UserWarning, stacklevel=3)
            for row in np.flatnonzero(final.get(f"_{OUTCOME}", ())).tolist():
                place = row, seats_before[row]
                if quotas[place]:
                    quotas[place] -= 1
                    outcomes.append(float(final[OUTCOME][row]))
    return np.array(outcomes)


def _standings(names: tuple[str, ...], outcomes: Mapping[tuple[int, int], Array], seed: int) -> Standings:
    count = len(names)
    games, scores = np.zeros((count, count), np.int64), np.full((count, count), np.nan)
    for (a, b), found in outcomes.items():
        games[a, b] = games[b, a] = len(found)
        scores[a, b], scores[b, a] = found.mean(), 1 - found.mean()
    zero = names.index(RANDOM_PLAYER) if RANDOM_PLAYER in names else 0
    generator = np.random.default_rng(seed)
    resampled = [
        _ratings({pair: generator.choice(found, len(found)) for pair, found in outcomes.items()}, zero)
        for _ in range(_RESAMPLES)
    ]
    intervals = np.quantile(resampled, [0.025, 0.975], axis=0).T
    return Standings(names, games, scores, _ratings(outcomes, zero), intervals)


def _ratings(outcomes: Mapping[tuple[int, int], Array], zero: int) -> Array:
    found = rate({pair: (len(each), float(each.sum())) for pair, each in outcomes.items()}, zero)
    return np.array([found[player] for player in sorted(found)])
