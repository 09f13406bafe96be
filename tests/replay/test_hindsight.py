"""Hindsight: drawn rows get goals that were achieved in their own episode, and the rewards of these."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings, strategies as st

import actor_learner as al
from actor_learner.replay.hindsight import episode_rows
from tests.support.scripted_envs import MODES, Script
from tests.support.trajectories import TWO_ACTIONS, random_trajectory

EPISODES = [(3, True, False), (5, False, True), (2, False, True), (1, True, False), (7, True, False), (4, False, True)]
"""Length, terminated, truncated."""
STEPS = 8
PLACE = Box(-np.inf, np.inf, (3,), np.float32)
GOALS = Dict({"observation": PLACE, "achieved_goal": PLACE, "desired_goal": PLACE})


def distance(achieved, desired, infos):
    """A reward that tells both goals, of one row or of many."""
    assert np.ndim(infos) == 0 or list(infos) == [{}] * len(achieved)
    return 10 * achieved[..., 0] - desired[..., 0]


class Travel(Script):
    """Achieves [step, episode, number of the environment]; asks for step -1, which is never achieved."""

    numbers = itertools.count()

    def __init__(self):
        self.number = next(self.numbers)
        super().__init__(EPISODES[self.number % 3 :] + EPISODES[: self.number % 3], GOALS)

    def observation(self):
        place = np.array([self.count, self.episode, self.number], np.float32)
        return {"observation": -place, "achieved_goal": place, "desired_goal": np.array([-1, *place[1:]], np.float32)}

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(distance(observation["achieved_goal"], observation["desired_goal"], {})), *rest


@functools.cache
def travelled(mode):
    """Some trajectories of a pool of three environments."""

    def vector(num_envs):
        return SyncVectorEnv([Travel] * num_envs, autoreset_mode=mode)

    options = {"num_envs": 3, "unroll_length": STEPS, "autoreset_mode": mode, "terminal_observations": True}
    with al.ActorPool(vector, num_actors=0, **options) as pool:
        return [pool.collect().copy() for _ in range(6)]


def buffer_of(strategy="future", goals=4, function=distance, **options):
    options = {"capacity": 18 * STEPS, "unroll_length": STEPS, **options}
    return al.ReplayBuffer(GOALS, TWO_ACTIONS, hindsight=al.Hindsight(strategy, goals, function), **options)


class Step(NamedTuple):
    """A row as a loop over a column sees it."""

    after: int | None  # the step of the episode that it achieves; None: that isn't known
    drawn: bool


def episodes_of(trajectory, column):
    """The rows of each episode in a column, found by what the environment showed."""
    found = defaultdict(dict)
    valid, ended = trajectory.valid[:, column], (trajectory.terminated | trajectory.truncated)[:, column]
    shown = trajectory.observation["achieved_goal"][:, column]
    for row in np.flatnonzero(valid):
        after = None
        if tuple(shown[row + 1, 1:]) == tuple(shown[row, 1:]):
            after = int(shown[row + 1, 0])
        elif row == trajectory.final_row[column]:
            after = int(trajectory.final_observation["achieved_goal"][column, 0])
        found[tuple(shown[row, 1:])][row] = Step(after, after is not None or not trajectory.truncated[row, column])
        assert ended[row] or after is not None
    return found


def expected_goals(trajectory, strategy):
    """Drawn rows, by [step, episode, environment] -> the steps after which goals may be."""
    allowed = {}
    for column in range(trajectory.reward.shape[1]):
        for rows in episodes_of(trajectory, column).values():
            known = {row: step.after for row, step in rows.items() if step.after is not None}
            for row, step in rows.items():
                if not step.drawn:
                    continue
                among = {
                    "future": [r for r in known if r >= row],
                    "episode": [*known],
                    "final": [max(known, default=-1)],
                }
                place = tuple(trajectory.observation["achieved_goal"][row, column])
                allowed[place] = {known[r] for r in among[strategy]} if row in known else set()
    return allowed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_were_achieved_in_the_same_episode_and_rewards_are_theirs(mode, strategy):
    buffer, allowed = buffer_of(strategy), {}
    for trajectory in travelled(mode):
        buffer.add(trajectory)
        allowed |= expected_goals(trajectory, strategy)
    rows = buffer.sample(64, 400)
    before, after = rows.observation, rows.next_observation
    np.testing.assert_array_equal(before["desired_goal"], after["desired_goal"])
    np.testing.assert_array_equal(before["desired_goal"][..., 1:], before["achieved_goal"][..., 1:])
    np.testing.assert_array_equal(before["observation"], -before["achieved_goal"])
    seen, kept = defaultdict(set), 0
    for place, reached, goal, reward, discount in zip(
        *(part.reshape(-1, 3) for part in (before["achieved_goal"], after["achieved_goal"], before["desired_goal"])),
        *(part.reshape(-1) for part in (rows.reward, rows.discount)),
        strict=True,
    ):
        own = goal[0] == -1
        known = bool(allowed[tuple(place)])
        if known:
            assert reached[0] == place[0] + 1
        assert reward == 10 * (place[0] + 1) - goal[0]
        assert (discount == 0) or discount == pytest.approx(0.99)
        seen[tuple(place)] |= set() if own else {int(goal[0])}
        kept += known and own
    assert dict(seen) == allowed
    unknown = sum(not goals for goals in allowed.values())
    assert (unknown > 0) == (mode is not AutoresetMode.NEXT_STEP)
    known_rows = rows.reward.size * (1 - unknown / len(allowed))
    assert kept == pytest.approx(known_rows / 5, rel=0.1)


def test_the_last_row_of_a_terminated_episode_gets_other_goals_where_its_last_observation_is_known():
    """It is only if the actors keep it, which they don't by default."""
    columns = []
    for kept in (True, False):
        with al.ActorPool(Travel, num_actors=0, num_envs=3, unroll_length=STEPS, terminal_observations=kept) as pool:
            trajectory = pool.collect().copy()
        row = trajectory.final_row
        ends = trajectory.terminated | trajectory.truncated if kept else trajectory.truncated
        np.testing.assert_array_equal(row, [max(np.flatnonzero(ends[:, c]), default=-1) for c in range(3)])
        buffer = buffer_of()
        buffer.add(trajectory)
        rows = buffer.sample(3000)
        changed = rows.observation["desired_goal"][:, 0] >= 0
        columns.append(int((changed & (rows.discount == 0)).sum()))
    assert columns[0] > 100
    assert columns[1] == 0


