"""The exported policies of a pool in which several play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.leaves import check_array
from actor_learner.system.types import Array


@dataclass(frozen=True)
class ExportedTeam:
    """Exported policies by name, whose weights are one vector: those of the first, then those of the second ..."""

    parts: Mapping[str, ExportedPolicy]

    @property
    def weights(self) -> Array:
        return np.concatenate([part.weights for part in self.parts.values()])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of each policy's weights."""
        return tuple(part.weights.size for part in self.parts.values())

    def split(self, weights: Array) -> list[Array]:
        """Return views on each policy's part of a vector."""
        return np.split(weights, np.cumsum(self.sizes)[:-1])

    def as_vector(self, weights: Mapping[str, Any] | Array) -> Array:
        """Return the weights of all policies as one vector, which they may be already.

        Raises ValueError if a policy's are missing, or if their number or a shape differs from its network's.
        """
        if isinstance(weights, np.ndarray):
            return check_array("weights", weights, (sum(self.sizes),), dtype=np.float32)
        if not isinstance(weights, Mapping) or weights.keys() != self.parts.keys():
            received = list(weights) if isinstance(weights, Mapping) else type(weights).__name__
            raise ValueError(
                f"`weights` must be a dict with the weights of each policy, {list(self.parts)}. Received: {received}"
            )
        return np.concatenate([part.as_vector(weights[name]) for name, part in self.parts.items()])
