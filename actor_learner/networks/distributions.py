"""Action distributions: one part for each leaf of an action space, and their product. Pure functions in keras.ops.

The same code runs in the learner's loss and, converted to LiteRT, in the actors, so that both agree on
log-probabilities. Randomness is an input (`noise`).

Each part has the methods of `Distribution`, on its own columns of parameters, noise (of one kind) and mask, and on
arrays `[N, ...]` of actions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from actor_learner.networks.distribution_parts import (
    Bernoulli,
    Categorical,
    ColumnCounts,
    EpsilonGreedy,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
)
from actor_learner.spaces.kinds import Box, Discrete, MultiBinary, MultiDiscrete, middle
from actor_learner.spaces.structure import Leaf, Structure
from actor_learner.system.fields import check_choice
from actor_learner.system.types import Tensor

Part = Categorical | MultiCategorical | Bernoulli | Gaussian | SquashedGaussian

GREEDY = "greedy"

NAMES = ("gaussian", "squashed", GREEDY)
"""Distributions of Box leaves; "greedy" is one of a Discrete space."""


@dataclass(frozen=True)
class Distribution:
    """Independent distributions over the leaves of an action space, in leaf order.

    `parameters [N, P]` are the leaves' own parameters, one after the other; so are the columns of
    `mask [N, M]` (booleans, or 0 and 1; None: everything is allowed). A forbidden choice has probability 0.
    """

    parts: tuple[Part, ...]

    @property
    def noise(self) -> tuple[int, int]:
        """(U, N): the numbers of uniforms in (0, 1] and of standard normals that a sample needs, in this order."""
        return sum(columns.uniform for columns in self._columns), sum(columns.normal for columns in self._columns)

    @property
    def parameter_size(self) -> int:
        """The number of columns of `parameters`."""
        return sum(columns.parameters for columns in self._columns)

    @property
    def _columns(self) -> list[ColumnCounts]:
        return [part.columns for part in self.parts]

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Sample with `noise [N, U + N']`, uniforms in (0, 1] before standard normals; an array for each leaf."""
        draws = zip(self._parts_with_inputs(parameters, mask), self._split_noise(noise), strict=True)
        return tuple(part.sample(own, drawn, allowed) for (part, own, allowed), drawn in draws)

    def draw(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample squashed actions with normals `[N, d]`. Returns them within -1 and 1, `[N, d]`, and their log-density
        `[N]` there; all parts must be squashed Gaussians.
        """
        draws = zip(self._parts_with_inputs(parameters, None), self._split_noise(noise), strict=True)
        found = [part.draw(own, drawn) for (part, own, _), drawn in draws]
        actions = [action for action, _ in found]
        return actions[0] if len(actions) == 1 else ops.concatenate(actions, axis=-1), _sum([d for _, d in found])

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the most likely action; for a squashed Gaussian the mean before squashing."""
        return tuple(part.mode(own, allowed) for part, own, allowed in self._parts_with_inputs(parameters, mask))

    def log_prob(self, parameters: Tensor, action: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Return the log-probability `[N]` of an action, given as its leaves."""
        terms = zip(self._parts_with_inputs(parameters, mask), action, strict=True)
        return _sum([part.log_prob(own, leaf, allowed) for (part, own, allowed), leaf in terms])

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy `[N]`, in nats."""
        return _sum([part.entropy(own, allowed) for part, own, allowed in self._parts_with_inputs(parameters, mask)])

    def kl_divergence(self, parameters: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the divergence `[N]` from the distributions of `parameters` to those of `other [N, P]`, in nats."""
        own = self._parts_with_inputs(parameters, mask)
        others = self._parts_with_inputs(other, None)
        pairs = zip(own, others, strict=True)
        return _sum([part.kl_divergence(first, second, allowed) for (part, first, allowed), (_, second, _) in pairs])

    def _parts_with_inputs(self, parameters: Tensor, mask: Tensor | None) -> Any:
        """Yield each part with its parameters and its mask, None for a part without choices."""
        own = _split_columns(parameters, [columns.parameters for columns in self._columns])
        masks: list[Any] = [None] * len(own)
        if mask is not None:
            sizes = [columns.mask for columns in self._columns]
            masks = [
                allowed if size else None for allowed, size in zip(_split_columns(mask, sizes), sizes, strict=True)
            ]
        return zip(self.parts, own, masks, strict=True)

    def _split_noise(self, noise: Tensor) -> list[Tensor]:
        """Return the noise of each leaf, which is of one kind: all uniforms come first."""
        uniform = [columns.uniform for columns in self._columns]
        cut = _split_columns(noise, [*uniform, *(columns.normal for columns in self._columns)])
        return [cut[i if size else len(uniform) + i] for i, size in enumerate(uniform)]


def _split_columns(columns: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Cuts `[N, sum(sizes)]` into `[N, size]` each; one part takes it whole, which saves an operation in the graph."""
    ends = np.cumsum(sizes).tolist()
    places = zip(ends, sizes, strict=True)
    return [columns if size == ends[-1] else columns[:, end - size : end] for end, size in places]


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, terms)


def distribution_for(action: Structure, name: str = "gaussian") -> Distribution:
    """Return the distribution over actions.

    name: That of its Box leaves, "gaussian" or "squashed"; or "greedy" for values of a Discrete space's choices.

    Raises ValueError for an unknown name, for "squashed" without a Box or with infinite bounds, and for "greedy" with
    another space than Discrete.
    """
    check_choice("distribution", name, NAMES)
    if name == "squashed" and not any(isinstance(leaf.space, Box) for leaf in action.leaves):
        reason = "`distribution='squashed'` needs an action space with a Box"
        raise ValueError(f"{reason}. Received: distribution='squashed' for {action.space}")
    if name == GREEDY:
        if not isinstance(action.space, Discrete):
            reason = "`distribution='greedy'` needs a Discrete action space"
            raise ValueError(f"{reason}. Received: distribution='greedy' for {action.space}")
        return Distribution((EpsilonGreedy(int(action.space.n)),))
    return Distribution(tuple(_leaf_distribution(leaf, name) for leaf in action.leaves))


def _leaf_distribution(leaf: Leaf, name: str) -> Part:
    space = leaf.space
    if isinstance(space, Discrete):
        return Categorical(int(space.n))
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(tuple(int(n) for n in space.nvec.reshape(-1)), leaf.shape)
    if isinstance(space, MultiBinary):
        return Bernoulli(leaf.shape)
    assert isinstance(space, Box)
    return SquashedGaussian(leaf.shape, _half_widths(leaf)) if name == "squashed" else Gaussian(leaf.shape)


def _half_widths(leaf: Leaf) -> tuple[float, ...]:
    """Return half the distance between the bounds, for each element."""
    low, high = (np.asarray(bound, np.float64) for bound in (leaf.space.low, leaf.space.high))
    wrong = ~np.isfinite(low) | ~np.isfinite(high) | (low >= high)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            "`distribution='squashed'` needs finite bounds, low below high; use 'gaussian', or rescale the action in a "
            f"wrapper. Received: {leaf.label}{list(index) or ''} in [{low[index]}, {high[index]}]"
        )
    return tuple(middle(leaf.space, np.float64)[1].reshape(-1).tolist())
