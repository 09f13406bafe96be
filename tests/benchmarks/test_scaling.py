"""Many actors simulated with the pool's own schedule, against cases worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.scaling.pool_simulation import Setting, throughput

pytestmark = pytest.mark.thorough


ACTORS, ENVS, ROWS, STEP = 4, 8, 16, 0.01
IDEAL = ACTORS * ENVS / STEP
BATCH = ACTORS * ENVS * ROWS


def steady(lag, *, step=lambda generator: STEP, **seconds):
    return Setting(ACTORS, ENVS, ROWS, lag, step, **seconds)


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("update", [0.0, 0.5 * ROWS * STEP])
def test_a_learner_that_keeps_up_costs_nothing_where_it_may_lag(lag, update):
    assert throughput(steady(lag, update_seconds=update)) == pytest.approx(IDEAL)


@pytest.mark.parametrize("lag", [1, 3])
def test_a_learner_that_is_saturated_decides_alone(lag):
    found = throughput(steady(lag, update_seconds=0.9, hand_out_seconds=0.025))
    assert found == pytest.approx(BATCH / 1.0, rel=0.01)


def test_whoever_may_lag_more_waits_less_for_the_slowest():
    shortest = STEP / 2

    def pareto(generator):
        return shortest * (1 + generator.pareto(2.0))

    lock_step, ahead, free = (throughput(steady(lag, step=pareto), batches=60) for lag in (0, 1, 4))
    assert lock_step < ahead < free
