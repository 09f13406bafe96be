"""Converts a Keras network to the graphs that actors run.

`trace` makes a function of all weights of a graph, by Keras's backend: `on_tensorflow`, `on_jax`. `to_litert` has it
converted with unique bit patterns as their values. `weight_table` finds these patterns in the result; a policy writes
new weights there. `verify` compares the result with the network for random inputs and weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from actor_learner.networks.contract import (
    check_noise_hold,
    computing_in_float32,
    distribution_and_hold,
    epsilon_ladder,
    has_value,
)
from actor_learner.networks.step import PolicyStep, Spec
from actor_learner.policy.export.traced import InexpressibleError, Traced
from actor_learner.policy.export.verify import MIN_ROWS, Probe, draw_inputs
from actor_learner.policy.export.weight_table import find_constants, output_names_of
from actor_learner.policy.exported import Conversion, ExportedPolicy, flatten_weights
from actor_learner.policy.graph import Graph
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import one_line


def convert_network(network: keras.Model, spaces: Spaces, batch_size: int) -> Conversion:
    """Convert a network for known spaces; masked ones must have a discrete choice.

    Raises as `export_policy`, and InexpressibleError on JAX, where no TensorFlow graph stands in.
    """
    policy = PolicyStep(network, spaces)
    uniform, normal = policy.distribution.noise
    distribution, noise_hold = distribution_and_hold(network)
    check_noise_hold(noise_hold, spaces.action)
    fallbacks: list[str] = []
    with computing_in_float32(network):
        step_graph, value_graph = (_export_graph(policy, name, batch_size, fallbacks) for name in ("step", "value"))
    exported = ExportedPolicy(
        step_graph=step_graph,
        value_graph=value_graph,
        weights=flatten_weights(network.get_weights()),
        batch_size=batch_size,
        **spaces.to_json(),
        distribution=distribution,
        input_names=tuple(spec.name for spec in policy.inputs(1)),
        noise_uniform=uniform,
        noise_normal=normal,
        noise_hold=noise_hold,
        draws=policy.draws,
        epsilon_ladder=epsilon_ladder(network),
        has_value=has_value(network, spaces),
        state_shapes=policy.state_shapes,
        weight_names=tuple(weight.path for weight in network.weights),
        weight_shapes=tuple(tuple(weight.shape) for weight in network.weights),
    )
    return Conversion(exported, fallbacks)


def _export_graph(policy: PolicyStep, name: str, batch_size: int, fallbacks: list[str]) -> Graph:
    network = policy.network
    traced = trace(policy, name, batch_size)
    rows = min(batch_size, MIN_ROWS)
    # Large batches have a smaller reference: they may be images, of which a batch takes seconds.
    reference = traced if rows == batch_size else trace(policy, name, rows)
    step = None
    if policy.state_shapes:
        step = reference if name == "step" else trace(policy, "step", rows)
    inputs = [batch[: len(traced.inputs)] for batch in draw_inputs(policy, rows, step)]
    try:
        return to_litert(traced, Probe(reference, inputs, network), network)
    except InexpressibleError as error:
        reason = f"LiteRT can't run the {name} graph of network {network.name!r}: {error}"
        if (graph := traced.fallback()) is None:
            raise InexpressibleError(reason) from error
        fallbacks.append(reason)
        return graph


def trace(policy: PolicyStep, graph: str, rows: int) -> Traced:
    """Trace the graph "step" or "value" for so many observations, by Keras's backend.

    Raises ValueError if the network's outputs don't fit.
    """
    inputs = policy.inputs(rows) if graph == "step" else policy.value_inputs(rows)
    shapes = enumerate(weight.shape for weight in policy.network.weights)
    weights = [Spec(f"weight_{index}", tuple(shape), np.dtype(np.float32)) for index, shape in shapes]

    def step(*arguments: Any) -> tuple[Any, ...]:
        given = arguments[: len(inputs)]
        action, log_prob, state, parameters = policy.step(given, arguments[len(inputs) :])
        modes = policy.distribution.mode(parameters, policy.mask(given))
        # The parameters are outputs for the checks alone: a log-probability near 0 would show no difference.
        return (*action, log_prob, *state, *modes, parameters)

    def value(*arguments: Any) -> tuple[Any]:
        return (policy.value(arguments[: len(inputs)], arguments[len(inputs) :]),)

    function = step if graph == "step" else value
    if keras.backend.backend() == "tensorflow":
        from actor_learner.policy.export.on_tensorflow import TensorFlowFunction

        return TensorFlowFunction(function, inputs, weights, policy.network)
    from actor_learner.policy.export.on_jax import JaxFunction

    return JaxFunction(function, inputs, weights)


def to_litert(traced: Traced, probe: Probe, network: keras.Model) -> Graph:
    """Convert and check, with the weights that failed as further inputs, until none fails.

    The converter folds constants: `exp(log_std)`, a normalization into the kernel before it, 1/255 into a first
    convolution (recognized as a factor). So finding a weight once doesn't mean that it is found everywhere. The probe
    changes each weight alone and compares all outputs with the network's. A weight that fails becomes an input of the
    graph, vectors before kernels: a folded factor is mostly a vector, and a graph with a constant kernel is several
    times faster.

    Raises InexpressibleError if LiteRT lacks an operation, or if its outputs differ.
    """
    weight_inputs = {index for index in traced.used if not keras.backend.is_float_dtype(network.weights[index].dtype)}
    while True:
        content, traced_names = traced.to_flatbuffer(sorted(weight_inputs))
        outputs = output_names(traced_names, output_names_of(content))
        constants = find_constants(content, [spec.shape for spec in traced.weights], traced.used - weight_inputs)
        graph = Graph(content, "litert", outputs, constants, tuple(sorted(weight_inputs)), resizable=False)
        try:
            failed = probe.failing_weights(graph, traced)
        except (RuntimeError, ValueError) as error:
            raise InexpressibleError(f"it doesn't start ({one_line(error)}).") from error
        if not failed:
            return dataclasses.replace(graph, resizable=probe.is_resizable(graph, traced))
        if not failed - weight_inputs:
            names = sorted(network.weights[index].path for index in failed)
            raise InexpressibleError(f"its outputs differ from Keras's if these weights change: {names}.")
        failed -= weight_inputs
        weight_inputs |= {index for index in failed if len(traced.weights[index].shape) <= 1} or failed


def output_names(traced: Sequence[str], converted: Sequence[str]) -> tuple[str, ...]:
    """Return the name in the flatbuffer of each of a function's outputs.

    The converter may reorder outputs. It joins equal ones, and an input that is an output, under the first name: such
    an output is found by its place. Raises InexpressibleError if outputs are missing.
    """
    if len(converted) != len(traced):
        raise InexpressibleError(f"it has {len(converted)} outputs where the network's graph has {len(traced)}.")
    return tuple(name if name in converted else converted[place] for place, name in enumerate(traced))
