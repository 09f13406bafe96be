"""Games in PettingZoo's two interfaces: rows are those of its own loop, whoever plays the other seats."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from actor_learner.environments.agents import AgentsVectorEnv
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.games import course_of, shared_spaces
from actor_learner.environments.opponents import Opponent
from actor_learner.environments.self_play import Seats, SelfPlayVectorEnv, share_beaten
from actor_learner.environments.teams import PolicyOf, environments_of
from tests.support.agents_game import LastStanding
from tests.support.bomb_game import Bomb

pytest.importorskip("pettingzoo")


def tic_tac_toe():
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.raw_env()


def connect_four():
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.env()


def rows_of_agent_iter(game, actions, episodes):
    """PettingZoo's own loop: (agent, observation, action, reward until the next decision, terminated, truncated)."""
    rows = []
    for _ in range(episodes):
        game.reset()
        open_rows = {}
        for agent in game.agent_iter():
            observation, reward, terminated, truncated, _ = game.last()
            if agent in open_rows:
                rows.append((agent, *open_rows.pop(agent), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                game.step(None)
                continue
            action = actions(observation["observation"], observation["action_mask"])
            open_rows[agent] = observation["observation"].tolist(), int(action)
            game.step(action)
    return rows


def by_a_rule(observation, mask):
    """An action that depends on the observation alone."""
    allowed = np.flatnonzero(mask)
    return allowed[int(np.asarray(observation, np.float64).sum() * 7) % len(allowed)]


@pytest.mark.parametrize("make", [tic_tac_toe, connect_four, Bomb])
def test_a_learner_s_rows_are_those_of_pettingzoo_s_own_loop(make):
    """Each seat in turn is the learner's; the loop's rows of the same game are compared, one by one."""
    expected = rows_of_agent_iter(make(), by_a_rule, 1)
    agents = make().possible_agents
    seats = Seats({"rule": lambda observation, mask, generator: by_a_rule(observation, mask)})
    for seat, agent in enumerate(agents):
        env = SelfPlayVectorEnv([make()], Seats(seats.players, seat), "game")
        env.set_opponents([Opponent(-2)])
        env.reset(seed=0)
        found = []
        while not found or not (found[-1][4] or found[-1][5]):
            (request,) = env.requests()
            action = by_a_rule(request.observation, request.mask)
            seen = request.observation.tolist()
            _, reward, terminated, truncated, _ = env.step_each([action])
            found.append((agent, seen, int(action), float(reward[0]), bool(terminated[0]), bool(truncated[0])))
        own = [row for row in expected if row[0] == agent]
        own = [(*row[:5], row[5] and not row[4]) for row in own]
        assert found == own


def first_allowed(observation, mask, generator):
    return int(np.flatnonzero(mask)[0])


def self_play_env(make=tic_tac_toe, num_envs=4, **seats):
    return SelfPlayVectorEnv([make() for _ in range(num_envs)], Seats(**seats), "game")


def test_games_are_the_same_however_they_are_grouped():
    def played(*groups):
        found = {}
        for first, count in groups:
            environments = Environments(self_play_env(connect_four, count), info_keys=("opponent", "outcome"))
            environments.reset(50 + first)
            for _ in range(60):
                allowed = environments.action_mask
                step = environments.step(allowed.argmax(axis=1))
                for row in range(count):
                    ends = [] if step.episodes is None else list(zip(*step.episodes[:3], strict=True))
                    mine = [tuple(map(float, end)) for end in ends if end[0] == row]
                    seen = step.observation[0][row].tobytes(), step.reward[row], step.terminated[row]
                    found.setdefault(first + row, []).append((*seen, [end[1:] for end in mine]))
        return found

    assert played((0, 4)) == played((0, 1), (1, 2), (3, 1))


def test_the_outcome_is_that_of_the_returns():
    assert share_beaten({"a": 1.0, "b": -1.0}) == {"a": 1.0, "b": 0.0}
    assert share_beaten({"a": 0.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}
    assert share_beaten({"a": 2.0, "b": 2.0, "c": 0.0}) == {"a": 0.75, "b": 0.75, "c": 0.0}
    environments = Environments(self_play_env(), info_keys=("outcome", "seat"))
    environments.reset(3)
    found = []
    for _ in range(60):
        step = environments.step(environments.action_mask.argmax(axis=1))
        if step.episodes is not None:
            outcomes = step.episodes.info["outcome"]
            np.testing.assert_array_equal(outcomes, 0.5 + 0.5 * np.sign(step.episodes.returns))
            found += outcomes.tolist()
    assert set(found) >= {0.0, 1.0}


def test_a_seat_is_drawn_given_or_taken_in_turn():
    def seats(**options):
        env = self_play_env(**options)
        env.reset(seed=1)
        taken = [list(env.seats_taken)]
        for _ in range(40):
            *_, infos = env.step_each([request.mask.argmax() for request in env.requests()])
            if "final_info" in infos:
                taken.append(list(env.seats_taken))
        return np.array(taken)

    assert set(seats().ravel().tolist()) == {0, 1}
    assert set(seats(seat=1).ravel().tolist()) == {1}
    in_turn = seats(take_turns=True, num_envs=1)[:, 0]
    np.testing.assert_array_equal(in_turn, np.arange(len(in_turn)) % 2)
    quotas = self_play_env(num_envs=3).quotas(7)
    assert sum(quotas.values()) == 8
    assert sum(count for (_, seat), count in quotas.items() if seat) == 4


def test_an_opening_is_played_at_random_and_is_not_learned_from():
    env = self_play_env(num_envs=1, opening=4, players={"first": first_allowed}, seat=0)
    env.set_opponents([Opponent(-2)])
    env.reset(seed=0)
    begins, openings = [], set()
    for _ in range(400):
        (request,) = env.requests()
        begins.append(int(request.observation.sum()))
        *_, infos = env.step_each([request.mask.argmax()])
        if "final_obs" in infos:
            openings.add(begins[0])
            assert all(after == before + 2 for before, after in itertools.pairwise(begins))
            begins = []
    assert openings == {0, 2, 4}  # an odd number ends with the learner's own decision at random


def test_some_moves_of_frozen_versions_are_random():
    class Frozen:
        def initial_state(self, rows=None):
            return ()

        def sample_rows(self, observation, generators, action_mask=None, state=None):
            return action_mask.argmax(axis=1), ()

    def first_moves(epsilon):
        env = self_play_env(num_envs=1, epsilon=epsilon, seat=1)
        env.attach(lambda opponent: Frozen())
        env.set_opponents([Opponent(0)])
        env.reset(seed=0)
        found = []
        for _ in range(300):
            (request,) = env.requests()
            mine, theirs = request.observation[..., 0], request.observation[..., 1]
            if theirs.sum() == 1 and not mine.any():
                found.append(bool(theirs[0, 0]))
            env.step_each([request.mask.nonzero()[0][-1]])
        return np.mean(found)

    assert first_moves(0.0) == 1.0
    assert 0.3 < first_moves(0.5) < 0.8


class TestParallelGames:
    def test_self_play_gives_the_learner_one_of_them(self):
        env = SelfPlayVectorEnv([LastStanding(), LastStanding()], Seats(seat=1), "game")
        observation, _ = env.reset(seed=0)
        assert observation[:, 1].tolist() == [1, 1]
        rewards, ends = [], []
        for _ in range(6):
            _, reward, terminated, truncated, infos = env.step(np.zeros(2, np.int64))
            rewards.append(reward[0])
            ends.append(bool(terminated[0]))
            assert not truncated.any()
        assert rewards == [1, 2, 3, 1, 2, 3]
        assert ends == [False, False, True] * 2
        assert infos["final_info"]["outcome"].tolist() == [0.5, 0.5]  # it had 6, the first 3, and the third 15

    def test_masks_are_taken_out_of_observations(self):
        class Masked(LastStanding):
            def observation_space(self, agent):
                return Dict(observation=super().observation_space(agent), action_mask=Box(0, 1, (3,), np.int8))

            def _observe(self, agent, action):
                mask = np.array([1, 0, self._number(agent) > 0], np.int8)
                return {"observation": super()._observe(agent, action), "action_mask": mask}

        environments = Environments(resolve_env(Masked).make(3))
        assert environments.observation_space.shape == (4,)
        environments.reset(0)
        assert environments.action_mask.tolist() == [[True, False, False], [True, False, True], [True, False, True]]


class Elimination(LastStanding):
    """Agents leave one after the other; the last one gets 1, and one of them may not be there."""

    def __init__(self, absent=None):
        super().__init__((1, 2, None), length=3)
        self.absent = absent

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        if self.absent is not None:
            self.agents.remove(self.absent)
            del observations[self.absent]
        return observations, infos

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: float(agent == "agent_2" and not self.agents) for agent in rewards}, *rest


def outcomes_of(env, steps=12):
    env.reset(seed=0)
    found = []
    for _ in range(steps):
        *_, infos = env.step_each([0] * env.num_envs)
        found += infos["final_info"]["outcome"].tolist() if "final_obs" in infos else []
    return found


def test_the_outcome_of_an_agent_that_is_out_first_waits_for_the_end_of_the_game():
    assert set(outcomes_of(SelfPlayVectorEnv([Elimination()], Seats(seat=0), "game"))) == {0.25}
    assert set(outcomes_of(SelfPlayVectorEnv([Elimination()], Seats(seat=2), "game"))) == {1.0}


def test_a_seat_that_a_game_leaves_empty_is_no_episode():
    env = SelfPlayVectorEnv([Elimination(absent="agent_1")], Seats(), "game")
    assert set(outcomes_of(env)) == {0.0, 1.0}
    with pytest.raises(EnvError, match="no decision of 'agent_1'"):
        SelfPlayVectorEnv([Elimination(absent="agent_1")], Seats(seat=1), "game").reset(seed=0)


def test_a_mask_beside_further_entries_binds_opponents_too():
    class WithTurn(Bomb):
        def observation_space(self, agent):
            return Dict({**super().observation_space(agent).spaces, "turn": Discrete(30)})

        def observe(self, agent):
            return {**super().observe(agent), "turn": self.count}

        def step(self, action):
            assert action is None or self.observe(self.agent_selection)["action_mask"][action]
            super().step(action)

    environments = Environments(self_play_env(WithTurn))
    environments.reset(0)
    for _ in range(60):
        environments.step(environments.action_mask.argmax(axis=1))


class NothingAllowed(Bomb):
    def observe(self, agent):
        seen = super().observe(agent)
        return {**seen, "action_mask": seen["action_mask"] * (self.count < 3)}


class OtherShape(Bomb):
    def observe(self, agent):
        seen = super().observe(agent)
        return {**seen, "observation": np.zeros(4 + (self.count < 3), np.float32)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NothingAllowed, r"`action_mask` of `game` must allow an action to an agent that decides.*allowed for '[abc]'"),
        (OtherShape, r"The observations of `game` must be of Box\(0.0, 1.0, \(5,\)"),
    ],
)
def test_a_game_that_breaks_its_own_spaces_is_one_clear_line(make, message):
    env = self_play_env(make, 1, seat=0)
    with pytest.raises(EnvError, match=message):
        outcomes_of(env)


