"""Masks: forbidden choices are never sampled, and log-probabilities are those of the allowed ones."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actor_learner.networks import default
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.export.verify import draw_mask
from actor_learner.policy.policy import Policy, load_policy
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import give_draws, logits_network

pytestmark = pytest.mark.slow

# As pairs, because Gymnasium sorts the keys of a plain dict.
CHOICES = Dict(
    [("kind", Discrete(4)), ("dials", MultiDiscrete([3, 1, 5])), ("bits", MultiBinary(2)), ("last", Discrete(2))]
)
COLUMNS = 4 + 3 + 1 + 5 + 2
PARAMETERS = COLUMNS + 2
TORQUES = Box(-1, 1, (1,), np.float32)


@pytest.fixture(scope="module")
def exported():
    """The observation is the logits; `bits` lie between `dials` and `last`."""
    return export_policy(logits_network(PARAMETERS), CHOICES, 1000, masked=True)


@pytest.fixture(scope="module")
def plain():
    return export_policy(logits_network(3), Discrete(3), 4, masked=True)


@pytest.fixture(scope="module")
def unmasked():
    return export_policy(logits_network(3), Discrete(3), 4)


def with_a_mask(mask_space, columns=3):
    return Dict({"action_mask": mask_space, "vector": Box(-9, 9, (columns,), np.float32)})


@pytest.fixture(scope="module")
def of_dicts():
    space = with_a_mask(MultiBinary(3))
    return Policy.from_network(logits_network(3), Discrete(3), observation_space=space, batch_size=2)


def logits(rows, seed=0, columns=PARAMETERS, scale=3.0):
    return (scale * np.random.default_rng(seed).standard_normal((rows, columns))).astype(np.float32)


def masks(rows, seed=0, space=CHOICES):
    return draw_mask(Spaces(None, space).masks, np.random.default_rng(seed), rows).astype(bool)


def chosen_columns(action):
    """Returns the chosen columns of the mask for each row, `[rows, 5]`."""
    dials = action["dials"] + np.array([4, 7, 8])
    return np.column_stack([action["kind"], dials, action["last"] + 13])


def test_masked_samples_are_allowed(exported):
    policy, rows = Policy(exported), np.arange(1000)[:, None]
    assert Spaces(None, CHOICES).masks.size == COLUMNS
    seen = np.zeros(COLUMNS, bool)
    for seed in range(20):  # 1000 rows of five choices each
        mask = masks(1000, seed)
        # Some forbidden logits are the highest by far.
        action, log_prob = policy.step(logits(1000, seed, scale=3.0 if seed % 2 else 300.0), mask)
        columns = chosen_columns(action)
        assert mask[rows, columns].all()
        assert np.isfinite(log_prob).all()
        seen[columns] = True
    assert seen.all()


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24, 2**-24, 0.5])
def test_nothing_forbidden_at_the_edges_of_the_noise(exported, draw):
    """The noise is 1, or the smallest above 0."""
    policy, mask = Policy(exported), masks(1000, 3)
    give_draws(policy._noise, [draw])
    for scale in (0.0, 1.0, 1e4, 1e25):
        columns = chosen_columns(policy.step(logits(1000, 4, scale=scale), mask)[0])
        assert mask[np.arange(1000)[:, None], columns].all()


def test_the_mode_is_allowed_and_the_best_of_what_is(plain):
    policy = Policy(plain)
    observation, mask = np.float32([[9, 1, 2]] * 4), np.array([[1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 0, 1]], bool)
    np.testing.assert_array_equal(policy.act(observation, action_mask=mask), [0, 2, 1, 0])


def test_log_probabilities_are_renormalized(plain):
    policy, observation = Policy(plain), logits(200, columns=3)
    mask = masks(200, space=Discrete(3))
    action, log_prob = policy.step(observation, mask)
    weight = np.where(mask, np.exp(observation.astype(np.float64)), 0.0)
    expected = np.log(weight[np.arange(200), action] / weight.sum(axis=1))
    np.testing.assert_allclose(log_prob, expected, atol=1e-6)


def test_a_mask_that_allows_everything_changes_nothing(plain, unmasked):
    assert (plain.masked, unmasked.masked) == (True, False)
    for rows in (4, 9):
        observation = logits(rows, columns=3)
        results = [
            Policy(plain, seed=1).step(observation, np.ones((rows, 3), bool)),
            Policy(plain, seed=1).step(observation),
            Policy(unmasked, seed=1).step(observation),
        ]
        for action, log_prob in results[1:]:
            np.testing.assert_array_equal(log_prob, results[0][1])
            np.testing.assert_array_equal(action, results[0][0])


def test_acting_without_the_masks_of_the_training_warns_once(plain, tmp_path):
    dataclasses.replace(plain, trained_with_masks=True).save(tmp_path / "policy")
    policy, observation = load_policy(tmp_path), np.zeros((1, 3), np.float32)
    policy.act(observation, action_mask=[[True, False, True]])
    with pytest.warns(
        UserWarning, match="trained with action masks and acts without one.*pass `action_mask=`"
    ) as found:
        policy.act(observation)
    policy.step(observation)
    assert [warning.filename for warning in found] == [__file__]
    Policy(plain).act(observation)


def test_masks_of_either_form(exported):
    """A mask is flat, or mirrors the action space, as in Gymnasium's `sample(mask=...)`."""
    flat = masks(6, 5)
    nest = {"kind": flat[:, :4], "dials": flat[:, 4:13], "bits": None, "last": flat[:, 13:].astype(np.int8)}
    of_flat, of_nest = (Policy(exported, seed=2).step(logits(6), mask) for mask in (flat, nest))
    np.testing.assert_array_equal(of_nest[1], of_flat[1])
    np.testing.assert_array_equal(of_nest[0]["dials"], of_flat[0]["dials"])
    everywhere = Policy(exported, seed=2).step(logits(6), {"kind": flat[:, :4]})[0]
    assert flat[np.arange(6), everywhere["kind"]].all()


