"""Games of several agents: each agent is an environment, dead ones are left out, games go on until nobody is left."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import actor_learner as al
from actor_learner.environments.agents import AgentsVectorEnv, ParallelGames
from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.games import course_of, of_supersuit
from tests.support.agents_game import LastStanding
from tests.support.bomb_game import Bomb

THOROUGH = pytest.mark.thorough


def played(steps, *games):
    """The transitions, with copies of what the next step overwrites."""
    environments = Environments(AgentsVectorEnv(ParallelGames(games, "game")))
    first = environments.reset(7)[0].copy()
    rows = environments.num_envs
    transitions = []
    for number in range(steps):
        transition = environments.step(np.full(rows, number % 2))
        final = transition.final_observation
        transitions.append(
            transition._replace(
                observation=transition.observation[0].copy(),
                reward=transition.reward.copy(),
                final_observation=None if final is None else final[0].copy(),
            )
        )
    return first, transitions


def test_dead_agents_rows_are_invalid_until_their_game_is_over():
    first, transitions = played(7, LastStanding())
    np.testing.assert_array_equal(first[:, :3], [[0, 0, 0], [0, 1, 0], [0, 2, 0]])
    valid = np.array([transition.valid for transition in transitions])
    ended = np.array([transition.terminated for transition in transitions])
    cut_off = np.array([transition.truncated for transition in transitions])
    np.testing.assert_array_equal(valid.T, [[1, 1, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 1, 1], [1] * 7])
    np.testing.assert_array_equal(ended.T, [[0, 1, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 0], [0] * 7])
    np.testing.assert_array_equal(cut_off.T, [[0] * 7, [0] * 7, [0, 0, 0, 0, 1, 0, 0]])
    rewards = np.array([transition.reward for transition in transitions])
    np.testing.assert_array_equal(rewards.T, [[1, 2, 0, 0, 0, 1, 2], [1, 2, 3, 0, 0, 1, 2], [1, 2, 3, 4, 5, 1, 2]])


def test_a_game_starts_again_when_nobody_is_left_and_the_cut_off_have_their_last_observation():
    _, transitions = played(6, LastStanding())
    np.testing.assert_array_equal(transitions[4].final_observation[2], [5, 2, 0, 0])
    np.testing.assert_array_equal(transitions[4].observation[:, :3], [[0, 0, 1], [0, 1, 1], [0, 2, 1]])
    np.testing.assert_array_equal(transitions[4].started, [True] * 3)
    np.testing.assert_array_equal(transitions[3].observation[:, 0], [2, 3, 4])


def test_episodes_are_those_of_the_agents():
    _, transitions = played(10, LastStanding())
    found = [
        (int(row), float(total), float(length), bool(success))
        for transition in transitions
        if transition.episodes is not None
        for row, total, length, success in zip(
            *transition.episodes[:3], transition.episodes.info["is_success"], strict=True
        )
    ]
    assert found == [(0, 3, 2, False), (1, 6, 3, False), (2, 15, 5, True)] * 2


def test_games_end_at_different_times_and_get_seeds_of_their_own():
    games = LastStanding((1, 2)), LastStanding((3, 3, 3))
    _, transitions = played(6, *games)
    valid = np.array([transition.valid for transition in transitions])
    np.testing.assert_array_equal(valid.T, [[1, 0, 1, 0, 1, 0], [1] * 6, [1] * 6, [1] * 6, [1] * 6])
    assert (games[0].seeds[0], games[1].seeds[0]) == (7, 9)
    assert (games[0].games, games[1].games) == (3, 2)


def test_masks_in_infos_are_those_of_the_agents():
    environments = Environments(AgentsVectorEnv(ParallelGames([LastStanding(masks=True)], "game")))
    environments.reset(0)
    for allowed in (0, 1, 0, 1, 0, 0, 1):
        assert environments.action_mask[2].tolist() == [True, True, bool(allowed)]
        transition = environments.step(np.zeros(3, np.int64))
        if transition.truncated[2]:  # the mask that came with the last observation, not the next game's
            assert environments.final_mask.tolist() == [[False] * 3, [False] * 3, [True, True, True]]


class NothingForTheDead(LastStanding):
    """The dead have no legal action; agent 1 joins in the second step; each agent's observations share an array."""

    def __init__(self, in_observation):
        super().__init__(masks=not in_observation)
        self.in_observation, self.seen = in_observation, np.zeros((3, 4), np.float32)

    def observation_space(self, agent):
        vector = super().observation_space(agent)
        return Dict(observation=vector, action_mask=Box(0, 1, (3,), np.int8)) if self.in_observation else vector

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        self.agents.remove("agent_1")
        del observations["agent_1"], infos["agent_1"]
        return observations, infos

    def step(self, actions):
        observations, rewards, died, cut_off, infos = super().step(actions)
        for agent, info in infos.items():
            if died[agent] and self.masks:
                info["action_mask"] = np.zeros(3, np.int8)
            if died[agent] and self.in_observation:
                observations[agent]["action_mask"] = np.zeros(3, np.int8)
        if self.steps == 1:
            self.agents.insert(1, "agent_1")
            observations["agent_1"], infos["agent_1"] = self._observe("agent_1", -1), self._info()
        return observations, rewards, died, cut_off, infos

    def _observe(self, agent, action):
        self.seen[self._number(agent)] = super()._observe(agent, action)
        seen = self.seen[self._number(agent)]
        return {"observation": seen, "action_mask": np.ones(3, np.int8)} if self.in_observation else seen


