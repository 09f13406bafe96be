"""A host: its share of the actors, in processes of their own, and the connection by which it serves the learner."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import queue
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from actor_learner.actors.actor import Startup
from actor_learner.actors.cluster import wire
from actor_learner.actors.cluster.codec import ColumnCodec
from actor_learner.actors.cluster.wire import BEAT_SECONDS, Buffer, Connection, Frame, Kind, unpack
from actor_learner.actors.group import ActorError, ColumnSchedule, Plan
from actor_learner.actors.processes.group import ProcessActors
from actor_learner.actors.transport.messages import Done
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.calls import Call, decode
from actor_learner.environments.errors import EnvError
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.spaces import Spaces, spaces_to_json
from actor_learner.system import __version__
from actor_learner.system.policies import ONLY_POLICY

MAX_PLAN_BYTES = 4 << 30  # the policy included
_LINES_SECONDS = 0.2  # the interval in which output, replacements and errors are looked for
_MAX_LINES, _MAX_LINE_BYTES = 20, 4096  # of one frame, which is below the largest, however its JSON escapes them
_ERRORS = {"ActorError": ActorError, "EnvError": EnvError, "MemoryError": MemoryError, "TimeoutError": TimeoutError}


@dataclass(frozen=True)
class HostStart:
    """What a host needs to start. It travels by the cluster's own means, pickled."""

    startups: Sequence[Startup]  # of its actors, whose numbers are those in the whole pool
    factory: bytes
    token: bytes
    argv: Sequence[str]
    settings: PoolSettings
    calls: Sequence[Call]  # which the environments get before their first reset


def identity() -> dict[str, str]:
    """Return what must be the same on all hosts."""
    return {"actor_learner": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}


