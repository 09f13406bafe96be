"""Converts a Keras network to the graphs that actors run.

`trace` traces a graph with all weights as arguments, by Keras's backend: `on_tensorflow`, `on_jax`. `convert` has it
converted with unique bit patterns as their values. `weight_table` finds these patterns in the result; a policy writes
new weights there. `verify` compares the result with the network for random inputs and weights.
"""

from __future__ import annotations

import keras

from actor_learner.networks.contract import check_noise_hold, distribution_and_hold, epsilon_ladder, has_value
from actor_learner.networks.precision import computing_in_float32
from actor_learner.policy.export.convert import to_litert
from actor_learner.policy.export.trace import Tracer
from actor_learner.policy.export.traced import InexpressibleError
from actor_learner.policy.export.verify import ROWS, Probe, draw_inputs
from actor_learner.policy.exported import Conversion, ExportedPolicy, flatten_weights
from actor_learner.policy.graph import Graph
from actor_learner.spaces.spaces import Spaces


def convert_network(network: keras.Model, spaces: Spaces, batch_size: int) -> Conversion:
    """Convert a network for known spaces; masked ones must have a discrete choice.

    Raises as `export_policy`, and InexpressibleError on JAX, where no TensorFlow graph stands in.
    """
    tracer = Tracer(network, spaces)
    uniform, normal = tracer.distribution.noise
    distribution, noise_hold = distribution_and_hold(network)
    check_noise_hold(noise_hold, spaces.action)
    fallbacks: list[str] = []
    with computing_in_float32(network):
        step_graph, value_graph = (_export_graph(tracer, name, batch_size, fallbacks) for name in ("step", "value"))
    exported = ExportedPolicy(
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
        epsilon_ladder=epsilon_ladder(network),
        has_value=has_value(network, spaces),
        state_shapes=tracer.state_shapes,
        weight_names=tuple(weight.path for weight in network.weights),
        weight_shapes=tuple(tuple(weight.shape) for weight in network.weights),
    )
    return Conversion(exported, fallbacks)


def _export_graph(tracer: Tracer, name: str, batch_size: int, fallbacks: list[str]) -> Graph:
    network = tracer.network
    traced = tracer.trace(name, batch_size)
    rows = min(batch_size, ROWS)
    # Large batches have a smaller reference: they may be images, of which a batch takes seconds.
    reference = traced if rows == batch_size else tracer.trace(name, rows)
    step = None
    if tracer.state_shapes:
        step = reference if name == "step" else tracer.trace("step", rows)
    inputs = [batch[: len(traced.inputs)] for batch in draw_inputs(tracer, rows, step)]
    try:
        return to_litert(traced, Probe(reference, inputs, network), network)
    except InexpressibleError as error:
        reason = f"LiteRT can't run the {name} graph of network {network.name!r}: {error}"
        if (graph := traced.fallback()) is None:
            raise InexpressibleError(reason) from error
        fallbacks.append(reason)
        return graph
