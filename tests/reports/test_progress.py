"""What a run shows of itself: lines, a view on a terminal, nothing; with terminals that are real (pseudo-)terminals."""

from __future__ import annotations

import io
import logging
import signal
import sys
import time

import pytest

import actor_learner as al
from actor_learner.reports.displays import Notebook, Terminal, choose_display
from actor_learner.reports.status import Summary
from actor_learner.reports.watch import Progress
from actor_learner.runs.artifacts import run_log
from actor_learner.runs.metrics import MetricsFile
from actor_learner.system.signals import Interrupts
from tests.support.processes import wait_until
from tests.support.run_rows import CONFIG, row
from tests.support.terminals import PseudoTerminal


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 100 columns."""
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "100"), ("LINES", "30")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = PseudoTerminal()
    yield terminal
    terminal.close()


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [100.0]
    for module in ("watch", "displays"):
        monkeypatch.setattr(f"actor_learner.reports.{module}.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def captured():
    return io.StringIO()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Makes a `Progress`, which is closed in the end, where stdout and stderr are a stream."""
    begun = []

    def start(stream, **fields):
        monkeypatch.setattr(sys, "stdout", stream)  # pytest sets its own after the fixtures are made
        monkeypatch.setattr(sys, "stderr", stream)
        config = al.TrainConfig(**({"total_steps": 10_000, "num_actors": 2} | fields))
        begun.append(Progress(config, tmp_path, tmp_path / "metrics.jsonl"))
        return begun[-1]

    yield start
    for progress in begun:
        progress.close()


def test_lines_where_there_is_no_terminal(start, clock, captured):
    progress = start(captured)
    for number, seconds in ((1, 120.0), (2, 121.0), (3, 130.0)):
        clock[0] = seconds
        progress.update(row(number))
    first, second = captured.getvalue().splitlines()
    assert first == "  1%  100 steps  return 1.0  0:02 so far"
    assert second == "  3%  300 steps  return 3.0  50 steps/s  3:14 left"
    progress.close()
    assert captured.getvalue().splitlines()[-1] == "  3%  300 steps  return 3.0  50 steps/s  took 0:06 in all"


def test_quiet_prints_nothing_and_verbose_a_line_for_every_update(start, captured):
    progress = start(captured, quiet=True)
    progress.update(row(1))
    progress.close()
    assert captured.getvalue() == ""
    progress = start(captured, verbose=True)
    for number in (1, 2, 3):
        progress.update(row(number, policy_loss=-0.5 / number))
    lines = captured.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["update 1", "update 2", "update 3"]
    assert "  policy_lag=0  " in lines[1]
    assert lines[1].endswith("policy_loss=-0.25")


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_shows_what_goes_into_the_log(verbose, tmp_path, captured, monkeypatch):
    monkeypatch.setattr(sys, "stderr", captured)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own: then the program shows what it likes
    with run_log(tmp_path, verbose=verbose):
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("actor_learner").log(level, "of level %d", level)
    shown = ["actor-learner: info: of level 20", "actor-learner: warning: of level 30"]
    assert captured.getvalue().splitlines() == (shown if verbose else shown[1:])


def test_a_stream_that_is_gone_is_not_the_end(start, monkeypatch, clock):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    progress = start(Gone())
    progress.update(row(1))
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    clock[0] += 100.0
    progress.update(row(2))
    assert stream.getvalue() == ""


