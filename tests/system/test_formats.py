"""Numbers of formats: what a newer version wrote is refused by name, what an older one wrote is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import actor_learner as al
from actor_learner.system.files import NewerFormatError, stamped, unstamped

FILE = Path("runs/a/learner.json")


def test_a_file_says_its_format_and_its_writer():
    content = stamped({"updates": 3}, 2)
    assert content == {"format": 2, "actor_learner": al.__version__, "updates": 3}
    for newest in (2, 3):
        assert unstamped(FILE, content, newest) == {"updates": 3}
    assert unstamped(FILE, {"updates": 3}, 1) == {"updates": 3}  # without a number: the first format


def test_a_newer_format_is_refused_by_name():
    said = (
        f"learner.json is in format 2, and actor-learner {al.__version__} reads formats up to 1: install the version "
        r"that wrote it, or a newer one \(9.1.0\). Received: file='runs/a/learner.json'"
    )
    with pytest.raises(NewerFormatError, match=said):
        unstamped(FILE, {"format": 2, "actor_learner": "9.1.0"}, 1)


@pytest.mark.parametrize("number", [0, -1, True, None, "1", 1.0, [1]])
def test_what_is_no_number_of_a_format_is_refused(number):
    with pytest.raises(ValueError, match="`format` must be a number from 1 on. Received: format=") as error:
        unstamped(FILE, {"format": number}, 9)
    assert not isinstance(error.value, NewerFormatError)
