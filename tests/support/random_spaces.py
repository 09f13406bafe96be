"""Hypothesis strategies for spaces: leaves of every supported kind, nested in dicts and tuples."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import strategies as st

KEYS = st.text("abc 'é0_", min_size=1, max_size=4)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def boxes(dtypes):
    bounds = {"f": (-1.0, 2.0), "u": (0, 200), "i": (-5, 7)}
    return st.builds(lambda shape, dtype: Box(*bounds[np.dtype(dtype).kind], shape, dtype), SHAPES, dtypes)


def multi_discretes():
    counts = st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 3)), min_size=1, max_size=3)
    return counts.map(lambda pairs: MultiDiscrete([n for n, _ in pairs], start=[start for _, start in pairs]))


CHOICES = st.builds(Discrete, st.integers(1, 6), start=st.integers(-2, 3)) | multi_discretes()
BITS = st.builds(MultiBinary, st.integers(1, 4) | st.lists(st.integers(1, 3), min_size=1, max_size=2))


def nested(leaves):
    """Leaves by themselves, and up to three levels of dicts and tuples with them; no tuple of nothing."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(lambda parts: Dict(list(parts.items())))
            | st.lists(inner, min_size=1, max_size=3).map(Tuple)
        ),
        max_leaves=6,
    )


OBSERVATION_LEAVES = boxes(st.sampled_from([np.float32, np.float64, np.uint8, np.int64])) | CHOICES | BITS
ACTION_LEAVES = boxes(st.sampled_from([np.float32, np.float64])) | CHOICES | BITS
OBSERVATION_SPACES = nested(OBSERVATION_LEAVES)
ACTION_SPACES = nested(ACTION_LEAVES)
