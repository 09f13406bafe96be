"""The contract between networks and this package.

A network is a Keras model from a batch of observations to `(parameters, value)`, or to a dict with at least these keys.
`parameters [N, parameter_size(action_space)]` describe the action distribution, of which "greedy" has one more;
`value [N]` or `[N, 1]` is the state value, which a dict may lack for algorithms with critics. Further outputs of a dict
reach the loss. The leaves of a composite observation are the model's nested inputs, or its inputs of that name, with
keys and indices joined by dots ("camera.0"). The mask leaf is an input only of models that have one of its name. Where
some entries are for the value alone (`value_keys`), the model is functional and its `parameters` don't depend on these.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.layers import (
    AlphaDropout,
    BatchNormalization,
    Dropout,
    GaussianDropout,
    GaussianNoise,
    SpectralNormalization,
)

from actor_learner.networks.distributions import GREEDY, Distribution, distribution_for
from actor_learner.networks.layers import ActionDistribution, ObservationNormalization
from actor_learner.networks.memory import Memories, MemoryContractError
from actor_learner.spaces.kinds import Box
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, OWN_KEY, Structure, drop_mask
from actor_learner.system.fields import refusal
from actor_learner.system.types import Nest, Tensor

NOISE = (AlphaDropout, Dropout, GaussianDropout, GaussianNoise)
BATCHES = (BatchNormalization,)
"""Layers that normalize by the batch in training, and then move their statistics."""

CHECKED_ROWS = 2  # of the batch that a network is checked with: not 1, which could be the size of another axis


def call_network(network: keras.Model, observation: Nest) -> dict[str, Tensor]:
    """Return the network's outputs as a dict: `parameters [N, P]`, `value [N]`, both float32, and any others.

    Calls it with `training=False`, for the learner too, so that learner and actors agree.

    Raises ValueError if a composite observation doesn't match the network's inputs, or if outputs are missing.
    """
    outputs = _named_outputs(network(arrange(network, observation), training=False))
    parameters = ops.cast(outputs["parameters"], "float32")
    value = outputs["value"] if "value" in outputs else parameters[:, 0] * 0.0
    return {**outputs, "parameters": parameters, "value": ops.reshape(ops.cast(value, "float32"), (-1,))}


def has_value(network: keras.Model, spaces: Spaces) -> bool:
    """Return True if a built network returns a value; one of an algorithm with critics may not."""
    return "value" in _named_outputs(_call_in_scope(network, spaces.observation.zeros(CHECKED_ROWS))[0])


def check_further_outputs(
    network: keras.Model, spaces: Spaces, wanted: Mapping[str, tuple[int, ...]], kind: str
) -> None:
    """Check the outputs beside `parameters` and `value` of a built network. wanted: shapes of a row's, by name.

    Raises ValueError if one is missing, or has another shape. kind: of the algorithm that needs them.
    """
    outputs = _named_outputs(_call_in_scope(network, spaces.observation.zeros(CHECKED_ROWS))[0])
    for name, shape in wanted.items():
        expected = f"{kind} needs a network with an output `{name}` of shape [B, {', '.join(map(str, shape))}]"
        if name not in outputs:
            raise ValueError(f"{expected}. Received: outputs {sorted(outputs)} of {network.name!r}")
        if (found := tuple(outputs[name].shape)) != (CHECKED_ROWS, *shape):
            received = ", ".join(map(str, ("B", *found[1:])))
            raise ValueError(f"{expected}. Received: [{received}] from {network.name!r}")


def _call_in_scope(network: keras.Model, observation: Nest) -> tuple[Any, keras.StatelessScope]:
    """Return a built network's outputs for arrays, and the scope with the values that it would have assigned."""
    tensors = keras.tree.map_structure(ops.convert_to_tensor, observation)
    with keras.StatelessScope() as scope:
        return network(arrange(network, tensors), training=False), scope


def call_with_weights(
    network: keras.Model, observation: Nest, weights: Iterable[Tensor], others: Iterable[tuple[keras.Variable, Any]]
) -> dict[str, Tensor]:
    """Return what `call_network` does, computed with other values of the variables, which stay untouched.

    weights: Float32 tensors for `network.weights`, in their order. others: Values of other variables, such as the
    states of random generators; see `other_variables`.
    """
    values = list(others)
    for variable, weight in zip(network.weights, weights, strict=True):
        # A float16 or float64 weight is used as float32, as it is published.
        floating = keras.backend.is_float_dtype(variable.dtype)
        values.append((variable, weight if floating else ops.cast(weight, variable.dtype)))
    with keras.StatelessScope(values):
        return call_network(network, observation)


