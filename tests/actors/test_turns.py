"""Turn-based games of which all agents learn: columns are what PettingZoo's own loop says, and nothing is lost."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

import actor_learner as al
from actor_learner.actors.turns import TurnWriter
from actor_learner.environments.errors import EnvError
from actor_learner.policy.exported import flatten_weights
from tests.support.bomb_game import Bomb

pytest.importorskip("pettingzoo")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]


def tic_tac_toe():
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.raw_env()


def connect_four():
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.raw_env()


def network_of(make, **options):
    env = make()
    agent = env.possible_agents[0]
    observation = env.observation_space(agent)["observation"]
    return al.default_network(observation, env.action_space(agent), hidden_sizes=(8,), seed=1, **options)


def make_pool(make, rows=16, network=None, **kwargs):
    network = network_of(make) if network is None else network
    agents = len(make().possible_agents)
    sizes = {"num_actors": 1, "num_envs": 2 * agents, "unroll_length": rows, **kwargs}
    return al.ActorPool(make, network, **sizes)


def rows_of(trajectory, column):
    """The rows of a column, in order: (observation, action, reward, terminated, truncated)."""
    valid = np.flatnonzero(trajectory.valid[:, column])
    assert valid.tolist() == list(range(len(valid)))
    fields = (trajectory.observation, trajectory.action, trajectory.reward, trajectory.terminated, trajectory.truncated)
    return [tuple(np.asarray(field[row, column]).tolist() for field in fields) for row in valid]


def played_by_agent_iter(game, seed, chosen, decisions):
    """PettingZoo's loop over episodes with the actions that the columns hold: rows of each agent, by their columns."""
    agents, rows = game.possible_agents, {}
    open_rows, episode, count = {}, 0, 0
    game.reset(seed=seed)
    while True:
        for agent in game.agent_iter():
            column = (agents.index(agent) + episode) % len(agents)
            observation, reward, terminated, truncated, _ = game.last()
            if column in open_rows:
                row = (*open_rows.pop(column), float(reward), terminated, truncated and not terminated)
                rows.setdefault(column, []).append(row)
            if terminated or truncated:
                game.step(None)
                continue
            if count == decisions or not chosen[column]:
                return rows
            action = chosen[column].pop(0)
            open_rows[column] = observation["observation"].tolist(), action
            game.step(action)
            count += 1
        episode += 1
        game.reset()


@pytest.mark.parametrize("make", [tic_tac_toe, connect_four, Bomb])
def test_columns_are_what_pettingzoo_s_own_loop_says(make):
    agents = len(make().possible_agents)
    with make_pool(make) as pool:
        batches = [pool.collect().copy() for _ in range(12)]
    for game in range(2):
        columns = range(game * agents, (game + 1) * agents)
        ours = {column % agents: [row for batch in batches for row in rows_of(batch, column)] for column in columns}
        chosen = {column: [row[1] for row in rows] for column, rows in ours.items()}
        # Seeds change nothing in these games.
        expected = played_by_agent_iter(make(), 0, chosen, 10**6)
        compared = 0
        for column, rows in expected.items():
            for mine, (seen, action, reward, terminated, truncated) in zip(ours[column], rows, strict=False):
                np.testing.assert_allclose(mine[0], seen)
                assert mine[1:4] == (action, np.float32(reward), terminated)
                assert mine[4] or not truncated  # a row may be cut off by the batch's end, too
                compared += 1
        assert compared > 100
        assert any(row[3] and row[2] < 0 for rows in ours.values() for row in rows)


def test_a_cut_off_row_has_the_value_of_the_observation_after_it():
    network = network_of(connect_four)
    with make_pool(connect_four, network=network) as pool:
        policy = al.Policy(pool.exported)
        for _ in range(4):
            trajectory = pool.collect()
            rows, columns = np.nonzero(trajectory.truncated)
            assert len(rows)
            after = trajectory.observation[rows + 1, columns]
            np.testing.assert_allclose(trajectory.truncation_value[rows, columns], policy.value(after), rtol=1e-5)
            assert not trajectory.valid[rows + 1, columns].any()  # Connect Four never truncates by itself


