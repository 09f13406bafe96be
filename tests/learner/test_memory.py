"""Networks with memory in the learner: the same numbers as the actors', sequences, resets, and the gradient."""

import gymnasium as gym
import keras
import numpy as np
import pytest
from actor_learner_envs.masked_treasure import MaskedTreasureEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import actor_learner as al
from actor_learner.learner.network_calls import NetworkCalls
from actor_learner.spaces.trajectory import map_fields

pytestmark = pytest.mark.slow

CELLS = {
    "lstm": lambda: keras.layers.LSTMCell(5),
    "attention": None,
    "both": lambda: [keras.layers.GRUCell(4), keras.layers.LSTMCell(3)],
}


def with_memory(observation_space, action_space, cell="lstm", seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input(observation_space.shape)
    hidden = keras.layers.Dense(6, "tanh")(inputs)
    memory = al.AttentionMemory(window=5, heads=2, size=6) if cell == "attention" else al.Recurrent(CELLS[cell]())
    hidden = memory(hidden)
    return keras.Model(inputs, (keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)))


def cartpoles(mode, steps=7):
    def make(num_envs, seed):
        return SyncVectorEnv(
            [lambda: TimeLimit(gym.make("CartPole-v1").unwrapped, steps)] * num_envs, autoreset_mode=mode
        )

    return make


def pool_of(mode=AutoresetMode.NEXT_STEP, cell="lstm", **options):
    options = {"num_actors": 0, "envs_per_actor": 4, "unroll_length": 12, **options}
    return al.ActorPool(cartpoles(mode), lambda o, a: with_memory(o, a, cell), **options)


def batches(count=2, **options):
    with pool_of(**options) as pool:
        return pool.network, pool.action_space, [pool.collect().copy() for _ in range(count)]


def still(**options):
    """PPO that learns nothing and shows what the first minibatch sees."""
    return al.PPO(**{"learning_rate": 0.0, "epochs": 1, "minibatch_size": None, **options})


@pytest.mark.parametrize(("mode", "cell"), [(AutoresetMode.NEXT_STEP, "lstm"), (AutoresetMode.SAME_STEP, "both")])
def test_the_ratio_is_one_though_episodes_end_within_the_unroll(mode, cell):
    network, actions, (_, trajectory) = batches(mode=mode, cell=cell)
    assert trajectory.truncated.any()
    assert trajectory.start[1:-1].any()
    assert any(np.abs(leaf).max() > 0.01 for leaf in trajectory.initial_state)
    found = evaluated(network, actions, trajectory)
    valid = trajectory.valid
    np.testing.assert_allclose(found.log_prob[valid], trajectory.behaviour_log_prob[valid], atol=1e-6)


