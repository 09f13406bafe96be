"""The critics of an off-policy algorithm: made by the user's function or the default one, and checked."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

from actor_learner.learner import backend
from actor_learner.learner.models import TrainedModels
from actor_learner.networks import contract
from actor_learner.networks.default import critic_seeds, default_critic
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.fields import refusal
from actor_learner.system.types import Array

_TRIED_ROWS = 64
"""So many that some unit of a layer of ReLUs is active in one of them."""


def make_critics(make: Any, spaces: Spaces, count: int, options: Mapping[str, Any], seed: int) -> list[keras.Model]:
    """Return so many critics. make: the user's function (observation_space, action_space); None: default ones.

    options: of default ones. Raises ValueError for a function that fails, or returns anything else.
    """
    of = spaces.observation_space, spaces.action_space
    if make is None:
        return [default_critic(*of, **options, seed=own) for own in critic_seeds(seed, count)]
    if not callable(make):
        raise refusal("critics", "a function (observation_space, action_space) -> keras.Model", make)
    try:
        critics = [make(*of) for _ in range(count)]
    except Exception as error:
        raise ValueError(f"`critics` failed: {contract.reason(error)}. Received: critics={make!r}") from error
    if wrong := [critic for critic in critics if not isinstance(critic, keras.Model)]:
        raise refusal("critics", "a function that returns a keras.Model", wrong[0])
    return critics


def check_critic(models: TrainedModels, critic: keras.Model, observation: Any) -> None:
    """Call a critic once, which builds it. observation: a few rows.

    Raises ValueError for wrong inputs, outputs or types; warns of one that doesn't look at actions.
    """
    action = np.zeros((contract.CHECKED_ROWS, models.action_size), np.float32)
    try:
        value = models.call_critic(critic, tree.map_structure(np.asarray, observation), action)
    except Exception as error:
        inputs = "an observation" if models.choices else f"(observation, action [N, {models.action_size}])"
        raise ValueError(f"A critic must take {inputs}: {contract.reason(error)}. Received: {critic.name!r}") from error
    shape, size = tuple(getattr(value, "shape", ())), models.critic_size
    if shape != (contract.CHECKED_ROWS, size) and (shape, size) != ((contract.CHECKED_ROWS,), 1):
        received = f"shape {shape} for {contract.CHECKED_ROWS} rows" if shape else type(value).__name__
        what = "values, of each action" if models.choices else "quantiles of the value"
        expected = "a value [N] or [N, 1]" if size == 1 else f"{size} {what}, [N, {size}]"
        raise ValueError(f"A critic must return {expected}. Received: {received}, from {critic.name!r}")
    contract.refuse_float16(critic)
    if not keras.backend.is_float_dtype(value.dtype):
        expected = "A critic must compute in float32, or in bfloat16"
        raise ValueError(f"{expected}. Received: values of {value.dtype} from {critic.name!r}")
    if not (models.choices or _depends_on_action(models, critic, observation)):
        warnings.warn(
            "A critic's value is the same for two actions: does it use its second input, the action? "
            f"Received: {critic.name!r}",
            stacklevel=2,
        )


def _depends_on_action(models: TrainedModels, critic: keras.Model, observation: Any) -> bool:
    """Return whether a critic, which is built, values different actions differently for some observation."""
    rng = np.random.default_rng(0)

    def drawn(leaf: Array) -> Array:
        rows = (_TRIED_ROWS, *leaf.shape[1:])
        return np.asarray(rng.normal(size=rows), leaf.dtype) if leaf.dtype.kind == "f" else np.zeros(rows, leaf.dtype)

    many = tree.map_structure(drawn, observation)
    actions = rng.uniform(-1, 1, (2, _TRIED_ROWS, models.action_size)).astype(np.float32)
    first, second = (backend.to_numpy(models.call_critic(critic, many, action)) for action in actions)
    return bool((first != second).any())


def check_own_weights(network: keras.Model, critics: Sequence[keras.Model]) -> None:
    """Raise ValueError for critics without weights, or statistics of batches, of their own."""

    def moved(model: keras.Model) -> set[int]:
        layers = [layer for layer in contract.layers_of(model, contract.BATCHES) if layer.trainable]
        variables = itertools.chain(model.trainable_variables, *(layer.variables for layer in layers))
        return {id(variable) for variable in variables}

    seen = moved(network)
    for critic in critics:
        own, trained = moved(critic), critic.trainable_variables
        if not trained or own & seen:
            what = "sharing weights with the network or another critic" if trained else "without a trainable weight"
            expected = "`critics` must return a new model at each call, with weights of its own"
            raise ValueError(f"{expected}. Received: {critic.name!r}, {what}")
        seen |= own
