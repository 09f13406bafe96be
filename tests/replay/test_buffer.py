"""The replay buffer: what is drawn is what happened, never across an episode's end, and memory is bounded."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv

import actor_learner as al
from actor_learner.replay import saving
from actor_learner.system import machine
from actor_learner.system.files import check_folder, write_folder_atomically
from tests.support.scripted_envs import MODES, Script
from tests.support.trajectories import HYBRID, SENSES, TWO_ACTIONS, VECTOR, random_trajectory, usable_rewards

EPISODES = [(3, True, False), (5, False, True), (2, False, True), (1, False, True), (7, True, False), (1, True, False)]
"""Length, terminated, truncated."""
STEPS = 8
PLAYED = Box(-np.inf, np.inf, (3,), np.float32)


class Numbered(Script):
    """Shows [step, episode, number of the environment]."""

    numbers = itertools.count()

    def __init__(self):
        self.number = next(self.numbers)
        super().__init__(EPISODES[self.number % 3 :] + EPISODES[: self.number % 3], PLAYED)

    def observation(self):
        return np.array([self.count, self.episode, self.number], np.float32)

    def script(self, episode):
        return self.episodes[int(episode) % len(self.episodes)]


@functools.cache
def played(mode):
    """Six trajectories of a pool of three environments, and the environments by their numbers."""
    made = {}

    def make():
        env = Numbered()
        made[env.number] = env
        return env

    def vector(num_envs):
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)

    with al.ActorPool(vector, num_actors=0, num_envs=3, unroll_length=STEPS, autoreset_mode=mode) as pool:
        return [pool.collect().copy() for _ in range(6)], made


def drawn(buffer):
    """All rows that can be drawn, each once, as (index, observation, reward, discount, next observation)."""
    found = {}
    while len(found) < len(buffer):
        batch = buffer.sample(256)
        for row in zip(
            batch.indices, batch.observation, batch.reward, batch.discount, batch.next_observation, strict=True
        ):
            found[int(row[0])] = row[1:]
    return found


def drawable(trajectory, place, n_step):
    """The rows of a column that can be drawn: without windows that end at a truncation whose observation is lost."""
    truncated, ended = (part[:, place] for part in (trajectory.truncated, trajectory.terminated | trajectory.truncated))
    for row in np.flatnonzero(trajectory.valid[:, place]):
        end = row + ended[row : row + n_step].argmax()
        reset_row = end + 1 < STEPS and not trajectory.valid[end + 1, place]  # shows the last observation
        if not truncated[end] or end == trajectory.final_row[place] or reset_row:
            yield row


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n_step", "capacity"), [(1, 1000), (2, 1000), (3, 7 * STEPS), (STEPS, 40)])
def test_what_is_drawn_is_what_happened(mode, n_step, capacity):
    """Against the scripts of the episodes: whole windows, true last observations, nothing overwritten."""
    buffer = al.ReplayBuffer(PLAYED, TWO_ACTIONS, capacity, unroll_length=STEPS, n_step=n_step, gamma=0.9)
    trajectories, envs = played(mode)
    possible = {}
    for trajectory in trajectories:
        for place, column in enumerate(buffer.add(trajectory).tolist()):
            possible[column] = list(drawable(trajectory, place, n_step))
    assert buffer.capacity == capacity // STEPS * STEPS
    rows = drawn(buffer)
    seen = set()
    for index, (observation, reward, discount, following) in rows.items():
        row, column = divmod(index, buffer.capacity // STEPS)
        count, episode, number = observation
        length, terminated, _ = envs[number].script(episode)
        assert tuple(observation) not in seen
        seen.add(tuple(observation))
        rewards = min(n_step, length - count, STEPS - row)
        assert reward == pytest.approx(sum(0.9**i * (count + 1 + i) for i in range(int(rewards))), rel=1e-6)
        if terminated and count + rewards == length:
            assert discount == 0
        else:
            assert discount == pytest.approx(0.9**rewards)
            assert tuple(following) == (count + rewards, episode, number)
    assert set(rows) == {row * (buffer.capacity // STEPS) + column for column, own in possible.items() for row in own}
    assert len(rows) > 0.5 * len(possible) * STEPS


def test_it_never_grows_and_forgets_the_oldest():
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=16, priority_exponent=0.5)
    size = buffer.nbytes
    for seed in range(120):
        buffer.add(random_trajectory(seed=seed, columns=4, end_rate=0))
        assert len(buffer) <= buffer.capacity == 160
    assert buffer.nbytes == size
    last = [random_trajectory(seed=seed, columns=4, end_rate=0) for seed in (117, 118, 119)]
    known = {row.tobytes() for trajectory in last for row in trajectory.observation[:-1].reshape(-1, 4)}
    assert {row.tobytes() for row in buffer.sample(2000).observation} <= known


def test_what_does_not_fit_into_memory_is_refused_before_it_is_made():
    with pytest.raises(
        MemoryError, match=r"doesn't fit.* GB are needed, .*lower `capacity` .`buffer_size` .*capacity=10000000000"
    ):
        al.ReplayBuffer(Box(0, 1, (1000,)), TWO_ACTIONS, 10_000_000_000)
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=16)
    buffer.add(random_trajectory())
    with pytest.raises(MemoryError, match=r"The rows don't fit into memory: .* Received: 10000000000 rows"):
        buffer.sample(10**10)


@pytest.mark.parametrize("exponent", [None, 0.6])
@pytest.mark.parametrize("steps", [1, 100])
def test_the_bytes_that_are_foretold_are_those_that_are_claimed(steps, exponent, monkeypatch):
    options = {"unroll_length": steps, "priority_exponent": exponent}
    claimed = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 10_000, **options).nbytes
    if not exponent:
        assert claimed == pytest.approx(10_000 * (4 * 4 * (1 + 2 / steps) + 4 + 4 + 4 + 2 + 1))
    monkeypatch.setattr(machine, "available_memory", lambda: claimed)
    al.ReplayBuffer(VECTOR, TWO_ACTIONS, 10_000, **options)
    monkeypatch.setattr(machine, "available_memory", lambda: claimed - 1)
    with pytest.raises(MemoryError, match="doesn't fit into memory"):
        al.ReplayBuffer(VECTOR, TWO_ACTIONS, 10_000, **options)


@pytest.mark.parametrize("steps", [5, 16, 37])
def test_trajectories_of_another_length(steps):
    """Every step is kept, and returns go up to the column's end."""
    trajectory = random_trajectory(steps=steps, columns=3, end_rate=0)
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 1600, unroll_length=16, n_step=4, gamma=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        columns = buffer.add(trajectory)
    assert ["pass unroll_length=5." in str(warning.message) for warning in caught] == [True] * (steps == 5)
    assert len(columns) == 3 * -(-steps // 16)
    assert len(buffer) == 3 * steps
    batch = buffer.sample(4000)
    place = {row.tobytes(): at for at in np.ndindex(steps + 1, 3) for row in [trajectory.observation[at]]}
    for observation, reward, following in zip(batch.observation, batch.reward, batch.next_observation, strict=True):
        row, column = place[observation.tobytes()]
        end = min(row + 4, (row // 16 + 1) * 16, steps)
        assert place[following.tobytes()] == (end, column)
        assert reward == pytest.approx(trajectory.reward[row:end, column].sum(), rel=1e-5)


def test_spaces_of_every_kind():
    trajectory = random_trajectory(HYBRID, observation_space=SENSES, end_rate=0)
    buffer = al.ReplayBuffer(SENSES, HYBRID, 64, unroll_length=16)
    buffer.add(trajectory)
    batch = buffer.sample(32, 3)
    row, column = np.divmod(batch.indices, 4)
    same = np.testing.assert_array_equal
    same(batch.action["force"], trajectory.action["force"][row, column])
    same(batch.action["dials"][0], trajectory.action["dials"][0][row, column])
    same(batch.observation["camera"], trajectory.observation["camera"][row, column])
    same(batch.next_observation["pair"][1], trajectory.observation["pair"][1][row + 1, column])
    assert batch.weight.shape == (3, 32)


def test_masks_of_the_action_and_of_the_next_one():
    """Of the rows alone: the column's last row has no next mask, so that only a terminal one can be drawn."""
    choices = MultiDiscrete([3, 2])
    trajectory = random_trajectory(choices, masked=True, end_rate=0.2)
    trajectory = trajectory._replace(truncated=np.zeros_like(trajectory.truncated))
    trajectory.terminated[-1, 0] = True
    buffer = al.ReplayBuffer(VECTOR, choices, 64, unroll_length=16, action_masks=True)
    buffer.add(trajectory)
    batch = buffer.sample(2000)
    row, column = np.divmod(batch.indices, 4)
    np.testing.assert_array_equal(batch.action_mask, trajectory.action_mask[row, column])
    going = batch.discount > 0
    assert (row[going] < 15).all()
    np.testing.assert_array_equal(batch.next_action_mask[going], trajectory.action_mask[row[going] + 1, column[going]])
    assert (row[~going] == 15).any()
    with pytest.raises(ValueError, match="`action_mask` must be given"):
        buffer.add(random_trajectory(choices))


def test_last_rows_and_truncated_ones_are_drawn_with_the_masks_that_follow():
    """But a truncated one whose episode's last mask isn't known."""
    trajectory = random_trajectory(end_rate=0.0)
    mask = np.ones((17, 4, 2), bool)
    mask[np.random.default_rng(0).random((17, 4)) < 0.5, 1] = False
    trajectory.truncated[5, :2] = True
    last = np.array([[False, True], [False, False], [True, True], [True, True]])
    trajectory = trajectory._replace(
        action=np.zeros_like(trajectory.action),
        action_mask=mask,
        final_observation=np.zeros((4, 4), np.float32),
        final_row=np.array([5, 5, -1, -1], np.int32),
        final_action_mask=last,
    )
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 64, unroll_length=16, action_masks=True)
    buffer.add(trajectory)
    assert len(buffer) == 63
    batch = buffer.sample(2000)
    row, column = np.divmod(batch.indices, 4)
    assert len(np.unique(batch.indices)) == 63
    assert not ((row == 5) & (column == 1)).any()
    mask[6, 0] = last[0]
    np.testing.assert_array_equal(batch.next_action_mask, mask[row + 1, column])


def test_masks_are_cut_with_their_rows():
    """A piece ends with the mask of the next piece's first observation."""
    trajectory = random_trajectory(Discrete(3), masked=True, end_rate=0.0)
    mask = np.concatenate([trajectory.action_mask, trajectory.action_mask[:1]])
    buffer = al.ReplayBuffer(VECTOR, Discrete(3), 64, unroll_length=4, action_masks=True)
    buffer.add(trajectory._replace(action_mask=mask))
    assert len(buffer) == 64


def test_masks_in_the_observation_are_known_everywhere():
    space = Dict(see=VECTOR, action_mask=Box(0, 1, (2,), np.int8))
    inner = random_trajectory(end_rate=0)
    mask = np.ones((17, 4, 2), np.int8)
    mask[np.random.default_rng(0).random((17, 4)) < 0.5, 1] = 0
    last = np.zeros((4, 2), np.int8)  # as a pool writes it: nothing in columns without a truncated episode
    last[0, 1] = 1
    inner.truncated[5, 0] = True
    trajectory = inner._replace(
        observation={"see": inner.observation, "action_mask": mask},
        action=np.zeros_like(inner.action),
        final_observation={"see": np.zeros((4, 4), np.float32), "action_mask": last},
        final_row=np.array([5, -1, -1, -1], np.int32),
    )
    buffer = al.ReplayBuffer(space, TWO_ACTIONS, 64, unroll_length=16, action_masks=True)
    buffer.add(trajectory)
    assert len(buffer) == 64
    batch = buffer.sample(500)
    row, column = np.divmod(batch.indices, 4)
    mask[6, 0] = last[0]
    np.testing.assert_array_equal(batch.next_action_mask, mask[row + 1, column].astype(bool))


def test_rewards_are_clipped_before_they_are_added_up():
    trajectory = random_trajectory(end_rate=0)
    buffers = [
        al.ReplayBuffer(VECTOR, TWO_ACTIONS, 64, unroll_length=16, n_step=2, gamma=1.0, clip_reward=clip)
        for clip in ("sign", 0.5)
    ]
    for buffer, clipped in zip(buffers, (np.sign(trajectory.reward), trajectory.reward.clip(-0.5, 0.5)), strict=True):
        buffer.add(trajectory)
        batch = buffer.sample(300)
        row, column = np.divmod(batch.indices, 4)
        following = np.where(row < 15, clipped[np.minimum(row + 1, 15), column], 0)
        np.testing.assert_allclose(batch.reward, clipped[row, column] + following, rtol=1e-6)


def test_draws_are_uniform_over_what_can_be_drawn():
    """Chi-squared, in a buffer of which much can't be drawn, and in one of which little can."""
    for rate in (0.3, 0.95):
        trajectory = random_trajectory(end_rate=rate, columns=6)
        buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=16, seed=3)
        buffer.add(trajectory)
        drawn = 400 * len(buffer)
        counts = np.bincount(buffer.sample(drawn).indices, minlength=160)
        assert (counts > 0).sum() == len(buffer) < 96
        chi_squared = ((counts[counts > 0] - 400) ** 2 / 400).sum()
        assert chi_squared < len(buffer) + 4 * np.sqrt(2 * len(buffer))


def test_draws_follow_priorities_and_weights_undo_them():
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=16, priority_exponent=0.7, seed=1)
    buffer.add(random_trajectory(end_rate=0.2, columns=8))
    every = np.unique(buffer.sample(5000).indices)
    errors = np.random.default_rng(0).exponential(size=len(every)) * np.where(every % 2, 1, -1)
    buffer.update_priorities(every, errors)
    batch = buffer.sample(100_000, importance_exponent=1.0)
    counts = np.bincount(batch.indices, minlength=160)[every]
    expected = np.abs(errors) ** 0.7 / (np.abs(errors) ** 0.7).sum() * 100_000
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < len(every) + 4 * np.sqrt(2 * len(every))
    summed = np.bincount(batch.indices, batch.weight, minlength=160)[every]
    common = counts > 100
    np.testing.assert_allclose(summed[common], summed[common].mean(), rtol=0.2)
    assert batch.weight.max() == 1


