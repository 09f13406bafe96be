"""The learner's side of the broker, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import pytest

from actor_learner.actors.cluster.broker import BrokerProcess
from actor_learner.system import child
from tests.support.processes import patience

MESSAGES = 2000


@pytest.mark.slow
def test_what_was_sent_before_the_end_arrives(monkeypatch):
    """A connection that is closed in the middle of a message raised a TypeError in the thread that sent it."""
    received, reading = [], []

    def read(connection):
        try:
            while True:
                received.append(connection.recv())
        except EOFError:
            connection.close()

    def start(program, arguments, **options):
        reading.append(threading.Thread(target=read, args=(Connection(os.dup(arguments[0])),)))
        reading[0].start()
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(child, "start_python", start)
    broker = BrokerProcess("auto")
    broker.start()
    for number in range(MESSAGES):
        broker.send("end", number)
    broker.close(time.monotonic() + patience(30))
    reading[0].join(patience(30))
    assert received == [("end", number) for number in range(MESSAGES)]
