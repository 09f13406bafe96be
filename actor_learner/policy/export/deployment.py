"""Builds a Keras model that takes an environment's observations and returns its actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from actor_learner.networks.contract import call_network, distribution_and_hold, policy_of, tensor_names
from actor_learner.networks.layers import EnvironmentAction, EnvironmentObservation
from actor_learner.networks.memory import Memories
from actor_learner.networks.step import START, NetworkStep
from actor_learner.spaces.kinds import to_json
from actor_learner.spaces.masks import MaskLayout
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Structure, observation_structure
from actor_learner.system.types import Tensor


def acting_network(network: keras.Model, spaces: Spaces) -> keras.Model:
    """Return a Keras model from an environment's observations to its most probable actions.

    Inputs `[N, ...]`, in the dtypes of the observation space: "observation", or "observation.<keys and indices, joined
    by dots>" for each leaf; if masked, also "action_mask", bool `[N, M]`, unless a Dict observation holds the mask.
    Outputs: "action", or "action.<...>" for each leaf, `[N, ...]` in the dtypes of the action space; "parameters"
    `[N, P]`, float32: the parameters of the distribution of actions, before masks.

    With memory also the inputs "start", bool `[N]`, True where an episode starts, and "state_0", ...; the outputs
    "next_state_0", ... are the state after the step. Where an episode starts, it doesn't matter what the state is.

    Raises ValueError if the network's outputs don't fit the action space.
    """
    observation, network = spaces.observation, policy_of(network, spaces.observation)
    named = zip(tensor_names(leaf.name for leaf in observation.leaves), observation.leaves, strict=True)
    inputs = [keras.Input(leaf.shape, dtype=str(np.dtype(leaf.space.dtype)), name=name) for name, leaf in named]
    leaves = [
        EnvironmentObservation(str(leaf.dtype), None if leaf.start is None else leaf.start.tolist())(tensor)
        for leaf, tensor in zip(observation.leaves, inputs, strict=True)
    ]
    if not network.built:
        call_network(network, observation.zeros(1))
    if shapes := Memories(network).shapes:
        start = keras.Input((), dtype="bool", name=START)
        states = [keras.Input(shape, name=f"state_{index}") for index, shape in enumerate(shapes)]
        inputs += [start, *states]
        parameters, *after = NetworkStep(network)(observation.unflatten(leaves), start, states)
    else:
        parameters, after = call_network(network, observation.unflatten(leaves))["parameters"], []
    mask = None
    if spaces.mask_size and spaces.has_mask_leaf:
        mask = _read_mask(observation, spaces.masks, leaves)
    elif spaces.mask_size:
        mask = keras.Input((spaces.mask_size,), dtype="bool", name=MASK_KEY)
        inputs.append(mask)
    to_env = EnvironmentAction(to_json(spaces.action_space), distribution_and_hold(network)[0])
    names = tensor_names(leaf.name for leaf in spaces.action.leaves)
    actions = dict(zip(names, to_env(parameters, allowed=mask), strict=True))
    outputs = {**actions, "parameters": parameters, **{f"next_state_{index}": leaf for index, leaf in enumerate(after)}}
    return keras.Model({tensor.name: tensor for tensor in inputs}, outputs, name="policy")


def _read_mask(observation: Structure, layout: MaskLayout, leaves: Sequence[Tensor]) -> Tensor:
    """Return the mask `[N, M]` in observations, given as their leaves."""
    own = observation_structure(observation.space.spaces[MASK_KEY])
    pairs = zip(leaves, observation.leaves, strict=True)
    found = [(tensor, math.prod(leaf.shape)) for tensor, leaf in pairs if leaf.path[0] == MASK_KEY]
    flat = [ops.reshape(ops.cast(tensor, "float32"), (-1, size)) for tensor, size in found]
    columns = ops.concatenate([*flat, ops.ones_like(flat[0][:, :1])], axis=1)
    return ops.take(columns, np.array(list(_mask_columns(own, layout)), np.int32), axis=1)


def _mask_columns(own: Structure, layout: MaskLayout) -> Iterator[int]:
    """Yield for each column of a mask its entry in the flattened mask leaves; the number of entries if it has none.

    Finds them by masks with a single forbidden entry each, since `MaskLayout.read` reads all forms of masks.
    """
    sizes = [math.prod(leaf.shape) for leaf in own.leaves]
    count = sum(sizes)
    probes = np.split(1 - np.eye(count, dtype=np.int8), np.cumsum(sizes)[:-1], axis=1)
    nest = own.unflatten([part.reshape(count, *leaf.shape) for part, leaf in zip(probes, own.leaves, strict=True)])
    for allowed in layout.read(nest, count).T:
        yield count if allowed.all() else int(np.argmin(allowed))