def test_what_a_mask_says_of_another_structure_is_not_ignored(exported):
    flat = masks(6, 5)
    policy = Policy(exported, seed=2)
    for wrong, message in (
        ({"kind": flat[:, :4], "dial": None}, r"`action_mask` must have no other keys than \[.*Received: 'dial'"),
        (flat.tolist(), r"`action_mask` must be a dict with the keys \[.*, or an array. Received: list"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.step(logits(6), wrong)
    action = policy.act(logits(1)[0], action_mask=flat[0].tolist(), deterministic=False)
    assert flat[0][action["kind"]]
    pair = Spaces(None, Tuple([Discrete(2), Discrete(3)])).masks
    with pytest.raises(ValueError, match="`action_mask` must have 2 entries. Received: 3"):
        pair.read((None, None, None), 1)


def test_masks_of_a_single_observation(exported, plain):
    policy = Policy(plain)
    for mask in ([False, True, False], np.array([0, 1, 0], np.int8), (0.0, 1.0, 0.0)):
        assert policy.act(np.float32([5, 0, 9]), action_mask=mask) == 1
        assert policy.step(np.float32([5, 0, 9]), mask) == (1, 0.0)
    policy = Policy(exported)
    nest = {"kind": [0, 0, 0, 1], "dials": ([0, 1, 0], [1], (0, 0, 0, 0, 1)), "last": np.array([1, 0])}
    flat = np.concatenate([[0, 0, 0, 1], [0, 1, 0], [1], [0, 0, 0, 0, 1], [1, 0]])
    for mask in (nest, flat, flat.astype(bool)):
        for call in (lambda m: policy.act(logits(1)[0], action_mask=m), lambda m: policy.step(logits(1)[0], m)[0]):
            action = call(mask)
            assert (action["kind"], action["dials"].tolist(), action["last"]) == (3, [1, 0, 4], 0)


def test_the_mask_in_an_observation_is_read(of_dicts):
    vector, allowed = np.float32([5, 0, 9]), np.int8([1, 1, 0])
    observation = {"vector": vector, "action_mask": allowed}
    assert of_dicts.act(observation) == 0
    assert of_dicts.act(observation, action_mask=[0, 1, 1]) == 2  # the argument wins
    batch = {"vector": np.tile(vector, (500, 1)), "action_mask": np.tile(allowed, (500, 1))}
    assert set(of_dicts.step(batch)[0].tolist()) <= {0, 1}
    assert of_dicts.value(observation) == of_dicts.value({**observation, "action_mask": 1 - allowed})
    leaves = np.ones((2, 3), np.int8), logits(2, columns=3)
    action, _ = of_dicts.step_leaves(leaves, np.array([[1, 0, 0], [0, 0, 1]], bool))
    assert action[0].tolist() == [0, 2]


def test_a_mask_beside_what_the_network_takes_is_read():
    """The network's inputs define the space; the environment's observation also has a mask."""
    observation_space = Dict({"vector": Box(-9, 9, (4,), np.float32)})
    policy = Policy.from_network(default.default_network(observation_space, Discrete(3)), Discrete(3))
    assert policy.observation_space.spaces.keys() == {"vector"}
    for allowed in np.eye(3, dtype=np.int8):
        assert policy.act({"vector": np.zeros(4, np.float32), "action_mask": allowed}) == allowed.argmax()


def test_a_network_may_read_the_mask_too():
    space = Dict({"action_mask": MultiBinary(3), "vector": Box(-1, 1, (2,), np.float32)})
    inputs = {"vector": keras.Input((2,), name="vector"), "action_mask": keras.Input((3,), name="action_mask")}
    features = keras.layers.Concatenate()([inputs["vector"], 5.0 * inputs["action_mask"]])
    network = keras.Model(inputs, (keras.layers.Dense(3)(features), keras.layers.Dense(1)(features)))
    policy = Policy.from_network(network, Discrete(3), observation_space=space)
    observation = {"vector": np.zeros(2, np.float32), "action_mask": np.ones(3, np.int8)}
    assert policy.value(observation) != policy.value({**observation, "action_mask": np.array([1, 0, 1], np.int8)})


def refused(policy, mask, observation):
    """Returns the one line with which a mask is refused."""
    messages = []
    for call in (lambda: policy.step(observation, mask), lambda: policy.act(observation, action_mask=mask)):
        with pytest.raises(ValueError) as caught:
            call()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.arange(5)[:, None] != [3, 3, 3], "must allow an action in every row. Received: none allowed in row 3"),
        (np.ones((5, 4)), "must have 3 entries"),
        (np.full((5, 3), 2), "must hold booleans, or 0 and 1"),
    ],
)
def test_what_is_no_mask_is_refused(plain, mask, message):
    assert f"`action_mask` {message}" in refused(Policy(plain), mask, logits(5, columns=3))


