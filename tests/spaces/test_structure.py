"""Spaces as leaves: what is supported, shapes and dtypes, JSON, and what messages say."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Space, Text, Tuple
from hypothesis import given, settings, strategies as st

from actor_learner.spaces import kinds
from actor_learner.spaces.kinds import from_json, to_json
from actor_learner.spaces.structure import (
    action_structure,
    choice_counts,
    choices,
    has_mask_leaf,
    leaf_parameter_size,
    observation_structure,
    parameter_size,
    to_gymnasium,
    without,
    without_mask,
)
from tests.support.random_spaces import ACTION_SPACES, CHOICES, OBSERVATION_SPACES

ROBOT = Dict(camera=Tuple([Box(0, 255, (4, 4, 3), np.uint8), Box(-1, 1, (2,), np.float64)]), goal=Discrete(5, start=2))
GAME = Dict(board=Box(0, 1, (3, 3)), action_mask=MultiBinary(9))
FEW = settings(max_examples=30)


def leaves_of(space):
    """An independent walk over a space, in the order in which Gymnasium iterates over it."""
    if isinstance(space, Dict):
        return [leaf for child in space.spaces.values() for leaf in leaves_of(child)]
    return [leaf for child in space.spaces for leaf in leaves_of(child)] if isinstance(space, Tuple) else [space]


def same(one, other):
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


class TestLeaves:
    def test_a_plain_space_is_its_own_leaf(self):
        structure = observation_structure(Box(-1, 1, (3,)))
        (leaf,) = structure.leaves
        assert structure.plain
        assert (leaf.path, leaf.name, leaf.label) == ((), "observation", "observation")
        assert structure.flatten("anything") == ("anything",)
        assert structure.unflatten(["anything"]) == "anything"

    def test_names_labels_and_order_of_a_nest(self):
        structure = observation_structure(ROBOT)
        assert not structure.plain
        assert [(leaf.name, leaf.label) for leaf in structure.leaves] == [
            ("observation/camera/0", "observation['camera'][0]"),
            ("observation/camera/1", "observation['camera'][1]"),
            ("observation/goal", "observation['goal']"),
        ]
        assert action_structure(Tuple([Discrete(2)])).leaves[0].name == "action/0"

    @pytest.mark.parametrize(
        ("space", "shape", "dtype", "start"),
        [
            (Box(-1, 1, (3,), np.float64), (3,), np.float32, None),
            (Box(-np.inf, np.inf, (2, 3)), (2, 3), np.float32, None),
            (Box(0, 9, (3,), np.int64), (3,), np.int64, None),
            (Box(0, 2**32, (3,), np.int64), (3,), np.float32, None),  # which JAX would wrap
            (Box(-(2**31) - 1, 9, (3,), np.int64), (3,), np.float32, None),
            (Box(0, 2**32 - 1, (3,), np.uint64), (3,), np.uint64, None),
            (Box(0, 2**40, (3,), np.uint64), (3,), np.float32, None),
            (Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84), np.uint8, None),
            (Box(0, 1, (10, 10, 4), np.bool_), (10, 10, 4), np.uint8, None),
            (Discrete(7), (), np.int32, None),
            (Discrete(7, start=3), (), np.int32, 3),
            (MultiDiscrete([[2, 3]]), (1, 2), np.int32, None),
            (MultiDiscrete([2, 3], start=[0, -4]), (2,), np.int32, [0, -4]),
            (MultiBinary([2, 3]), (2, 3), np.int8, None),
        ],
    )
    def test_shapes_dtypes_and_starts(self, space, shape, dtype, start):
        (leaf,) = observation_structure(space).leaves
        assert (leaf.shape, leaf.dtype) == (shape, dtype)
        assert leaf.start is None if start is None else leaf.start.tolist() == start
        if not isinstance(space, Box) or space.dtype.kind == "f":
            (leaf,) = action_structure(space).leaves
            assert (leaf.shape, leaf.dtype) == (shape, dtype)

    @FEW
    @given(space=OBSERVATION_SPACES, seed=st.integers(0, 99))
    def test_flatten_and_unflatten_are_inverse(self, space, seed):
        space.seed(seed)
        value = space.sample()
        structure = observation_structure(space)
        flat = structure.flatten(value)
        assert [leaf.space for leaf in structure.leaves] == leaves_of(space)
        assert len(flat) == len(structure.leaves)
        assert all(leaf.space.contains(part) for leaf, part in zip(structure.leaves, flat, strict=True))
        assert same(structure.unflatten(flat), value)
        assert all(one is other for one, other in zip(structure.flatten(structure.unflatten(flat)), flat, strict=True))

    @FEW
    @given(space=OBSERVATION_SPACES)
    def test_paths_lead_to_the_leaves_and_names_are_unique(self, space):
        structure = observation_structure(space)
        for leaf in structure.leaves:
            reached = space
            for key in leaf.path:
                reached = reached[key]
            assert reached is leaf.space
            assert eval(leaf.label, {"observation": space}) is leaf.space
        assert len({leaf.name for leaf in structure.leaves}) == len(structure.leaves)


class TestParameters:
    @pytest.mark.parametrize(
        ("space", "size"),
        [
            (Discrete(7, start=2), 7),
            (MultiDiscrete([2, 3]), 5),
            (MultiDiscrete([[2, 3], [4, 5]]), 14),
            (MultiBinary([2, 3]), 6),
            (Box(-1, 1, (2, 3)), 12),
            (Box(-1, 1, ()), 2),
            (Dict(force=Box(-1, 1, (2,)), move=Tuple([Discrete(3), MultiBinary(4)])), 11),
        ],
    )
    def test_parameter_size(self, space, size):
        assert parameter_size(space) == size
        if isinstance(space, Box | MultiBinary):
            assert choices(space) == 0

    @FEW
    @given(space=ACTION_SPACES)
    def test_a_nest_has_its_leaves_parameters(self, space):
        assert parameter_size(space) == sum(map(leaf_parameter_size, leaves_of(space)))

    @FEW
    @given(space=CHOICES)
    def test_choices_are_the_logits(self, space):
        assert choices(space) == leaf_parameter_size(space) > 0


class TestMaskLeaf:
    def test_only_a_key_at_the_top_is_the_mask(self):
        assert has_mask_leaf(GAME)
        assert not has_mask_leaf(Dict(inner=GAME))
        assert not has_mask_leaf(MultiBinary(9))

    def test_without_it(self):
        assert without_mask(GAME) == Dict(board=GAME["board"])
        assert without_mask(ROBOT) is ROBOT


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        (("board",), Dict(action_mask=GAME["action_mask"], inner=ROBOT)),
        (("inner/goal",), Dict({**GAME, "inner": Dict(camera=ROBOT["camera"])})),
        (("inner/goal", "inner/camera"), GAME),
    ],
)
def test_entries_are_left_out_by_path(keys, left):
    whole = Dict({**GAME, "inner": ROBOT})
    assert without(whole, keys) == left
    value = observation_structure(whole).zeros(2)
    found = observation_structure(left).flatten(value, further=True)
    assert [array.shape[1:] for array in found] == [leaf.shape for leaf in observation_structure(left).leaves]


@pytest.mark.parametrize(
    ("space", "keys"),
    [
        (ROBOT, ("gaol",)),
        (ROBOT, ("camera/0",)),
        (ROBOT, ("camera", "goal")),
        (GAME, ("board",)),
        (MultiBinary(9), ("a",)),
    ],
)
def test_entries_that_cannot_be_left_out_are_one_line(space, keys):
    with pytest.raises(
        ValueError, match=r"^`value_keys` must be some of the entries of a Dict observation .*, but not all"
    ):
        without(space, keys)


KEYS = "must be a dict with the keys ['camera', 'goal']. Received: "


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (
            ROBOT,
            {"camera": (0, 0), "gaol": 1, "zoom": 2},
            "`observation` must have the keys ['camera', 'goal']. "
            "Received: a dict without ['goal'] and with the further ['gaol', 'zoom']",
        ),
        (ROBOT, {"goal": 1}, "Received: a dict without ['camera']"),
        (Dict(inner=ROBOT), {"inner": {"goal": 1}}, "`observation['inner']` must have"),
        (
            ROBOT,
            {"camera": (1, 2, 3), "goal": 0},
            "`observation['camera']` must be a tuple of 2 entries. Received: 3 entries",
        ),
        (ROBOT, np.zeros((2, 3)), f"{KEYS}an array of shape (2, 3)"),
        (ROBOT, 3, f"{KEYS}a int"),
        (ROBOT, (1, 2), f"{KEYS}a tuple"),
        (Tuple([Discrete(2)]), np.zeros(1), "Received: a ndarray"),
    ],
)
def test_what_is_nested_in_another_way_is_named(space, value, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        observation_structure(space).flatten(value)
    assert "\n" not in str(caught.value)


HALF = Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0]))


class TestUnsupported:
    @pytest.mark.parametrize(
        ("space", "advice"),
        [
            (Text(5), "MultiDiscrete in a Gymnasium wrapper"),
            (Sequence(Box(0, 1)), "pad it to a Box"),
            (Graph(Box(0, 1), None), "Boxes of a fixed size"),
            (OneOf([Discrete(2), Box(0, 1)]), "encode it as a Discrete beside a Dict"),
            (Space(), "convert it"),
        ],
    )
    def test_kinds_come_with_advice(self, space, advice):
        for check, root in ((observation_structure, "observation"), (action_structure, "action")):
            with pytest.raises(ValueError, match=rf"`{root}` must be .*Dict or Tuple of these; .*{advice}.*Received: "):
                check(space)
            with pytest.raises(ValueError, match=rf"`{root}\['b'\]\[1\]` must be"):
                check(Dict(a=Box(0, 1), b=Tuple([Discrete(2), space])))

    @pytest.mark.parametrize(
        ("check", "space", "message"),
        [
            (observation_structure, Box(0, 1, (3, 0)), r"must hold at least one number. Received: shape=\(3, 0\)"),
            (observation_structure, Dict(), "`observation` must have at least one leaf"),
            (observation_structure, Tuple([]), "`observation` must have at least one leaf"),
            (observation_structure, Dict({"a/b": Discrete(2)}), "must be names without a slash. Received: 'a/b'"),
            (observation_structure, Tuple([Dict({"": Discrete(2)})]), r"Keys of `observation\[0\]` must be names"),
            (
                observation_structure,
                Dict({"a.b": Box(0, 1), "a": Dict({"b": Box(0, 1)})}),
                r"must have different names, keys joined by dots. Received: \['a.b', 'a.b'\]",
            ),
            (action_structure, Box(0, 1, (0,)), r"`action` must hold at least one number. Received: shape=\(0,\)"),
            (action_structure, Box(0, 3, (2,), np.int32), "float dtype.*int32"),
            (action_structure, HALF, r"both infinite.*action\[0\] in \[0.0, inf\]"),
            (action_structure, Dict(a=HALF), r"`action\['a'\]` must have both.*action\['a'\]\[0\] in"),
        ],
    )
    def test_sizes_keys_and_bounds(self, check, space, message):
        with pytest.raises(ValueError, match=message):
            check(space)


class TestJson:
    @FEW
    @given(space=OBSERVATION_SPACES | ACTION_SPACES)
    def test_round_trip(self, space):
        again = to_gymnasium(from_json(json.loads(json.dumps(to_json(space)))))
        assert again == space
        assert [leaf.dtype for leaf in leaves_of(again)] == [leaf.dtype for leaf in leaves_of(space)]

    @pytest.mark.parametrize(
        "space",
        [Box(np.float32([-1, -np.inf]), np.float32([2, np.inf])), Dict([("z", Discrete(2)), ("a", Discrete(3))])],
    )
    def test_bounds_and_the_order_of_keys(self, space):
        again = to_gymnasium(from_json(json.loads(json.dumps(to_json(space)))))
        assert again == space
        order = [[leaf.path for leaf in observation_structure(own).leaves] for own in (again, space)]
        assert order[0] == order[1]

    def test_constant_bounds_are_written_once(self):
        assert to_json(Box(0, 255, (84, 84, 4), np.uint8))["high"] == 255
        assert to_json(Box(-np.inf, np.inf, (3,)))["low"] == "-inf"

    def test_unsupported(self):
        with pytest.raises(ValueError, match="Received: Text"):
            to_json(Dict(a=Text(4)))


class TestDescribedSpaces:
    """What JSON describes does for a policy what Gymnasium's own spaces do."""

    @FEW
    @given(space=ACTION_SPACES, seed=st.integers(0, 99))
    def test_the_same_leaves_as_gymnasium_s(self, space, seed):
        described = from_json(to_json(space))
        assert to_json(described) == to_json(space)
        ours, theirs = action_structure(described), action_structure(space)
        space.seed(seed)
        value = space.sample()
        assert same(ours.unflatten(ours.flatten(value)), value)
        assert parameter_size(described) == parameter_size(space)
        for one, other in zip(ours.leaves, theirs.leaves, strict=True):
            assert (one.path, one.shape, one.dtype, one.label) == (other.path, other.shape, other.dtype, other.label)
            assert np.array_equal(one.start, other.start)
            assert choice_counts(one.space) == choice_counts(other.space)
            assert np.dtype(one.space.dtype) == other.space.dtype

    def test_gymnasium_s_spaces_are_of_these_kinds_and_no_others_are(self):
        class Own(Box):
            pass

        assert isinstance(Own(0, 1), kinds.Box)
        assert isinstance(Dict(), kinds.Dict)
        assert not isinstance(Dict(), (kinds.Box, kinds.Tuple, kinds.Discrete))
        assert not isinstance(type("Box", (), {})(), kinds.Box)

    @pytest.mark.parametrize(
        "description",
        [
            {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
            {"type": "Discrete", "n": 2.5, "start": 0, "dtype": "int64"},
            {"type": "Discrete", "n": True, "start": 0, "dtype": "int64"},
            {"type": "Discrete", "n": 2, "start": "0", "dtype": "int64"},
            {"type": "Discrete", "n": 2, "start": 0, "dtype": "O"},
            {"type": "MultiDiscrete", "nvec": [2, 0], "start": [0, 0], "dtype": "int64"},
            {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0], "dtype": "int64"},
            {"type": "MultiDiscrete", "nvec": ["2"], "start": [0], "dtype": "int64"},
            {"type": "MultiBinary", "n": [2, -1]},
            {"type": "MultiBinary", "n": "2"},
            {"type": "Box", "shape": [2], "dtype": "O", "low": 0, "high": 1},
            {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
            {"type": "Box", "shape": [-1], "dtype": "float32", "low": 0, "high": 1},
            {"type": "Dict", "spaces": [[1, {"type": "MultiBinary", "n": 2}]]},
            {"type": "Text"},
        ],
    )
    def test_what_describes_no_space_is_refused(self, description):
        with pytest.raises((ValueError, TypeError)):
            from_json({"type": "Tuple", "spaces": [description]})