def test_new_rows_have_the_largest_priority():
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 640, unroll_length=16, priority_exponent=1.0)
    first = buffer.add(random_trajectory(end_rate=0))
    rows = np.unique(buffer.sample(2000).indices)
    buffer.update_priorities(rows, np.full(len(rows), 50.0))
    buffer.update_priorities(rows, np.full(len(rows), 0.0))
    second = buffer.add(random_trajectory(end_rate=0, seed=1))
    columns = buffer.sample(500).indices % 40
    assert np.isin(columns, second).all()
    assert not np.isin(columns, first).any()


def test_discarded_columns_are_never_drawn():
    for exponent in (None, 1.0):
        buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 640, unroll_length=16, priority_exponent=exponent)
        kept, gone = (buffer.add(random_trajectory(seed=seed, end_rate=0)) for seed in (0, 1))
        stale = buffer.sample(100).indices
        buffer.discard(gone)
        buffer.discard(gone)
        assert len(buffer) == 64
        if exponent:
            buffer.update_priorities(stale, np.ones(100))  # of rows that are gone, too
        assert set(buffer.sample(500).indices % 40) == set(kept)
        for columns in (40, -1, 1.5, "x"):
            with pytest.raises(ValueError, match="`columns` must be numbers that `add` returned, below 40"):
                buffer.discard(columns)


