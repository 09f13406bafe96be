"""The spaces of several policies that play the same games."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actor_learner.spaces.spaces import Spaces

_POLICIES = "policies"


@dataclass(frozen=True, eq=False)
class TeamSpaces:
    """The spaces of each policy. shares: the number of agents of a game that it plays."""

    parts: Mapping[str, Spaces]
    shares: Mapping[str, int]

    @functools.cached_property
    def gymnasium(self) -> TeamSpaces:
        """The same spaces as Gymnasium's own classes; imports Gymnasium."""
        return TeamSpaces({name: spaces.gymnasium for name, spaces in self.parts.items()}, self.shares)

    def to_json(self) -> dict[str, Any]:
        """Return the spaces as a JSON object, for `spaces_from_json`."""
        return {_POLICIES: {name: [self.shares[name], spaces.to_json()] for name, spaces in self.parts.items()}}


def spaces_from_json(description: Mapping[str, Any]) -> Spaces | TeamSpaces:
    """Return the spaces that `to_json` of either class wrote."""
    if _POLICIES not in description:
        return Spaces.from_json(description)
    policies = description[_POLICIES].items()
    parts = {name: Spaces.from_json(spaces) for name, (_, spaces) in policies}
    return TeamSpaces(parts, {name: int(share) for name, (share, _) in policies})
