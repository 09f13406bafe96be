"""The program that measures a gradient step of our off-policy learner still finds what it calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.replay.compare import DQN, SAC
from benchmarks.replay.programs import ours

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]


@pytest.mark.parametrize("task", [{**DQN, "max_grad_norm": 10.0}, SAC])
def test_a_gradient_step_is_measured(task):
    seconds = ours.step(SimpleNamespace(**{**task, "minibatch_size": 8, "steps": 2, "calls": 1}))
    assert 0 < seconds < float("inf")
