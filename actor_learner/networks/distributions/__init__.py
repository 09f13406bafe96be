"""Action distributions, one for each kind of leaf of an action space. Pure functions of `parameters`, in keras.ops.

The same code runs in the learner's loss and, converted to LiteRT, in the actors, so that both agree
on log-probabilities. Randomness is an input (`noise`), never drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actor_learner.networks.distributions.continuous import Gaussian, SquashedGaussian
from actor_learner.networks.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from actor_learner.spaces.kinds import Box, Discrete, MultiBinary, MultiDiscrete
from actor_learner.spaces.structure import Leaf, Structure

__all__ = [
    "NAMES",
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Gaussian",
    "MultiCategorical",
    "SquashedGaussian",
    "distribution_for",
]

Tensor = Any
Part = Categorical | MultiCategorical | Bernoulli | Gaussian | SquashedGaussian

NAMES = ("gaussian", "squashed")
"""What a Box action may be drawn from."""


@dataclass(frozen=True)
class Distribution:
    """Independent distributions over the leaves of an action space, in leaf order.

    `parameters [N, P]` are the leaves' own parameters, one after the other; so are the columns of
    `mask [N, M]` (booleans, or 0 and 1; None: everything is allowed). A forbidden choice has probability 0.
    """

    parts: tuple[Part, ...]

    @property
    def noise(self) -> tuple[int, int]:
        """(U, N): how many uniforms in (0, 1] and how many standard normals a sample needs, in this order."""
        uniform, normal = zip(*(part.noise for part in self.parts), strict=True)
        return sum(uniform), sum(normal)

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """`noise [N, U + N']`, uniforms in (0, 1] first, then standard normals -> one array for each leaf."""
        return tuple(
            part.sample(own, drawn, allowed)
            for part, own, drawn, allowed in zip(
                self.parts, self._parameters(parameters), self._noise(noise), self._masks(mask), strict=True
            )
        )

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """The most likely action; of a squashed Gaussian the mean before squashing."""
        return tuple(part.mode(own, allowed) for part, own, allowed in self._zipped(parameters, mask))

    def log_prob(self, parameters: Tensor, action: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Log-probability `[N]` of an action, given as its leaves."""
        terms = zip(self._zipped(parameters, mask), action, strict=True)
        return _total([part.log_prob(own, leaf, allowed) for (part, own, allowed), leaf in terms])

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy `[N]`, in nats."""
        return _total([part.entropy(own, allowed) for part, own, allowed in self._zipped(parameters, mask)])

    def _zipped(self, parameters: Tensor, mask: Tensor | None) -> Any:
        return zip(self.parts, self._parameters(parameters), self._masks(mask), strict=True)

    def _parameters(self, parameters: Tensor) -> list[Tensor]:
        return _cut(parameters, [part.columns for part in self.parts])

    def _masks(self, mask: Tensor | None) -> list[Tensor | None]:
        """The columns of each leaf; None where a leaf has none."""
        sizes = [part.choices for part in self.parts]
        cut = [None] * len(sizes) if mask is None else _cut(mask, sizes)
        return [allowed if size else None for allowed, size in zip(cut, sizes, strict=True)]

    def _noise(self, noise: Tensor) -> list[Tensor]:
        """Each leaf needs one kind alone: the uniforms of those that need them come first."""
        kinds = [part.noise for part in self.parts]
        uniform = [u for u, _ in kinds]
        cut = _cut(noise, [*uniform, *(n for _, n in kinds)])
        return [cut[i] if u else cut[len(kinds) + i] for i, u in enumerate(uniform)]


def _cut(columns: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """`[N, sum(sizes)]` -> one `[N, size]` each; what is whole already isn't cut (an operation less in the graph)."""
    ends = np.cumsum(sizes).tolist()
    return [
        columns if size == ends[-1] else columns[:, end - size : end] for end, size in zip(ends, sizes, strict=True)
    ]


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def distribution_for(action: Structure, name: str = "gaussian") -> Distribution:
    """The distribution over actions; `name` is that of its Box leaves: "gaussian" or "squashed".

    Raises ValueError for a name that isn't known, and for "squashed" without a Box or with infinite bounds.
    """
    if name not in NAMES:
        raise ValueError(f"`distribution` must be one of {list(NAMES)}. Received: distribution={name!r}")
    if name == "squashed" and not any(isinstance(leaf.space, Box) for leaf in action.leaves):
        raise ValueError(
            "`distribution='squashed'` needs an action space with a Box. "
            f"Received: distribution='squashed' for {action.space}"
        )
    return Distribution(tuple(_part(leaf, name) for leaf in action.leaves))


def _part(leaf: Leaf, name: str) -> Part:
    space = leaf.space
    if isinstance(space, Discrete):
        return Categorical(int(space.n))
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(tuple(int(n) for n in space.nvec.reshape(-1)), leaf.shape)
    if isinstance(space, MultiBinary):
        return Bernoulli(leaf.shape)
    assert isinstance(space, Box)
    return SquashedGaussian(leaf.shape, _scale(leaf)) if name == "squashed" else Gaussian(leaf.shape)


def _scale(leaf: Leaf) -> tuple[float, ...]:
    """Half of what lies between the bounds, for each element."""
    low, high = (np.asarray(bound, np.float64) for bound in (leaf.space.low, leaf.space.high))
    wrong = ~np.isfinite(low) | ~np.isfinite(high) | (low >= high)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            "`distribution='squashed'` needs finite bounds, low below high; use 'gaussian', or rescale the action in a "
            f"wrapper. Received: {leaf.label}{list(index) or ''} in [{low[index]}, {high[index]}]"
        )
    return tuple(((high - low) / 2).reshape(-1).tolist())
