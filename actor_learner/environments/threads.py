"""A vector environment whose environments wait at the same time, because each has a thread of its own."""

from __future__ import annotations

import functools
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate

from actor_learner.environments import foreign_code
from actor_learner.environments.serial import SerialVectorEnv

_CLOSE_SECONDS = 5.0  # the time that all environments have to close


class ThreadedVectorEnv(SerialVectorEnv):
    """A `SerialVectorEnv` that calls all its environments at once, and takes their results in their order.

    make_env: makes an environment, in that environment's thread. They are made one after the other, because what makes
    them often shares state.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], num_envs: int) -> None:
        self._members = [_InThread(make_env, index) for index in range(num_envs)]
        super().__init__(list(self._members))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every sub-environment; the next step overwrites the arrays of the result."""
        rows: Iterable[Any] = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for member, action in zip(self._members, rows, strict=True):
            member.begin_call(member.env.step, action)
        return super().step(actions)

    def _begin_resets(self, arguments: Mapping[int, dict[str, Any]]) -> None:
        for index, given in arguments.items():
            self._members[index].begin_call(self._members[index].env.reset, **given)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments, but leave one whose last call hangs."""
        for member in self._members:
            member.begin_call(member.env.close)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for index, member in enumerate(self._members):
            try:
                member.close(max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                text = "An environment is left to its thread, in which a call hangs."
                warnings.warn(f"{text} Received: environment {index}", UserWarning, stacklevel=3)


class _InThread(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is made, called and closed in a thread of its own, as clients of browsers often need it.

    The thread is a daemon, so an environment that hangs delays no exit. It ends after `close`, or with this object.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], index: int) -> None:
        self._calls = queue.SimpleQueue[Any]()
        self._answer: queue.SimpleQueue[tuple[Any, BaseException | None]] | None = None
        threading.Thread(target=_work, args=(self._calls, index), name=f"environment-{index}", daemon=True).start()
        self._end = weakref.finalize(self, self._calls.put, None)
        super().__init__(self._result(make_env))

    def begin_call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Begin a call, whose result is that of the next method of this environment."""
        self._answer = queue.SimpleQueue()
        self._calls.put((functools.partial(call, *args, **kwargs), self._answer))

    def _result(self, call: Callable[..., Any], *args: Any, seconds: float | None = None, **kwargs: Any) -> Any:
        """Return the result of the call that has begun, else of this one. Raises queue.Empty after so many seconds."""
        if self._answer is None:
            self.begin_call(call, *args, **kwargs)
        assert self._answer is not None
        answer, self._answer = self._answer, None
        result, error = answer.get(timeout=seconds)
        if error is not None:
            raise error
        return result

    def step(self, action: Any) -> Any:
        return self._result(self.env.step, action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._result(self.env.reset, seed=seed, options=options)

    def render(self) -> Any:
        return self._result(self.env.render)

    def close(self, seconds: float | None = None) -> None:
        """Close the environment and end its thread. Raises queue.Empty if that takes longer than so many seconds."""
        try:
            self._result(self.env.close, seconds=seconds)
        finally:
            self._end()

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment; a method makes its calls in the environment's thread."""
        value = self.env.get_wrapper_attr(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin_call(value, *args, **kwargs)
            return self._result(value)

        return functools.wraps(value)(call) if callable(value) else value


def _work(calls: queue.SimpleQueue[Any], index: int) -> None:
    """Make the calls of an environment and put their answers, result or error, until there is None in place of one."""
    while (item := calls.get()) is not None:
        call, answer = item
        forks = foreign_code.forks
        try:
            try:
                result, error = call(), None
            finally:
                if foreign_code.forks != forks:  # in a child, in which there is no other thread
                    foreign_code.end_child(f"environment {index}")
        except BaseException as raised:
            result, error = None, raised
        answer.put((result, error))
        item = call = answer = result = error = None  # or they would live until the next call
