"""Several policies in actors: each has its agents' rows, whichever actors play; faults end no other rows."""

from __future__ import annotations

import hashlib
import os
import signal

import numpy as np
import pytest

import actor_learner as al
from actor_learner.environments.errors import EnvError
from actor_learner.spaces.trajectory import map_leaves
from tests.support.hunt_game import Hunt
from tests.support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

RULE = {"hunter_*": "hunter", "*": "prey"}
AGENTS = {"hunter": ["hunter_0", "hunter_1"], "prey": ["prey"]}
GAMES = 4


def make_pool(**kwargs):
    sizes = {"num_actors": 2, "num_envs": 3 * GAMES, "unroll_length": 11, "policy_of": RULE}
    return al.ActorPool(kwargs.pop("env", Hunt), policies=("hunter", "prey"), **{**sizes, **kwargs})


def changed(pool, update):
    """Weights of each policy that differ from update to update."""
    return {
        name: [weight + np.float32(0.01 * update) for weight in network.get_weights()]
        for name, network in pool.network.items()
    }


def digest(batches=4, **kwargs):
    found = hashlib.sha256()
    with make_pool(**kwargs) as pool:
        for update in range(batches):
            for name, trajectory in pool.collect().items():
                found.update(name.encode())
                map_leaves(lambda leaf: found.update(np.ascontiguousarray(leaf).tobytes()), tuple(trajectory))
            pool.publish(changed(pool, update))
    return found.hexdigest()


@pytest.mark.parametrize("lag", [0, 1])
def test_the_bytes_are_the_same_for_any_number_of_actors(lag):
    assert digest(max_policy_lag=lag, num_actors=0) == digest(max_policy_lag=lag, num_actors=2)
    assert digest(max_policy_lag=lag, num_actors=4) == digest(max_policy_lag=lag, num_actors=1)


def replayed(batches, game_number, seed):
    """The rows of one game, as its own steps give them for the recorded actions."""
    game = Hunt()
    seen, _ = game.reset(seed=seed)
    for row in range(batches["prey"].reward.shape[0]):
        playing, before, actions = list(game.agents), seen, {}
        for name, agents in AGENTS.items():
            for place, agent in enumerate(agents):
                column = game_number * len(agents) + place
                assert batches[name].valid[row, column] == (agent in playing)
                if agent in playing:
                    action = batches[name].action[row, column]
                    actions[agent] = int(action) if name == "hunter" else np.clip(action, -1, 1)
        seen, rewards, ended, cut_off, _ = game.step(actions)
        for name, agents in AGENTS.items():
            for place, agent in enumerate(agents):
                if agent in playing:
                    column = game_number * len(agents) + place
                    yield name, agent, row, column, before, rewards, ended, cut_off
        if not game.agents:
            seen, _ = game.reset()


def test_the_rows_are_those_of_the_games_played_with_the_same_actions():
    with make_pool(num_actors=0, unroll_length=40) as pool:
        batches = pool.collect()
        env_seed = pool._group._startup.env_seed()
        rows = deaths = 0
        for number in range(GAMES):
            for name, agent, row, column, before, rewards, ended, cut_off in replayed(
                batches, number, env_seed + 3 * number
            ):
                batch, seen = batches[name], before[agent]
                observation = seen["observation"] if name == "hunter" else seen
                np.testing.assert_array_equal(batch.observation[row, column], observation)
                if name == "hunter":
                    np.testing.assert_array_equal(batch.action_mask[row, column], seen["action_mask"])
                assert batch.reward[row, column] == np.float32(rewards[agent])
                assert batch.terminated[row, column] == ended[agent]
                assert batch.truncated[row, column] == cut_off[agent]
                rows, deaths = rows + 1, deaths + ended[agent]
    assert rows > 300
    assert deaths
    assert sum(batch.valid.sum() for batch in batches.values()) == rows


def test_each_policy_acts_by_its_own_weights_and_has_its_own_spaces():
    with make_pool(num_actors=1) as pool:
        assert pool.observation_space["prey"].shape == (3,)
        assert pool.uses_masks == {"hunter": True, "prey": False}
        first = pool.collect()
        policies = {
            name: al.Policy.from_network(pool.network[name], pool.action_space[name], observation_space=space)
            for name, space in pool.observation_space.items()
        }
        for name, policy in policies.items():
            assert first[name].observation.shape[1] == GAMES * len(AGENTS[name])
            value = policy.value(first[name].observation[0])
            np.testing.assert_allclose(pool.network[name](first[name].observation[0])[1].numpy().ravel(), value, 1e-5)
        kept = first["hunter"].copy()
        zeroed = [np.zeros_like(weight) for weight in pool.network["prey"].get_weights()]
        pool.publish({"hunter": pool.network["hunter"].get_weights(), "prey": zeroed})
        second = pool.collect()
        assert set(second["prey"].policy_version) == {1}
        valid = second["prey"].valid
        assert np.abs(second["prey"].truncation_value[second["prey"].truncated]).max(initial=0) == 0
        np.testing.assert_allclose(
            second["prey"].behaviour_log_prob[valid], _standard_normal(second["prey"].action[valid]), 1e-4, 1e-5
        )
        assert kept.behaviour_log_prob.shape == second["hunter"].behaviour_log_prob.shape