PIXELS = Box(0, 255, (4,), np.uint8)
CHOICES = Dict({"x": Discrete(4), "y": MultiDiscrete([2, 3])})
OUTSIDE = random_trajectory(observation_space=CHOICES).observation
OUTSIDE["x"][3, 2] = 4
WIDE = np.full((17, 4, 4), 255, np.uint16)
WIDE[3, 2, 1] = 300


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (VECTOR, np.zeros((17, 4, 3), np.float32), r"shape=\(17, 4, 3\), dtype=float32"),
        (VECTOR, np.zeros((4, 4), np.float32), "must have shape"),
        (PIXELS, np.zeros((17, 4, 4), np.float32), r"must be \[T \+ 1, B, 4\] of uint8, .* dtype=float32"),
        (PIXELS, WIDE, "must have values of its space. Received: 300 where the space has uint8"),
        (VECTOR, {"a": np.zeros((17, 4, 4))}, "`observation` must be an array. Received: a dict"),
        (CHOICES, OUTSIDE, r"`observation\['x'\]` must count from 0 and be below 4 .*Received: 4"),
        (SENSES, np.zeros((17, 4, 4), np.float32), "`observation` must be a dict"),
    ],
)
def test_what_does_not_fit_the_space_is_refused(space, observation, message):
    buffer = al.ReplayBuffer(space, TWO_ACTIONS, 640, unroll_length=16)
    with pytest.raises(ValueError, match=message):
        buffer.add(random_trajectory()._replace(observation=observation))
    if observation is WIDE:
        buffer.add(random_trajectory()._replace(observation=np.minimum(WIDE, 255)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_step": 17}, "must be at most `unroll_length`, 16: returns end with a column. Received: n_step=17"),
        ({"capacity": 15}, "must be at least `unroll_length`, 16: it counts env steps. Received: capacity=15"),
        ({"capacity": 0}, "`capacity` must be an integer of at least 1. Received: capacity=0"),
        ({"gamma": 1.5}, "`gamma` must be .* Received: gamma=1.5"),
        ({"clip_reward": "no"}, "`clip_reward` must be None, 'sign' or a bound above 0. Received: clip_reward='no'"),
        ({"priority_exponent": -1}, "`priority_exponent` must be .* Received: priority_exponent=-1"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        al.ReplayBuffer(VECTOR, TWO_ACTIONS, **{"capacity": 160, "unroll_length": 16, **arguments})


def test_what_cannot_be_added_or_drawn():
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 48, unroll_length=16)
    with pytest.raises(ValueError, match="no row to draw: `add` trajectories first"):
        buffer.sample(4)
    with pytest.raises(
        ValueError, match="`capacity` .* must hold a whole trajectory: 4 columns of 16 steps. Received: capacity=48"
    ):
        buffer.add(random_trajectory())
    trajectory = random_trajectory(columns=2, end_rate=0)
    trajectory.reward[3, 1] = np.nan
    with pytest.raises(ValueError, match="`reward` must be finite in valid rows. Received: nan in row 3 of column 1"):
        buffer.add(trajectory)
    assert len(buffer) == 0
    buffer.add(random_trajectory(columns=2))
    with pytest.raises(ValueError, match="Draws are uniform: pass `priority_exponent`"):
        buffer.update_priorities(np.zeros(2, np.int64), np.ones(2))


@pytest.mark.parametrize("priority_exponent", [None, 0.7])
@pytest.mark.parametrize("batches", [3, 20])
def test_a_saved_buffer_draws_what_it_would_have_drawn(batches, priority_exponent, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_FILE_BYTES", 4000)  # several files
    buffer = al.ReplayBuffer(
        SENSES, HYBRID, 160, unroll_length=8, n_step=2, priority_exponent=priority_exponent, action_masks=True
    )
    for seed in range(batches):
        buffer.add(batch_of(SENSES, HYBRID, seed, masked=True))
        rows = buffer.sample(8)
        if priority_exponent:
            buffer.update_priorities(rows.indices, np.arange(8.0))
    buffer.save(tmp_path / "saved")
    again = al.ReplayBuffer.load(tmp_path / "saved")
    assert (len(again), again.nbytes, again.capacity) == (len(buffer), buffer.nbytes, buffer.capacity)
    for seed in range(30, 33):
        assert_same(buffer.sample(16, 2), again.sample(16, 2))
        for one in (buffer, again):
            one.add(batch_of(SENSES, HYBRID, seed, masked=True))
    assert_same(buffer.sample(16, 2), again.sample(16, 2))


def batch_of(observation_space, action_space, seed, **options):
    return random_trajectory(
        action_space, observation_space=observation_space, steps=8, columns=3, seed=seed, invalid_rate=0.1, **options
    )


def assert_same(one, other):
    """Whether two draws hold the same arrays, nested alike."""
    if isinstance(one, dict | tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key])
    else:
        np.testing.assert_array_equal(one, other)


def test_a_later_checkpoint_links_what_an_earlier_one_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_FILE_BYTES", 2000)
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 400, unroll_length=8)
    folders, newly_written = [], []
    for step in range(12):
        for seed in range(3):
            buffer.add(batch_of(VECTOR, TWO_ACTIONS, 10 * step + seed))
        known = {}
        folder, earlier = tmp_path / str(step), folders[-1] if folders else None
        write_folder_atomically(
            folder,
            lambda partial, earlier=earlier, known=known: known.update(saving.write_buffer(buffer, partial, earlier)),
            known,
        )
        check_folder(folder)  # the manifest fits
        columns = list(folder.glob("replay-0*.npz"))
        newly_written.append(sum(file.stat().st_size for file in columns if file.stat().st_nlink == 1))
        folders.append(folder)
    size = buffer.nbytes
    assert buffer.first_column > 0
    assert max(newly_written[4:]) < 0.6 * size  # of columns added since, and of the pieces at both ends
    assert sum(file.stat().st_nlink > 1 for file in folders[-1].glob("replay-0*.npz")) > 2
    assert_same(al.ReplayBuffer.load(folders[-1]).sample(64), buffer.sample(64))


def test_a_damaged_or_missing_buffer_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="There is no replay buffer there"):
        al.ReplayBuffer.load(tmp_path)
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 400, unroll_length=8)
    buffer.add(batch_of(VECTOR, TWO_ACTIONS, 0))
    buffer.save(tmp_path / "saved")
    write_folder_atomically(
        tmp_path / "newer", lambda folder: (folder / "replay-buffer.json").write_text('{"format": 9}')
    )
    with pytest.raises(ValueError, match="replay-buffer.json is in format 9, .* Received: file="):
        al.ReplayBuffer.load(tmp_path / "newer")
    file = next((tmp_path / "saved").glob("replay-0*.npz"))
    content = bytearray(file.read_bytes())
    content[-200] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="its SHA-256 differs"):
        al.ReplayBuffer.load(tmp_path / "saved")


