"""Action masks from environments: in a Dict observation, in `infos`, or from a method `action_masks`."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from actor_learner.environments.autoreset import AnyVectorEnv, layers
from actor_learner.environments.errors import EnvError, calling
from actor_learner.spaces.masks import with_batch_axis
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Structure, observation_structure
from actor_learner.system.fields import misfit
from actor_learner.system.types import Array, Leaves

METHOD = "action_masks"  # sb3-contrib's, of an environment or one of its wrappers
_Method = Callable[[Array], Any]  # indices of environments -> their masks, in this order


class ActionMasks:
    """The masks of the current observations.

    A mask is the Dict observation's entry `action_mask`, or else `infos["action_mask"]`, from the first reset on, or
    else the result of `method`: the actions that may follow an observation. `describe` names the environment of a row
    and its step, for messages.

    Attributes:
        in_use: True if the environments give masks; outside of the observation, known after the first `reset`.
        current: bool `[b, M]`, a new array after each change; None without masks.
        shown: the same, but in rows that show the last observation of an episode that was cut off, and don't act next.
        final: bool `[b, M]`, the masks of the last observations of the episodes that were cut off last; nothing is
            allowed where they aren't known.

    Raises ValueError if a Dict observation's mask doesn't fit the action space.
    """

    def __init__(
        self, spaces: Spaces, num_envs: int, describe: Callable[[int], str], method: _Method | None = None
    ) -> None:
        self.in_use = spaces.has_mask_leaf
        self.current: Array | None = None
        self.shown: Array | None = None
        self._layout = spaces.masks
        self.final = np.zeros((num_envs, self._layout.size), bool)
        self._action_space = spaces.action_space
        self._num_envs = num_envs
        self._describe = describe
        self._label = f"info['{MASK_KEY}']"
        self._method = method
        self._mask_structure: Structure | None = None
        self._mask_places: list[int] = []
        self._use_is_known = self.in_use
        if self.in_use:
            self._label, self._method = f"observation['{MASK_KEY}']", None
            self._mask_structure = observation_structure(spaces.observation.space.spaces[MASK_KEY])
            self._mask_places = [i for i, leaf in enumerate(spaces.observation.leaves) if leaf.path[0] == MASK_KEY]
            self._check_possible()
            example = [np.ones((1, *leaf.shape), bool) for leaf in self._mask_structure.leaves]
            self._layout.read(self._mask_structure.unflatten(example), 1, self._label)

    def reset(self, infos: dict[str, Any], leaves: Leaves, rows: Array | None = None) -> None:
        """Read the masks of `rows` after a reset of all. Raises EnvError as `read` does, or if no action has any."""
        if not self._use_is_known:
            self._use_is_known = True
            if MASK_KEY in infos:
                self._method = None
            elif self._method is not None:
                self._label = f"{METHOD}()"
            self.in_use = MASK_KEY in infos or self._method is not None
            if self.in_use:
                try:
                    self._check_possible()
                except ValueError as error:
                    raise EnvError(f"{self._describe(_first_row(infos))}: {error}") from error
        self.current = self.shown = None
        if self.in_use:
            self.read(infos, leaves, rows)
        else:
            self.check_absent(infos)

    def read(self, infos: dict[str, Any], leaves: Leaves, rows: Array | None = None, *, keep: bool = False) -> None:
        """Read the masks of `rows` (bool `[b]`; None: all); the others don't act next and allow everything.

        keep: the other masks stay as they are. Raises EnvError if a mask is missing, has a wrong length, dtype or
        value, or allows nothing.
        """
        fresh = np.ones((self._num_envs, self._layout.size), bool)
        if keep:
            assert self.current is not None
            fresh[...] = self.current
        if rows is None or rows.any():
            fresh[... if rows is None else rows] = self._masks(infos, leaves, rows)
            self._check_some_allowed(fresh)
        self.current = self.shown = fresh

    def end(self, infos: dict[str, Any], last: Leaves, rows: Array, stays: Array) -> None:
        """Read the masks of the last observations of `rows` (bool `[b]`), if they come with it: they needn't.

        A method isn't asked: it is called once before each action. stays: the rows that still show the observation.
        """
        self.final = np.zeros((self._num_envs, self._layout.size), bool)
        if self._mask_structure is None and "final_obs" in infos:
            infos = infos["final_info"] if isinstance(infos.get("final_info"), dict) else {}
        if self._method is None:
            with contextlib.suppress(EnvError, ValueError, TypeError, IndexError):
                rows = rows & np.asarray(infos.get(f"_{MASK_KEY}", True), bool)
                if rows.any():
                    self.final[rows] = self._masks(infos, last, rows)
        assert self.current is not None
        self.shown = np.where(stays[:, None], self.final, self.current)

    def check_absent(self, infos: dict[str, Any]) -> None:
        """Raise EnvError for masks that were absent at the first reset."""
        if MASK_KEY in infos:
            rule = "must be present from the first reset on, or never"
            raise EnvError(f"`{self._label}` {rule}. Received: a mask of {self._describe(_first_row(infos))}")

    def _masks(self, infos: dict[str, Any], leaves: Leaves, rows: Array | None) -> Array:
        indices = np.arange(self._num_envs) if rows is None else np.flatnonzero(rows)
        if self._mask_structure is not None:
            value = self._mask_structure.unflatten([leaves[place] for place in self._mask_places])
        elif self._method is not None:
            with calling(f"`{METHOD}` of the environments"):
                value = self._method(indices)
        else:
            self._check_present(infos, rows)
            value = infos[MASK_KEY]
        if rows is not None and self._method is None:
            value = _take(value, indices)
        try:
            return self._read(value, len(indices))
        except ValueError as error:
            raise self._blame(value, indices, error) from error

    def _read(self, value: Any, count: int) -> Array:
        if isinstance(value, np.ndarray) and value.dtype == object:  # one value for each environment
            values = value.tolist()
            shapes = {part.shape if isinstance(part, np.ndarray) else None for part in values}
            if None in shapes or len(shapes) > 1:
                return np.concatenate([self._layout.read(with_batch_axis(part), 1, self._label) for part in values])
            value = np.array(values)
        return self._layout.read(_fill(value), count, self._label)

    def _blame(self, value: Any, indices: Array, error: ValueError) -> EnvError:
        """Find the environment with the wrong mask, row by row."""
        for place, row in enumerate(indices.tolist()):
            try:
                self._read(_take(value, np.array([place])), 1)
            except ValueError as own:
                return EnvError(f"{self._describe(row)}: {own}")
            except IndexError:
                break
        return EnvError(f"{self._describe(int(indices[0]))}: {error}")

    def _check_present(self, infos: dict[str, Any], rows: Array | None) -> None:
        flags = infos.get(f"_{MASK_KEY}", True) if MASK_KEY in infos else False
        missing = ~np.broadcast_to(np.asarray(flags, bool), self._num_envs)
        if rows is not None:
            missing = missing & rows
        if missing.any():
            raise EnvError(
                f"`{self._label}` must come with every observation, from every environment, or never. "
                f"Received: none of {self._describe(int(np.flatnonzero(missing)[0]))}"
            )

    def _check_some_allowed(self, mask: Array) -> None:
        if (empty := self._layout.first_empty(mask)) is not None:
            row, choice = empty
            which, where = f" for choice {choice}" if choice else "", self._describe(row)
            raise EnvError(f"`{self._label}` must allow at least one action{which}. Received: none allowed in {where}")

    def _check_possible(self) -> None:
        if not self._layout.size:
            raise ValueError(
                f"`{self._label}` needs an action space with a Discrete or MultiDiscrete choice. "
                f"Received: {self._action_space}"
            )


def find_method(vector_env: AnyVectorEnv) -> _Method | None:
    """Return the method `action_masks` of the sub-environments, through their wrappers, or of the vector environment.

    None if there is none.
    """
    for layer in layers(vector_env):
        if not isinstance(layer, VectorEnv):
            break
        if isinstance(layer, SyncVectorEnv):
            if not all(env.has_wrapper_attr(METHOD) for env in layer.envs):
                break
            _check_owner(layer.envs[0])
            methods = [env.get_wrapper_attr(METHOD) for env in layer.envs]
            return functools.partial(_call_each, methods) if all(map(_is_method, methods)) else None
        method: Any = getattr(layer, METHOD, None)
        if _is_method(method):
            return lambda indices: _take(method(), indices)
    return None


def _check_owner(env: Any) -> None:
    """Raise ValueError for a method of an environment whose action space a wrapper changes: its masks don't fit."""
    owner = env
    while not hasattr(owner, METHOD):
        owner = owner.env
    if owner.action_space != env.action_space and _is_method(getattr(owner, METHOD)):
        raise ValueError(
            f"`{METHOD}` of {type(owner).__name__} is for its own actions, which a wrapper changes: give the wrapper "
            f"one of its own, or `{METHOD} = None`. Received: {owner.action_space}, changed to {env.action_space}"
        )


