"""Gymnasium's SyncVectorEnv with less Python around each step."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import create_empty_array, iterate
from gymnasium.wrappers import FrameStackObservation

from actor_learner.environments.autoreset import layers
from actor_learner.environments.buffers import check_shape, write
from actor_learner.environments.errors import ApiError, EnvError, short
from actor_learner.spaces.structure import MASK_KEY, children, observation_structure
from actor_learner.system.fields import misfit

if TYPE_CHECKING:
    _SyncVectorEnv = SyncVectorEnv[Any, Any]
else:  # older Gymnasium releases don't let this class be subscripted
    _SyncVectorEnv = SyncVectorEnv

_NUMBERS = (bool, int, float, np.number, np.bool_, np.ndarray)
_RESET_RESULT = "(observation, info)"
_STEP_RESULT = "(observation, reward, terminated, truncated, info)"


class SerialVectorEnv(_SyncVectorEnv):
    """A `SyncVectorEnv` without autoreset that merges the infos only of episodes that end.

    Merging every step's infos and copying every observation costs a seventh of HalfCheetah's step, and joining the
    parts of Dict observations more: this class writes each part into its row. Of the other steps' infos it takes only
    `action_mask`. It casts rows to the space's dtype, and checks the first reset and the first step of each
    sub-environment, later ones where they can't be read.
    """

    def __init__(self, envs: list[gym.Env[Any, Any]]) -> None:
        ready = iter(envs)
        super().__init__([ready.__next__ for _ in envs], copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self._rows: Any = create_empty_array(self.single_observation_space, self.num_envs, np.zeros)
        self._containers = list(_containers(self.single_observation_space, self._rows, ()))
        self._reward = np.zeros(self.num_envs)
        self._reward_items: Any = self._reward.data  # which refuses None, where the array takes it as NaN
        self._terminated = np.zeros(self.num_envs, dtype=bool)
        self._truncated = np.zeros(self.num_envs, dtype=bool)
        self._reset_checked = np.zeros(self.num_envs, dtype=bool)
        self._step_checked = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those of `options["reset_mask"]`; the others keep their observation."""
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        infos: dict[str, Any] = {}
        action_masks: dict[int, Any] = {}
        for index, env in enumerate(self.envs):
            if mask is not None and not mask[index]:
                continue
            try:
                result = env.reset(seed=None if seeds is None else seeds[index], options=options or None)
            except TypeError as error:
                _check_reset(env, index, error)
                raise
            try:
                if not self._reset_checked[index]:
                    self._check_result(result, _RESET_RESULT, index)
                    self._reset_checked[index] = True
                row, info = result
                self._write(row, index)
                if info.get(MASK_KEY) is not None:
                    action_masks[index] = info[MASK_KEY]
                merge_numbers(infos, info, index, self.num_envs)
            except Exception as error:
                raise self._explain(result, _RESET_RESULT, index, error) from error
        add_masks(infos, action_masks, self.num_envs)
        return self._rows, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every sub-environment; the next step overwrites the arrays of the result."""
        observations, rewards = self._rows, self._reward_items
        terminations, truncations = self._terminated, self._truncated
        infos: dict[str, Any] = {}
        nested, mask_key = bool(self._containers), MASK_KEY
        action_masks: dict[int, Any] = {}
        rows: Iterable[Any] = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for index, (env, action) in enumerate(zip(self.envs, rows, strict=True)):
            result = env.step(action)
            try:
                if not self._step_checked:
                    self._check_result(result, _STEP_RESULT, index)
                    if not nested and not np.array_equal(observations[index], result[0]):
                        _check_stack(env, _source(_STEP_RESULT, index))
                row, reward, terminated, truncated, info = result
                if nested:
                    self._write(row, index)
                else:
                    write(observations, row, index)
                rewards[index] = reward
                terminations[index] = terminated
                truncations[index] = truncated
                if mask_key in info and info[mask_key] is not None:
                    action_masks[index] = info[mask_key]
                if terminated or truncated:
                    merge_numbers(infos, info, index, self.num_envs)
            except Exception as error:
                raise self._explain(result, _STEP_RESULT, index, error) from error
        self._step_checked = True
        add_masks(infos, action_masks, self.num_envs)
        return observations, self._reward, terminations, truncations, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all sub-environments, the others too where one raises."""
        with contextlib.ExitStack() as stack:
            for env in reversed(self.envs):
                stack.callback(env.close)

    def _write(self, row: Any, index: int) -> None:
        if not self._containers:
            write(self._rows, row, index)
            return
        for path, size, columns in self._containers:
            container = row
            for key in path:
                container = container[key]
            if len(container) != size:
                raise ValueError(f"expected {size} entries in {path}")
            for key, array in columns:
                write(array, container[key], index)

    def _explain(self, result: Any, expected: str, index: int, error: Exception) -> EnvError:
        """Return the error for a result that can't be read."""
        if isinstance(error, ApiError):
            return error
        is_first = not (self._step_checked if expected is _STEP_RESULT else self._reset_checked[index])
        try:
            self._check_result(result, expected, index)  # names the part
        except ApiError as named:
            return named if is_first else EnvError(str(named))
        return EnvError(f"{_source(expected, index)} gave unusable values: {error}. Received: {short(result[0])}")

    def _check_result(self, result: Any, expected: str, index: int) -> None:
        """Raise ApiError for another number of results than `expected`, or a part that isn't what it must be."""
        source = _source(expected, index)
        if not isinstance(result, tuple) or len(result) != len(expected.split(", ")):
            received = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise ApiError(f"{source} must return {expected}. Received: {received}")
        if expected is _STEP_RESULT:
            _check_reward(result[1], source)
            for name, flag in zip(("terminated", "truncated"), result[2:4], strict=True):
                if np.asarray(flag).dtype.kind not in "biu":
                    raise ApiError(f"{source} must return a bool as {name}. Received: {name}={short(flag)}")
        if not isinstance(result[-1], Mapping):
            raise ApiError(f"{source} must return a dict as info. Received: info={short(result[-1])}")
        self._check_row(result[0], source)

    def _check_row(self, row: Any, source: str) -> None:
        try:
            structure = observation_structure(self.single_observation_space)
            for leaf, part in zip(structure.leaves, structure.flatten(row), strict=True):
                check_shape(leaf.label, part, leaf.shape)
        except ValueError as error:
            raise ApiError(f"{source}: {error}") from error