class OtherSpaces(LastStanding):
    def action_space(self, agent):
        return Discrete(3 + (agent == "agent_2"))


class Nobody(LastStanding):
    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = []
        return {}, {}


class Stranger(LastStanding):
    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return {**observations, "stranger": observations["agent_0"]}, infos


@pytest.mark.parametrize(
    ("make", "num_envs", "message"),
    [
        (LastStanding, 8, r"each game of `LastStanding` has 3: give 6 or 9\. Received: 8"),
        (LastStanding, 2, r"has 3: give 3\. Received: 2"),
        (OtherSpaces, 3, r"differ in their actions: .*'agent_0' with Discrete\(3\), 'agent_2' with Discrete\(4\)"),
        (tic_tac_toe, 3, r"each game of `tic_tac_toe` has 2: give 2 or 4"),
        (lambda: LastStanding(()), 3, r"`possible_agents`. Received: possible_agents=\[\]"),
    ],
)
def test_a_game_that_cannot_be_built_is_one_clear_line(make, num_envs, message):
    with pytest.raises(EnvError, match=message) as error:
        resolve_env(make).make(num_envs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [(Nobody, "Received: no agents"), (Stranger, "must name all agents in `possible_agents`.*agent='stranger'")],
)
def test_a_game_that_breaks_its_interface_is_one_clear_line(make, message):
    with pytest.raises(EnvError, match=message):
        Environments(resolve_env(make).make(3)).reset(0)