def _standard_normal(action):
    return -0.5 * action[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)


def test_an_actor_that_is_killed_is_replaced():
    with make_pool(num_actors=2) as pool:
        pool.collect()
        os.kill(pool.pids[0], signal.SIGKILL)
        wait_until(lambda: pool.restart_count or pool.collect())
        batches = pool.collect()
        assert pool.restart_count == 1
        assert batches["hunter"].valid.any()
        assert batches["prey"].valid.any()


class Breaks(Hunt):
    def step(self, actions):
        if self.steps == 5:
            raise ArithmeticError("the game broke")
        return super().step(actions)


def test_the_rows_before_an_error_of_the_game_are_kept_for_all_policies():
    with make_pool(env=Breaks, num_actors=2, max_restarts=50) as pool:
        batches = pool.collect()
        for name, trajectory in batches.items():
            assert trajectory.valid[:5].any(), name
            assert not trajectory.valid[5:].any(), name
            assert not (trajectory.valid[4] & ~trajectory.terminated[4] & ~trajectory.truncated[4]).any()


class BadReward(Hunt):
    """Gives one agent NaN."""

    bad = "prey"

    def step(self, actions):
        observations, rewards, *others = super().step(actions)
        if self.steps == 5 and self.bad in rewards:
            rewards[self.bad] = float("nan")
        return observations, rewards, *others


class BadHunter(BadReward):
    bad = "hunter_0"


@pytest.mark.parametrize("env", [BadReward, BadHunter])
def test_a_fault_in_the_part_of_one_policy_ends_the_unrolls_of_all(env):
    with make_pool(env=env, num_actors=1, max_restarts=5) as pool:
        batches, causes = {name: batch.copy() for name, batch in pool.collect().items()}, list(pool.restarts)
        pool.collect()
        causes += pool.restarts
        assert all(trajectory.valid[:4].any() for trajectory in batches.values())
        assert not any(trajectory.valid[5:].any() for trajectory in batches.values())
        assert all(np.isfinite(trajectory.reward).all() for trajectory in batches.values())
    assert "must be finite. Received: nan" in causes[0].cause


def one_policy(agent):
    return "hunter"


class Differs(Hunt):
    def observation_space(self, agent):
        return Box3 if agent == "hunter_1" else super().observation_space(agent)


Box3 = Hunt().observation_space("prey")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"policy_of": {"hunter_*": "hunter"}}, r"`policy_of` must match every agent.*Received: agent='prey'"),
        ({"policy_of": one_policy}, r"must give each policy an agent.*Received: none for policy 'prey'"),
        ({"policy_of": lambda agent: "cat"}, r"must name one of `policies`, \['hunter', 'prey'\]. Received: 'cat'"),
        ({"policy_of": lambda agent: 1 / 0}, r"`policy_of` raised ZeroDivisionError.*Received: agent='hunter_0'"),
        ({"env": Differs}, "'hunter_0' with .*'hunter_1' with "),
        ({"env": "CartPole-v1"}, "`policies` need a game of several agents"),
        ({"env": "pettingzoo:classic/tictactoe-v3"}, "`policies` need a game of PettingZoo's Parallel interface"),
        (
            {"num_envs": None, "envs_per_actor": 4},
            "`envs_per_actor` counts agents, of which each game .* has 3: give 3",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(kwargs, message):
    with pytest.raises(EnvError, match=message) as caught:
        make_pool(**{"num_actors": 0, **kwargs})
    assert "\n" not in str(caught.value)


def test_weights_of_one_policy_alone_are_refused():
    with make_pool(num_actors=0) as pool:
        pool.collect()
        with pytest.raises(ValueError, match=r"a dict with the weights of each policy.*Received: \['prey'\]"):
            pool.publish({"prey": pool.network["prey"].get_weights()})
        with pytest.raises(ValueError, match="by the names of `policies`"):
            make_pool(num_actors=0, network=pool.network["prey"])
