"""From rows to what is to be seen."""

from __future__ import annotations

import math

import pytest

from actor_learner.reports.status import POINTS, Summary, duration, line
from actor_learner.runs.recorded_config import RecordedConfig
from tests.support.run_rows import CONFIG, row


def summary(rows, **config):
    result = Summary(RecordedConfig(CONFIG | config), "runs/mine")
    for each in rows:
        result.add(each)
    return result


def test_where_a_run_is():
    status = summary([row(1), row(2), row(3)]).status(age=1.0)
    assert (status.env, status.algorithm, status.run_dir) == ("CartPole-v1", "ppo", "runs/mine")
    assert (status.steps, status.updates, status.part_done) == (300, 3, 0.03)
    assert status.seconds == 7.0
    assert status.left == 193.0  # 9,700 steps at 200 in the 4 s since the first update, of which one has passed
    assert status.speed == pytest.approx(50.0)
    assert status.returns == [1.0, 2.0, 3.0]
    assert str(status.limited_by) == "limited by: environments; another actor would help"
    assert [tuple(process) for process in status.processes] == [
        ("learner", 1.25, 812.0),
        ("actor 0", 0.5, 54.0),
        ("actor 1", 0.75, 55.0),
    ]


def test_before_the_first_row():
    status = summary([]).status(age=3.0)
    assert (status.steps, status.seconds, status.restarts, status.undone) == (0, 3.0, 0, 0)
    assert status.limited_by is None
    assert math.isnan(status.left)
    assert line(status) == "  0%  0 steps  0:03 so far"


def test_the_first_row_compiles_and_counts_no_more_after_the_second():
    compiled = row(1, time__learning=1.0, steps_per_second=1.0)
    assert summary([compiled]).status().shares["learning"] == pytest.approx(1.0)
    assert math.isnan(summary([compiled]).status().speed)
    status = summary([compiled, row(2)]).status()
    assert status.shares["learning"] == pytest.approx(0.25)
    assert status.speed == pytest.approx(50.0)


def test_the_row_whose_gradient_steps_are_the_first_compiles_and_those_before_it_tell_nothing():
    rows = [row(number, gradient_steps=0.0, time__learning=0.0, steps_per_second=9000.0) for number in (1, 2, 3)]
    rows += [row(4, gradient_steps=32.0, time__learning=1.0, steps_per_second=1.0), row(5, gradient_steps=64.0)]
    assert math.isnan(summary(rows[:4]).status().left)
    for over in (False, True):
        assert summary(rows).status(over=over).shares["learning"] == pytest.approx(0.25)
    status = summary(rows).status()
    assert status.speed == pytest.approx(50.0)
    assert status.left == 190.0  # 9,500 steps at 100 in 2 s


def test_means_forget_while_a_run_goes_on_and_are_those_of_all_of_it_in_the_end():
    rows = [row(number, time__learning=0.0 if number < 20 else 1.0) for number in range(1, 40)]
    seen = summary(rows)
    assert seen.status().shares["learning"] > 0.99
    assert seen.status(over=True).shares["learning"] == pytest.approx(20 / 38)
    assert seen.status(over=True).speed == pytest.approx(50.0)  # of all steps, in all the time
    assert line(seen.status(over=True)) == " 39%  3,900 steps  return 39.0  50 steps/s  took 1:18 in all"


def test_few_rows_do_not_tell_that_callbacks_limit_a_run():
    rows = [row(number, time__learning=0.1, time__collecting=0.1) for number in range(1, 30)]
    assert "done once" in str(summary(rows[:5]).status(over=True).limited_by)
    assert "callbacks" in str(summary(rows).status(over=True).limited_by)


def test_restarts_causes_and_updates_that_were_undone():
    told = row(2, actor_restarts=1, actor_restart_causes=["actor 0 was killed", "actor 1 said \x1b[2J"])
    status = summary([row(1), told, row(2, undone=1.0, actor_restarts=1, policy_loss=math.nan), row(3)]).status()
    assert status.undone == 1
    assert status.cause == "actor 1 said ?[2J"  # nothing that a terminal would do


def test_a_long_history_is_kept_in_few_points():
    seen = summary(row(number) for number in range(1, 10_001))
    returns = seen.status().returns
    assert POINTS / 2 <= len(returns) <= POINTS
    assert returns == sorted(returns)
    assert 1 < returns[0] < 200
    assert 9_800 < returns[-1] <= 10_000


@pytest.mark.parametrize("damage", [{"env_steps": math.nan}, {"time_seconds": math.nan}])
def test_rows_that_say_nothing_are_left_out(damage):
    assert summary([row(1), row(2) | damage]).status().steps == 100


def test_of_rows_that_say_little_the_rest_is_unknown():
    status = summary([{"env_steps": 5, "time_seconds": 1.0}, {"env_steps": 9, "time_seconds": 2.0}]).status()
    assert status.processes == []
    assert status.limited_by is None
    assert line(status) == "  0%  9 steps  41:38 left"


@pytest.mark.parametrize(("seconds", "text"), [(4.6, "0:05"), (65, "1:05"), (3700, "1:01:40")])
def test_durations(seconds, text):
    assert duration(seconds) == text
