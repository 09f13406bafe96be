"""What tests of pools have in common."""

import gc

import pytest

from tests.support.processes import children, open_descriptors


@pytest.fixture
def nothing_is_left():
    """A test ends with no child and no descriptor that wasn't there before."""
    processes, descriptors = children(), open_descriptors()
    yield
    gc.collect()
    assert children() <= processes
    assert open_descriptors() == descriptors