def test_a_run_that_goes_on_shows_what_was_before(start, captured, tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for number in (1, 2, 3):
        file.append(row(number, undone=1.0))
    progress = start(captured)
    progress.update(row(4))
    assert progress._status().undone == 3
    assert progress._status().returns == [1.0, 2.0, 3.0, 4.0]


def shown(terminal, text):
    """Whether it is to be seen before long."""
    return wait_until(lambda: any(text in line for line in terminal.lines()))


def test_the_view_says_that_the_first_gradient_step_is_compiled(start, clock, captured):
    progress = start(captured)
    progress.update({**row(1), "gradient_steps": 0})
    assert progress._note() == ""
    clock[0] += 10
    assert progress._note() == "Waiting for the first gradient step, which is compiled first."
    progress.update({**row(2), "gradient_steps": 4})
    clock[0] += 10
    assert progress._note() == ""


def test_a_view_is_drawn_in_place_and_its_last_state_stays(start, terminal):
    progress = start(terminal.stream)
    assert shown(terminal, "Waiting for the first update")
    for number in (1, 2, 3):
        progress.update(row(number))
    assert shown(terminal, "300 of 10,000 steps")
    orders = [order for order in terminal.orders if order.startswith("?25")]
    assert orders[-1] == "?25h", "a process that is killed has no chance to bring the cursor back"
    progress.close()
    lines = terminal.lines()
    assert lines[0].startswith("CartPole-v1 · ppo · ")
    assert lines[2] == "300 of 10,000 steps · 50 steps/s · 3 updates · took 0:06 in all"
    assert lines[-1] == "policy lag 0.0 · no actor restarts · no undone updates"
    assert sum("CartPole-v1" in line for line in lines) == 1
    assert (sys.stdout, sys.stderr) == (terminal.stream, terminal.stream)


def test_what_is_printed_goes_above_the_view_as_it_is(start, terminal):
    progress = start(terminal.stream)
    progress.update(row(1))
    assert shown(terminal, "100 of 10,000")
    print("[actor 0] [bold]as it is[/bold] " + "x" * 120)
    print("be warned", file=sys.stderr)
    print("unfinished, ", end="")
    print("and finished", file=sys.stdout)
    sys.stdout.write("\r 1/2\r 2/2 done\n")
    progress.close()
    print("after it")
    lines = terminal.lines()
    view = next(index for index, line in enumerate(lines) if line.startswith("CartPole-v1"))
    assert lines[0] == "[actor 0] [bold]as it is[/bold] " + "x" * 120
    assert lines[1:view] == ["be warned", "unfinished, and finished", " 2/2 done"]
    assert lines[-1] == "after it"


def test_a_prompt_has_the_terminal_to_itself_until_the_program_goes_on(start, terminal):
    progress = start(terminal.stream)
    progress.update(row(1))
    assert shown(terminal, "100 of 10,000")
    sys.stdout.write("(Pdb) ")
    sys.stdout.flush()
    time.sleep(1.2)  # longer than the thread waits between two views
    assert terminal.lines() == ["(Pdb)"]
    terminal.stream.write("\n")  # the echo of what is typed
    progress.update(row(2))
    assert shown(terminal, "200 of 10,000")
    assert terminal.lines()[0] == "(Pdb)"


def test_input_removes_the_view_and_is_what_it_was_in_the_end(start, terminal, monkeypatch):
    seen = []
    monkeypatch.setattr("builtins.input", read := lambda prompt: seen.append((prompt, terminal.lines())) or "an answer")
    progress = start(terminal.stream)
    progress.update(row(1))
    assert shown(terminal, "100 of 10,000")
    assert input("(Pdb) ") == "an answer"
    assert seen == [("(Pdb) ", [""])]
    time.sleep(1.2)  # longer than the thread waits between two views
    assert terminal.lines() == [""]
    progress.update(row(2))
    assert shown(terminal, "200 of 10,000")
    progress.close()
    assert input is read


def test_a_terminal_that_is_closed_is_not_the_end(start, terminal):
    progress = start(terminal.stream)
    progress.update(row(1))
    assert shown(terminal, "100 of 10,000")
    terminal.hang_up()
    progress.update(row(2))
    print("nobody reads this")
    progress.update(row(3))
    progress.close()


def test_the_view_says_that_a_signal_was_received(start, terminal):
    with Interrupts() as interrupts:
        progress = start(terminal.stream)
        assert progress.shows_interrupts
        progress.update(row(1))
        interrupts.quiet = progress.shows_interrupts
        signal.raise_signal(signal.SIGINT)
        assert shown(terminal, "Ending this update and saving (Ctrl-C again ends at once).")


def test_nothing_learned_leaves_no_view(start, terminal):
    progress = start(terminal.stream)
    assert shown(terminal, "Waiting for the first update")
    progress.close()
    assert terminal.lines() == [""]


@pytest.mark.parametrize("reason", ["dumb", "debugger"])
def test_terminals_that_are_not_drawn_on(reason, start, terminal, monkeypatch):
    if reason == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    progress = start(terminal.stream, num_actors=0 if reason == "debugger" else 2)
    progress.update(row(1))
    progress.close()
    assert len(terminal.lines()) == 2
    assert "\x1b" not in terminal.written
    assert not progress.shows_interrupts


def test_stdout_that_is_no_terminal_is_left_alone(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    display = choose_display()
    assert isinstance(display, Terminal)
    print("a result")
    display.close(None)
    assert stream.getvalue() == "a result\n"


def test_notebooks_get_html_and_text_that_are_updated_in_place(monkeypatch):
    IPython = pytest.importorskip("IPython")
    shell = IPython.core.interactiveshell.InteractiveShell.instance()
    shell.kernel = None  # what tells a kernel from a terminal
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    summary = Summary(CONFIG, "runs/mine")
    summary.add(row(1))
    display = choose_display()
    assert isinstance(display, Notebook)
    with IPython.utils.capture.capture_output() as captured:
        display.draw(summary.status)
        summary.add(row(2))
        display.draw(summary.status)  # too early
        display.close(summary.status(over=True))
    shell.clear_instance()
    first, second = captured.outputs
    assert "100 of 10,000" in first.data["text/plain"]
    assert "200 of 10,000" in second.data["text/plain"]
    assert second.data["text/html"].startswith("<pre ")
    assert second.data["text/html"].count("color: ") > 3
