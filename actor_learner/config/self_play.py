"""Settings of self-play."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from actor_learner.config.references import as_mark, importable_name, resolve_recorded
from actor_learner.system import fields as checks
from actor_learner.system.fields import refusal

RESULT_KEYS = ("opponent", "outcome")
"""Entries of an episode's last info: the opponent's number, and the learner's outcome from 0 to 1."""

RULES = ("pfsp", "uniform", "latest")
KEEPS = ("spread", "newest")
MAX_SIZE = 200  # entries of a table, which fits into a message


def _number(name: str, value: Any) -> float:
    """Return a number from 0 to 1, also one written as text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = value
    found: float = checks.check_number(name, number, least=0, most=1)
    return found


def _is_none(value: Any) -> bool:
    """Return True for None, which files and shells write as text."""
    return value is None or (isinstance(value, str) and value.lower() == "none")


def _count(name: str, value: Any, most: int | None = None, least: int = 1) -> int:
    found = int(value) if isinstance(value, str) and value.isdecimal() else value
    return int(checks.check_count(name, found, least, most=most))


@dataclass(frozen=True, kw_only=True)
class SelfPlay:
    """How a policy plays against frozen versions of itself.

    Each episode draws its opponent anew, from a pool of versions and, as an anchor, the random player.

    Attributes:
        size: number of frozen versions in the pool.
        every: updates between two frozen versions.
        above: freeze a version when the score against the pool exceeds this, from 0 to 1, in place of `every`.
        rule: "pfsp" draws a version with a probability proportional to (1 - score)^2 + 0.01 (prioritized fictitious
            self-play, Vinyals et al. 2019); "uniform" each with the same; "latest" the newest with probability
            `latest`, and the others uniformly.
        latest: probability of the newest version by the rule "latest".
        keep: "spread" keeps versions over the whole run, the first one always; "newest" only the newest.
        random: probability of the random player, which is the zero of the ratings, and keeps play from collapsing.
        epsilon: probability of a random action in place of a frozen version's, so that the policy meets positions that
            its versions avoid. Versions are then rated apart from the policies that they were.
        opening: largest number of decisions at the start of an episode that all agents make at random, which aren't
            learned from; each episode draws one from 0 on. So the policy meets all positions, and strong play in them.
        players: further players, each drawn as often as the random one: {"name": callable or "module:function"}, a
            callable (observation, mask, generator) -> action.
        outcome: callable {agent: return} -> {agent: number from 0 to 1}; None: the share of the other agents that have
            a lower return, equal ones counting half.

    Raises ValueError for a value that can't be used.
    """

    size: int = 8
    every: int = 20
    above: float | None = None
    rule: Literal["pfsp", "uniform", "latest"] = "pfsp"
    latest: float = 0.5
    keep: Literal["spread", "newest"] = "spread"
    random: float = 0.1
    epsilon: float = 0.0
    opening: int = 0
    players: Mapping[str, Any] = field(default_factory=dict)
    outcome: Any = None

    def __post_init__(self) -> None:
        checked = {
            "size": _count("size", self.size, MAX_SIZE),
            "every": _count("every", self.every),
            "above": None if _is_none(self.above) else _number("above", self.above),
            "rule": checks.check_choice("rule", self.rule, RULES),
            "latest": _number("latest", self.latest),
            "keep": checks.check_choice("keep", self.keep, KEEPS),
            "random": _number("random", self.random),
            "epsilon": _number("epsilon", self.epsilon),
            "opening": _count("opening", self.opening, least=0),
            "players": _players(self.players),
            "outcome": None if _is_none(self.outcome) else _callable("outcome", self.outcome),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.random * (1 + len(self.players)) >= 1:
            received = f"random={self.random}, {len(self.players)} players"
            text = "`random`, the share of the random player and of each of `players`, must leave one for the pool"
            raise ValueError(f"{text}. Received: {received}")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON types."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        values["players"] = {name: importable_name(player) or as_mark(player) for name, player in self.players.items()}
        values["outcome"] = None if self.outcome is None else importable_name(self.outcome) or as_mark(self.outcome)
        return values


def check_self_play(name: str, value: Any) -> SelfPlay | None:
    """Return the settings that a value means: True, a dict, or a shell's "size=8,rule=uniform"."""
    if value is None or value is False or isinstance(value, SelfPlay):
        return value or None
    if isinstance(value, str) and value.lower() == "none":
        return None
    given: Any = {} if value is True else _parsed(name, value) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise refusal(name, "SelfPlay(...), a dict of its settings, or True", value)
    known = [each.name for each in dataclasses.fields(SelfPlay)]
    if unknown := [key for key in given if key not in known]:
        text = f"`{name}` has no such setting{checks.close_match(unknown[0], known)}; it has {', '.join(known)}"
        raise ValueError(f"{text}. Received: {name}={unknown[0]}")
    return SelfPlay(**given)


def _parsed(name: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, separator, value = part.partition("=")
        if not separator:
            raise refusal(
                name,
                "SETTING=VALUE,... such as size=8,every=20, after ENV; in Python True, a dict or SelfPlay(...)",
                text,
            )
        outer, _, inner = key.partition(".")
        if outer == "players" and inner:
            found.setdefault("players", {})[inner] = value
        else:
            found[key] = value
    return found


def _players(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise refusal("players", "a dict with names as keys", value)
    return {key: _callable(f"players[{key!r}]", player) for key, player in value.items()}


def _callable(name: str, value: Any) -> Callable[..., Any]:
    if isinstance(value, Mapping) and set(value) == {"import"}:
        value = value["import"]
    found = resolve_recorded(value, name) if isinstance(value, str) else value
    if not callable(found):
        raise refusal(name, "a callable, or module:function", value)
    return found  # type: ignore[no-any-return]
