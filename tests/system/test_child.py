"""The launcher: what a child gets from its parent, and that it ends with the thread that started it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from actor_learner.system.child import start_python
from tests.support.processes import patience, wait_until

MODULE = """
import os, sys, time

def report(*arguments):
    print(arguments, os.environ.get("OF_THE_CHILD"), sys.flags.safe_path, os.getpgid(0) == os.getpid())

def sleep(seconds):
    time.sleep(float(seconds))
"""


@pytest.fixture
def _module_of_mine(tmp_path, monkeypatch):
    (tmp_path / "module_of_a_child.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_module_of_mine")
@pytest.mark.slow
def test_a_child_gets_arguments_search_path_and_environment():
    child = start_python(
        "module_of_a_child:report",
        ("a b", 7),
        name="child-0",
        environment={"OF_THE_CHILD": "yes"},
        stdout=subprocess.PIPE,
    )
    output, _ = child.communicate(timeout=patience(60))
    assert output == b"('a b', '7') yes True True\n"
    assert child.returncode == 0


@pytest.mark.usefixtures("_module_of_mine")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child whose parent ends")
@pytest.mark.slow
def test_a_child_ends_with_the_thread_that_started_it():
    children = []
    over = threading.Event()

    def start():
        children.append(start_python("module_of_a_child:sleep", (600,), name="child-0"))
        over.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        assert wait_until(lambda: children)
        with pytest.raises(subprocess.TimeoutExpired):
            children[0].wait(1)
    finally:
        over.set()
        thread.join()
    assert children[0].wait(patience(30)) == -9


def test_python_s_own_path_must_be_known(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match="Received: sys.executable=''"):
        start_python("builtins:print", name="child-0")