@pytest.mark.parametrize("priority_exponent", [None, 0.7])
@pytest.mark.parametrize("batches", [4, 30])
def test_a_smaller_buffer_keeps_the_newest_and_goes_on(batches, priority_exponent):
    space = Box(0, 255, (12, 12, 4), np.uint8)
    arguments = {"unroll_length": 8, "priority_exponent": priority_exponent, "stacked_frames": False}
    buffer, small = (al.ReplayBuffer(space, HYBRID, size, **arguments) for size in (480, 160))
    for seed in range(batches):
        for one in (buffer, small):
            one.add(batch_of(space, HYBRID, seed))
    before = buffer.nbytes
    buffer.shrink(165)
    assert (buffer.capacity, buffer.nbytes, len(buffer)) == (160, small.nbytes, len(small))
    assert buffer.nbytes < 0.4 * before
    for seed in range(40, 44):
        for one in (buffer, small):
            one.add(batch_of(space, HYBRID, seed))
    kept = [sorted(one.sample(500).reward.tolist()) for one in (buffer, small)]
    assert set(kept[0]) <= set(usable_rewards(small).tolist())
    assert set(kept[1]) <= set(usable_rewards(buffer).tolist())
    np.testing.assert_array_equal(np.sort(usable_rewards(buffer)), np.sort(usable_rewards(small)))
    with pytest.raises(ValueError, match="`capacity` must be at most 160"):
        buffer.shrink(1000)