def add_masks(infos: dict[str, Any], action_masks: Mapping[int, Any], num_envs: int) -> None:
    """Put action masks, if there are any, into vector infos, with Gymnasium's flags of environments that gave one."""
    if not action_masks:
        return
    values, given = np.empty(num_envs, dtype=object), np.zeros(num_envs, dtype=bool)
    for index, mask in action_masks.items():
        values[index], given[index] = mask, True
    infos[MASK_KEY], infos[f"_{MASK_KEY}"] = values, given


def merge_numbers(infos: dict[str, Any], info: Mapping[str, Any], index: int, num_envs: int, prefix: str = "") -> None:
    """Merge an environment's info into vector infos: only numbers, as float64, and "a/b" for `info["a"]["b"]`.

    Gymnasium's `_add_info` takes dtype and shape from the first value, and a dict can't stand beside a number. Keys
    that begin with an underscore are those of flags.
    """
    for key, value in info.items():
        if not isinstance(key, str) or key == MASK_KEY or key.startswith("_"):
            continue
        path = prefix + key
        if isinstance(value, dict):
            merge_numbers(infos, value, index, num_envs, f"{path}/")
        elif isinstance(value, _NUMBERS) and np.size(value) == 1:
            try:
                number = float(np.reshape(value, ()))
            except (TypeError, ValueError, OverflowError):  # text in an array, an integer beyond float64
                continue
            infos.setdefault(path, np.zeros(num_envs))[index] = number
            infos.setdefault(f"_{path}", np.zeros(num_envs, dtype=bool))[index] = True


def _source(expected: str, index: int) -> str:
    return f"`{'step' if expected is _STEP_RESULT else 'reset'}` of environment {index}"


def _check_reset(env: gym.Env[Any, Any], index: int, error: TypeError) -> None:
    """Raise ApiError for a `reset` of the environment or a wrapper that doesn't take `seed` and `options`."""
    for layer in layers(env):
        if misfit(layer.reset, seed=None, options=None):
            rule = "must take seed and options, as `reset(self, *, seed=None, options=None)` does"
            where = f"`reset` of {type(layer).__name__}, environment {index},"
            raise ApiError(f"{where} {rule}. Received: reset{inspect.signature(layer.reset)}") from error


def _check_stack(env: gym.Env[Any, Any], source: str) -> None:
    """Raise ApiError if a stack of frames has two that are one array, which the environment has written to again."""
    for layer in layers(env):
        newest = [*map(np.asarray, layer.obs_queue)][-2:] if isinstance(layer, FrameStackObservation) else []
        if len(newest) == 2 and np.shares_memory(newest[0], newest[1]) and np.array_equal(newest[0], newest[1]):
            rule = "below FrameStackObservation must return a new array, which that keeps"
            raise ApiError(f"{source} {rule}. Received: the array of the step before")


def _check_reward(reward: Any, source: str) -> None:
    try:
        if np.shape(reward) == ():
            math.fabs(reward)
            return
        received = f"shape={np.shape(reward)}"
    except TypeError:
        received = f"reward={short(reward)}"
    raise ApiError(f"{source} must return a number as reward. Received: {received}")


def _containers(
    space: gym.Space[Any], rows: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], int, list[tuple[str | int, Any]]]]:
    """Yield path and size of each dict and tuple of an observation, and key and rows of each leaf in it."""
    parts = children(space)
    if isinstance(space, (Dict, Tuple)):
        yield path, len(parts), [(key, rows[key]) for key, child in parts if not isinstance(child, (Dict, Tuple))]
    for key, child in parts:
        yield from _containers(child, rows[key], (*path, key))
