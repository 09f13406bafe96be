"""Mask layouts: every form in which a mask may come, as one bool array, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings, strategies as st

from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces
from tests.support.random_spaces import ACTION_SPACES

COMPOSITE = Dict(
    build=Tuple([Discrete(2), Box(-1, 1, (2,))]),
    move=Discrete(3, start=1),
    switch=MultiBinary(2),
    tile=MultiDiscrete([2, 3]),
)
FEW = settings(max_examples=30)


def counts_of(space):
    """Numbers of options of each choice, in leaf order, from an independent walk."""
    if isinstance(space, Dict):
        return [count for child in space.spaces.values() for count in counts_of(child)]
    if isinstance(space, Tuple):
        return [count for child in space.spaces for count in counts_of(child)]
    if isinstance(space, Discrete):
        return [int(space.n)]
    return space.nvec.reshape(-1).tolist() if isinstance(space, MultiDiscrete) else []


def nest_of(space, flat):
    """A flat mask `[rows, M]` as a nest that mirrors the space, as Gymnasium's `sample(mask=...)` has it."""
    columns = iter(np.split(flat, np.cumsum(counts_of(space))[:-1], axis=1) if counts_of(space) else [])

    def build(part):
        if isinstance(part, Dict):
            return {key: build(child) for key, child in part.spaces.items()}
        if isinstance(part, Tuple):
            return tuple(build(child) for child in part.spaces)
        own = tuple(next(columns) for _ in counts_of(part))
        return (own[0] if isinstance(part, Discrete) else own) if own else None

    return build(space)


class TestRead:
    @FEW
    @given(
        space=ACTION_SPACES.filter(counts_of),
        rows=st.integers(1, 3),
        seed=st.integers(0, 99),
        dtype=st.sampled_from([bool, np.int8, np.float32, np.int64]),
    )
    def test_flat_and_nested_say_the_same(self, space, rows, seed, dtype):
        layout = Spaces(None, space).masks
        expected = np.random.default_rng(seed).random((rows, layout.size)) < 0.5
        given = expected.astype(dtype)
        for value in (given, nest_of(space, given)):
            mask = layout.read(value, rows)
            assert mask.dtype == bool
            np.testing.assert_array_equal(mask, expected)

    def test_what_is_left_out_of_a_nest_is_allowed(self):
        mask = Spaces(None, COMPOSITE).masks.read({"move": [[0, 1, 0]], "build": None}, 1)
        assert mask.tolist() == [[True] * 2 + [False, True, False] + [True] * 5]
        part = Spaces(None, COMPOSITE).masks.read({"build": (np.zeros((1, 2)), None)}, 1)
        assert part.tolist() == [[False] * 2 + [True] * 8]

    @pytest.mark.parametrize("nvec", [[4, 4, 4], [[3, 3], [3, 3]]])
    def test_a_row_for_each_of_equal_choices(self, nvec):
        layout = Spaces(None, MultiDiscrete(nvec)).masks
        flat = np.random.default_rng(0).random((5, layout.size)) < 0.5
        np.testing.assert_array_equal(layout.read(flat.reshape(5, *np.shape(nvec), np.max(nvec)), 5), flat)

    @pytest.mark.parametrize(
        ("space", "value", "message"),
        [
            (Discrete(18), np.ones((1, 3, 6)), r"must have 18 entries.*; flatten it, in the order of the actions. Rec"),
            (MultiDiscrete([2, 3, 1]), np.ones((1, 3, 2)), r"must have 6 entries.*; flatten it.*shape=\(1, 3, 2\)"),
            (Discrete(3), np.ones((1, 4)), r"must have 3 entries.*shape=\(1, 4\), expected \(1, 3\)"),
            (Discrete(3), np.ones(3), r"shape=\(3,\), expected \(1, 3\)"),
            (Discrete(3), np.ones((2, 3)), r"shape=\(2, 3\), expected \(1, 3\)"),
            (Discrete(3), [[0, 2, 1]], "must hold booleans, or 0 and 1. Received: dtype=int64, 2"),
            (Discrete(3), [[0, -1, 1]], "Received: dtype=int64, -1"),
            (Discrete(2), [[0.5, 1]], "Received: dtype=float64, 0.5"),
            (Discrete(2), [[np.nan, 1]], "Received: dtype=float64, nan"),
            (Discrete(2), [["a", "b"]], "Received: dtype=<U1"),
            (MultiDiscrete([2, 3]), (np.ones((1, 2)), np.ones((1, 2))), r"`mask\[1\]` must have 3 entries"),
            (COMPOSITE, {"move": [[1, 1]]}, r"`mask\['move'\]` must have 3 entries"),
            (COMPOSITE, {"tile": (np.ones((1, 3)), None)}, r"`mask\['tile'\]\[0\]` must have 2 entries"),
            (COMPOSITE, np.ones((1, 9)), "must have 10 entries"),
        ],
    )
    def test_refused(self, space, value, message):
        with pytest.raises(ValueError, match=message) as caught:
            Spaces(None, space).masks.read(value, 1, "mask")
        assert "`mask" in str(caught.value)
        assert "\n" not in str(caught.value)


class TestFirstEmpty:
    @FEW
    @given(space=ACTION_SPACES.filter(counts_of), rows=st.integers(1, 4), seed=st.integers(0, 99))
    def test_it_is_the_first_choice_without_an_option(self, space, rows, seed):
        layout = Spaces(None, space).masks
        mask = np.random.default_rng(seed).random((rows, layout.size)) < 0.6
        starts = np.cumsum([0, *counts_of(space)])
        empty = [
            (row, choice)
            for row in range(rows)
            for choice, count in enumerate(counts_of(space))
            if not mask[row, starts[choice] : starts[choice] + count].any()
        ]
        assert layout.first_empty(mask) == (empty[0] if empty else None)

    @FEW
    @given(space=ACTION_SPACES)
    def test_choices_tell_each_entrys_columns(self, space):
        """An action that is forbidden by its own columns alone."""
        layout, structure = Spaces(None, space).masks, spaces.action_structure(space)
        assert [choice.size for choice in layout.choices] == counts_of(space)
        ends = np.cumsum(counts_of(space)).tolist()
        assert [choice.first_column + choice.size for choice in layout.choices] == ends
        for choice in layout.choices:
            leaf = structure.leaves[choice.leaf]
            assert spaces.choice_counts(leaf.space)[choice.entry] == choice.size
        discrete = [(choice.leaf, choice.entry) for choice in layout.choices]
        assert discrete == sorted(set(discrete))

    def test_without_choices_nothing_is_empty(self):
        assert Spaces(None, Box(0, 1)).masks.first_empty(np.ones((2, 0), bool)) is None