@pytest.mark.parametrize("priority_exponent", [None, 0.6])
@pytest.mark.parametrize("batches", [2, 40])
def test_a_buffer_is_loaded_into_another_size(batches, priority_exponent, tmp_path):
    """What is drawn from is what a buffer of that size holds, also after further batches and another save."""
    space = Box(0, 255, (12, 12, 4), np.uint8)
    arguments = {"unroll_length": 8, "priority_exponent": priority_exponent, "stacked_frames": False}
    saved = al.ReplayBuffer(space, HYBRID, 480, **arguments)
    for seed in range(batches):
        saved.add(batch_of(space, HYBRID, seed))
    saved.save(tmp_path / "saved")
    for capacity in (160, 1000):
        buffer = al.ReplayBuffer.load(tmp_path / "saved", capacity=capacity)
        held = al.ReplayBuffer(space, HYBRID, min(capacity, 480), **arguments)
        for seed in range(batches):
            held.add(batch_of(space, HYBRID, seed))
        assert buffer.capacity == capacity
        np.testing.assert_array_equal(*(np.sort(usable_rewards(one)) for one in (buffer, held)))
        for seed in range(40, 44):
            buffer.add(batch_of(space, HYBRID, seed))
        assert len(buffer) > len(held) or capacity == 160
        buffer.save(tmp_path / "again")
        again = al.ReplayBuffer.load(tmp_path / "again")
        np.testing.assert_array_equal(usable_rewards(again), usable_rewards(buffer))
        assert np.isin(buffer.sample(500).reward, usable_rewards(buffer)).all()


