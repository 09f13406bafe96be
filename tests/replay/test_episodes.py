"""Episodes that were played elsewhere: what is drawn is what was played, as the policy's own actions would be."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

import actor_learner as al
from actor_learner.policy.policy import leaf_to_env

SEEN = Dict({"place": Box(-np.inf, np.inf, (2,)), "door": Discrete(3, start=1), "lamps": MultiBinary(2)})
FORCE = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))


def played(steps, action_space, seed=0):
    """Observations, actions and rewards; the first number of an observation is its step."""
    for space in (SEEN, action_space):
        space.seed(seed)
    observations = [SEEN.sample() for _ in range(steps + 1)]
    for step, observation in enumerate(observations):
        observation["place"][0] = step
    return observations, [action_space.sample() for _ in range(steps)], [float(step) for step in range(steps)]


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("unroll_length", [4, 16])
def test_all_steps_are_drawn_as_they_were_played(unroll_length, terminated):
    observations, actions, rewards = played(10, Discrete(4, start=-1))
    space = Discrete(4, start=-1)
    buffer = al.ReplayBuffer(SEEN, space, 160, unroll_length=unroll_length, n_step=2, gamma=0.5)
    assert len(buffer.add_episode(observations, actions, rewards, terminated=terminated)) == -(-10 // unroll_length)
    assert len(buffer) == 10
    batch = buffer.sample(500)
    steps = batch.observation["place"][:, 0].astype(int)
    assert set(steps) == set(range(10))
    for row, step in enumerate(steps):
        assert batch.observation["door"][row] + 1 == observations[step]["door"]
        assert (batch.observation["lamps"][row] == observations[step]["lamps"]).all()
        assert batch.action[row] - 1 == actions[step]
        taken = min(2, 10 - step, unroll_length - step % unroll_length)
        assert batch.reward[row] == pytest.approx(sum(0.5**i * rewards[step + i] for i in range(taken)))
        ends = terminated and step + taken == 10
        assert batch.discount[row] == (0 if ends else 0.5**taken)
        if not ends:
            assert batch.next_observation["place"][row, 0] == step + taken


@pytest.mark.parametrize("squashed", [True, False])
def test_actions_are_those_that_the_policy_would_have_drawn(squashed):
    space = Dict({"force": FORCE, "turn": Box(-1, 1, ())})
    observations, actions, rewards = played(6, space)
    actions[0]["force"] = FORCE.high.copy()  # tanh never gets there
    buffer = al.ReplayBuffer(SEEN, space, 64, unroll_length=8)
    buffer.add_episode(observations, actions, rewards, terminated=False, squashed=squashed)
    batch = buffer.sample(200)
    for leaf in buffer.spaces.action.leaves:
        (key,) = leaf.path
        to_env = leaf_to_env(leaf, "squashed" if squashed else "gaussian")
        for row, step in enumerate(batch.observation["place"][:, 0].astype(int)):
            np.testing.assert_allclose(to_env(batch.action[key][row]), actions[step][key], rtol=1e-5, atol=1e-4)
    assert all(np.isfinite(values).all() for values in batch.action.values())


def test_a_buffer_keeps_its_form_and_exact_actions_whatever_later_policies_squash():
    space = Box(-1, 1, (1,), np.float32)
    buffer = al.ReplayBuffer(Box(-1, 1, (1,)), space, 64, unroll_length=4)
    for squashed in (False, True):
        buffer.add_episode([[0.0]] * 5, [[1.0]] * 4, [0.0] * 4, terminated=True, squashed=squashed)
        assert buffer.squashed is False
        np.testing.assert_array_equal(buffer.sample(32).action, 1.0)


def test_arrays_of_all_steps_are_as_good_as_lists_of_steps():
    space = Dict({"force": FORCE, "turns": Tuple([Box(-1, 1, (2,)), Discrete(4)])})
    observations, actions, rewards = played(6, space)
    first, second = (al.ReplayBuffer(SEEN, space, 64, unroll_length=8) for _ in range(2))
    first.add_episode(observations, actions, rewards, terminated=True, squashed=True)
    seen = {key: np.stack([step[key] for step in observations]) for key in SEEN.spaces}
    turns = tuple(np.stack([step["turns"][part] for step in actions]) for part in range(2))
    taken = {"force": np.stack([step["force"] for step in actions]), "turns": turns}
    second.add_episode(seen, taken, np.array(rewards), terminated=True, squashed=True)
    drawn, again = first.sample(20), second.sample(20)
    for name in ("observation", "action"):
        structure = getattr(first.spaces, name)
        pairs = zip(*(structure.flatten(getattr(batch, name)) for batch in (drawn, again)), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


def test_masks_are_those_of_each_step():
    rng = np.random.default_rng(0)
    observations, actions, rewards = played(6, Discrete(3))
    masks = np.eye(3, dtype=bool)[np.array(actions)] | (rng.random((6, 3)) < 0.5)
    buffer = al.ReplayBuffer(SEEN, Discrete(3), 64, unroll_length=8, action_masks=True)
    buffer.add_episode(observations, actions, rewards, terminated=True, action_masks=list(masks))
    batch = buffer.sample(100)
    steps = batch.observation["place"][:, 0].astype(int)
    np.testing.assert_array_equal(batch.action_mask, masks[steps])
    assert set(steps) == set(range(6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminated": [False, False, False, True]}, "`terminated` must be True or False, as after the last step"),
        ({"observations": []}, "`observations` must be one more than there are rewards, .*Received: 0 and 4 rewards"),
        ({"actions": [[0.0]]}, "`actions` must be as many as there are rewards, at least one. Received: 1 and 4"),
        ({"rewards": []}, "`actions` must be as many .* Received: 4 and 0 rewards"),
        ({"squashed": None}, "`squashed` must be given where actions have bounds: True for SAC"),
        (
            {"observations": [np.zeros(3)] * 5},
            r"`observation` must have shape \(2,\) in each step. Received: shape=\(3,\)",
        ),
        ({"observations": [np.full(2, np.nan)] * 5}, "`observation` must be finite in valid rows"),
        ({"observations": [{"a": 1}] * 5}, r"`observation` must have shape \(2,\) in each step. Received: a dict"),
        ({"actions": [("x", "y")] * 4}, "`action` must have shape"),
    ],
)
def test_episodes_that_do_not_fit(change, message):
    buffer = al.ReplayBuffer(Box(-1, 1, (2,)), Box(-1, 1, (1,)), 64, unroll_length=8)
    arguments = {"observations": [np.zeros(2)] * 5, "actions": [[0.1]] * 4, "rewards": [0.0] * 4, "squashed": True}
    with pytest.raises(ValueError, match=message):
        buffer.add_episode(**{"terminated": False, **arguments, **change})
    assert len(buffer) == 0


@pytest.mark.parametrize("squashed", [True, False])
def test_actions_beyond_their_bounds_are_warned_of(squashed, recwarn):
    buffer = al.ReplayBuffer(Box(-1, 1, (2,)), Box(-2, 2, (1,)), 64, unroll_length=8)
    episode = {"rewards": [0.0] * 2, "terminated": False, "squashed": squashed}
    buffer.add_episode([np.full(2, 5.0)] * 3, [[-2.0], [2.0 + 1e-6]], **episode)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="`?action`? is outside its bounds, in other units perhaps: scale or clip it"):
        buffer.add_episode([np.zeros(2)] * 3, [[0.0], [300.0]], **episode)


def test_choices_are_counted_in_messages_as_environments_give_them():
    buffer = al.ReplayBuffer(Box(-1, 1, (2,)), Discrete(3, start=1), 64, unroll_length=8)
    with pytest.raises(ValueError, match="`action` must count from 1 and be below 4, as the .* gives it. Received: 0"):
        buffer.add_episode([np.zeros(2)] * 3, [1, 0], [0.0, 0.0], terminated=True)
    buffer.add_episode([np.zeros(2)] * 3, [1, 3], [0.0, 0.0], terminated=True)


def test_actions_that_a_dtype_lacks_are_not_wrapped():
    buffer = al.ReplayBuffer(Box(-1, 1, (2,)), MultiBinary(2), 64, unroll_length=8)
    observations, actions = [np.zeros(2)] * 3, [np.array([1, 0]), np.array([0, 256])]
    with pytest.raises(
        ValueError, match="`action` must have values of its space. Received: 256 where the space has int8"
    ):
        buffer.add_episode(observations, actions, [0.0, 0.0], terminated=True)


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        ([(np.zeros(2, np.float32), 2)] * 4, [(1, np.full(2, 0.5))] * 3),
        ((np.zeros((4, 2), np.float32), np.full(4, 2)), (np.ones(3, int), np.full((3, 2), 0.5))),
        ((np.zeros((3, 2), np.float32), np.full(3, 2)), (np.ones(2, int), np.full((2, 2), 0.5))),  # 2 steps of 2 parts
        ((np.zeros((2, 2), np.float32), np.full(2, 2)), (np.ones(1, int), np.full((1, 2), 0.5))),
    ],
)
def test_tuples_are_spaces_too(observations, actions):
    space = Tuple([Discrete(2), Box(-1, 1, (2,))])
    buffer = al.ReplayBuffer(Tuple([Box(-1, 1, (2,)), Discrete(3)]), space, 64, unroll_length=8)
    rewards = np.ones(len(actions[0]) if isinstance(actions, tuple) else len(actions))
    buffer.add_episode(observations, actions, rewards, terminated=True, squashed=True)
    assert len(buffer) == len(rewards)
    first, second = buffer.sample(3).action
    assert (first == 1).all()
    np.testing.assert_allclose(np.tanh(second), 0.5, rtol=1e-6)
