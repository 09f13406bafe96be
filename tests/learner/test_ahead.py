"""What a thread does ahead, the next batch's order of rows and its copy to the device, is what the update would do."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import actor_learner as al
from actor_learner.algorithms.source import ShuffledEpochs
from actor_learner.learner.ahead import Guess, OrderAhead, prefetching
from tests.learner.test_rollback import poisoned
from tests.support.processes import wait_until
from tests.support.small_networks import linear_network, same_weights, weights_of
from tests.support.trajectories import TWO_ACTIONS, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")

FULL, PARTLY = random_trajectory(), random_trajectory(invalid_rate=0.3)
UNDONE = poisoned(FULL, "reward", 3e38)


def learn_and_load(folder, *, ahead):
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


def test_what_is_drawn_ahead_is_what_would_have_been_drawn(tmp_path, monkeypatch):
    expected, expected_later = learn_and_load(tmp_path / "as_ever", ahead=False)
    taken, take = [], OrderAhead.take

    def spying(self, *arguments):
        found = take(self, *arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(OrderAhead, "take", spying)
    found, later = learn_and_load(tmp_path / "ahead", ahead=True)
    assert all(map(same_weights, found, expected))
    assert same_weights(later, expected_later)
    # Of the first update none was drawn. It isn't taken for rows that aren't valid, nor after an undone update.
    assert taken == [True, False, True, True, False, True]


def test_after_each_wrong_guess_in_a_row_less_is_begun():
    guess, begun = Guess(), []
    for _ in range(12):
        guess.begin(lambda: begun.append(1) or len(begun))
        assert guess.take(lambda found: False) is None
    assert len(begun) == 3  # after pauses of 1, 3 and 7
    while guess.begin(lambda: 9) is None:
        assert guess.take(bool) is None
    assert guess.take(lambda found: found == 9) == 9
    assert guess.begin(lambda: 10) == 10
    assert guess.begin(lambda: 11) is None  # one at a time


def test_what_fails_ahead_is_not_begun_again():
    guess = Guess()
    assert guess.begin(lambda: 1 / 0) is None
    assert guess.take(bool) is guess.begin(lambda: 1) is None


@pytest.mark.parametrize("rows", [64, 8192])
def test_each_epoch_is_an_order_of_its_own(rows):
    """Many rows are drawn epoch after epoch, fewer at once: the same numbers."""
    order, count = ShuffledEpochs(3, rows // 4).order(np.ones((4, rows // 4), bool), np.random.default_rng(1))
    assert count == 12
    expected = np.random.default_rng(1).permuted(np.tile(np.arange(rows), (3, 1)), axis=1)
    np.testing.assert_array_equal(order.reshape(3, rows), expected)


UPDATES = 4


def learn(max_policy_lag, *, useful):
    """Return metrics and weights of a few updates, and whether each next batch was copied before it was collected."""
    network = linear_network()
    arguments = {"num_actors": 1, "envs_per_actor": 2, "unroll_length": 16, "max_policy_lag": max_policy_lag}
    metrics, ahead = [], []
    with al.ActorPool("CartPole-v1", network, **arguments) as actors:
        learner = al.Learner(network, al.PPO(epochs=2, minibatch_size=8), action_space=actors.action_space)
        for _ in range(UPDATES):
            trajectory = actors.collect()
            ahead.append(learner._prefetched is not None and learner._prefetched[0].reward is trajectory.reward)
            with prefetching(actors.upcoming, learner, useful=useful):
                metrics.append(learner.update(trajectory))
                if useful and max_policy_lag:
                    assert wait_until(lambda: learner._prefetched is not None, 30)
            actors.publish(learner.get_weights())
    return metrics, weights_of(network), ahead


def test_batches_are_copied_in_their_order_and_what_is_learned_stays_the_same():
    metrics, weights, ahead = learn(1, useful=False)
    assert ahead == [False] * UPDATES
    metrics_with, weights_with, ahead_with = learn(1, useful=True)
    assert ahead_with == [False, *[True] * (UPDATES - 1)]
    assert metrics_with == metrics
    assert same_weights(weights_with, weights)


def test_in_lock_step_there_is_no_next_batch():
    assert learn(0, useful=True)[2] == [False] * UPDATES


def test_an_update_of_another_batch_than_the_one_that_was_copied():
    first, second = random_trajectory(seed=1), random_trajectory(seed=2)
    learners = [al.Learner(linear_network(), al.PPO(epochs=1), action_space=TWO_ACTIONS) for _ in range(2)]
    learners[0].prefetch(first)
    assert learners[0].update(second) == learners[1].update(second)
    assert learners[0]._prefetched is None, "or it could be taken for a later batch in the same memory"
    assert same_weights(*(weights_of(learner.network) for learner in learners))


def test_an_update_of_a_later_batch_in_the_memory_that_was_copied():
    """A loop of one's own may pass over the batch that was copied."""
    first, second = random_trajectory(seed=1), random_trajectory(seed=2)
    learners = [al.Learner(linear_network(), al.PPO(epochs=1), action_space=TWO_ACTIONS) for _ in range(2)]
    learners[0].prefetch(first)
    for memory, later in zip(keras.tree.flatten(first), keras.tree.flatten(second), strict=True):
        if memory is not None:
            memory[:] = later
    assert learners[0].update(first) == learners[1].update(second)


def test_a_batch_that_breaks_its_space_is_refused_by_both():
    learner = al.Learner(linear_network(), al.PPO(epochs=1), action_space=TWO_ACTIONS)
    bad = random_trajectory()
    bad.observation[0, 0] = np.nan
    for look_at in (learner.prefetch, learner.update):
        with pytest.raises(ValueError, match="`observation` must be finite in valid rows"):
            look_at(bad)