@pytest.mark.parametrize("in_observation", [False, True])
def test_the_dead_and_those_who_have_not_joined_need_no_legal_action(in_observation):
    environments = Environments(AgentsVectorEnv(ParallelGames([NothingForTheDead(in_observation)], "game")))
    environments.reset(0)
    valid, started = [], []
    for step in range(1, 8):
        assert environments.action_mask.any(axis=1).all()
        transition = environments.step(np.zeros(3, np.int64))
        valid.append(transition.valid)
        started.append(np.zeros(3, bool) if transition.started is None else transition.started)
        if step == 5:  # the last observation of the game, though the next one is written into the same arrays
            (last,) = (leaf[2] for leaf in transition.final_observation if leaf.shape[1] == 4)
            np.testing.assert_array_equal(last, [5, 2, 0, 0])
    np.testing.assert_array_equal(np.transpose(valid), [[1, 1, 0, 0, 0, 1, 1], [0, 1, 1, 0, 0, 0, 1], [1] * 7])
    np.testing.assert_array_equal(
        np.transpose(started), [[0, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0]]
    )


class Seen(NothingForTheDead):
    """Its state, [step, games before, agents that live], is written into one array and counts how often it is read."""

    state_space = Box(-1, np.inf, (3,))

    def __init__(self, in_observation=False, extra=False):
        super().__init__(in_observation)
        self.extra, self.states, self.whole = extra, 0, np.zeros(3)

    def observation_space(self, agent):
        space = super().observation_space(agent)
        return Dict({**space.spaces, "more": Box(-1, 1, (1,))}) if self.extra else space

    def state(self):
        self.states += 1
        self.whole[:] = self.steps, self.games, len(self.agents)
        return self.whole

    def _observe(self, agent, action):
        observation = super()._observe(agent, action)
        return {**observation, "more": np.zeros(1, np.float32)} if self.extra else observation


@pytest.mark.parametrize(("in_observation", "extra"), [(False, False), (True, False), (True, True)])
def test_for_a_centralized_value_rows_have_the_games_state_read_once_a_step(in_observation, extra):
    games = Seen(in_observation, extra), Seen(in_observation, extra)
    environments = Environments(AgentsVectorEnv(ParallelGames(games, "game", with_state=True)))
    names = [leaf.name.removeprefix("observation/") for leaf in environments.spaces.observation.leaves]
    assert names == [*(["observation/more", "observation/observation"] if extra else ["observation"]), "agent", "state"]
    environments.reset(7)
    game, before = games[0], games[0].states
    for step in range(1, 5):
        transition = environments.step(np.zeros(6, np.int64))
        *_, agent, state = transition.observation
        np.testing.assert_array_equal(agent, [0, 1, 2, 0, 1, 2])
        np.testing.assert_array_equal(state, [[step, 0, len(game.agents)]] * 6)
        assert environments.action_mask.shape == (6, 3)
    assert game.states == before + 4
    transition = environments.step(np.zeros(6, np.int64))
    *_, own, agent, state = transition.final_observation
    np.testing.assert_array_equal(own[2], [5, 2, 0, 0])
    np.testing.assert_array_equal((agent[2], *state[2]), [2, 5, 0, 0])  # the moment when the agent was cut off
    np.testing.assert_array_equal(transition.observation[-1], [[0, 1, 2]] * 6)


class NoState(LastStanding):
    pass


class Unwritten(LastStanding):
    def state(self):
        raise NotImplementedError("state() method has not been implemented")


class Growing(LastStanding):
    def state(self):
        return np.zeros(3 + self.steps)


class Broken(LastStanding):
    state_space = Box(0, 1, (2,))

    def state(self):
        return np.array([1, np.nan if self.steps else 0])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (NoState, r"`centralized_value` needs the state of `NoState`.*Received: AttributeError: "),
        (Unwritten, r"`centralized_value` needs the state of `Unwritten`.*Received: NotImplementedError: state\(\)"),
        (Growing, r"`state\(\)` of `Growing` must always return the shape \(3,\).*Received: shape=\(4,\)"),
        (Broken, r"observation\['state'\]\[1\] of environment 0 .*must be finite. Received: nan"),
        ("CartPole-v1", r"needs a game in PettingZoo's Parallel interface.* Received: `CartPole-v1`, a "),
        (Bomb, r"needs a game in PettingZoo's Parallel interface.* Received: `Bomb`, a "),
    ],
)
def test_a_game_whose_state_cannot_be_used_is_one_clear_line(env, message):
    def play():
        environments = Environments(replace(resolve_env(env), with_state=True).make_about(3))
        environments.reset(0)
        environments.step(np.zeros(3, np.int64))

    with pytest.raises(EnvError, match=message):
        play()