def other_variables(network: keras.Model) -> list[tuple[keras.Variable, Any]]:
    """Return the variables that aren't weights, with their values as arrays."""
    weights = {id(weight) for weight in network.weights}
    others = (variable for variable in network.variables if id(variable) not in weights)
    return [(variable, np.asarray(variable.value)) for variable in others]  # `numpy()` warns on JAX


def arrange(network: keras.Model, observation: Nest) -> Nest:
    """Arranges a (composite) observation for the network's inputs, by their structure or their names.

    A single input takes the only leaf. A subclassed model gets the observation without its mask leaf.

    Raises ValueError, listing both, if inputs and leaves don't match.
    """
    if not isinstance(observation, (dict, tuple, list)):
        return observation
    if not takes_mask(network):
        observation = drop_mask(observation)
    leaves = named_leaves(observation)
    inputs = getattr(network, "_inputs_struct", None)
    if inputs is None:
        one = isinstance(network, keras.Sequential) and len(leaves) == 1
        return next(iter(leaves.values())) if one else observation
    if _nesting(inputs) == _nesting(observation):
        return observation
    names = [tensor.name for tensor in keras.tree.flatten(inputs)]
    if len(names) == len(leaves) == 1:
        return keras.tree.pack_sequence_as(inputs, list(leaves.values()))
    if set(names) == set(leaves):
        return keras.tree.pack_sequence_as(inputs, [leaves[name] for name in names])
    expected = f"The network's inputs must be the observation's leaves {sorted(leaves)}, as a nest or by name"
    raise ValueError(f"{expected}. Received: inputs {sorted(names)} of network {network.name!r}")


def policy_of(network: keras.Model, observation: Structure) -> keras.Model:
    """Return the part of a network that acts on observations without the entries that only its value sees.

    It shares the network's variables, but for those of the value. A network that takes no more than the observations
    is returned as it is, and so is one that isn't functional.

    Raises ValueError, naming the layer, where `parameters` depend on the entries that are missing.
    """
    inputs = getattr(network, "_inputs_struct", None)
    if not isinstance(inputs, (dict, tuple, list)):
        return network
    masked = takes_mask(network)
    needed = [masked or leaf.path[:1] != (MASK_KEY,) for leaf in observation.leaves]
    for known in (named_leaves(inputs), {tensor.name: tensor for tensor in keras.tree.flatten(inputs)}):
        for prefix in ((), (OWN_KEY,)):  # an agent's own observation is an entry beside those for the value
            names = [".".join(map(str, (*prefix, *leaf.path))) for leaf in observation.leaves]
            if set(itertools.compress(names, needed)) < known.keys():
                own = observation.unflatten([known.get(name) for name in names])
                return _without_inputs(network, known, own if masked else drop_mask(own))
    return network


def policy_part(network: keras.Model, observation: Structure) -> keras.Model:
    """Return `policy_of` a network whose value sees more than these observations. Raises ValueError if it is all."""
    if (part := policy_of(network, observation)) is network:
        expected = "A value that sees more than the policy needs a functional model, with the observation's entries as"
        raise ValueError(f"{expected} inputs. Received: network={network.name!r}")
    return part


def _without_inputs(network: keras.Model, known: Mapping[str, Tensor], inputs: Nest) -> keras.Model:
    """Return the model from some of a network's inputs to its parameters. known: all inputs by name."""
    parameters = _named_outputs(network.output)["parameters"]
    kept = {id(tensor) for tensor in keras.tree.flatten(inputs)}
    hidden = {id(tensor): name for name, tensor in known.items() if id(tensor) not in kept}
    pending, seen = [parameters], set[int]()
    while pending:
        operation, node, _ = pending.pop()._keras_history  # the graph, of which Keras shows no more
        for source in operation._inbound_nodes[node].input_tensors:
            if id(source) in hidden:
                raise ValueError(
                    f"`parameters` must not depend on {hidden[id(source)]!r}, which only the value may see: the layer "
                    f"{operation.name!r} reads it for the policy. Received: network={network.name!r}"
                )
            if id(source) not in seen:
                seen.add(id(source))
                pending.append(source)
    with warnings.catch_warnings(action="ignore"):  # of inputs "observation.x" in a dict with a key "x"
        return keras.Model(inputs, {"parameters": parameters}, name=network.name)


