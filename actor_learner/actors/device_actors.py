"""Actors without processes: environments written in JAX, which the learner's device steps, an unroll in one program."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from actor_learner.actors.group import ActorGroup, ColumnSchedule, Plan
from actor_learner.actors.rollout import CHECKED, Rollout, placement
from actor_learner.actors.transport.batches import (
    EPISODE_INFO,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    Block,
    BlockLayout,
    Blocks,
)
from actor_learner.actors.transport.messages import Done
from actor_learner.actors.transport.weights import check_finite
from actor_learner.environments.calls import Call, CallError, Calls
from actor_learner.environments.episodes import DEFAULT_KEY
from actor_learner.environments.errors import EnvError
from actor_learner.learner import backend
from actor_learner.learner.ahead import Guess
from actor_learner.spaces.jax_env import JaxEnv
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, has_mask_leaf
from actor_learner.spaces.trajectory import DeviceTrajectory
from actor_learner.system.fields import refusal
from actor_learner.system.policies import ONLY_POLICY
from actor_learner.system.types import Array, Tensor

_OF_EPISODES = (EPISODE_INFO, EPISODE_RETURN, EPISODE_LENGTH)
_CHECKS = ("cuts", "fine")  # of each rollout, read by the host


class DeviceBlock(Block):
    """A batch on the device, but for episodes and what is the same in all batches.

    zeros: returns the arrays of a rollout as zeros, where it puts them.
    """

    trajectory_type = DeviceTrajectory

    def __init__(self, layout: BlockLayout, zeros: Callable[[], Mapping[str, Tensor]]) -> None:
        super().__init__(layout, {})
        rows, columns = layout.spec.unroll_length, layout.spec.num_envs
        self._zeros = zeros
        self._constant: dict[str, Array] = {
            "valid": np.ones((rows, columns), bool),
            "env_index": np.arange(columns, dtype=np.int32),
            "policy_version": np.zeros(columns, np.int64),
            **{EPISODE_INFO + key: np.full((rows, columns), np.nan, np.float32) for key in layout.info_keys},
        }

    def fill(self, arrays: Mapping[str, Tensor], version: int) -> None:
        """Take a rollout's arrays."""
        on_host = {name: np.asarray(arrays[name]) for name in arrays if name.startswith(_OF_EPISODES)}
        versions = np.full(self.layout.spec.num_envs, version, np.int64)
        self.arrays = {**self._constant, **arrays, **on_host, "policy_version": versions}

    def of_begun(self, arrays: Mapping[str, Tensor]) -> DeviceBlock:
        """Return a block of arrays that the device still computes, without episodes."""
        block = copy.copy(self)
        block.arrays = {**self._constant, **arrays}
        return block

    def views(self) -> dict[str, Any]:
        """Return the arrays of the trajectory's fields."""
        return {name: self.arrays[name] for name in self.layout.spec.fields()}

    def blank_views(self) -> dict[str, Any]:
        found = {**self._constant, **self._zeros()}
        return {name: found[name] for name in self.layout.spec.fields()}

    def erase(self, start: int = 0, stop: int | None = None) -> None:
        """Do nothing: a rollout fills all rows."""

    def unwritten(self) -> None:
        return None


