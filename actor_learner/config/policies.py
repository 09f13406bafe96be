"""Settings of several policies that play the same games."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.config.references import marked_name, resolve_recorded
from actor_learner.system import fields as checks
from actor_learner.system.fields import refusal

PolicyRule = Mapping[str, str] | Callable[[Any], str]

_NAME = "a word of letters, digits, _ and -"


@dataclass(frozen=True, init=False)
class PolicyConfig:
    """What one of several policies differs in from its run: its algorithm, network and hyperparameters.

    Attributes:
        agents: patterns of the names of the agents that it plays, such as "adversary_*"; or `policy_of` says it.
        learning: False: it acts, and never learns, such as a policy of another run (`init_from`).
        fields: fields of `TrainConfig` that describe the algorithm and the network, flat with the algorithm's own as
            for `al.preset`: `algorithm`, `learning_rate`, `hidden_sizes`, `network`, `init_from`, ...

    Example:
        >>> import actor_learner as al
        >>> al.PolicyConfig(agents="adversary_*", hidden_sizes=(128, 128), ent_coef=0.01).learning
        True
    """

    agents: tuple[str, ...] = ()
    learning: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, *, agents: str | Sequence[str] = (), learning: bool = True, **fields: Any) -> None:
        patterns = (agents,) if isinstance(agents, str) else tuple(agents)
        if not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise refusal("agents", "patterns of agents' names", agents)
        object.__setattr__(self, "agents", patterns)
        object.__setattr__(self, "learning", checks.check_flag("learning", learning))
        object.__setattr__(self, "fields", fields)


def seed_of(seed: int, place: int) -> int:
    """Return the seed of the policy at a place, from 0 on, among those of a run; the first has the run's own."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0]) if place else seed


def check_policies(name: str, value: Any) -> dict[str, PolicyConfig] | None:
    """Return the policies that a value means: a dict by name, names, or a TOML file with a table for each."""
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        return None
    if isinstance(value, str | os.PathLike):
        value = _read_tables(name, value)
    if not isinstance(value, Mapping):
        if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
            raise refusal(name, "a dict {name: PolicyConfig(...)}, names, or a TOML file with a table for each", value)
        value = dict.fromkeys(value)
    found = {key: _policy(name, key, each) for key, each in value.items()}
    if len(found) < 2:
        raise refusal(name, "two policies or more; one policy for all agents needs no setting", list(found))
    return found


def check_policy_of(name: str, value: Any) -> PolicyRule | None:
    """Return which policy plays which agent: {pattern: policy}, or a callable, also by its "module:function"."""
    if isinstance(value, Mapping) and set(value) == {"import"}:
        value = value["import"]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise refusal(name, f"a JSON object ({error})", value) from error
    if isinstance(value, str):
        value = resolve_recorded(value, name)
    if value is None:
        return None
    if marked_name(value) is not None:
        raise refusal(name, "given again, because the run's config.json holds only its name", marked_name(value))
    if callable(value):
        rule: PolicyRule = value
        return rule
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) and part for pair in value.items() for part in pair
    ):
        raise refusal(name, "a dict {pattern of agents' names: policy}, or a callable agent -> policy", value)
    return dict(value)


def rule_of(policies: Mapping[str, PolicyConfig], policy_of: PolicyRule | None) -> PolicyRule:
    """Return which policy plays which agent, by `policy_of` or by the policies' own patterns.

    Raises ValueError where both say it, or neither.
    """
    patterns = {pattern: name for name, policy in policies.items() for pattern in policy.agents}
    if patterns and policy_of is not None:
        raise ValueError(f"`policy_of` and `agents` of a policy exclude each other. Received: agents={list(patterns)}")
    if policy_of is None and not patterns:
        raise ValueError(
            "`policies` need `policy_of`, {pattern of agents' names: policy}, or `agents` in each policy. "
            f"Received: policies={list(policies)}, policy_of=None"
        )
    if isinstance(policy_of, Mapping) and (unknown := set(policy_of.values()) - set(policies)):
        raise ValueError(f"`policy_of` must name one of `policies`, {list(policies)}. Received: {min(unknown)!r}")
    return policy_of or dict(sorted(patterns.items(), key=lambda pair: pair[0] == "*"))  # which matches the others


def _policy(argument: str, name: Any, value: Any) -> PolicyConfig:
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise refusal(argument, f"a dict with names as keys, each {_NAME}", name)
    if value is None:
        return PolicyConfig()
    if isinstance(value, PolicyConfig):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refusal(f"{argument}[{name!r}]", "a PolicyConfig(...), or a dict of its settings", value)
    fields: dict[str, Any] = {key: None if each == "none" else each for key, each in value.items()}
    return PolicyConfig(**fields)


def _read_tables(name: str, path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the tables of a TOML file."""
    import tomllib

    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        expected = "a TOML file with a table for each policy"
        raise ValueError(f"`{name}` must be {expected} ({error.strerror}). Received: {name}={str(path)!r}") from error
    except ValueError as error:
        raise refusal(name, f"a TOML file with a table for each policy ({error})", str(path)) from error
    if loose := [key for key, value in tables.items() if not isinstance(value, Mapping)]:
        raise refusal(name, f"a TOML file of tables, one for each policy; {loose[0]!r} is in none", str(path))
    return tables
