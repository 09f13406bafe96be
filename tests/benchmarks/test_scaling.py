"""Many actors simulated with the pool's own schedule, against cases worked by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.processes import growth
from benchmarks.scaling.pool_simulation import Setting, Update, fit_update, line_through, own_seconds, throughput

pytestmark = pytest.mark.slow


ACTORS, ENVS, ROWS, STEP = 4, 8, 16, 0.01
IDEAL = ACTORS * ENVS / STEP
BATCH = ACTORS * ENVS * ROWS


def steady(lag, *, step=lambda generator: STEP, **seconds):
    return Setting(ACTORS, ENVS, ROWS, lag, step, **seconds)


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("update", [0.0, 0.5 * ROWS * STEP])
def test_a_learner_that_keeps_up_costs_nothing_where_it_may_lag(lag, update):
    assert throughput(steady(lag, update_seconds=update)) == pytest.approx(IDEAL)


def test_in_lock_step_the_update_comes_on_top():
    update = 0.5 * ROWS * STEP
    assert throughput(steady(0, update_seconds=update)) == pytest.approx(BATCH / (ROWS * STEP + update))


@pytest.mark.parametrize("lag", [1, 3])
def test_a_learner_that_is_saturated_decides_alone(lag):
    found = throughput(steady(lag, update_seconds=0.9, hand_out_seconds=0.025))
    assert found == pytest.approx(BATCH / 1.0, rel=0.01)


def test_an_actors_own_work_comes_to_every_step():
    assert throughput(steady(1, actor_seconds=0.25 * STEP)) == pytest.approx(IDEAL / 1.25)


def test_whoever_may_lag_more_waits_less_for_the_slowest():
    shortest = STEP / 2

    def pareto(generator):
        return shortest * (1 + generator.pareto(2.0))

    lock_step, ahead, free = (throughput(steady(lag, step=pareto), batches=60) for lag in (0, 1, 4))
    assert lock_step < ahead < free


def test_an_unroll_that_takes_for_ever_is_cut_short_and_the_others_go_on():
    steps = itertools.chain(itertools.repeat(100 * STEP, ROWS), itertools.repeat(STEP))
    found = throughput(steady(4, step=lambda generator: next(steps)), warm_up=0)
    assert 0.7 * IDEAL < found < IDEAL


def test_learners_share_rows_but_not_the_calls_and_the_ring_is_on_top():
    update = Update(call_seconds=1e-4, row_seconds=1e-6, epochs=2, minibatch_size=100, parameters=1000)
    assert update.seconds(1000) == pytest.approx(2 * 10 * (1e-4 + 100e-6))
    ring = 2 * 3 * (update.hop_seconds + 4 * 1000 / 4 / update.bytes_per_second)
    assert update.seconds(1000, learners=4) == pytest.approx(2 * 10 * (1e-4 + 25e-6 + ring))


def test_a_fit_finds_what_a_call_and_a_row_take():
    seconds = {size: Update(2e-5, 1.25e-6, 4, size).seconds(2048) for size in (64, 512)}
    assert fit_update(seconds, 2048, 4) == pytest.approx((2e-5, 1.25e-6))


def test_lines_and_own_work():
    assert line_through({1: 3.0, 2: 5.0, 4: 9.0}) == pytest.approx((1.0, 2.0))
    found = {"work": {"step_seconds": 0.02}, "actors": {"1": {"of_ideal": 0.8}, "64": {"of_ideal": 0.5}}}
    assert own_seconds(found) == pytest.approx(0.005)


def test_growth_is_between_the_second_fifth_and_the_end():
    sizes = np.r_[np.linspace(1, 100, 20), np.full(70, 100.0), np.full(10, 110.0)]
    found = growth([{"pss": size} for size in sizes])
    assert (found["after_a_fifth"], found["end"], found["growth"]) == ({"pss": 100.0}, {"pss": 110.0}, {"pss": 0.1})
    assert growth([{"pss": 1.0}] * 19)["growth"] == {}
