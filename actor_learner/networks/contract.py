"""The contract that any network keeps, and what is read from a network.

A Keras model from an observation batch to `(parameters, value)`, or to a dict with at least these keys.
`parameters [N, parameter_size(action_space)]` describe the action distribution, `value [N]` or `[N, 1]` is
the state value. Further outputs of a dict reach the loss. The leaves of a composite observation become the
model's nested or named inputs, those below keys and indices joined by dots ("camera.0"); the mask leaf is
no input unless the model has one of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import layers, ops

from actor_learner.networks.distributions import Distribution, distribution_for
from actor_learner.networks.layers import ActionDistribution, ObservationNormalization
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY

Tensor = Any
Nest = Any
"""A tensor, or dicts, tuples and lists of these."""

CHECKED_ROWS = 2
"""Of the batch that a network is checked with: not 1, so that a batch axis is told from an axis of one."""


def call_network(network: keras.Model, observation: Nest) -> dict[str, Tensor]:
    """The network's outputs as a dict: `parameters [N, P]`, `value [N]`, both float32, and any others.

    Called with `training=False`, by the learner too, so that learner and actors agree.

    Raises ValueError where a composite observation doesn't match the network's inputs, or it lacks outputs.
    """
    outputs = _named_outputs(network(arrange(network, observation), training=False))
    return {
        **outputs,
        "parameters": ops.cast(outputs["parameters"], "float32"),
        "value": ops.reshape(ops.cast(outputs["value"], "float32"), (-1,)),
    }


def arrange(network: keras.Model, observation: Nest) -> Nest:
    """A (composite) observation as the network's inputs want it: by structure, or by the inputs' names.

    A single input takes the only leaf. A subclassed model gets the observation without its mask leaf.

    Raises ValueError, listing both, where inputs and leaves don't match.
    """
    if not isinstance(observation, (dict, tuple, list)):
        return observation
    if isinstance(observation, dict) and MASK_KEY in observation and not takes_mask(network):
        observation = {key: value for key, value in observation.items() if key != MASK_KEY}
    leaves = named_leaves(observation)
    inputs = _inputs(network)
    if inputs is None:
        one = isinstance(network, keras.Sequential) and len(leaves) == 1
        return next(iter(leaves.values())) if one else observation
    if _same_structure(inputs, observation):
        return observation
    names = [tensor.name for tensor in keras.tree.flatten(inputs)]
    if len(names) == len(leaves) == 1:
        return keras.tree.pack_sequence_as(inputs, list(leaves.values()))
    if set(names) == set(leaves):
        return keras.tree.pack_sequence_as(inputs, [leaves[name] for name in names])
    raise ValueError(
        f"The network's inputs must be the observation's leaves {sorted(leaves)}, as a nest or by name. "
        f"Received: inputs {sorted(names)} of network {network.name!r}"
    )


def takes_mask(network: keras.Model) -> bool:
    """Whether the network has an input for the mask leaf of observations."""
    inputs = _inputs(network)
    return inputs is not None and any(tensor.name == MASK_KEY for tensor in keras.tree.flatten(inputs))


def named_leaves(observation: Nest, path: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The leaves of a nest by their keys and indices joined by dots; "" where it is a leaf itself."""
    if isinstance(observation, dict):
        parts = list(observation.items())
    elif isinstance(observation, (tuple, list)):
        parts = list(enumerate(observation))
    else:
        return {".".join(map(str, path)): observation}
    return {name: leaf for key, part in parts for name, leaf in named_leaves(part, (*path, key)).items()}


def _inputs(network: keras.Model) -> Nest | None:
    """The (nested) symbolic inputs of a functional model; None where a model doesn't declare them."""
    return getattr(network, "_inputs_struct", None)


def _same_structure(inputs: Nest, observation: Nest) -> bool:
    if isinstance(inputs, dict):
        same_keys = isinstance(observation, dict) and inputs.keys() == observation.keys()
        return same_keys and all(_same_structure(part, observation[key]) for key, part in inputs.items())
    if isinstance(inputs, (tuple, list)):
        same_length = isinstance(observation, (tuple, list)) and len(inputs) == len(observation)
        return same_length and all(map(_same_structure, inputs, observation))
    return not isinstance(observation, (dict, tuple, list))


def _named_outputs(outputs: Any) -> dict[str, Tensor]:
    if not isinstance(outputs, dict):
        if not isinstance(outputs, (tuple, list)) or len(outputs) != 2:
            raise ValueError(
                "The network must return (parameters, value), or a dict with these keys. "
                f"Received: {_describe_outputs(outputs)}"
            )
        outputs = {"parameters": outputs[0], "value": outputs[1]}
    if missing := {"parameters", "value"} - set(outputs):
        raise ValueError(f"The network's dict lacks {sorted(missing)}. Received: keys {sorted(outputs)}")
    return dict(outputs)


def _describe_outputs(outputs: Any) -> str:
    if isinstance(outputs, (tuple, list)):
        return f"{len(outputs)} outputs"
    return f"one output of shape {tuple(getattr(outputs, 'shape', ()))}"


def check_network(network: keras.Model, spaces: Spaces) -> None:
    """`check_contract` on observations of a space."""
    check_contract(network, spaces.observation.zeros(CHECKED_ROWS), spaces)


