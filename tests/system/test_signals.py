from __future__ import annotations

import os
import signal
import threading

import pytest

import actor_learner as al
from actor_learner.system.signals import Interrupts, exiting_on_signals, stop_requested
from tests.support.scripted_envs import Deterministic


def test_the_first_signal_asks_and_the_second_ctrl_c_insists(capfd):
    with Interrupts() as interrupts:
        assert not interrupts.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "ending this update" in capfd.readouterr().err


@pytest.mark.slow
def test_a_signal_while_environments_are_made_ends_no_update(tmp_path, capfd):
    class Interrupted(Deterministic):
        def __init__(self):
            super().__init__()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        al.train(al.TrainConfig(env=Interrupted, num_actors=0, run_dir=tmp_path / "run"))
    lines = capfd.readouterr().err.splitlines()
    assert "ending before the first update (Ctrl-C again ends at once)" in lines
    assert "SIGTERM: nothing was learned yet" in lines
    assert "ending this update" not in "".join(lines)


def test_nothing_interrupts_saving():
    with Interrupts(quiet=True) as interrupts:
        interrupts.saving = True
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert interrupts.received == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_raised_in_the_end(number):
    with Interrupts(quiet=True) as interrupts:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    with pytest.raises(SystemExit) as raised:
        interrupts.raise_received("saved")
    assert raised.value.code == 128 + number


def test_ctrl_c_is_raised_with_the_message():
    with Interrupts(quiet=True) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="the run is saved"):
        interrupts.raise_received("the run is saved")


def test_handlers_are_put_back_and_ignored_signals_stay_ignored():
    before = signal.getsignal(signal.SIGINT)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is not before
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGHUP, ignored)


def test_threads_leave_handlers_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_waits_within_a_run_can_ask_whether_it_is_to_stop(number):
    assert not stop_requested()
    with Interrupts(quiet=True):
        assert not stop_requested()
        os.kill(os.getpid(), number)
        assert stop_requested()
    assert not stop_requested()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_would_end_a_command_raise_and_what_was_ignored_stays_ignored(number):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as raised, exiting_on_signals():
        os.kill(os.getpid(), number)
    assert raised.value.code == 128 + number
    assert signal.getsignal(number) is before
    signal.signal(number, signal.SIG_IGN)
    try:
        with exiting_on_signals():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
