"""The first look at an environment in JAX, which traces it: what doesn't keep the protocol is told in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from actor_learner.environments.errors import EnvError, describe_error, short
from actor_learner.spaces.jax_env import JaxEnv, Step
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Structure

MAX_CHEAP_OPERATIONS = 200
"""Resets of more operations are expensive: computing all of them takes longer than asking whether any is needed."""

_NUMBERS_PER_OPERATION = 1000  # of the results of an operation that counts once


class EnvFacts(NamedTuple):
    """What tracing an environment tells. info_keys: those that it reports."""

    info_keys: tuple[str, ...]
    expensive_resets: bool


def check_env(env: JaxEnv, spaces: Spaces, info_keys: Sequence[str] = ()) -> EnvFacts:
    """Trace an environment, and return what it does.

    Raises EnvError for functions that aren't pure, a step that isn't a `Step`, a state that changes its structure,
    shapes or dtypes, and anything that doesn't fit its space.
    """
    name = type(env).__name__
    key = jax.random.key(0)
    action = jax.tree.map(jnp.asarray, env.action_space.sample())
    graph, begun = _traced(env.reset, f"{name}.reset", key)
    if not isinstance(begun, tuple) or len(begun) != 2:
        raise EnvError(f"`{name}.reset` must return (state, observation). Received: {short(begun)}")
    state, observation = begun
    _, stepped = _traced(env.step, f"{name}.step", key, state, action)
    if not isinstance(stepped, Step):
        received = f"a tuple of {len(stepped)}" if isinstance(stepped, tuple) else short(stepped)
        expected = "al.Step(state, observation, reward, terminated, truncated)"
        raise EnvError(f"`{name}.step` must return {expected}. Received: {received}")
    _check_same(f"the state of `{name}`", state, stepped.state)
    for attribute, value in getattr(env, "__dict__", {}).items():
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            expected = f"`{name}` must be pure functions, with nothing kept on `self` from call to call"
            raise EnvError(f"{expected}. Received: self.{attribute}, which `reset` or `step` sets")
    for source, found in ((f"`{name}.reset`", observation), (f"`{name}.step`", stepped.observation)):
        _check_observation(source, found, spaces.observation)
    for field in ("reward", "terminated", "truncated"):
        _check_number(f"`{name}.step` must return `{field}`", getattr(stepped, field))
    if not isinstance(stepped.info, Mapping):
        raise EnvError(f"`{name}.step` must return `info` as a dict. Received: {short(stepped.info)}")
    reported = tuple(key for key in info_keys if key in stepped.info)
    for entry in reported:
        _check_number(f"`{name}.step` must return `info[{entry!r}]`", stepped.info[entry])
    if hasattr(env, MASK_KEY):
        _check_mask(env, name, state, spaces)
    return EnvFacts(reported, _operations(graph.jaxpr) > MAX_CHEAP_OPERATIONS)


def _operations(graph: Any) -> float:
    """Return the number of operations in a graph, as often as loops repeat them: infinite where that isn't known."""
    found = 0.0
    for equation in graph.eqns:
        numbers = sum(math.prod(getattr(result.aval, "shape", ())) for result in equation.outvars)
        inner = sum(_operations(each) for each in core.jaxprs_in_params(equation.params))
        repeats = {"scan": equation.params.get("length"), "while": math.inf}.get(equation.primitive.name, 1)
        found += repeats * (inner or max(1, numbers // _NUMBERS_PER_OPERATION))
    return found


def _traced(function: Callable[..., Any], name: str, *arguments: Any) -> tuple[Any, Any]:
    """Return the graph of a function, and the shapes of what it returns."""
    try:
        traced: tuple[Any, Any] = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return traced
    except Exception as error:
        place = describe_error(error)
        place = place[place.rindex("(") :]
        text = " ".join(str(error).split())
        expected = f"`{name}` must be a pure function that JAX can trace (no `if` on its arrays)"
        raise EnvError(f"{expected}. Received: {type(error).__name__}: {short(text)} {place}") from error


def _check_same(what: str, before: Any, after: Any) -> None:
    old, new = (jax.tree_util.tree_flatten_with_path(value) for value in (before, after))
    if old[1] != new[1]:
        raise EnvError(f"{what} must keep its structure from `reset` to `step`. Received: {new[1]}, at first {old[1]}")
    for (path, first), (_, second) in zip(old[0], new[0], strict=True):
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            leaf = jax.tree_util.keystr(path) or "it"
            received = f"{second.dtype}{list(second.shape)}, at first {first.dtype}{list(first.shape)}"
            raise EnvError(
                f"{what} must keep shapes and dtypes from `reset` to `step`, but {leaf} doesn't. Received: {received}"
            )


def _check_observation(source: str, found: Any, structure: Structure) -> None:
    try:
        leaves = structure.flatten(found)
    except (ValueError, TypeError, KeyError) as error:
        raise EnvError(f"{source} must return an observation of its space: {error}") from error
    for leaf, value in zip(structure.leaves, leaves, strict=True):
        if tuple(np.shape(value)) != leaf.shape or not hasattr(value, "dtype"):
            received = f"shape {tuple(np.shape(value))}" if hasattr(value, "dtype") else short(value)
            raise EnvError(f"{source} must return `{leaf.label}` of shape {leaf.shape}. Received: {received}")
        if not np.can_cast(value.dtype, leaf.dtype, "same_kind") and value.dtype != bool:
            raise EnvError(f"{source} must return `{leaf.label}` as {leaf.dtype}. Received: {value.dtype}")


def _check_number(expected: str, found: Any) -> None:
    if not hasattr(found, "dtype"):
        raise EnvError(f"{expected} as a number. Received: {short(found)}")
    if found.shape != ():
        raise EnvError(f"{expected} without a shape. Received: shape={found.shape}")


def _check_mask(env: JaxEnv, name: str, state: Any, spaces: Spaces) -> None:
    mask, columns = getattr(env, MASK_KEY), spaces.masks.size
    if not callable(mask):
        raise EnvError(f"`{name}.{MASK_KEY}` must be a function of the state. Received: {short(mask)}")
    if not columns:
        expected = f"`{name}.{MASK_KEY}` must be left out, as its actions have no choices to forbid"
        raise EnvError(f"{expected}. Received: action_space={short(env.action_space)}")
    _, found = _traced(mask, f"{name}.{MASK_KEY}", state)
    if getattr(found, "shape", None) != (columns,):
        received = f"shape={found.shape}" if hasattr(found, "shape") else short(found)
        raise EnvError(f"`{name}.{MASK_KEY}` must return {columns} entries, one for each action. Received: {received}")
