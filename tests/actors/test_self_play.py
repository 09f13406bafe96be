"""Self-play in actors: reproducible whichever actors play, frozen versions that stay while they are needed, faults."""

from __future__ import annotations

import hashlib
import os
import signal

import numpy as np
import pytest

import actor_learner as al
from actor_learner.actors.group import ActorError
from actor_learner.environments.errors import EnvError
from actor_learner.policy.exported import flatten_weights
from actor_learner.runs.league import League

pytest.importorskip("pettingzoo")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

GAMES = 4


def tic_tac_toe():
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.raw_env()


@pytest.fixture(scope="module")
def network():
    env = tic_tac_toe()
    observation = env.observation_space("player_1")["observation"]
    return al.default_network(observation, env.action_space("player_1"), hidden_sizes=(8,), seed=1)


def make_pool(network, **kwargs):
    sizes = {"num_actors": 2, "num_envs": GAMES, "unroll_length": 12, "self_play": {"size": 3, "random": 0.2}}
    return al.ActorPool(tic_tac_toe, network, **{**sizes, **kwargs})


def changed(network, by):
    return flatten_weights([weight + np.float32(by) * np.sign(weight) for weight in network.get_weights()])


def collect(pool, batches):
    for _ in range(batches):
        pool.collect()


def digest_of_a_run(network, lag, rule="pfsp", **kwargs):
    """All bytes of some batches, whose opponents are drawn by the results so far, and of the league."""
    league = League(al.SelfPlay(size=3, every=2, random=0.2, rule=rule))
    digest = hashlib.sha256()
    with make_pool(network, max_policy_lag=lag, self_play=league.settings, **kwargs) as pool:

        def seat_opponents(update):
            frozen = {}
            if league.is_due(update):
                number = league.freeze(changed(network, update / 8), update)
                frozen[number] = league.versions[number]
            pool.set_opponents(league.weights(), frozen)

        seat_opponents(0)
        for update in range(1, 11):
            for leaf in pool.collect():
                if isinstance(leaf, np.ndarray):
                    digest.update(leaf.tobytes())
            league.record(pool.results)
            pool.publish(changed(network, update / 8))
            seat_opponents(update)
        digest.update(repr(league.to_json()).encode())
        drawn = {opponent for _, opponent in league.pairs}
    return digest.hexdigest(), drawn


def test_bytes_and_results_are_the_same_for_any_number_of_actors(network):
    first, drawn = digest_of_a_run(network, 0, num_actors=1)
    assert drawn >= {-1, 0, 1, 2}
    assert digest_of_a_run(network, 0, num_actors=0)[0] == first
    assert digest_of_a_run(network, 0, num_actors=4)[0] == first
    ahead = digest_of_a_run(network, 1, num_actors=1)[0]
    assert digest_of_a_run(network, 1, num_actors=2)[0] == ahead != first


def test_every_row_is_valid_and_a_mask_allows_its_action(network):
    with make_pool(network) as pool:
        assert pool.uses_masks
        trajectory = pool.collect()
        assert trajectory.valid.all()
        rows, columns = np.indices(trajectory.action.shape)
        assert trajectory.action_mask[rows, columns, trajectory.action].all()
        assert len(pool.results) == trajectory.terminated.sum()
        assert set(pool.results[:, 0]) == {-1}  # there is no version yet
        assert "opponent" not in pool.episodes


def test_the_actors_play_against_the_versions_that_were_frozen(network):
    """A version that always takes the highest field left is told by its first moves."""
    highest = [np.zeros_like(weight) for weight in network.get_weights()]
    biases = [index for index, weight in enumerate(network.get_weights()) if weight.shape == (9,)]
    highest[biases[0]] = np.arange(9, dtype=np.float32) * 50
    with make_pool(network, num_actors=1) as pool:
        pool.set_opponents({7: 1.0}, {7: flatten_weights(highest)})
        pool.collect()
        trajectory = pool.collect()
        assert set(pool.results[:, 0]) <= {-1, 7}
        ends = trajectory.terminated[:-1]
        starts = np.argwhere(ends) + np.array([1, 0])
        boards = [trajectory.observation[row, column] for row, column in starts if row < len(trajectory.reward)]
        moved = [board[..., 1] for board in boards if board[..., 1].any()]  # the opponent moved first
        assert moved
        assert all(board.reshape(-1)[8] for board in moved)