class NodeHost:
    """Serves one learner: fills the columns that it assigns, and sends them. Ends this process with it."""

    def __init__(self, content: bytes) -> None:
        """Start the actors. content: a pickled `HostStart`."""
        start: HostStart = pickle.loads(content)  # noqa: S301 - from the learner, by the cluster's own means
        self._start = start
        sys.argv[:] = start.argv
        first_env = start.startups[0].first_env
        self._starts = {startup.actor: startup.first_env - first_env for startup in start.startups}
        self._counts = {startup.actor: startup.num_envs for startup in start.startups}
        self._outbox: queue.SimpleQueue[tuple[int, Done] | Exception] = queue.SimpleQueue()
        self._sender_ended = threading.Event()  # nothing more is sent
        self._is_closing = False  # only signs of life are sent
        self._spaces: dict[str, Spaces] = {}
        self._blocks_of: dict[tuple[int, int], int] = {}  # by actor and batch
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._group = _HostActors(start.factory, start.startups, start.settings)
        self._warnings = [str(warning.message) for warning in caught]
        for call in start.calls:
            self._group.call(call)
        self._group.start()

    def listen(self, address: str) -> dict[str, Any]:
        """Return where the learner finds this host, which waits for it from now on."""
        server = socket.create_server((address, 0))
        threading.Thread(target=self._serve, args=(server,), name="host", daemon=True).start()
        return {"port": server.getsockname()[1], "pid": os.getpid(), "identity": identity()}

    def _serve(self, server: socket.socket) -> None:
        try:
            with server:
                connection = self._accept(server)
            threading.Thread(target=self._send, args=(connection,), name="host-sender", daemon=True).start()
            try:
                self._receive(connection)
            except OSError:
                pass  # the learner is gone, or believes that this host is
            except Exception as error:
                self._outbox.put(error)
                self._sender_ended.wait(BEAT_SECONDS)
            self._is_closing = True
            self._group.close()  # its environments, before the learner goes on to end what is left
            connection.end()
        finally:
            try:
                self._group.close()
            finally:
                os._exit(0)

    def _accept(self, server: socket.socket) -> Connection:
        """Return the connection of the learner; others may try meanwhile."""
        deadline = time.monotonic() + self._start.settings.start_timeout
        while (remaining := deadline - time.monotonic()) > 0:
            server.settimeout(remaining)
            connected, _ = server.accept()
            with contextlib.suppress(OSError):
                return wire.accept(connected, self._start.token)
        raise TimeoutError("No learner came")

    # What the learner sends

    def _receive(self, connection: Connection) -> None:
        """Do what the learner says, until it says CLOSE or is gone."""
        while (frame := connection.receive()).kind is not Kind.CLOSE:
            if frame.kind is Kind.BEGIN:
                self._begin(connection.read(frame.size, MAX_PLAN_BYTES))
            elif frame.kind is Kind.WEIGHTS:
                weights = connection.read(frame.size, self._exported.weights.nbytes)
                self._group.publish(self._exported.as_vector(np.frombuffer(weights, np.float32)))
            elif frame.kind is Kind.ASSIGN:
                self._blocks_of[frame.actor, frame.batch] = frame.block
                with self._group.lock:
                    self._group.assign(frame.actor, frame.batch, frame.block, self._starts[frame.actor])
            elif frame.kind is Kind.STOP:
                with self._group.lock:
                    self._group.end_early(frame.block)
            elif frame.kind is Kind.CALL:
                for call in decode(bytes(connection.read(frame.size, wire.MAX_JSON_BYTES)).decode()):
                    self._group.call(call)
            elif frame.kind is Kind.REPLACE:
                self._group.replace([frame.actor])

    def _begin(self, content: Buffer) -> None:
        self._exported = ExportedPolicy.from_contents(unpack(content))
        env_counts = [self._counts.get(actor, 0) for actor in range(max(self._counts) + 1)]
        plan = Plan.of(self._start.settings, self._spaces, {ONLY_POLICY: self._exported}, env_counts)
        self._codec = ColumnCodec(plan.one_layout)
        self._blocks = [block for (block,) in self._group.begin(plan, cast(ColumnSchedule, _Outbox(self._outbox)))]

    # What the learner gets

    def _send(self, connection: Connection) -> None:
        """Send the columns that are done, and what else happens."""
        try:
            if not self._send_spaces(connection):
                return
            sent, looked = time.monotonic(), time.monotonic()
            while True:
                try:
                    done = self._outbox.get(timeout=_LINES_SECONDS)
                except queue.Empty:
                    pass
                else:
                    if isinstance(done, Exception):
                        raise done
                    self._send_columns(connection, *done)
                    sent = time.monotonic()
                if (now := time.monotonic()) - looked > _LINES_SECONDS:
                    looked = now
                    if not (self._is_closing or self._send_news(connection)):
                        return
                if now - sent > BEAT_SECONDS:
                    connection.send(Frame(Kind.BEAT))
                    sent = now
        except Exception as error:
            with contextlib.suppress(OSError):
                _send_error(connection, error)
            connection.end()  # which ends the other thread, too
        finally:
            self._sender_ended.set()

    def _send_spaces(self, connection: Connection) -> bool:
        """Send the spaces once all actors are ready; return False if they failed."""
        deadline = time.monotonic() + self._start.settings.start_timeout
        for line in self._warnings:
            connection.send_json(Kind.LINES, [[self._start.startups[0].actor, line]])
        while not self._spaces:
            self._send_lines(connection)
            try:
                self._spaces = self._group.spaces(BEAT_SECONDS)
            except TimeoutError as error:
                if time.monotonic() > deadline:
                    _send_error(connection, error)
                    return False
                connection.send(Frame(Kind.BEAT))
            except Exception as error:
                self._send_lines(connection)
                _send_error(connection, error)
                return False
        connection.send_json(Kind.READY, spaces_to_json(self._spaces))
        return True

    def _send_columns(self, connection: Connection, actor: int, done: Done) -> None:
        start, block = self._starts[actor], self._blocks_of.pop((actor, done.batch))
        parts = self._codec.encode(self._blocks[block], start, start + self._counts[actor])
        times = done.env, done.acting, done.other, done.waiting
        connection.send(Frame(Kind.DONE, actor, done.batch, block, 0, *times), *parts)

    def _send_news(self, connection: Connection) -> bool:
        """Send output and replacements; return False if the actors have ended with an error."""
        self._send_lines(connection)
        for restart in self._group.take_restarts():
            connection.send_json(Kind.RESTARTS, [list(restart)])
        try:
            self._group.check()
        except Exception as error:
            _send_error(connection, error)
            return False
        return True

    def _send_lines(self, connection: Connection) -> None:
        lines = [(actor, line[:_MAX_LINE_BYTES]) for actor, _, line in self._group.take_lines()]
        for first in range(0, len(lines), _MAX_LINES):
            connection.send_json(Kind.LINES, lines[first : first + _MAX_LINES])


class _HostActors(ProcessActors):
    """Shows no output: the learner does."""

    def _show_lines(self) -> None:
        pass


class _Outbox:
    """The one method of a schedule that a host needs: batches are the learner's affair."""

    def __init__(self, outbox: queue.SimpleQueue[Any]) -> None:
        self._outbox = outbox

    def finish(self, actor: int, done: Done) -> bool:
        self._outbox.put((actor, done))
        return False


def _send_error(connection: Connection, error: Exception) -> None:
    kind = next((name for name, cls in _ERRORS.items() if isinstance(error, cls)), "RuntimeError")
    details = {name: getattr(error, name, None) for name in ("actor", "traceback", "exit_code")}
    connection.send_json(Kind.FAILED, {"kind": kind, "message": str(error), **details})


def read_error(content: dict[str, Any], host: str) -> Exception:
    """Return the error that a host sent, which names the host."""
    kind: type[Exception] = _ERRORS.get(content["kind"], RuntimeError)
    message = f"{content['message']} (on host {host})"
    if kind is ActorError:
        return ActorError(message, content["actor"], traceback=content["traceback"], exit_code=content["exit_code"])
    return kind(message)