class DeviceActors(ActorGroup):
    """One actor, which fills all columns in `wait`, however long that takes.

    name: of the environment, for messages. devices: the number that share the environments, as they share the learner's
    updates.
    """

    acts_on_device = True

    def __init__(
        self, env: JaxEnv, num_envs: int, *, name: str, seed: int, device: str, devices: int, info_keys: Sequence[str]
    ) -> None:
        self._env, self._name, self._num_envs, self._seed, self._info_keys = env, name, num_envs, seed, info_keys
        self._devices, self._device = devices, backend.resolve_device(device, devices)
        self.calls, self._version = Calls(), -1
        self._assigned: deque[tuple[int, int, int, Tensor]] = deque()
        self._programs: dict[int, Any] = {}
        self._cuts = 1
        self._ahead = Guess[tuple[Tensor, Any]]()  # the weights of the next unroll, and it

    def spaces(self, seconds: float) -> dict[str, Spaces]:
        masked = hasattr(self._env, MASK_KEY) or has_mask_leaf(self._env.observation_space)
        found = Spaces(self._env.observation_space, self._env.action_space, masked)
        try:
            _ = found.observation, found.action
        except ValueError as error:  # they aren't supported
            raise EnvError(str(error)) from error
        return {ONLY_POLICY: found}

    def begin(self, plan: Plan, schedule: ColumnSchedule) -> Sequence[Blocks]:
        exported, step, self._schedule = plan.one_policy, plan.step, schedule
        self._weight_shapes = exported.weight_shapes
        assert step is not None
        if exported.noise_hold > 1:
            raise refusal("noise_hold", "1 for environments in JAX", exported.noise_hold)
        self._layout = plan.one_layout
        with self._on_device():
            self._rollout = Rollout(
                self._env,
                step,
                exported.distribution,
                num_envs=self._num_envs,
                steps=self._layout.spec.unroll_length,
                ladder=exported.epsilon_ladder,
                info_keys=self._info_keys,
                devices=self._devices,
            )
            if missing := [key for key in self._info_keys if key not in (DEFAULT_KEY, *self._rollout.info_keys)]:
                text = f"`Step.info` of env `{self._name}` has no {', '.join(missing)} of `info_keys`"
                warnings.warn(text, stacklevel=3)
            self._carry = self._placed(self._rollout.begin, 0)(jax.random.key(self._seed))
            self.publish(exported.weights)
        self._ended = time.perf_counter()
        self._blocks = [DeviceBlock(self._layout, self._zeros) for _ in range(plan.num_blocks)]
        return [(block,) for block in self._blocks]

    def _on_device(self) -> Any:
        return backend.device(self._device, self._devices)

    def _placed(self, function: Callable[..., Any], *part: Any) -> Callable[..., Any]:
        """Return the function as a program with a rollout's results, where that has them. part: the path to them."""
        if self._devices == 1:
            compiled: Callable[..., Any] = jax.jit(function)
            return compiled

        def program(*arguments: Any) -> Any:
            prefix = tuple(map(jax.tree_util.SequenceKey, part))
            places = jax.tree_util.tree_map_with_path(
                lambda path, leaf: NamedSharding(jax.sharding.get_mesh(), placement((*prefix, *path), leaf)),
                jax.eval_shape(function, *arguments),
            )
            return jax.jit(function, out_shardings=places)(*arguments)

        return program

    def _zeros(self) -> dict[str, Tensor]:
        """Return zeros in place of a rollout's arrays."""
        with self._on_device():
            _, like = jax.eval_shape(functools.partial(self._rollout, cuts=1), self._weights, self._carry)
            zeros = self._placed(lambda: {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in like.items()}, 1)
            return zeros()  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        return self._version

    def publish(self, weights: Array | Tensor) -> None:
        if isinstance(weights, jax.Array) and self._devices == 1:
            self._weights = weights
        else:
            with self._on_device():  # a copy: on a CPU, a device's array may be the host's
                self._weights = backend.to_device(np.array(weights))
        self._version += 1

    def act_ahead(self, weights: Tensor) -> tuple[Block, bool] | None:
        if self.closed or self._devices > 1:  # which get copies of the weights
            return None
        guess = self._assigned[0][-1] if self._assigned else weights
        if (begun := self._ahead.begin(lambda: (guess, self._dispatch(guess)))) is None:
            return None
        _, (_, arrays) = begun
        return self._blocks[0].of_begun(arrays), guess is weights

    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        self._assigned.append((batch, block, self._version, self._weights))

    def wait(self, seconds: float) -> None:
        self.check()
        while not self._schedule.complete():
            batch, block, version, weights = self._assigned.popleft()
            started = time.perf_counter()
            self._blocks[block].fill(self._unroll(weights), version)
            ended = time.perf_counter()
            waiting, self._ended = started - self._ended, ended
            self._schedule.finish(0, Done(batch, ended - started, 0.0, 0.0, waiting, ended=ended))

    def _unroll(self, weights: Tensor) -> Mapping[str, Tensor]:
        """Return the arrays of the next unroll. Raises EnvError, or ValueError of weights, that aren't finite."""
        ahead = self._ahead.take(lambda begun: begun[0] is weights)
        begun = ahead and ahead[1]
        while True:
            after, arrays = begun or self._dispatch(weights)
            begun = None
            with self._explaining_memory_errors():
                cuts, fine = (np.asarray(arrays.pop(name)) for name in _CHECKS)
            if cuts.max() <= self._cuts:
                break
            self._cuts = int(cuts.max()) + 1  # where the first unroll has one, a later one may have one more
        if not fine.all():
            check_finite(np.asarray(weights), self._weight_shapes)  # else the environment seems to be the cause
            name = CHECKED[int(np.argmin(fine.all(0)))]
            expected = "must allow an action" if name == MASK_KEY else "must be finite, and discrete values in range"
            where = "step it in actors (vectorization='sync') to see how it comes about"
            raise EnvError(
                f"`{name}` of env `{self._name}` {expected}; {where}. Received: {_first_wrong(arrays, name)}"
            )
        self._carry = after
        return arrays

    def _dispatch(self, weights: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Return what the next unroll will give: the state after it, and its arrays."""
        if (program := self._programs.get(self._cuts)) is None:
            program = self._programs[self._cuts] = jax.jit(functools.partial(self._rollout, cuts=self._cuts))
        with self._explaining_memory_errors(), self._on_device():
            after, arrays = program(weights, self._carry)
            for name, array in arrays.items():
                if name in _CHECKS or name.startswith(_OF_EPISODES):
                    array.copy_to_host_async()  # requested only once the result is ready, a copy takes longer
        return after, arrays

    @contextlib.contextmanager
    def _explaining_memory_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
            received = f"num_envs={self._num_envs}, unroll_length={self._layout.spec.unroll_length}"
            raise MemoryError(
                f"The device's memory is too small for these batches: lower both. Received: {received}"
            ) from error

    def call(self, call: Call) -> None:
        text = "`call` is for environments that have methods, but those in JAX are pure functions"
        raise CallError(f"{text}. Received: {call.name!r}")

    def close(self) -> None:
        self.closed = True


def _first_wrong(arrays: Mapping[str, Tensor], name: str) -> str:
    """Return the first number that isn't finite in the arrays whose names begin so, and its place."""
    for array in (np.asarray(values) for key, values in arrays.items() if key.startswith(name)):
        for row, column, *place in np.argwhere(~np.isfinite(array)).tolist():
            return f"{array[row, column, *place]} in row {row} of environment {column}"
    return "another value in this unroll"
