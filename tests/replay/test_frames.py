"""Stacks of frames that are stored once a frame: bit for bit the stacks that were added."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.replay.saving import write_buffer
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.files import write_folder_atomically

STEPS, ACTIONS = 12, Discrete(3)


def stacked(seed, columns, *, last, zeros, end_rate, size=20, count=4):
    """A trajectory of stacks: after a reset they are filled with the first frame, or with zeros."""
    rng = np.random.default_rng(seed)
    picture = (size, size)

    def fresh():
        frames = np.zeros((count, *picture), np.uint8) if zeros else np.empty((count, *picture), np.uint8)
        frames[-1 if zeros else slice(None)] = rng.integers(1, 256, picture)
        return frames

    def stack(frames):
        return np.moveaxis(frames, 0, -1) if last else frames

    shape = (*picture, count) if last else (count, *picture)
    observation = np.zeros((STEPS + 1, columns, *shape), np.uint8)
    final, final_row = np.zeros((columns, *shape), np.uint8), np.full(columns, -1, np.int32)
    terminated, truncated = np.zeros((2, STEPS, columns), bool)
    start = np.zeros((STEPS + 1, columns), bool)
    for column in range(columns):
        frames = rng.integers(0, 256, (count, *picture)).astype(np.uint8)
        for row in range(STEPS + 1):
            observation[row, column] = stack(frames)
            frames = np.concatenate([frames[1:], rng.integers(0, 256, (1, *picture))]).astype(np.uint8)
            if row < STEPS and rng.random() < end_rate:
                terminated[row, column] = rng.random() < 0.5
                truncated[row, column] = not terminated[row, column]
                if truncated[row, column]:
                    final[column], final_row[column] = stack(frames), row
                frames, start[row + 1, column] = fresh(), True
    numbers = np.arange(STEPS * columns, dtype=np.float32).reshape(STEPS, columns)
    return Trajectory(
        observation=observation,
        action=np.zeros((STEPS, columns), np.int32),
        reward=numbers,
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((STEPS, columns), bool),
        behaviour_log_prob=numbers * 0,
        truncation_value=numbers * 0,
        policy_version=np.zeros(columns, np.int64),
        start=start,
        final_observation=final,
        final_row=final_row,
    )


@pytest.mark.parametrize(
    ("last", "zeros", "end_rate"),
    [(True, True, 0.15), (False, False, 0.15), (True, False, 0.5), (False, True, 0.5), (True, True, 0.0)],
)
def test_they_are_bit_for_bit_the_stacks_that_were_added(last, zeros, end_rate):
    shape = (20, 20, 4) if last else (4, 20, 20)
    buffer = al.ReplayBuffer(Box(0, 255, shape, np.uint8), ACTIONS, STEPS * 10, unroll_length=STEPS, gamma=0.5)
    whole = 2 * STEPS * 10 * 400 * 4
    assert buffer.nbytes < 0.4 * whole
    for seed in range(6):
        trajectory = stacked(seed, 4, last=last, zeros=zeros, end_rate=end_rate)
        columns = buffer.add(trajectory)
        batch = buffer.sample(2000)
        row, column = np.divmod(batch.indices, 10)
        place = np.full(10, -1)
        place[columns] = np.arange(4)
        mine = place[column] >= 0
        row, column = row[mine], place[column[mine]]
        observation, following, discount = batch.observation[mine], batch.next_observation[mine], batch.discount[mine]
        np.testing.assert_array_equal(observation, trajectory.observation[row, column])
        at_final = trajectory.truncated[row, column] & (row == trajectory.final_row[column])
        expected = np.where(
            at_final[:, None, None, None], trajectory.final_observation[column], trajectory.observation[row + 1, column]
        )
        going = discount > 0
        np.testing.assert_array_equal(following[going], expected[going])
        lost = trajectory.truncated & (np.arange(STEPS)[:, None] != trajectory.final_row)
        found = np.zeros((STEPS, 4), bool)
        found[row, column] = True
        np.testing.assert_array_equal(found, ~lost)


def images(seed, count=4):
    """A trajectory of images that aren't stacks."""
    trajectory = stacked(seed, 2, last=True, zeros=False, end_rate=0.0, count=count)
    pixels = np.random.default_rng(seed).integers(0, 256, trajectory.observation.shape).astype(np.uint8)
    return trajectory._replace(observation=pixels)


