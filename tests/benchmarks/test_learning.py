"""One rule says which published returns count for a row of the learning results, and how it compares with them."""

from __future__ import annotations

import pytest

from benchmarks.learning.rows import Row
from benchmarks.learning.table import counts, student_point


def test_the_same_algorithm_and_as_many_steps_count_and_another_version_is_named():
    sac = Row("HalfCheetah-v5", "sac", seeds=1, steps=1_000_000, minutes=1)
    assert (sac.same.source, sac.same.value, sac.same.kind) == ("Tianshou", 12138.8, "v3, best of run")
    ppo = Row("MountainCarContinuous-v0", "ppo", seeds=1, steps=100_000, minutes=1)
    assert ppo.same is None
    assert (ppo.any.algorithm, ppo.any.value) == ("a2c", 91.166)


@pytest.mark.parametrize(
    ("row", "returns", "verdict"),
    [
        ("Ant-v5/ppo", (4400, 4500, 4600), "at least"),  # theirs: 3,258 +- 1,079 over 10 seeds
        ("Ant-v5/ppo", (2700, 4500, 4600), "open"),
        ("Ant-v5/ppo", (1300, 1400, 1500), "less"),
        ("Ant-v5/ppo", (4500, 4500), None),  # too few seeds to count
        ("Acrobot-v1/ppo", (-73, -73, -72), "at least"),  # theirs: one run, -73.506
        ("Acrobot-v1/ppo", (-75, -73, -72), "open"),
        ("Acrobot-v1/ppo", (-75, -74, -74), "less"),
    ],
)
def test_a_wide_interval_is_open(row, returns, verdict):
    seeds = [{"evaluation_mean": float(each), "env_steps": 1_000_000} for each in returns]
    same = counts({row: {"all": {}, "seeds": seeds}})["same"]
    assert [name for name in ("at least", "open", "less") if same[name]] == [verdict] * same["all"]
    assert same["all"] == (verdict is not None)


def test_the_point_of_students_t():
    assert [student_point(freedom) for freedom in (2, 5, 30)] == pytest.approx([4.3027, 2.5706, 2.0423], abs=2e-4)