def test_a_vector_environment_of_anything_else_is_one_clear_line():
    message = r"An actor needs games of PettingZoo.*\(num_cpus=0\). Received: SimpleNamespace"
    for other in (SimpleNamespace(), SimpleNamespace(vec_envs=[SimpleNamespace()])):
        with pytest.raises(EnvError, match=message) as caught:
            of_supersuit(other)
        assert "\n" not in str(caught.value)


def at_most_what_is_asked_for(num_envs):
    return AgentsVectorEnv(ParallelGames([LastStanding() for _ in range(num_envs // 3)], "game"))


def multiples_of_three(num_envs):
    if num_envs % 3:
        raise ValueError(f"{num_envs} isn't a multiple of 3")
    return at_most_what_is_asked_for(num_envs)


@pytest.mark.parametrize("factory", [multiples_of_three, pytest.param(at_most_what_is_asked_for, marks=THOROUGH)])
@pytest.mark.usefixtures("without_xla")
def test_a_run_is_evaluated_on_the_numbers_of_copies_that_there_can_be(factory, tmp_path):
    evaluate = al.callbacks.Evaluate(every_steps=60, episodes=4)
    sizes = {"num_actors": 0, "envs_per_actor": 6, "unroll_length": 5, "total_steps": 60}
    config = al.TrainConfig(
        env=factory, algorithm=al.A2C(), callbacks=[evaluate], run_dir=tmp_path / "run", quiet=True, **sizes
    )
    result = al.train(config)
    assert sorted(evaluate.evaluation.returns) == [3, 3, 6, 15]
    for episodes in (1, 7):
        evaluation = al.evaluate(result.run_dir, factory, episodes)
        assert len(evaluation.returns) == episodes
        assert set(evaluation.returns) <= {3, 6, 15}
    assert al.evaluate(result.run_dir, factory, 6, num_envs=6).returns.tolist() == [3, 6, 15, 3, 6, 15]


class Incomplete(AnyVectorEnv):
    def __init__(self, num_envs):
        self.num_envs = num_envs


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (at_most_what_is_asked_for, "of 8 environments, the `envs_per_actor`. Received: num_envs=6"),
        (multiples_of_three, "can't be built: ValueError: 8 isn't a multiple of 3"),
        (Incomplete, r"`single_observation_space`, `single_action_space`. Received: .*Incomplete"),
    ],
)
def test_actors_need_the_number_that_they_ask_for_and_single_spaces(factory, message):
    with pytest.raises(EnvError, match=message):
        resolve_env(factory).make(8)


class Waiting(LastStanding):
    """Leaves out its first agent in the second step, and in what it returns then, `missing`."""

    missing = ""

    def step(self, actions):
        results = super().step(actions)
        first = self.possible_agents[0]
        if self.steps == 1:
            self.agents = [agent for agent in self.agents if agent != first or self.missing]
            place = ["observations", "rewards", "terminations", "truncations"]
            for number in [place.index(self.missing)] if self.missing else ():
                results[number].pop(first)
        return results


class Defaulting(LastStanding):
    """Names only what isn't 0 or False."""

    def step(self, actions):
        observations, *results, infos = super().step(actions)
        kinds = float, bool, bool
        found = [defaultdict(kind, {k: v for k, v in r.items() if v}) for kind, r in zip(kinds, results, strict=True)]
        return observations, *found, infos


def test_results_of_agents_may_be_defaults():
    for (first, transitions), (other, others) in [(played(7, LastStanding()), played(7, Defaulting()))]:
        np.testing.assert_array_equal(first, other)
        for one, two in zip(transitions, others, strict=True):
            for field in ("observation", "reward", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


@pytest.mark.parametrize("missing", ["", "observations", "rewards", "terminations", "truncations"])
def test_an_agent_that_waits_is_never_counted_as_dead(missing):
    message = rf"(an observation to each of its `agents`|{missing} of all agents that acted). Received: none of"
    if not missing:
        message = r"must say how an agent that leaves `agents` ended.*stays in `agents`. Received: neither for"
    game = Waiting()
    game.missing = missing
    with pytest.raises(EnvError, match=message):
        played(2, game)
    course = course_of(Waiting(), "game")
    course._game.missing = missing
    course.start(7)
    with pytest.raises(EnvError, match=message):
        course.play(dict.fromkeys(course.deciding, 0))