def check_rows(buffer, added):
    """Check drawn rows against trajectories of two columns each, in the order in which they were added."""
    batch = buffer.sample(1000)
    row, column = np.divmod(batch.indices, 2 * len(added))
    every = np.concatenate([trajectory.observation for trajectory in added], axis=1)
    np.testing.assert_array_equal(batch.observation, every[row, column])
    np.testing.assert_array_equal(batch.next_observation, every[row + 1, column])
    assert set(column.tolist()) == set(range(2 * len(added)))


def test_rows_that_find_no_place_are_left_out():
    """Resets to stacks of unrelated frames need more places than there are."""
    trajectory = stacked(0, 2, last=False, zeros=False, end_rate=0.0)
    observation = np.random.default_rng(0).integers(1, 256, trajectory.observation.shape).astype(np.uint8)
    observation[:9] = trajectory.observation[:9]
    buffer = al.ReplayBuffer(Box(0, 255, (4, 20, 20), np.uint8), ACTIONS, STEPS * 2, unroll_length=STEPS)
    buffer.add(trajectory._replace(observation=observation))
    batch = buffer.sample(500)
    row, column = np.divmod(batch.indices, 2)
    np.testing.assert_array_equal(batch.observation, observation[row, column])
    np.testing.assert_array_equal(batch.next_observation, observation[row + 1, column])
    assert 2 * 8 <= len(buffer) < 2 * STEPS


def test_images_that_are_no_stacks_are_kept_whole():
    """Whether they look like stacks or like colours."""
    for count, options in ((3, {}), (4, {}), (4, {"stacked_frames": False})):
        space = Box(0, 255, (20, 20, count), np.uint8)
        buffer = al.ReplayBuffer(space, ACTIONS, STEPS * 2, unroll_length=STEPS, **options)
        buffer.add(images(0, count))
        assert len(buffer) == 2 * STEPS
    buffer = al.ReplayBuffer(space, ACTIONS, STEPS * 2, unroll_length=STEPS, stacked_frames=True)
    with pytest.raises(ValueError, match=r"`stacked_frames` must be False where rows don't show all frames but one"):
        buffer.add(images(0))


def test_blank_images_do_not_settle_that_images_are_stacks(tmp_path):
    blank, *others = images(0), images(1), images(2)
    blank = blank._replace(observation=np.full_like(blank.observation, 7))
    buffer = al.ReplayBuffer(Box(0, 255, (20, 20, 4), np.uint8), ACTIONS, STEPS * 6, unroll_length=STEPS)
    buffer.add(blank)
    buffer.save(tmp_path / "blank")
    for kept in (buffer, al.ReplayBuffer.load(tmp_path / "blank")):
        kept.add(others[0])
        later = tmp_path / f"later-{kept is buffer}"
        write_folder_atomically(later, lambda folder, kept=kept: write_buffer(kept, folder, tmp_path / "blank"))
        for again in (kept, al.ReplayBuffer.load(later)):
            again.add(others[1])
            assert len(again) == STEPS * 6
            check_rows(again, [blank, *others])


def test_still_images_stay_stacks_until_they_move():
    still = stacked(0, 2, last=True, zeros=False, end_rate=0.0)
    still = still._replace(observation=np.repeat(still.observation[:1, :, :, :, -1:], 4, axis=-1).repeat(STEPS + 1, 0))
    moving = stacked(1, 2, last=True, zeros=False, end_rate=0.0)
    buffer = al.ReplayBuffer(Box(0, 255, (20, 20, 4), np.uint8), ACTIONS, STEPS * 4, unroll_length=STEPS)
    size = buffer.nbytes
    buffer.add(still)
    buffer.add(moving)
    assert buffer.nbytes == size
    check_rows(buffer, [still, moving])