def play(env, steps):
    env.reset(seed=0)
    for _ in range(steps):
        env.step_each([env.requests()[0].mask.argmax()])


def player_that_raises(observation, mask, generator):
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("player", "message"),
    [
        (player_that_raises, r"The player `mine` raised RuntimeError: no idea"),
        (lambda observation, mask, generator: 4, r"of Discrete\(9\) that the mask allows, \[1, 2, 3, 5.*Received: 4"),
        (lambda observation, mask, generator: None, r"`mine` must return an action of Discrete\(9\)"),
    ],
)
def test_a_player_that_raises_or_breaks_the_rules_is_one_clear_line(player, message):
    env = self_play_env(players={"mine": player}, num_envs=1, seat=1)
    env.set_opponents([Opponent(-2)])
    with pytest.raises(EnvError, match=message):
        play(env, 9)


def test_a_game_in_which_the_learner_never_decides_is_one_clear_line():
    class Alone(Bomb):
        def step(self, action):
            super().step(0)
            self.agent_selection, self.count = "a", 0

    with pytest.raises(EnvError, match=r"opponents decided 10,000 times in a row. Received: no decision of 'b'"):
        self_play_env(Alone, 1, seat=1).reset(seed=0)


def test_self_play_needs_a_game_of_several_agents():
    with pytest.raises(EnvError, match=r"at least two agents. Received: `game` with \['agent_0'\]"):
        SelfPlayVectorEnv([LastStanding((None,))], Seats(), "game")
    with pytest.raises(EnvError, match=r"`seat` must be below 2, the agents of `game`. Received: seat=2"):
        self_play_env(seat=2)