@pytest.mark.parametrize("stacked_frames", [False, True])
def test_a_copy_is_a_buffer_of_its_own(stacked_frames):
    space = Box(0, 255, (12, 12, 4), np.uint8)
    buffer = al.ReplayBuffer(space, HYBRID, 160, unroll_length=8, stacked_frames=None if stacked_frames else False)
    buffer.add(batch_of(space, HYBRID, 0))
    for copied in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        alone = al.ReplayBuffer(space, HYBRID, 160, unroll_length=8, stacked_frames=None if stacked_frames else False)
        for seed in (0, 1, 2):
            alone.add(batch_of(space, HYBRID, seed))
        for seed in (1, 2):
            copied.add(batch_of(space, HYBRID, seed))
        np.testing.assert_array_equal(copied.sample(50).observation, alone.sample(50).observation)


def test_columns_of_another_buffer_are_never_linked(tmp_path):
    """A run that lost its buffer fills a new one, whose files have the names and sizes of the old one's."""
    first, second = (al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=8) for _ in range(2))
    first.add(batch_of(VECTOR, TWO_ACTIONS, 0))
    second.add(batch_of(VECTOR, TWO_ACTIONS, 1))
    first.save(tmp_path / "first")
    with_columns = {
        name: write_folder_atomically(
            tmp_path / name, lambda folder, buffer=buffer: saving.write_buffer(buffer, folder, tmp_path / "first")
        )
        for name, buffer in (("second", second), ("loaded", al.ReplayBuffer.load(tmp_path / "first")), ("again", first))
    }
    assert with_columns.keys() == {"second", "loaded", "again"}
    second_loaded = al.ReplayBuffer.load(tmp_path / "second")
    np.testing.assert_array_equal(*(buffer._stored.reward for buffer in (second_loaded, second)))
    data = "replay-0*.npz"
    inode = next((tmp_path / "first").glob(data)).stat().st_ino
    linked = [next((tmp_path / name).glob(data)).stat().st_ino == inode for name in ("second", "loaded", "again")]
    assert linked == [False, True, True]