def takes_mask(network: keras.Model) -> bool:
    """Return True if the network declares an input for the mask leaf of observations."""
    inputs = getattr(network, "_inputs_struct", None)
    return inputs is not None and any(tensor.name == MASK_KEY for tensor in keras.tree.flatten(inputs))


def named_leaves(observation: Nest, path: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the leaves of a nest by their keys and indices joined by dots; a leaf itself is called ""."""
    if not isinstance(observation, (dict, tuple, list)):
        return {".".join(map(str, path)): observation}
    parts = observation.items() if isinstance(observation, dict) else enumerate(observation)
    return {name: leaf for key, part in parts for name, leaf in named_leaves(part, (*path, key)).items()}


def _nesting(nest: Nest) -> Any:
    """Return a nest with None in place of its leaves and lists in place of tuples."""
    if isinstance(nest, dict):
        return {key: _nesting(part) for key, part in nest.items()}
    return list(map(_nesting, nest)) if isinstance(nest, (tuple, list)) else None


def _named_outputs(outputs: Any) -> dict[str, Tensor]:
    if not isinstance(outputs, dict):
        several = isinstance(outputs, (tuple, list))
        if not several or len(outputs) != 2:
            shape = tuple(getattr(outputs, "shape", ()))
            received = f"{len(outputs)} outputs" if several else f"one output of shape {shape}"
            expected = "(parameters, value), or a dict with these keys"
            raise ValueError(f"The network must return {expected}. Received: {received}")
        outputs = dict(zip(("parameters", "value"), outputs, strict=True))
    if "parameters" not in outputs:
        raise ValueError(f"The network's dict lacks ['parameters']. Received: keys {sorted(outputs)}")
    return dict(outputs)


def check_network(network: keras.Model, spaces: Spaces) -> None:
    """Check the network, as `check_contract` does, on observations of a space."""
    check_contract(network, spaces.observation.zeros(CHECKED_ROWS), spaces)


def require_model(network: Any) -> keras.Model:
    """Return the network. Raises ValueError for anything but a Keras model."""
    if not isinstance(network, keras.Model):
        raise refusal("network", "a keras.Model", network)
    return network


def computes_in(network: keras.Model, dtype: str) -> bool:
    """Return whether some layer computes in this dtype."""
    return any(layer.compute_dtype == dtype for layer in (network, *all_layers(network)))


def refuse_float16(model: keras.Model) -> None:
    """Raise ValueError for a model that computes in float16, in which small gradients are 0: losses aren't scaled."""
    if computes_in(model, "float16"):
        raise ValueError(
            "A model must compute in bfloat16 or float32 to be learned (precision='bfloat16', or the dtype policy "
            f"'mixed_bfloat16'): float16 is no longer supported. Received: {model.name!r} in float16"
        )


def check_contract(network: keras.Model, observation: Nest, spaces: Spaces, *, needs_value: bool = False) -> None:
    """Build the network on an observation of `CHECKED_ROWS` rows and check that it keeps the contract.

    needs_value: whether an output `value` must be there.

    Raises ValueError with the expected and the actual shape: a wrong one would otherwise broadcast silently.
    """
    require_model(network)
    arranged = keras.tree.map_structure(ops.convert_to_tensor, arrange(network, observation))
    for layer in all_layers(network):
        if getattr(layer, "stateful", False):
            raise ValueError(
                "A layer must not keep its state to itself: actors and learner carry it, with "
                "al.Recurrent(keras.layers.LSTMCell(64)) and other cells. "
                f"Received: layer {layer.name!r} with stateful=True"
            )
    try:
        outputs = network(arranged, training=False)
        if memories := Memories(network):
            start = np.ones(CHECKED_ROWS, bool)
            with memories.stepping(start, memories.initial_state(CHECKED_ROWS)):
                network(arranged, training=False)
    except MemoryContractError as error:
        raise ValueError(f"{reason(error)} (network {network.name!r})") from error
    except Exception as error:
        raise ValueError(
            f"The network doesn't take observations of {_describe(observation)} (with a leading batch axis): "
            f"{reason(error)}. Received: the network {network.name!r}"
        ) from error
    named = _named_outputs(outputs)
    if needs_value and "value" not in named:
        raise ValueError(
            f"The network's dict lacks ['value'], which this algorithm needs. Received: keys {sorted(named)}"
        )
    check_outputs(network, named, CHECKED_ROWS, spaces)


def check_outputs(network: keras.Model, outputs: dict[str, Tensor], rows: int, spaces: Spaces) -> None:
    """Raise ValueError if the parameters or values of `rows` observations have another shape."""
    columns = network_distribution(network, spaces).parameter_size
    for name, allowed, expected in (
        ("value", ((rows,), (rows, 1)), "[B] or [B, 1]"),
        ("parameters", ((rows, columns),), f"[B, {columns}] for {spaces.action_space}"),
    ):
        if name in outputs and (size := tuple(outputs[name].shape)) not in allowed:
            batch = ["B"] if size[:1] == (rows,) else []
            received = ", ".join(map(str, (*batch, *size[len(batch) :])))
            received = f"[{received}] from {network.name!r}"
            raise ValueError(f"The network's `{name}` must have shape {expected}. Received: {received}")


def reason(error: Exception) -> str:
    """Return the line that says why a call failed, without a period; Keras writes it below a heading, in colours."""
    lines = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    reasons = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return (reasons or lines)[0].rstrip(".")


def _describe(observation: Nest) -> str:
    leaves = named_leaves(observation)
    if "" in leaves:
        return f"shape {tuple(leaves[''].shape[1:])} and dtype {leaves[''].dtype}"
    return ", ".join(f"{name} {tuple(leaf.shape[1:])} {leaf.dtype}" for name, leaf in leaves.items())


def training_dependent_layers(model: keras.Model, kinds: tuple[type[Any], ...] = ()) -> list[str]:
    """Return the names of the layers of Keras that would behave differently in training.

    kinds: those that `in_training` lets act as in training.
    """
    layers = [layer for layer in all_layers(model) if not isinstance(layer, kinds)]
    return [layer.name for layer in layers if _depends_on_training(layer)]


def _depends_on_training(layer: keras.layers.Layer) -> bool:
    if isinstance(layer, (*BATCHES, SpectralNormalization)):
        return bool(layer.trainable) or not isinstance(layer, BatchNormalization)  # Keras never updates a frozen one
    if not (isinstance(layer, NOISE) or type(layer).__module__.startswith("keras.")):
        return False
    rates = [getattr(layer, name) for name in ("dropout", "recurrent_dropout") if hasattr(layer, name)]
    return bool(layer._seed_generators) and (not rates or any(rates))


@contextlib.contextmanager
def in_training(model: keras.Model, kinds: tuple[type[Any], ...]) -> Iterator[None]:
    """Let layers of some kinds act as in training while entered; all others act as they are called."""

    def training(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: call(*arguments, **{**options, "training": True})

    found = layers_of(model, kinds)
    for layer in found:
        layer.call = training(layer.call)
    try:
        yield
    finally:
        for layer in found:
            del layer.call


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the states of the random generators of all layers."""
    return [generator.state for layer in (model, *all_layers(model)) for generator in layer._seed_generators]


def drawn_seeds(network: keras.Model, observation: Nest) -> list[keras.Variable]:
    """Return the states of the random generators from which a built network draws when actors call it."""
    if not (states := seed_states(network)):
        return []
    scope = _call_in_scope(network, observation)[1]
    return [state for state in states if scope.get_current_value(state) is not None]


def drawing_layers(network: keras.Model, observation: Nest) -> list[str]:
    """Return the names of the layers of a built network that draw numbers when actors call it."""
    drawn = {id(state) for state in drawn_seeds(network, observation)}
    layers = (network, *all_layers(network))
    return [layer.name for layer in layers if drawn & {id(each.state) for each in layer._seed_generators}]


def all_layers(network: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield every layer of a network, those of nested models included."""
    yield from network._flatten_layers(include_self=False)


def named_layers(models: Mapping[str, keras.Model]) -> dict[str, keras.layers.Layer]:
    """Return models and all layers, each once, by their names, behind those of layers around them: "trunk.dense".

    Of layers of one name, others than the first get a number. models: By the beginning of the names; "": none.
    """
    found: dict[str, keras.layers.Layer] = {}

    def add(name: str, layer: keras.layers.Layer, *, prefixed: bool = True) -> None:
        if any(layer is one for one in found.values()):
            return
        unique = next(each for each in _numbered(name) if each not in found)
        found[unique] = layer
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            add(f"{unique}.{inner.name}" if prefixed else inner.name, inner)

    for name, model in models.items():
        add(name or model.name, model, prefixed=bool(name))
    return found


def _numbered(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))


def layers_of(model: keras.Model, kinds: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    """Return the layers of some kinds."""
    return [layer for layer in all_layers(model) if isinstance(layer, kinds)]


def convolves(network: keras.Model) -> bool:
    """Return whether a network has convolutions."""
    return any("Conv" in type(layer).__name__ for layer in all_layers(network))


def normalization_layers(network: keras.Model) -> list[ObservationNormalization]:
    """Return the layers whose statistics the learner updates, each once, however often the network calls it."""
    return list({id(layer): layer for layer in layers_of(network, ObservationNormalization)}.values())


def normalized_leaf(layer: ObservationNormalization, observation: Nest) -> Tensor:
    """Return the leaf that a layer normalizes: the one that it names, or the only one; else raises ValueError."""
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
    """Limits the weight of past observations to that of `count` new ones. Returns the same network."""
    for layer in normalization_layers(network):
        layer.count.assign(ops.minimum(layer.count, float(count)))
    return network


def network_distribution(network: keras.Model, spaces: Spaces) -> Distribution:
    """Return the distribution that `distribution_and_hold` finds. Raises ValueError if it doesn't fit the space."""
    return distribution_for(spaces.action, distribution_and_hold(network)[0])


def distribution_and_hold(network: keras.Model) -> tuple[str, int]:
    """Return `distribution` and `noise_hold` of the network's ActionDistribution layer, or this layer's defaults.

    Raises ValueError if several of these layers differ.
    """
    layers = layers_of(network, ActionDistribution)
    values = {(layer.distribution, layer.noise_hold) for layer in layers}
    if len(values) > 1:
        listed = ", ".join(f"{layer.name!r} ({layer.distribution}, {layer.noise_hold})" for layer in layers)
        expected = "The network's ActionDistribution layers must agree on (distribution, noise_hold)"
        raise ValueError(f"{expected}. Received: {listed} of network {network.name!r}")
    return values.pop() if values else ("gaussian", 1)


def epsilon_ladder(network: keras.Model) -> float:
    """Return the exponent of the ladder of epsilons over environments, 0 without one."""
    return max((layer.epsilon_ladder for layer in layers_of(network, ActionDistribution)), default=0.0)


def set_epsilon(network: keras.Model, epsilon: float | None) -> None:
    """Assign the probability of random actions to the network's ActionDistribution layer; None: assigns nothing."""
    for layer in layers_of(network, ActionDistribution):
        if epsilon is not None and layer.distribution == GREEDY:
            layer.epsilon.assign([epsilon])


def check_noise_hold(noise_hold: int, action: Structure) -> None:
    """Raise ValueError if noise is to be held and no action is continuous."""
    if noise_hold > 1 and not any(isinstance(leaf.space, Box) for leaf in action.leaves):
        expected = "`noise_hold` holds the noise of continuous actions; it must be 1 for an action space without a Box"
        raise ValueError(f"{expected}. Received: noise_hold={noise_hold} with {action.space}")


def tensor_names(names: Iterable[str]) -> list[str]:
    """Return names that TensorFlow doesn't change: of plain characters, different beyond their case."""
    unique: list[str] = []
    for index, name in enumerate(names):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("/", "."))
        while plain.lower() in {other.lower() for other in unique}:  # a key may look like an appended suffix
            plain = f"{plain}.leaf-{index}"
        unique.append(plain)
    return unique


@contextlib.contextmanager
def building_in(precision: str | None) -> Iterator[None]:
    """Lets layers that are made meanwhile compute in a precision, over float32 weights; unless it is None or "auto"."""
    before = keras.config.dtype_policy()
    if precision not in (None, "auto"):
        keras.config.set_dtype_policy("float32" if precision in ("float32", "tf32") else f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def computing_in_float32(network: keras.Model) -> Iterator[None]:
    """Make all layers compute in float32 while they are traced; weights keep their dtype."""
    found = (layer for layer in (network, *all_layers(network)) if layer.compute_dtype != "float32")
    changed = [(layer, layer._dtype_policy) for layer in found]
    try:
        for layer, _ in changed:
            policy = keras.DTypePolicy("float32")
            # Without it, layers with weights of another dtype wouldn't cast them before use.
            policy._variable_dtype = layer.variable_dtype
            layer._dtype_policy = policy
        yield
    finally:
        for layer, policy in changed:
            layer._dtype_policy = policy