@pytest.mark.parametrize(
    ("env", "agents"), [("pettingzoo:classic/rps-v2", 2), ("pettingzoo:classic/connect_four-v3", 2)]
)
def test_ids_of_pettingzoo_s_registry(env, agents):
    factory = resolve_env(env)
    assert factory.name == env
    assert factory.make(2 * agents).num_envs == 2 * agents


def test_an_unknown_id_of_pettingzoo_is_one_clear_line():
    with pytest.raises(EnvError, match=r"no game `classic/conect_four-v3`; did you mean `pettingzoo:classic/connect_f"):
        resolve_env("pettingzoo:classic/conect_four-v3")


def test_spaces_and_courses_of_games_in_pettingzoo_s_wrappers():
    observation, action = shared_spaces(connect_four(), "game")
    assert (observation.shape, action.n) == ((6, 7, 2), 7)
    course = course_of(connect_four(), "game")
    course.start(0)
    ((agent, turn),) = course.deciding.items()
    assert agent == "player_0"
    assert turn.mask.tolist() == [True] * 7


def sampling(kind):
    class Sampling(kind):
        """Has spaces of its own."""

        def __init__(self):
            super().__init__()
            self.spaces = {agent: Discrete(3) for agent in self.possible_agents}

        def action_space(self, agent):
            return self.spaces[agent]

    return Sampling


def drawn(games):
    """Twenty draws of each agent's space."""
    return [[[space.sample() for _ in range(20)] for space in game.spaces.values()] for game in games]


@pytest.mark.parametrize("self_play", [True, False])
@pytest.mark.parametrize("make", [Bomb, LastStanding])
def test_spaces_of_a_game_are_seeded(make, self_play):
    draws = []
    for seed in (4, 4, 5):
        factory = dataclasses.replace(resolve_env(sampling(make)), seats=Seats() if self_play else None)
        vector_env = factory.make(2 if self_play else 6)
        Environments(vector_env).reset(seed)
        draws.append(drawn(vector_env.games.games if isinstance(vector_env, AgentsVectorEnv) else vector_env._raw))
    assert draws[0] == draws[1] != draws[2]
    assert len({tuple(numbers) for game in draws[0] for numbers in game}) == 6


def test_spaces_of_a_game_of_several_policies_are_seeded_for_any_number_of_games_beside_it():
    rule = PolicyOf(("others", "last"), {"agent_2": "last", "*": "others"})
    factory = dataclasses.replace(resolve_env(sampling(LastStanding)), policy_of=rule)
    draws = []
    for rows, seed in ((6, 4), (3, 7)):
        vector_env = factory.make(rows)
        for each in environments_of(vector_env, "a game").values():
            each.reset(seed)
        draws.append(drawn(vector_env._games.games))
    assert draws[0][1:] == draws[1]
