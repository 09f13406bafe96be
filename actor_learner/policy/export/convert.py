"""Converts a traced function to a LiteRT graph that follows all its weights.

The converter folds constants: `exp(log_std)`, a normalization into the kernel before it, 1/255 into a first convolution
(recognized as a factor). So finding a weight once doesn't mean that it is found everywhere. The probe changes each
weight alone and compares all outputs with the network's. A weight that fails becomes an input of the graph, vectors
before kernels: a folded factor is mostly a vector, and a graph with a constant kernel is several times faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras

from actor_learner.policy.export.traced import InexpressibleError, Traced
from actor_learner.policy.export.verify import Probe
from actor_learner.policy.export.weight_table import find_constants, output_names_of
from actor_learner.policy.graph import Graph
from actor_learner.system.files import one_line


def to_litert(traced: Traced, probe: Probe, network: keras.Model) -> Graph:
    """Convert and check, with the weights that failed as further inputs, until none fails.

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
