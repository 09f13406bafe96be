"""Each metric has a meaning, and the glossary of the documentation shows it."""

from __future__ import annotations

import actor_learner as al
from actor_learner.runs.glossary import METRICS, describe
from actor_learner.runs.recorder import metric_names


def test_every_metric_of_a_row_is_described():
    names = metric_names(al.TrainConfig(info_keys=("is_success", "reward/root")), ["clip_fraction"])
    assert [name for name in names if describe(name) is None] == []
    assert describe("episode/reward/root") == METRICS["episode/<key>"]
    assert describe("my_loss") is None
