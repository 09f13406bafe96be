"""Actors on the machines of a cluster, and on the learner's own where it has CPUs to spare."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from actor_learner.actors.actor import Startup
from actor_learner.actors.arena_actors import ArenaActors
from actor_learner.actors.cluster.broker import BrokerProcess
from actor_learner.actors.cluster.codec import ColumnCodec
from actor_learner.actors.cluster.host import HostStart, identity, read_error
from actor_learner.actors.cluster.link import HostLink, Place
from actor_learner.actors.cluster.shares import HostShare, Placement, Shares, describe_room, divide, reservable
from actor_learner.actors.cluster.wire import Frame, Kind, pack
from actor_learner.actors.group import TAKEOVER, ActorError, ColumnSchedule, HostStatus, Plan, Restart
from actor_learner.actors.processes.child import LogFile
from actor_learner.actors.processes.group import ProcessActors
from actor_learner.actors.processes.restarts import REQUESTED
from actor_learner.actors.transport.batches import Blocks
from actor_learner.actors.transport.messages import Assignment, Done
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.calls import encode
from actor_learner.environments.errors import EnvError
from actor_learner.spaces.spaces import Spaces, spaces_from_json, spaces_to_json

_log = logging.getLogger("actor_learner")

_CLOSE_SECONDS = 4.0


class ClusterActors(ArenaActors):
    """Actors of several hosts. A host that is lost is replaced; its columns stay whole and at their places.

    A thread of its own talks to the broker; each host has two, see `HostLink`.
    """

    _local: ProcessActors | None = None  # the actors on the learner's own machine

    def __init__(
        self, factory: bytes, startups: Sequence[Startup], settings: PoolSettings, logs_dir: Path | None
    ) -> None:
        assert settings.ray_address is not None
        super().__init__(startups, settings, logs_dir)
        self._factory = factory
        self._reserved = min(settings.max_policy_lag, 1)  # CPUs of this machine that no actor gets
        self._logs: dict[int, LogFile] = {}
        self._broker = BrokerProcess(settings.ray_address)
        self._shares = Shares(self._start_host, lambda host: self._broker.send("end", host))
        self._token = secrets.token_bytes(32)
        self._incarnations: Counter[int] = Counter()
        self._restart_count = self._faults = 0
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._divided = self._local_started = self._closing = False
        self._process = os.getpid()

    # The thread that talks to the broker

    def start(self) -> None:
        threading.Thread(target=self._serve_broker, name="cluster", daemon=True).start()

    def _serve_broker(self) -> None:
        began = time.monotonic()
        try:
            self._broker.start()
            while not self._closing:
                for message in self._broker.messages():
                    with self._condition:
                        self._on_broker_message(*message, waited=time.monotonic() - began)
                    self._start_local()
                with self._condition:
                    if not self._closing:
                        self._shares.start_where_due()
        except BaseException as error:
            self._fail(error)
        if self._closing:  # the broker, which ends with this thread, has time to end in order
            self._closed.wait(self._settings.close_timeout + 2 * _CLOSE_SECONDS)

    def _on_broker_message(self, kind: str, *content: Any, waited: float) -> None:
        if self._closing:
            return
        if kind == "nodes":
            (self._shares.nodes,) = content
            if not self._divided:
                self._divide(waited)
            return
        host, detail = content
        if (link := self._shares.starting(host)) is None:
            return  # it isn't needed any more
        if kind == "failed":
            self._lose(link, f"can't be started: {detail}")
            self._broker.send("end", host)  # what there is of it
            return
        place = Place(**detail)
        if place.identity == (own := identity()):
            link.open(place, self._token, self._receive, self._on_loss)
            return
        text = f"All hosts need the same versions. Received: {place.identity} on host {place.name}, {own} here"
        if not self._has_begun:
            raise RuntimeError(text)
        self._lose(link, f"can't be used: {text}")
        self._broker.send("end", host)

    def _divide(self, waited: float) -> None:
        """Divide the actors among the machines, once there are enough or no more time is left."""
        settings, count, nodes = self._settings, len(self._startups), self._shares.nodes
        self._reserved = reservable(nodes, count, settings.actors_per_host, self._reserved)
        placements = divide(nodes, count, settings.actors_per_host, self._reserved)
        placed = sum(len(placement.actors) for placement in placements if placement.node is not None)
        if placed < count:
            text = describe_room(nodes, settings.actors_per_host, self._reserved)
            if (wait := settings.ray_wait) is not None:
                if waited < wait:
                    return
                received = f"num_actors={count}, ray_wait={wait:g}"
                raise RuntimeError(f"{text} after {wait:g} s, too few for all actors. Received: {received}")
            _log.warning(
                "%s of %s actors have a CPU of their own: %s; the others share CPUs until machines join",
                *(placed, count, text),
            )
        self._divided = True
        for placement in placements:
            self._place(placement)
        self._condition.notify_all()

    def _place(self, placement: Placement) -> None:
        if not placement.own:
            self._shares.add(placement.actors, placement.node)
            return
        startups = [self._startups[actor] for actor in placement.actors]
        self._local = ProcessActors(
            self._factory, startups, self._settings, self._logs_dir, self._memory, self._condition
        )
        self._local.calls = self.calls
        self._broker.send("reserve", len(startups) + self._reserved)

    def _start_local(self) -> None:
        """Start the actors on this machine, without the lock, which their supervisor needs."""
        if self._local is not None and not self._local_started:
            self._local_started = True
            self._local.start()

    def _start_host(self, share: HostShare, link: HostLink, cpus: int, node: str | None) -> None:
        # Another host may have the actors until this one is ready: it has other random numbers.
        takes_over = TAKEOVER if link.home and share.waits else 0
        startups = [
            dataclasses.replace(self._startups[actor], incarnation=self._incarnations[actor] + takes_over)
            for actor in share.actors
        ]
        link.calls = self._memory.calls_before(share.actors, self.calls.count)
        calls = self.calls.repeated(link.calls)
        content = HostStart(startups, self._factory, self._token, tuple(sys.argv), self._settings, calls)
        self._broker.send("start", link.number, cloudpickle.dumps(content), cpus, node)

    # Called by the hosts' links, each in its own thread

    def _receive(self, link: HostLink, frame: Frame) -> None:
        if frame.kind is Kind.DONE:
            self._receive_columns(link, frame)
            return
        assert link.connection is not None
        content = link.connection.read_json(frame)
        with self._condition:
            if frame.kind is Kind.READY:
                self._receive_spaces(link, content)
            elif frame.kind is Kind.LINES:
                for actor, line in content:
                    self._log_line(int(actor), str(line), link.name)
            elif frame.kind is Kind.RESTARTS:
                self._record([Restart(*restart) for restart in content], link.name)
            elif frame.kind is Kind.FAILED:
                if self._has_begun and self._shares.share_of(link).link is not link:  # it only was to take over
                    self._lose(link, f"failed: {content['message']}")
                    link.end("failed")
                else:
                    self._fail(read_error(content, link.name))

    def _receive_spaces(self, link: HostLink, spaces: dict[str, Any]) -> None:
        try:
            self._compare_spaces(spaces, f"on host {link.name}")
        except EnvError as error:
            self._fail(error)
            return
        if self._shares.is_needed(link):
            earlier = self._shares.share_of(link).link
            with contextlib.nullcontext() if earlier is None else earlier.writing:
                share = self._shares.adopt(link)
                if self._has_begun:
                    self._begin_host(share, link)
        self._condition.notify_all()

    def _receive_columns(self, link: HostLink, frame: Frame) -> None:
        content = link.read_columns(frame, self._max_bytes)
        with self._condition:
            if self._closing or (assignment := self._assignment(link, frame)) is None:
                return
            (block,) = self._memory.blocks[assignment.block]
            link.writing.acquire()  # until then the columns are assigned to no other host
        try:
            self._codec.decode(content, block, assignment.start, assignment.stop)
            block.arrays["policy_version"][assignment.start : assignment.stop] = assignment.version
        finally:
            link.writing.release()
        with self._condition:
            if self._closing or self._assignment(link, frame) is None:
                return
            self._memory.finish(frame.actor, frame.batch)
            self._shares.share_of(link).losses = 0
            times = frame.env, frame.acting, frame.other, frame.waiting
            if self._schedule.finish(frame.actor, Done(frame.batch, *times, frame.actor, time.perf_counter())):
                self._condition.notify_all()

    def _assignment(self, link: HostLink, frame: Frame) -> Assignment | None:
        """Return the assignment that a host's columns are for; None if another host has it by now."""
        share = self._shares.share_of(link)
        if share.link is not link:
            return None
        if frame.actor not in share.actors:
            raise ValueError(f"columns of actor {frame.actor}, which it doesn't run")
        return self._memory.pending(frame.actor, frame.batch)

    def _log_line(self, actor: int, line: str, host: str) -> None:
        self.show(actor, line, f" on {host}")
        if self._logs_dir is not None:
            if actor not in self._logs:
                self._logs[actor] = LogFile(self._logs_dir / f"actor-{actor}.log")
            self._logs[actor].write(f"{line}\n".encode())

    def _record(self, restarts: Sequence[Restart], host: str) -> None:
        for restart in restarts:
            self._replaced.append(restart._replace(cause=f"{restart.cause} (on host {host})"))
            self._incarnations[restart.actor] += 1
            if restart.cause != REQUESTED:
                self._count_faults(1, f"Actor {restart.actor} {restart.cause} (on host {host}).", restart.actor)
        self._restart_count += len(restarts)

    def _count_faults(self, count: int, text: str, actor: int) -> None:
        """End the pool where more actors than `max_restarts` were lost."""
        self._faults += count
        if self._faults > (limit := self._settings.max_restarts):
            self._fail(ActorError(f"Only max_restarts={limit} actors are replaced. {text}", actor))

    def _on_loss(self, link: HostLink, reason: str) -> None:
        with self._condition:
            self._lose(link, reason)
            self._broker.send("end", link.number)

    def _lose(self, link: HostLink, reason: str) -> None:
        if self._closing:
            return
        share = self._shares.share_of(link)
        had_actors = share.link is link
        if had_actors:
            self._incarnations.update(share.actors)
            text = f"Host {link.name}, with {share.label}, {reason}."
            self._count_faults(len(share.actors), text, share.actors[0])
        if (end := self._shares.lose(link, reason)) is not None:
            self._fail(ActorError(f"{end}.", share.actors[0]))

    def _fail(self, error: BaseException) -> None:
        with self._condition:
            if not self._closing:
                self._error = self._error or error
            self._condition.notify_all()

    # Called by the pool

    def spaces(self, seconds: float) -> dict[str, Spaces]:
        in_time = self._wait(lambda: self._divided, seconds + (self._settings.ray_wait or 0.0))
        deadline = time.monotonic() + seconds
        if not (in_time and self._wait(lambda: all(share.link is not None for share in self._shares.all), seconds)):
            raise TimeoutError(f"{self._late_hosts()} Received: start_timeout={seconds:g}")
        if self._local is not None:
            spaces = self._local.spaces(max(0.0, deadline - time.monotonic()))
            self._compare_spaces(spaces_to_json(spaces), "on this machine")
            self.check()
        return spaces_from_json(self._spaces)

    def _late_hosts(self) -> str:
        late = [share.label for share in self._shares.all if share.link is None]
        return f"No host was ready in time for {', '.join(late)}." if late else "Ray named no machines in time."

    def begin(self, plan: Plan, schedule: ColumnSchedule) -> Sequence[Blocks]:
        self._memory.allocate(plan)
        self._exported, self._codec = plan.one_policy, ColumnCodec(plan.one_layout)
        self._max_bytes = self._codec.max_bytes(max(plan.env_counts))  # of an actor's columns
        if self._local is not None:
            self._local.begin(plan, schedule)
        with self._condition:
            self._schedule, self._has_begun, self._shares.began = schedule, True, True
            for share in self._shares.all:
                if share.link is not None:  # else its next host begins when it is ready
                    self._begin_host(share, share.link)
        return self._memory.blocks

    def _begin_host(self, share: HostShare, link: HostLink) -> None:
        """Give a host the policy, and the columns that the host before it hasn't filled."""
        link.post(Frame(Kind.BEGIN), lambda: tuple(pack(self._exported.contents())))
        pending = [(assignment, actor) for actor in share.actors for assignment in self._memory.assign_again(actor)]
        for assignment, actor in sorted(pending, key=lambda pair: (pair[0].version, pair[0].batch)):
            self._send(link, actor, assignment)  # each version of the weights once: a host has few slots for them
        if share.loss is not None:
            loss, share.loss = share.loss, None
            seconds, cause = time.monotonic() - loss.since, f"went on at host {link.name}: {loss.text}"
            self._replaced.extend(
                Restart(actor, self._incarnations[actor], cause, "", seconds) for actor in share.actors
            )
            self._restart_count += len(share.actors)

    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        if (share := self._shares.of(actor)) is None:
            assert self._local is not None
            self._local.assign(actor, batch, block, start)
            return
        assignment = self._memory.assign(actor, batch, block, start, self.calls.count)
        if share.link is not None:  # else its next host gets them
            self._send(share.link, actor, assignment)

    def _send(self, link: HostLink, actor: int, assignment: Assignment) -> None:
        if calls := self.calls.since(link.calls, assignment.calls):
            link.calls = assignment.calls
            link.post(Frame(Kind.CALL), lambda: (encode(calls).encode(),))
        if link.version != assignment.version:
            link.version = assignment.version
            link.post(Frame(Kind.WEIGHTS), lambda: (self._memory.weights.read(assignment.slot).data,))
        link.post(Frame(Kind.ASSIGN, actor, assignment.batch, assignment.block))
        if self._memory.ends_early(assignment.block):
            link.post(Frame(Kind.STOP, block=assignment.block))

    def end_early(self, block: int) -> None:
        if not self._memory.ends_early(block):
            self._memory.end_early(block)
            for share in self._shares.all:
                if share.link is not None:
                    share.link.post(Frame(Kind.STOP, block=block))

    @property
    def _has_ended(self) -> bool:
        return self._error is not None or self._closing

    def _failure(self) -> BaseException | None:
        return self._error

    def check(self) -> None:
        super().check()
        if self._local is not None:
            self._local.check()

    def take_restarts(self) -> list[Restart]:
        return super().take_restarts() + (self._local.take_restarts() if self._local is not None else [])

    @property
    def restart_count(self) -> int:
        return self._restart_count + (self._local.restart_count if self._local is not None else 0)

    def replace(self, actors: Iterable[int]) -> None:
        with self._condition:
            for actor in actors:
                share = self._shares.of(actor)
                if share is None and self._local is not None:
                    self._local.replace([actor])
                elif share is not None and share.link is not None:
                    share.link.post(Frame(Kind.REPLACE, actor))

    def hosts(self) -> list[HostStatus]:
        def status(name: str, actors: Sequence[int], link: HostLink | None = None) -> HostStatus:
            num_envs = sum(self._startups[actor].num_envs for actor in actors)
            figures = (0, 0.0) if link is None else (link.received, link.receiving)
            return HostStatus(name, tuple(actors), num_envs, *figures)

        with self._condition:
            local = [actor for actor in self._startups if self._shares.of(actor) is None]
            links = [(share, share.link) for share in self._shares.all if share.link is not None]
            hosts = [status(link.name, share.actors, link) for share, link in links]
        return [status("this machine", local), *hosts] if local else hosts

    def process_ids(self) -> dict[int, int]:
        """Return the process ids of the actors on this machine."""
        return self._local.process_ids() if self._local is not None else {}

    def close(self) -> None:
        if os.getpid() != self._process or self._closing:
            return
        deadline = time.monotonic() + self._settings.close_timeout + _CLOSE_SECONDS
        with self._condition:
            self._closing = True
            links = list(self._shares.links())
            self._condition.notify_all()
        with contextlib.ExitStack() as last_first:  # each step, also where one before it was interrupted
            last_first.callback(self._memory.close)
            last_first.callback(self._show_lines)
            for log in self._logs.values():
                last_first.callback(log.close)
            last_first.callback(self._closed.set)
            last_first.callback(self._broker.close, deadline)
            for link in links:
                link.post(Frame(Kind.CLOSE))
                last_first.callback(link.close, deadline)
            if self._local is not None:
                last_first.callback(self._local.close)