def test_the_ratio_is_one_with_masks_and_normalization(without_xla):
    """The second batch is of a policy whose statistics are those of the first."""

    def treasures(num_envs, seed):
        return SyncVectorEnv(
            [lambda: TimeLimit(MaskedTreasureEnv(size=4), 7)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )

    def network(*spaces):
        options = {"memory": "gru", "memory_size": 8, "hidden_sizes": (8,), "normalize_observation": True}
        return al.default_network(*spaces, **options, seed=0)

    with al.ActorPool(treasures, network, num_actors=0, envs_per_actor=4, unroll_length=12) as pool:
        learner = al.Learner(pool.network, still(), action_space=pool.action_space)
        learner.update(pool.collect())
        pool.publish(learner.get_weights())
        trajectory = pool.collect().copy()
        assert trajectory.start[1:-1].any()
        assert not trajectory.action_mask[:-1][trajectory.valid].all()
        found = evaluated(learner.network, pool.action_space, trajectory)
        valid = trajectory.valid
        np.testing.assert_allclose(found.log_prob[valid], trajectory.behaviour_log_prob[valid], atol=2e-6)
        assert abs(learner.update(trajectory)["approx_kl"]) < 1e-6


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_learner_values_what_an_episode_ended_with_in_the_state_that_the_actor_had(mode):
    network, actions, (_, trajectory) = batches(mode=mode)
    ended = trajectory.truncated & trajectory.valid
    blind = trajectory._replace(truncation_value=np.where(closing(trajectory), 0.0, trajectory.truncation_value))
    found = evaluated(network, actions, blind)
    assert closing(trajectory).any() or mode == AutoresetMode.NEXT_STEP
    np.testing.assert_allclose(found.truncation_value[ended], trajectory.truncation_value[ended], atol=1e-6)


def closing(trajectory):
    rows = np.arange(len(trajectory.reward))[:, None]
    return trajectory.truncated & (rows == trajectory.final_row)


def evaluated(network, actions, trajectory, sequence_length=None):
    """Return what the learner's first pass over a batch gives, as arrays."""
    from keras import tree

    from actor_learner.learner import backend
    from actor_learner.learner.batch import fields_of, without_invalid
    from actor_learner.spaces.spaces import Spaces

    calls = NetworkCalls(network, Spaces(None, actions), sequence_length or len(trajectory.reward), list)
    batch = without_invalid(backend.to_device(fields_of(trajectory, greedy=False)))
    final = {name: batch.pop(name) for name in ("final_observation", "final_row")}
    return tree.map_structure(
        np.asarray,
        backend.Compiled(lambda batch, final: calls.evaluate(batch, final)[0], (), with_xla=False)(batch, final),
    )


@pytest.mark.parametrize(("cell", "length"), [("lstm", 3), pytest.param("attention", 1, marks=pytest.mark.thorough)])
def test_sequences_give_what_whole_columns_give(length, cell):
    network, actions, (_, trajectory) = batches(mode=AutoresetMode.SAME_STEP, cell=cell)
    whole, pieces = (evaluated(network, actions, trajectory, sequence_length=count) for count in (12, length))
    for a, b in zip(whole[:-1], pieces[:-1], strict=True):  # the last field is of greedy policies
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_columns_may_stand_in_any_order():
    network, actions, (_, trajectory) = batches()
    order = np.array([2, 0, 3, 1])

    def permuted(field, by_column):
        from actor_learner.spaces.trajectory import map_leaves

        return map_leaves(lambda leaf: leaf[order] if by_column else leaf[:, order], field)

    by_column = {"policy_version", "env_index", "final_observation", "final_row", "initial_state"}
    fields = {n: None if f is None else permuted(f, n in by_column) for n, f in trajectory._asdict().items()}
    one, other = evaluated(network, actions, trajectory), evaluated(network, actions, al.Trajectory(**fields))
    for a, b in zip(one[:-1], other[:-1], strict=True):
        np.testing.assert_allclose(a[:, order], b, atol=1e-7)


def test_states_are_for_networks_with_memory_and_nobody_else():
    network, actions, (trajectory,) = batches(1)
    without = trajectory._replace(initial_state=None, start=None)
    with pytest.raises(ValueError, match=r"needs `initial_state` and `start`. Received: initial_state=None"):
        al.Learner(network, still(), action_space=actions).update(without)
    with pytest.raises(ValueError, match=r"needs `initial_state` and `start`. Received: start=None"):
        al.Learner(network, still(), action_space=actions).update(trajectory._replace(start=None))
    wrong = tuple(leaf[:, :2] for leaf in trajectory.initial_state)
    with pytest.raises(ValueError, match=r"of shapes \[\(5,\), \(5,\)\] for each column. Received: \[\(2,\), \(2,\)\]"):
        al.Learner(network, still(), action_space=actions).update(trajectory._replace(initial_state=wrong))
    plain = al.default_network(gym.make("CartPole-v1").observation_space, actions)
    with pytest.raises(ValueError, match=r"without memory takes no `initial_state`. Received: shapes"):
        al.Learner(plain, still(), action_space=actions).update(trajectory)


def test_sequences_are_as_long_as_a_minibatch_holds_where_none_is_asked_for(without_xla):
    """Columns of 12 rows, minibatches of 8: two sequences of 6 don't fit, one does."""
    network, actions, (trajectory, _) = batches()
    weights = network.get_weights()
    learned = []
    for length in (None, 6, 4):
        network.set_weights(weights)
        options = {"epochs": 2, "minibatch_size": 8, "learning_rate": 1e-2}
        learner = al.Learner(network, al.PPO(**options), action_space=actions, sequence_length=length)
        learner.update(trajectory)
        learned.append(learner.flat_weights())
    np.testing.assert_array_equal(learned[0], learned[1])
    assert np.abs(learned[0] - learned[2]).max() > 1e-4
    shorter = map_fields(lambda _, leaf: leaf[:-2] if len(leaf) >= 12 else leaf, trajectory)
    with pytest.raises(ValueError, match=r"whole sequences of 4 steps, as the first one was. Received: 10 steps"):
        learner.update(shorter)


def test_rows_of_the_burn_in_are_not_learned_from(without_xla):
    """Their rewards are in no other row's advantage."""
    network, actions, (_, trajectory) = batches()
    weights = network.get_weights()
    algorithm = al.PPO(optimizer=keras.optimizers.SGD(0.1), epochs=1, minibatch_size=None)
    learner = al.Learner(network, algorithm, action_space=actions, sequence_length=12, burn_in=3)
    learned = []
    for reward in (0.0, 5.0):
        network.set_weights(weights)
        other = trajectory.reward.copy()
        other[:3] += reward
        learner.update(trajectory._replace(reward=other))
        learned.append(learner.flat_weights())
    np.testing.assert_allclose(*learned, atol=1e-6)
    assert any((one != other).any() for one, other in zip(weights, network.get_weights(), strict=True))