def test_a_version_is_frozen_once_and_not_more_than_there_is_room_for(network):
    def versions(first, stop):
        return dict.fromkeys(range(first, stop), 1.0), {n: changed(network, n) for n in range(first, stop)}

    with make_pool(network, num_actors=1, max_policy_lag=1, self_play={"size": 5}) as pool:
        pool.set_opponents(*versions(0, 5))
        pool.collect()
        with pytest.raises(ValueError, match="must number versions upwards.*the next is 5. Received: 4"):
            pool.set_opponents(*versions(4, 5))
        with pytest.raises(ValueError, match="may bring 3 new versions now, .* need the others. Received: 5"):
            pool.set_opponents(*versions(5, 10))
        pool.set_opponents(*versions(5, 8))
        pool.collect()


def test_weights_of_versions_are_finite(network):
    with make_pool(network, num_actors=0) as pool, pytest.raises(ValueError, match="Weights must be finite"):
        pool.set_opponents({0: 1.0}, {0: np.full_like(changed(network, 0), np.nan)})


def test_results_may_be_entries_of_the_episodes_too(network):
    with make_pool(network, num_actors=0, info_keys=("outcome", "seat")) as pool:
        pool.collect()
        np.testing.assert_array_equal(pool.episodes["outcome"], pool.results[:, 1])
        assert set(pool.episodes["seat"]) == {0, 1}
        assert "opponent" not in pool.episodes


@pytest.mark.parametrize(
    ("weights", "frozen", "message"),
    [
        ({-2: 1.0}, {}, r"own players, or of versions that `frozen` brings. Received: -2"),
        ({3: 1.0}, {}, r"Received: 3"),
        ({-1: 0.0}, {}, r"some are above 0. Received: \{-1: 0.0\}"),
        ({-1: 1.0, 0: -0.5}, {0: 0}, r"must be shares"),
        ({"random": 1.0}, {}, r"integers as keys, -1 for the random player. Received: 'random'"),
        (dict.fromkeys(range(4), 1.0), dict.fromkeys(range(4), 0), r"at most `size` frozen versions. Received: 4 ver"),
    ],
)
def test_opponents_that_cannot_be_are_one_clear_line(network, weights, frozen, message):
    with make_pool(network, num_actors=0) as pool, pytest.raises(ValueError, match=message):
        pool.set_opponents(weights, {number: changed(network, 0) for number in frozen})


def test_a_pool_without_self_play_has_no_opponents(network):
    with al.ActorPool("CartPole-v1", num_actors=0) as pool:
        assert pool._group._memory.plan.places["opponents"][1][0] == 0
        with pytest.raises(ValueError, match="needs a pool with `self_play`"):
            pool.set_opponents({-1: 1.0})
    with pytest.raises(EnvError, match="`self_play` needs a game of several agents.*Received: `CartPole-v1`"):
        al.ActorPool("CartPole-v1", num_actors=0, self_play=True)


def test_an_actor_that_is_killed_in_a_game_is_replaced(network):
    with make_pool(network) as pool:
        pool.set_opponents({-1: 0.1, 0: 0.9}, {0: changed(network, 0)})
        pool.collect()
        os.kill(pool.pids[1], signal.SIGKILL)
        seen = [pool.collect() for _ in range(4)]
        assert pool.restart_count == 1
        assert all(np.isfinite(trajectory.behaviour_log_prob).all() for trajectory in seen)
        assert set(pool.results[:, 0]) <= {-1, 0}


def failing_player(observation, mask, generator):
    if generator.random() < 0.05:
        raise RuntimeError("no idea")
    return int(np.flatnonzero(mask)[0])


def test_a_player_that_raises_replaces_its_actor_and_its_name_is_said(network):
    with make_pool(network, self_play={"players": {"mine": failing_player}}, num_actors=1) as pool:
        pool.set_opponents({-2: 1.0})
        while not pool.restarts:
            pool.collect()
        assert "The player `mine` raised RuntimeError: no idea" in pool.restarts[0].cause
    with make_pool(
        network, self_play={"players": {"mine": failing_player}}, num_actors=1, on_env_error="raise"
    ) as pool:
        pool.set_opponents({-2: 1.0})
        with pytest.raises(ActorError, match="The player `mine` raised"):
            collect(pool, 50)


def test_a_policy_with_memory_keeps_its_state_in_each_game():
    env = tic_tac_toe()
    spaces = env.observation_space("player_1")["observation"], env.action_space("player_1")
    network = al.default_network(*spaces, hidden_sizes=(8,), memory="gru", memory_size=8, seed=1)
    digests = []
    for actors in (1, 2):
        with make_pool(network, num_actors=actors) as pool:
            digest = hashlib.sha256()
            for update in range(4):
                pool.set_opponents({update: 1.0}, {update: changed(network, update)})
                digest.update(pool.collect().observation.tobytes())
            digests.append(digest.hexdigest())
    assert digests[0] == digests[1]