def test_a_game_s_own_truncation_has_the_value_of_its_last_observation():
    with make_pool(Bomb, rows=40) as pool:
        policy = al.Policy(pool.exported)
        for _ in range(8):
            trajectory = pool.collect()
            ends = np.argwhere(trajectory.truncated & (trajectory.final_row == np.arange(40)[:, None]))
            for row, column in ends:
                value = policy.value(trajectory.final_observation[column])
                assert trajectory.truncation_value[row, column] == pytest.approx(float(value), rel=1e-5)
            if len(ends):
                return
    pytest.fail("no game was cut off")


def test_log_probabilities_are_those_of_the_policy_that_decided():
    network = network_of(tic_tac_toe)
    with make_pool(tic_tac_toe, network=network) as pool:
        for update in range(5):
            trajectory = pool.collect()
            valid = trajectory.valid
            parameters, _ = network(trajectory.observation[:-1][valid].astype(np.float32))
            logits = np.where(trajectory.action_mask[:-1][valid], np.asarray(parameters), -np.inf)
            log_prob = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            log_prob -= logits.max(1, keepdims=True)
            expected = np.take_along_axis(log_prob, trajectory.action[valid][:, None], axis=1)[:, 0]
            np.testing.assert_allclose(trajectory.behaviour_log_prob[valid], expected, atol=1e-5)
            pool.publish(network.get_weights())
            assert set((update - trajectory.policy_version).tolist()) <= {0, 1}


def test_a_decision_in_flight_keeps_its_log_probability_and_its_version():
    network = network_of(tic_tac_toe)
    with make_pool(tic_tac_toe, network=network) as pool:
        pool.collect()
        pool.publish(flatten_weights([weight * np.float32(3) for weight in network.get_weights()]))
        trajectory = pool.collect()
        old = trajectory.policy_version == 0
        assert 0 < old.sum() < old.size + 1
        for column in np.flatnonzero(old):
            observation = trajectory.observation[0, column][None].astype(np.float32)
            logits = np.where(trajectory.action_mask[0, column], np.asarray(network(observation)[0])[0], -np.inf)
            expected = logits - np.log(np.exp(logits).sum())
            found = trajectory.behaviour_log_prob[0, column]
            assert found == pytest.approx(expected[trajectory.action[0, column]], abs=1e-5)


def digest(lag, num_actors, games=4):
    found = hashlib.sha256()
    network = network_of(tic_tac_toe)
    with make_pool(tic_tac_toe, 8, network, num_actors=num_actors, num_envs=2 * games, max_policy_lag=lag) as pool:
        for update in range(6):
            for leaf in pool.collect():
                if isinstance(leaf, np.ndarray):
                    found.update(leaf.tobytes())
            pool.publish(flatten_weights([weight * np.float32(1 + update / 4) for weight in network.get_weights()]))
    return found.hexdigest()


def test_bytes_are_the_same_for_any_number_of_actors():
    assert digest(0, 0) == digest(0, 1) == digest(0, 4)
    assert digest(1, 1) == digest(1, 2) != digest(0, 1)


def test_a_run_learns_from_all_seats_and_is_evaluated(tmp_path):
    config = al.TrainConfig(
        env=tic_tac_toe,
        algorithm=al.PPO(minibatch_size=64),
        hidden_sizes=(8,),
        num_actors=0,
        num_envs=8,
        unroll_length=16,
        total_steps=400,
        run_dir=tmp_path / "run",
        quiet=True,
    )
    result = al.train(config)
    assert set(al.evaluate(result.run_dir, tic_tac_toe, episodes=20).info["outcome"]) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 3}, r"each game of `tic_tac_toe` has 2: give 2 or 4"),
        ({"acting": "device"}, r"only actors act, unless it has `self_play`. Received: acting='device'"),
    ],
)
def test_what_cannot_be_is_one_clear_line(options, message):
    with pytest.raises(EnvError, match=message):
        make_pool(tic_tac_toe, num_actors=0, **{"num_envs": 2, **options}).collect()


def test_noise_of_one_s_own_needs_self_play():
    policy = SimpleNamespace(explores=True, exported=SimpleNamespace(state_shapes=()))
    with pytest.raises(EnvError, match=r"`exploration` needs `self_play`"):
        TurnWriter(None, policy, np.random.SeedSequence(0), 0)


def test_a_memory_needs_self_play():
    network = network_of(tic_tac_toe, memory="gru", memory_size=8)
    with pytest.raises(EnvError, match=r"a network with memory needs `self_play`"):
        make_pool(tic_tac_toe, network=network, num_actors=0)
