"""Versions of the weights in shared memory: written whole, found whole, never overwritten while read."""

from __future__ import annotations

import numpy as np
import pytest

from actor_learner.actors.transport.weights import WeightSlots, check_finite, read_weights

SHAPES = ((2, 3), (3,), ())


def weights(value=0.0):
    """The vector of three arrays of these shapes."""
    return np.array([value] * 6 + [value + 1] * 3 + [value], np.float32)


@pytest.fixture
def memory():
    return np.full((3, 10), np.nan, np.float32)


def read(memory, slots):
    return read_weights(memory[slots.newest.slot], slots.newest.checksum)


def test_versions_count_publishes(memory):
    slots = WeightSlots(memory, weights())
    for version in range(6):
        assert slots.newest.number == version
        np.testing.assert_array_equal(read(memory, slots), weights(version))
        slots.publish(weights(version + 1))


def test_what_a_reader_holds_is_never_overwritten(memory):
    slots = WeightSlots(memory, weights(0))
    slots.hold_newest()
    held = read(memory, slots)
    for version in range(1, 10):
        slots.publish(weights(version))
    np.testing.assert_array_equal(held, [0] * 6 + [1] * 3 + [0])


def test_a_released_slot_is_used_again(memory):
    slots = WeightSlots(memory, weights(0))
    used = set()
    for version in range(1, 10):
        slot = slots.hold_newest().slot
        slots.publish(weights(version))
        slots.release(slot)
        used.add(slots.newest.slot)
    assert len(used) <= 3


def test_what_is_not_finite_is_refused_by_array():
    check_finite(weights(2), SHAPES)
    vector = weights(2)
    vector[6:9] = np.nan
    with pytest.raises(ValueError, match=r"finite.*Received: .* 3 of the 3 values of weights\[1\]"):
        check_finite(vector, SHAPES)
    vector = weights(2)
    vector[9] = np.inf
    with pytest.raises(ValueError, match=r"1 of the 1 values of weights\[2\]"):
        check_finite(vector, SHAPES)


def test_a_reader_notices_other_bytes_and_cannot_write(memory):
    slots = WeightSlots(memory, weights(1))
    with pytest.raises(ValueError, match="read-only"):
        read(memory, slots)[0] = 2
    memory[slots.newest.slot, 4] += 1
    with pytest.raises(RuntimeError, match="aren't those that were published"):
        read(memory, slots)


def test_a_network_without_weights_has_versions_too():
    memory = np.empty((3, 0), np.float32)
    slots = WeightSlots(memory, np.zeros(0, np.float32))
    slots.publish(np.zeros(0, np.float32))
    assert slots.newest.number == 1
    assert read(memory, slots).size == 0