@pytest.mark.parametrize("goals", [0.5, 1, 9])
def test_the_number_of_goals_says_how_many_rows_keep_their_own(goals):
    buffer = buffer_of(goals=goals)
    buffer.add_episode(**episode(7), terminated=False)
    own = buffer.sample(20_000).observation["desired_goal"][:, 0] == -1
    assert own.mean() == pytest.approx(1 / (goals + 1), abs=0.015)


def episode(length, number=0):
    env = Travel()
    observations, rewards = [env.reset()[0]], []
    env.episodes = [(length, True, False)]
    for _ in range(length):
        observation, reward, *_ = env.step(0)
        observations.append(observation)
        rewards.append(reward)
    return {"observations": observations, "actions": [0] * length, "rewards": rewards}


@pytest.mark.parametrize("terminated", [False, True])
def test_episodes_that_were_played_elsewhere_are_drawn_with_other_goals_too(terminated):
    """In columns of 4 rows: goals are those of the same column."""
    buffer = buffer_of(unroll_length=4)
    buffer.add_episode(**episode(10), terminated=terminated)
    rows = buffer.sample(3000)
    step, goal = rows.observation["achieved_goal"][:, 0], rows.observation["desired_goal"][:, 0]
    for row in range(10):
        last = min(row // 4 * 4 + 4, 10)
        assert set(goal[step == row]) == {-1, *range(row + 1, last + 1)}
    assert set(rows.discount[step == 9]) == {0.0 if terminated else np.float32(0.99)}


@settings(max_examples=60)
@given(data=st.data(), steps=st.integers(1, 9), columns=st.integers(1, 3))
def test_episode_rows_against_a_loop(data, steps, columns):
    def flags():
        drawn = data.draw(st.lists(st.booleans(), min_size=steps * columns, max_size=steps * columns))
        return np.array(drawn).reshape(steps, columns)

    terminated, truncated, valid = flags(), flags(), flags()
    reached = flags() & valid
    piece = al.Trajectory(*[None] * 9)._replace(terminated=terminated, truncated=truncated, valid=valid)
    found = episode_rows(piece, reached)
    ends = terminated | truncated | ~valid
    for column, row in itertools.product(range(columns), range(steps)):
        if not reached[row, column]:
            assert found[row, column, 1] == -1
            continue
        first = row
        while first and not ends[first - 1, column]:
            first -= 1
        last = last_reached = row
        while last + 1 < steps and not ends[last, column]:
            last += 1
            last_reached = last if reached[last, column] else last_reached
        assert tuple(found[row, column]) == (first, last_reached)


def test_clipped_rewards_stay_clipped():
    buffer = buffer_of(clip_reward=5.0)
    buffer.add(travelled(AutoresetMode.NEXT_STEP)[0])
    assert buffer.sample(500).reward.max() == 5.0


def test_the_same_draws_after_saving_and_loading(tmp_path):
    buffer = buffer_of("episode", 2.0)
    for trajectory in travelled(AutoresetMode.SAME_STEP)[:3]:
        buffer.add(trajectory)
    buffer.save(tmp_path / "buffer")
    plain = al.ReplayBuffer.load(tmp_path / "buffer")  # without a function, rows keep their goals
    assert plain.hindsight is None
    assert (plain.sample(200).observation["desired_goal"][:, 0] == -1).all()
    plain.use_hindsight(al.Hindsight("final", 4, distance))
    assert (plain.sample(200).observation["desired_goal"][:, 0] >= 0).any()
    again = al.ReplayBuffer.load(tmp_path / "buffer", compute_reward=distance)
    assert again.hindsight == buffer.hindsight
    for one, other in zip(buffer.sample(64, 3), again.sample(64, 3), strict=True):
        np.testing.assert_equal(one, other)
    smaller = al.ReplayBuffer.load(tmp_path / "buffer", capacity=3 * STEPS, compute_reward=distance)
    rows = smaller.sample(500)
    np.testing.assert_array_equal(
        rows.observation["desired_goal"][:, 1:], rows.next_observation["achieved_goal"][:, 1:], verbose=False
    )


def test_a_plain_buffer_keeps_its_size_and_its_rows():
    plain, other = al.ReplayBuffer(GOALS, TWO_ACTIONS, 18 * STEPS, unroll_length=STEPS), buffer_of()
    assert other.nbytes == plain.nbytes + 4 * plain.capacity
    plain.add(travelled(AutoresetMode.NEXT_STEP)[0])
    assert set(plain.sample(500).observation["desired_goal"][:, 0]) == {-1.0}


@pytest.mark.parametrize(("noise", "warned"), [(0.0, False), (1.0, True)])
def test_rewards_that_are_not_the_environment_s_are_warned_of_once(noise, warned):
    buffer = buffer_of(function=lambda achieved, desired, infos: distance(achieved, desired, infos) + noise)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for trajectory in travelled(AutoresetMode.NEXT_STEP)[:2]:
            buffer.add(trajectory)
    messages = [str(each.message) for each in found]
    assert len(messages) == warned
    assert all("`compute_reward` and the environment should give the same rewards" in text for text in messages)


def raises(achieved, desired, infos):
    raise KeyError("speed")


def of_all(achieved, desired, infos):
    return np.linalg.norm(achieved - desired)


def with_goals(**spaces):
    return Dict({**GOALS.spaces, **spaces})


@pytest.mark.parametrize(
    ("space", "hindsight", "options", "message"),
    [
        (PLACE, (), {}, "`hindsight` needs observations that are a Dict with 'observation', 'achieved_goal' and"),
        (Dict(observation=PLACE, achieved_goal=PLACE), (), {}, "`hindsight` needs observations that are a Dict"),
        (Dict(achieved_goal=PLACE, desired_goal=PLACE), (), {}, "`hindsight` needs observations that are a Dict"),
        (with_goals(desired_goal=GOALS), (), {}, "both goals single arrays"),
        (with_goals(desired_goal=Box(0, 1, (2,))), (), {}, r"goals of one shape and dtype.*desired_goal=Box\(0.0, 1.0"),
        (with_goals(desired_goal=Discrete(3)), (), {}, "`hindsight` needs goals of one shape and dtype"),
        (GOALS, ("future", 4, None), {}, "`compute_reward` must be a function .*compute_reward=None"),
        (GOALS, ("future", 4, "distance"), {}, "`compute_reward` must be a function .*compute_reward='distance'"),
        (GOALS, ("future", 4, raises), {}, r"take arrays of goals \(97, 3\).*raised KeyError: 'speed'. Received: comp"),
        (GOALS, ("future", 4, of_all), {}, r"return 97 rewards for 97 goals, not an array \(\). Received: compute_rew"),
        (GOALS, ("later", 4, distance), {}, "`hindsight` must be one of 'future', 'final', 'episode'.*='later'"),
        (GOALS, ("future", 0, distance), {}, "`hindsight_goals` must be a finite number above 0.*hindsight_goals=0"),
        (GOALS, (), {"n_step": 2}, "`n_step` must be 1 with `hindsight`.*n_step=2"),
        (GOALS, (), {"priority_exponent": 0.5}, "`priority_exponent` must be None with `hindsight`"),
        (
            GOALS,
            None,
            {"hindsight": "future"},
            "`hindsight` must be an al.Hindsight, or None. Received: hindsight='fut",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(space, hindsight, options, message):
    def make():
        given = {} if hindsight is None else {"hindsight": al.Hindsight(*(hindsight or ("future", 4, distance)))}
        al.ReplayBuffer(space, TWO_ACTIONS, 100, unroll_length=STEPS, **given, **options)

    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_rows_without_a_known_next_observation_keep_their_goals():
    """A simulator of the reader's own, whose trajectories don't say where episodes begin."""
    buffer = buffer_of()
    with pytest.warns(UserWarning, match="should give the same rewards.*entries of `infos`, which are empty"):
        buffer.add(random_trajectory(observation_space=GOALS, end_rate=0.3, invalid_rate=0.1, steps=STEPS))
    rows = buffer.sample(2000)
    assert np.isfinite(rows.reward).all()
    assert all(np.isfinite(part).all() for part in (*rows.observation.values(), *rows.next_observation.values()))


@pytest.mark.parametrize("kept", [True, False])
def test_a_last_observation_that_takes_too_many_frames_is_unknown(kept):
    """A stack of frames none of which the row before shows has no place in a column."""
    frames = np.random.default_rng(0).integers(1, 256, (STEPS + 4, 20, 20), np.uint8)
    stacks = np.stack([frames[row : row + 4] for row in range(STEPS + 1)])[:, None]
    places = np.arange(3 * (STEPS + 1), dtype=np.float32).reshape(STEPS + 1, 1, 3)
    space = with_goals(observation=Box(0, 255, (4, 20, 20), np.uint8))
    last, end = (stacks[4] if kept else stacks[4] // 2), np.arange(STEPS)[:, None] == 3
    trajectory = random_trajectory(observation_space=space, columns=1, steps=STEPS, end_rate=0)._replace(
        observation={"observation": stacks, "achieved_goal": places, "desired_goal": np.full_like(places, -1)},
        terminated=end,
        start=np.arange(STEPS + 1)[:, None] == 4,
        final_observation={"observation": last, "achieved_goal": places[4] + 50, "desired_goal": places[4]},
        final_row=np.array([3]),
    )
    buffer = al.ReplayBuffer(
        space, TWO_ACTIONS, 80, unroll_length=STEPS, stacked_frames=True, hindsight=al.Hindsight("final", 4, distance)
    )
    with pytest.warns(UserWarning, match="should give the same rewards"):
        buffer.add(trajectory)
    rows = buffer.sample(1000)
    goals = rows.observation["desired_goal"][:, 0]
    assert set(goals[rows.discount == 0]) == ({-1.0, 62.0} if kept else {-1.0})
    assert set(goals[rows.observation["achieved_goal"][:, 0] == 0]) == ({-1.0, 62.0} if kept else {-1.0, 9.0})
