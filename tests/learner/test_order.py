"""The order of rows that is drawn while a GPU computes is the one that the update would draw itself."""

from __future__ import annotations

import numpy as np
import pytest

import actor_learner as al
from actor_learner.algorithms.source import ShuffledEpochs
from actor_learner.learner.ahead import OrderAhead
from tests.learner.test_rollback import poisoned
from tests.support.small_networks import linear_network, same_weights, weights_of
from tests.support.trajectories import TWO_ACTIONS, random_trajectory

FULL, PARTLY = random_trajectory(), random_trajectory(invalid_rate=0.3)
UNDONE = poisoned(FULL, "reward", 3e38)


def learn(folder, *, ahead):
    """Return the weights after each batch, and those of a learner that is loaded then."""
    learner = al.Learner(linear_network(), al.PPO(epochs=2, minibatch_size=8), action_space=TWO_ACTIONS)
    learner._draws_ahead = ahead
    weights = []
    for batch in (FULL, FULL, PARTLY, FULL, UNDONE, FULL, FULL):
        learner.update(batch)
        weights.append(weights_of(learner.network))
    learner.save(folder)
    again = al.Learner.load(folder)
    again.update(FULL)
    return weights, weights_of(again.network)


@pytest.mark.usefixtures("without_xla")
def test_what_is_drawn_ahead_is_what_would_have_been_drawn(tmp_path, monkeypatch):
    expected, expected_later = learn(tmp_path / "as_ever", ahead=False)
    taken, take = [], OrderAhead.take

    def spying(self, *arguments):
        found = take(self, *arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(OrderAhead, "take", spying)
    found, later = learn(tmp_path / "ahead", ahead=True)
    assert all(map(same_weights, found, expected))
    assert same_weights(later, expected_later)
    # Of the first update none was drawn. It isn't taken for rows that aren't valid, nor after an undone update.
    assert taken == [True, False, True, True, False, True]


@pytest.mark.parametrize("rows", [64, 8192])
def test_each_epoch_is_an_order_of_its_own(rows):
    """Many rows are drawn epoch after epoch, fewer at once: the same numbers."""
    order, count = ShuffledEpochs(3, rows // 4).order(np.ones((4, rows // 4), bool), np.random.default_rng(1))
    assert count == 12
    expected = np.random.default_rng(1).permuted(np.tile(np.arange(rows), (3, 1)), axis=1)
    np.testing.assert_array_equal(order.reshape(3, rows), expected)
