"""The search for aborts: what it counts."""

import sys

import pytest

from benchmarks.faults import aborts

pytestmark = pytest.mark.thorough


class Program(aborts.Run):
    """Runs a program in place of the command line."""

    program = ""

    def _command(self):
        return [sys.executable, "-c", self.program]


@pytest.mark.parametrize(
    ("program", "code"), [("import os; os.abort()", -6), ("print('corrupted size vs. prev_size')", 0), ("exit(3)", 3)]
)
def test_another_end_is_an_event_and_so_is_a_word_of_damage(tmp_path, program, code):
    for name in aborts.allocators():
        folder = tmp_path / name
        folder.mkdir()
        run = Program(folder, name, "end", delay=0.0, seed=0)
        run.program = program
        event = run.result()["event"]
        assert (event["allocator"], event["exit_code"]) == (name, code)
        assert ("corrupted" in event["texts"].get("output", "")) == ("corrupted" in program)
