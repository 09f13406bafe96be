"""Each metric has a meaning, a heading in reports and a direction, and the documentation's glossary shows it."""

from __future__ import annotations

import pytest

import actor_learner as al
from actor_learner.runs.meter import METRICS, direction, look_up, metric_names


def test_every_metric_of_a_row_is_described():
    names = metric_names(al.TrainConfig(info_keys=("is_success", "reward/root")), ["clip_fraction"])
    assert [name for name in names if look_up(name) is None] == []
    assert look_up("episode/reward/root") is METRICS["episode/<key>"]
    assert look_up("my_loss") is None


@pytest.mark.parametrize(
    ("name", "subject", "better"),
    [
        ("episode_return", "returns", "max"),
        ("red/episode_return", "returns", "max"),
        ("red/episode/is_success", "returns", "max"),
        ("league/score", "returns", None),
        ("evaluation/return_mean", "returns", None),
        ("steps_per_second", "speed", "max"),
        ("host/10.0.0.1/waiting", "speed", None),
        ("policy_lag_max", "speed", None),
        ("diagnose/gradient_norm/trunk.dense", "layers", None),
        ("red/diagnose/dead_units/dense", "layers", None),
        ("memory/actor_3_mb", "processes", None),
        ("cpu/others", "processes", None),
        ("explained_variance", "learning", "max"),
        ("policy_loss", "learning", "min"),
        ("red/loss", "learning", "min"),
        ("entropy", "learning", None),
        ("time/env", "", None),
        ("undone", "", None),
    ],
)
def test_a_metric_has_a_heading_and_a_direction(name, subject, better):
    assert (look_up(name).subject, direction(name)) == (subject, better)


def test_a_loss_of_ones_own_is_better_where_it_is_less():
    assert [direction(name) for name in ("my_loss", "mine/my_loss", "lossy", "other")] == ["min", "min", None, None]