def check_contract(network: keras.Model, observation: Nest, spaces: Spaces) -> None:
    """Builds the network on an observation of `CHECKED_ROWS` rows and checks that it keeps the contract.

    Raises ValueError, saying what was expected and found: a wrong shape would otherwise broadcast silently.
    """
    if not isinstance(network, keras.Model):
        raise ValueError(f"`network` must be a keras.Model. Received: {network!r}")
    arranged = keras.tree.map_structure(ops.convert_to_tensor, arrange(network, observation))
    try:
        outputs = network(arranged, training=False)
    except Exception as error:
        raise _not_taken(network, observation, error) from error
    found = _named_outputs(outputs)
    columns = spaces.parameter_size
    for name, allowed, expected in (
        ("value", ((CHECKED_ROWS,), (CHECKED_ROWS, 1)), "[B] or [B, 1]"),
        ("parameters", ((CHECKED_ROWS, columns),), f"[B, {columns}] for {spaces.action_space}"),
    ):
        if (size := tuple(found[name].shape)) not in allowed:
            raise ValueError(
                f"The network's `{name}` must have shape {expected}. Received: {_with_batch_axis(size)} "
                f"from {network.name!r}"
            )


def _with_batch_axis(shape: tuple[int, ...]) -> str:
    sizes = ["B" if index == 0 and size == CHECKED_ROWS else str(size) for index, size in enumerate(shape)]
    return f"[{', '.join(sizes)}]"


def _not_taken(network: keras.Model, observation: Nest, error: Exception) -> ValueError:
    """The line that says why a network fails when it is called; Keras puts the reason below a heading, in colours."""
    lines = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    reasons = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return ValueError(
        f"The network doesn't take observations of {_describe(observation)} (with a leading batch axis): "
        f"{(reasons or lines)[0]} Received: network={network.name!r}"
    )


def _describe(observation: Nest) -> str:
    leaves = named_leaves(observation)
    if "" in leaves:
        return f"shape {tuple(leaves[''].shape[1:])} and dtype {leaves[''].dtype}"
    return ", ".join(f"{name} {tuple(leaf.shape[1:])} {leaf.dtype}" for name, leaf in leaves.items())


def training_dependent_layers(network: keras.Model) -> list[str]:
    """Names of the layers that behave differently in training, which the contract doesn't let them."""
    return [layer.name for layer in all_layers(network) if isinstance(layer, _TRAINING_DEPENDENT)]


_TRAINING_DEPENDENT = (layers.BatchNormalization, layers.Dropout)


def all_layers(network: keras.Model) -> Iterator[keras.layers.Layer]:
    """Every layer of a network, those of nested models included."""
    yield from network._flatten_layers(include_self=False)


def normalization_layers(network: keras.Model) -> list[ObservationNormalization]:
    """The layers whose statistics the learner keeps up to date."""
    return [layer for layer in all_layers(network) if isinstance(layer, ObservationNormalization)]


def normalized_leaf(layer: ObservationNormalization, observation: Nest) -> Tensor:
    """The leaf of an observation that a layer keeps the statistics of: the only one, or the one that it names.

    Raises ValueError where it names none of several.
    """
    leaves = {name: leaf for name, leaf in named_leaves(observation).items() if name != MASK_KEY}
    if layer.leaf in leaves:
        return leaves[layer.leaf]
    if len(leaves) == 1 and layer.leaf is None:
        return next(iter(leaves.values()))
    raise ValueError(
        f"ObservationNormalization must name its leaf of the observation, one of {sorted(leaves)}: "
        f"ObservationNormalization(leaf=...). Received: leaf={layer.leaf!r} in layer {layer.name!r}"
    )


def cap_statistics(network: keras.Model, count: int) -> keras.Model:
    """Lets the observations seen so far weigh at most as much as `count` new ones. Returns the same network."""
    for layer in normalization_layers(network):
        layer.count.assign(ops.minimum(layer.count, float(count)))
    return network


def network_distribution(network: keras.Model, spaces: Spaces) -> Distribution:
    """The distribution that the network's ActionDistribution layer names, else the space's default.

    Raises ValueError where it doesn't fit the space, or as `distribution_and_hold` does.
    """
    return distribution_for(spaces.action, distribution_and_hold(network)[0])


def distribution_and_hold(network: keras.Model) -> tuple[str, int]:
    """The `distribution` and `noise_hold` of the network's ActionDistribution layer, or this layer's defaults.

    Raises ValueError where several of these layers differ.
    """
    found = [layer for layer in all_layers(network) if isinstance(layer, ActionDistribution)]
    said = {(layer.distribution, layer.noise_hold) for layer in found}
    if len(said) > 1:
        layers_said = ", ".join(f"{layer.name!r} ({layer.distribution}, {layer.noise_hold})" for layer in found)
        raise ValueError(
            "The network's ActionDistribution layers must agree on (distribution, noise_hold). "
            f"Received: {layers_said} of network {network.name!r}"
        )
    return said.pop() if said else ("gaussian", 1)


def tensor_names(names: Iterable[str]) -> list[str]:
    """Names that TensorFlow leaves as they are: of plain characters, different beyond their case."""
    unique: list[str] = []
    for index, name in enumerate(names):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("/", "."))
        while plain.lower() in {other.lower() for other in unique}:  # a key may look like what is appended here
            plain = f"{plain}.leaf-{index}"
        unique.append(plain)
    return unique
