"""The actor's process, from its start to its end."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from actor_learner.actors.actor import Actor, Startup, Stopped, make_environments
from actor_learner.actors.device_acting import RemoteStep, StepRows
from actor_learner.actors.transport.messages import Channel, Failure, Message, read_all
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.environments.calls import CallError, decode
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import ApiError, EnvError, describe_error, text_of
from actor_learner.spaces.spaces import spaces_to_json
from actor_learner.system.aborts import show_stacks
from actor_learner.system.keras_import import QuietTensorFlow
from actor_learner.system.machine import lower_priority

_MAX_TRACEBACK_CHARS = 64 * 1024
_PARENT_CHECK_SECONDS = 5.0


def main(*descriptors: str) -> None:
    """Run the actor. descriptors: numbers of the connection, the mailbox and the arena that the pool made."""
    connection, mailbox, arena = map(int, descriptors)
    for descriptor in (connection, mailbox, arena):
        os.set_inheritable(descriptor, False)  # simulators must not hold them open
    for stream in (sys.stdout, sys.stderr):  # pass on each line when it is complete, not when a buffer is full
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    show_stacks()
    sys.meta_path.insert(0, QuietTensorFlow())
    channel = Channel(connection, mailbox)
    starting = True
    try:
        if _next_message(channel)[0] is Message.CLOSE:
            raise _PoolGoneError
        startup, sys.argv[:], factory = pickle.loads(read_all(mailbox, os.fstat(mailbox).st_size))
        os.ftruncate(mailbox, 0)  # frees its memory
        lower_priority(startup.niceness)  # before there are threads of the environments' own
        seed = startup.env_seed()
        random.seed(seed)  # for environments that draw from the generators of the process
        np.random.seed(seed)  # noqa: NPY002
        environments = make_environments(pickle.loads(factory), startup)
        starting = False
        _serve(channel, Arena(arena), startup, environments)
        with contextlib.suppress(OSError):
            channel.send(Message.CLOSING, next(iter(environments.values())).name)
        for each in environments.values():
            each.close()
    except _PoolGoneError:
        sys.exit(0)
    except BaseException as error:
        channel.send(Message.FAILED, _describe(error, starting))
        sys.exit(1)
    finally:
        gc.unfreeze()  # or frozen cycles outlive the interpreter, and ale-py reports them as leaks


def _serve(channel: Channel, arena: Arena, startup: Startup, environments: Mapping[str, Environments]) -> None:
    """Send READY, and fill columns until the pool sends CLOSE."""
    inbox = _Inbox(channel)
    channel.send(Message.READY, spaces_to_json({name: each.spaces for name, each in environments.items()}))
    message, plan = inbox.next()
    if message is Message.CLOSE:
        return
    arena.attach(plan.size)
    parts = plan.parts(arena)
    step_graph = None
    if parts.steps:
        rows = StepRows(**parts.steps).part(startup.first_env, startup.first_env + startup.num_envs)
        step_graph = RemoteStep(rows, inbox.await_action)
    policies = startup.make_policies(pickle.loads(parts.policy), environments, step_graph)
    actor = Actor(startup, environments, policies, parts)
    gc.collect()
    gc.freeze()  # all objects so far stay; the collector needn't look at them again
    has_low_priority = False
    while (received := inbox.next())[0] is not Message.CLOSE:
        has_low_priority = has_low_priority or lower_priority(startup.niceness)  # many at once are refused at first
        if received[0] is Message.CALL:
            actor.call(decode(received[1]))
            continue
        try:
            done = actor.fill(received[1])
        except Stopped:
            continue
        try:
            channel.send(Message.DONE, done)
        except OSError as error:
            raise _PoolGoneError from error
        if actor.error is not None:
            raise actor.error


class _PoolGoneError(Exception):
    """The pool's process has ended."""


class _Inbox:
    """The pool's messages, in their order; but an answer to a request of the actor's own comes first."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._postponed: deque[tuple[Message, Any]] = deque()

    def next(self) -> tuple[Message, Any]:
        return self._postponed.popleft() if self._postponed else _next_message(self._channel)

    def await_action(self) -> None:
        """Have the learner's device act on the actor's rows. Raises Stopped if the pool closes meanwhile."""
        try:
            self._channel.send(Message.ACT)
        except OSError as error:
            raise _PoolGoneError from error
        while (received := _next_message(self._channel))[0] is not Message.ACTED:
            self._postponed.append(received)
            if received[0] is Message.CLOSE:
                raise Stopped


def _next_message(channel: Channel) -> tuple[Message, Any]:
    parent = os.getppid()
    while not channel.wait(_PARENT_CHECK_SECONDS):
        if os.getppid() != parent:
            raise _PoolGoneError
    try:
        return channel.receive()
    except (EOFError, OSError) as error:
        raise _PoolGoneError from error


def _describe(error: BaseException, starting: bool) -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(
        starting=starting or isinstance(error, ApiError),
        refused=isinstance(error, CallError),
        bad_environment=isinstance(error, EnvError),
        summary=describe_error(error),
        text=text_of(error),
        traceback=text[-_MAX_TRACEBACK_CHARS:],
    )