def _is_method(value: Any) -> bool:
    """Return True for what can be called without arguments."""
    return callable(value) and misfit(value) is None


def warn_of_unused_masks(vector_env: AnyVectorEnv) -> None:
    """Warn of masks that aren't read, because of their name or their kind, where there are no others."""
    envs = vector_env.unwrapped.envs if isinstance(vector_env.unwrapped, SyncVectorEnv) else [vector_env]
    has = getattr(envs[0], "has_wrapper_attr", functools.partial(hasattr, envs[0]))
    if found := [name for name in (METHOD, MASK_KEY) if has(name)]:
        text = (
            f"Action masks aren't used: give a method {METHOD}(self), or an entry {MASK_KEY!r} of info or observation"
        )
        value = getattr(envs[0], "get_wrapper_attr", functools.partial(getattr, envs[0]))(found[0])
        if value is None:  # it says itself that it has none
            return
        what = "a method with arguments" if callable(value) and found[0] == METHOD else "an attribute"
        warnings.warn(f"{text}. Received: {what}, {found[0]}", UserWarning, stacklevel=4)


def _call_each(methods: list[Callable[[], Any]], indices: Array) -> Array:
    values = np.empty(len(indices), dtype=object)
    for place, index in enumerate(indices.tolist()):
        values[place] = methods[index]()
    return values


def _first_row(infos: dict[str, Any]) -> int:
    flags = np.atleast_1d(np.asarray(infos.get(f"_{MASK_KEY}", True), bool))
    return int(np.flatnonzero(flags)[0]) if flags.any() else 0


def _take(value: Any, indices: Array) -> Any:
    if isinstance(value, dict):
        return {key: _take(part, indices) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_take(part, indices) for part in value)
    return None if value is None else np.asarray(value)[indices]


def _fill(value: Any) -> Any:
    """Allow everything in the parts of a nest that an environment omits: Gymnasium fills zeros, with `_key` False."""
    if not isinstance(value, dict):
        return value
    filled = {key: _fill(part) for key, part in value.items()}
    for key, part in value.items():
        flags = value.get(f"_{key}")
        if isinstance(part, np.ndarray) and flags is not None and part.dtype != object:
            filled[key] = np.where(np.reshape(flags, (-1,) + (1,) * (part.ndim - 1)), part, np.ones((), part.dtype))
    return filled