def test_a_choice_in_which_nothing_is_allowed_is_refused(exported, of_dicts):
    mask = np.ones((5, COLUMNS), bool)
    mask[2, 8:13] = False
    message = refused(Policy(exported), mask, logits(5))
    assert message.endswith("Received: none allowed in row 2, for choice 3 of 5")
    observation = {"vector": np.zeros(3, np.float32), "action_mask": np.zeros(3, np.int8)}
    assert refused(of_dicts, None, observation).startswith("`observation['action_mask']` must allow an action")


def test_a_policy_that_was_exported_without_masks_takes_none(unmasked):
    message = refused(Policy(unmasked), np.ones((5, 3), bool), logits(5, columns=3))
    assert "exported without masks; see `export_policy(..., masked=True)`" in message


def test_where_there_is_no_choice_there_is_no_mask():
    """An entry of that name is an observation."""
    space = with_a_mask(MultiBinary(3), columns=2)
    policy = Policy.from_network(logits_network(2), TORQUES, observation_space=space)
    assert not policy.exported.masked
    observation = {"vector": np.float32([0.5, 0]), "action_mask": np.zeros(3, np.int8)}
    assert policy.act(observation) == np.float32([0.5])
    message = refused(policy, np.ones(1, bool), observation)
    assert message == "`action_mask` must be None: the action space has no discrete choice. Received: a ndarray"
