"""Turns a Keras network into the graphs that actors run. The only place where these are built.

A graph is traced with all weights as arguments (trace.py), converted with unique bit patterns as their
values (convert.py) and searched for these patterns (flatbuffer.py): where they stand, `policy.py` writes new
weights. What came out is checked against TensorFlow with random inputs and weights (probe.py).
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

from actor_learner.networks.contract import call_network, distribution_and_hold
from actor_learner.policy.export.convert import InexpressibleError, to_litert, to_tensorflow
from actor_learner.policy.export.trace import Tracer, computing_in_float32, other_variables
from actor_learner.policy.export.verify import ROWS, Probe, draw_inputs
from actor_learner.policy.exported import ExportedPolicy, flatten_weights
from actor_learner.policy.graph import Graph
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.fields import check_count


def export_policy(
    network: keras.Model,
    action_space: Space[Any],
    batch_size: int,
    observation_space: Space[Any] | None = None,
    masked: bool = False,
) -> ExportedPolicy:
    """The graphs and the table that `Policy` acts with, for batches of `batch_size` observations.

    Leaves the network as it is. Mixed-precision networks are exported in float32. Where LiteRT can't express
    a graph, it is exported as a TensorFlow graph, with a warning that names the layer.

    Args:
        network: A Keras model that keeps the network contract.
        action_space: Of any kind that is supported.
        batch_size: Number of observations that a call usually has, at least 1.
        observation_space: May be left out where `network.inputs` says structure, shapes and dtypes.
        masked: Whether actions may be masked; changes nothing where `action_space` has no discrete choice.

    Raises:
        ValueError: if the network's outputs or its noise_hold don't fit `action_space`, or `observation_space` is
            needed.
    """
    check_count("batch_size", batch_size)
    has_choices = Spaces(None, action_space).masks.size > 0
    if observation_space is None:
        observation_space = _space_of_inputs(network)
    return export_network(network, Spaces(observation_space, action_space, masked and has_choices), batch_size)


def export_network(network: keras.Model, spaces: Spaces, batch_size: int) -> ExportedPolicy:
    """`export_policy` for spaces that are at hand."""
    if not network.built:
        call_network(network, spaces.observation.zeros(1))
    tracer = Tracer(network, spaces, other_variables(network))
    uniform, normal = tracer.distribution.noise
    distribution, noise_hold = distribution_and_hold(network)
    _check_noise_hold(noise_hold, normal, spaces.action_space)
    with computing_in_float32(network):
        step_graph, value_graph = (_export_graph(tracer, name, batch_size) for name in ("step", "value"))
    return ExportedPolicy(
        step_graph=step_graph,
        value_graph=value_graph,
        weights=flatten_weights(network.get_weights()),
        batch_size=batch_size,
        **spaces.to_json(),
        distribution=distribution,
        input_names=tracer.input_names,
        noise_uniform=uniform,
        noise_normal=normal,
        noise_hold=noise_hold,
        weight_names=tuple(weight.path for weight in network.weights),
        weight_shapes=tuple(tuple(weight.shape) for weight in network.weights),
    )


def _space_of_inputs(network: keras.Model) -> Space[Any]:
    """The observations that a network's symbolic inputs take: dicts and tuples of boxes without bounds."""
    try:
        # A functional model has the nest, any other that was built by shape has a list.
        return _space_of(network._inputs_struct if hasattr(network, "_inputs_struct") else network.inputs)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            "`observation_space` must be given for a network that doesn't say what its inputs are. "
            f"Received: network={network.name!r}"
        ) from None


def _space_of(inputs: Any) -> Space[Any]:
    if isinstance(inputs, dict):
        return Dict([(name, _space_of(part)) for name, part in inputs.items()])
    if isinstance(inputs, (list, tuple)):
        parts = [_space_of(part) for part in inputs]
        return parts[0] if len(parts) == 1 else Tuple(parts)
    dtype, shape = np.dtype(inputs.dtype), tuple(int(size) for size in inputs.shape[1:])
    if dtype.kind == "f":
        return Box(-np.inf, np.inf, shape, dtype.type)
    return Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)


def _check_noise_hold(noise_hold: int, normal: int, action_space: Space[Any]) -> None:
    if noise_hold > 1 and not normal:
        raise ValueError(
            "`noise_hold` holds standard normals, which only a Box is drawn with; it must be 1 for an action space "
            f"without one. Received: noise_hold={noise_hold} for {action_space}"
        )


def _export_graph(tracer: Tracer, name: str, batch_size: int) -> Graph:
    """The graph `step` or `value`."""
    network = tracer.network
    traced = tracer.trace(name, batch_size)
    rows = min(batch_size, ROWS)
    # A reference of its own for large batches: TensorFlow would spend seconds on large batches of images.
    reference = traced if rows == batch_size else tracer.trace(name, rows)
    inputs = [batch[: len(traced.inputs)] for batch in draw_inputs(tracer, rows)]
    try:
        return to_litert(traced, Probe(reference, inputs, network), network)
    except InexpressibleError as error:
        warnings.warn(
            f"LiteRT can't run the {name} graph of network {network.name!r}: {error} Its actors use "
            "TensorFlow, which is many times slower and takes more memory.",
            UserWarning,
            stacklevel=4,
        )
        return to_tensorflow(traced)
