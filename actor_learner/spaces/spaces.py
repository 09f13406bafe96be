"""The observation space and the action space as one object, with the properties that follow from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from actor_learner.spaces import structure
from actor_learner.spaces.kinds import from_json, to_json
from actor_learner.spaces.masks import MaskLayout


@dataclass(frozen=True, eq=False)
class Spaces:
    """The spaces of one environment.

    The first use of a property raises ValueError, naming the leaf, for a space that isn't supported.
    """

    observation_space: Any  # Gymnasium's or of `kinds`; None where only actions matter, as in a Learner
    action_space: Any
    masked: bool = False  # True where each observation comes with a mask of the actions that it allows
    share: int = 1  # the number of agents of a game that the policy plays, where several policies do

    @functools.cached_property
    def observation(self) -> structure.Structure:
        """The leaves of observations, with their shapes and dtypes in a trajectory."""
        if self.observation_space is None:
            raise ValueError("`observation_space` must be given. Received: observation_space=None")
        return structure.observation_structure(self.observation_space)

    @functools.cached_property
    def action(self) -> structure.Structure:
        """The leaves of actions, with their shapes and dtypes in a trajectory."""
        return structure.action_structure(self.action_space)

    @functools.cached_property
    def masks(self) -> MaskLayout:
        """The columns of a mask of the actions, even if the environment gives no masks."""
        return MaskLayout(self.action)

    @property
    def mask_size(self) -> int:
        """Number of columns of the masks; 0 without masks."""
        return self.masks.size if self.masked else 0

    @functools.cached_property
    def has_mask_leaf(self) -> bool:
        """True where the mask is an entry of the observation."""
        return self.observation_space is not None and structure.has_mask_leaf(self.observation_space)

    @functools.cached_property
    def gymnasium(self) -> Spaces:
        """The same spaces as Gymnasium's own classes; imports Gymnasium."""
        observation = structure.to_gymnasium(self.observation_space)
        return Spaces(observation, structure.to_gymnasium(self.action_space), self.masked, self.share)

    def to_json(self) -> dict[str, Any]:
        """Return the spaces as a JSON object, for `from_json`, without the share."""
        observation, action = to_json(self.observation_space), to_json(self.action_space)
        return {"observation_space": observation, "action_space": action, "masked": self.masked}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Spaces:
        """Return the spaces of `to_json`. Raises ValueError, TypeError or KeyError for anything else."""
        observation, action = from_json(description["observation_space"]), from_json(description["action_space"])
        return cls(observation, action, bool(description["masked"]))


def spaces_to_json(spaces: Mapping[str, Spaces]) -> dict[str, Any]:
    """Return the spaces of each policy as a JSON object, for `spaces_from_json`."""
    return {name: [own.share, own.to_json()] for name, own in spaces.items()}


def spaces_from_json(description: Mapping[str, Any]) -> dict[str, Spaces]:
    """Return the spaces of `spaces_to_json`, by the policies' names."""
    return {name: replace(Spaces.from_json(own), share=share) for name, (share, own) in description.items()}