def test_what_is_passed_to_draws_is_checked():
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=8, priority_exponent=0.6)
    buffer.add(batch_of(VECTOR, TWO_ACTIONS, 0))
    for exponent in (-1.0, 2.0, math.nan, "x", None):
        with pytest.raises(ValueError, match="`importance_exponent` must be a number between 0 and 1"):
            buffer.sample(3, importance_exponent=exponent)
    for index in ([10**6], [-1], [0.5], ["a"]):
        with pytest.raises(ValueError, match="`indices` must be those that `sample` returned"):
            buffer.update_priorities(np.array(index), np.array([1.0]))
    buffer.update_priorities(np.array([], int), np.array([]))
    with pytest.raises(ValueError, match="`error` must have a number for each of 2 rows. Received: 3"):
        buffer.update_priorities(np.zeros(2, np.int64), np.ones(3))


@pytest.mark.parametrize(("steps", "known"), [(8, False), (8, True), (10, True), (10, False)])
def test_rows_after_a_truncation_are_trusted_only_where_the_trajectory_says_what_they_are(steps, known):
    """Row 3 resets after row 2 was truncated; row 9 is truncated at the end, in a part of a column if there are 10."""
    trajectory = random_trajectory(steps=steps, columns=1, end_rate=0)
    truncated, valid = trajectory.truncated.copy(), trajectory.valid.copy()
    truncated[[2, -1]], valid[3] = True, False
    trajectory = trajectory._replace(truncated=truncated, valid=valid)
    if known:
        final = np.full((1, 4), 7, np.float32)
        trajectory = trajectory._replace(final_observation=final, final_row=np.array([steps - 1], np.int32))
    else:
        trajectory.observation[3] = np.nan
    buffer = al.ReplayBuffer(VECTOR, TWO_ACTIONS, 160, unroll_length=8, gamma=0.9)
    buffer.add(trajectory)
    following = {row[0].tobytes(): row[3] for row in drawn(buffer).values()}
    assert len(following) == len(buffer) == steps - 1 - (0 if known else 2)
    if known:
        assert following[trajectory.observation[2].tobytes()] == pytest.approx(trajectory.observation[3, 0])
        assert following[trajectory.observation[-2].tobytes()] == pytest.approx(final[0])
