"""A cluster of simulated machines on loopback, in Ray's place: `main` is a broker's program.

The machines stand in a JSON file, named by LOOPBACK_CLUSTER, which a test may change: {"A": {"cpus": 2, "own": true}}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from actor_learner.actors.cluster.broker import Broker
from actor_learner.actors.cluster.host import NodeHost
from actor_learner.actors.cluster.shares import Node

_POLL_SECONDS = 0.05


class LoopbackCluster:
    """Starts hosts as processes of this machine, on the first machine of the file that has the CPUs."""

    def __init__(self, path):
        self._path = Path(path)
        self._lock = threading.Lock()
        self._reserved = {}  # by host: the machine and its CPUs
        self._hosts = {}
        self._ended = set()

    def nodes(self):
        machines = json.loads(self._path.read_text())
        with self._lock:
            for number, process in list(self._hosts.items()):
                if process.poll() is not None:
                    self._reserved.pop(number, None)
            free = {name: found["cpus"] for name, found in machines.items()}
            for name, cpus in self._reserved.values():
                if name in free:
                    free[name] -= cpus
        return [
            Node(name, name, "127.0.0.1", found["cpus"], free[name], found.get("own", False))
            for name, found in machines.items()
        ]

    def start(self, host, content, cpus, node):
        while True:
            if host in self._ended:
                return None
            fitting = (found.id for found in self.nodes() if found.free >= cpus and node in (None, found.id))
            if (name := next(fitting, None)) is not None:
                break
            time.sleep(_POLL_SECONDS)
        with self._lock:
            self._reserved[host] = name, cpus
            command = [sys.executable, "-c", f"from {__name__} import host; host({name!r})"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._hosts[host] = process
        process.stdin.write(content)
        process.stdin.close()
        if not (line := process.stdout.readline()):
            raise RuntimeError(f"ended with exit code {process.wait()}")
        return json.loads(line)

    def end(self, host):
        self._ended.add(host)
        with self._lock:
            self._reserved.pop(host, None)
            process = self._hosts.pop(host, None)
        if process is not None:
            process.kill()
            process.wait()

    def reserve(self, cpus):
        own = next(found.name for found in self.nodes() if found.own)
        with self._lock:
            self._reserved["learner"] = own, cpus

    def close(self):
        for host in list(self._hosts):
            self.end(host)


def host(name):
    """Run a host, whose `HostStart` comes from the standard input."""
    content = sys.stdin.buffer.read()
    found = NodeHost(content).listen("127.0.0.1")
    print(json.dumps({"name": name, "address": "127.0.0.1", **found}), flush=True)
    while True:
        signal.pause()


def main(descriptor, address):
    cluster = LoopbackCluster(os.environ["LOOPBACK_CLUSTER"])
    with contextlib.closing(cluster):
        Broker(Connection(int(descriptor)), cluster).run()
