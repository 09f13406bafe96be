"""Turns a Keras network into the graphs that actors run. The only place where these are built.

Each weight is traced as a constant of unique bit patterns, which are then looked for in the converted
flatbuffer: where they stand, `policy.py` writes new weights. The converter also folds: `exp(log_std)`, a
normalization into the kernel before it, 1/255 into a first convolution (recognized as a factor). So found
doesn't mean found everywhere. Each weight is changed alone, and all outputs are compared with
TensorFlow's; a weight that fails becomes an input of the graph. Vectors first: what is multiplied into a
kernel is mostly a vector, and a kernel that stays constant is several times faster.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Discrete, Space
from keras import ops

from actor_learner import spaces
from actor_learner.networks import ActionDistribution, all_layers, call_network, network_distribution
from actor_learner.policy.exported import Array, Constant, ExportedPolicy, Graph, flatten_weights
from actor_learner.policy.graphs import LiteRTGraph
from actor_learner.quiet import silent_stderr

# Patterns are positive floats from 1/32 on. An odd start, so that no constant of a user's network (1/32, say) looks
# like a weight; 8 units in the last place apart, so that they are told apart after multiplication by a constant too.
_FIRST_PATTERN = 0x3D00_0003
_PATTERN_STEP = 8

_PROBE_ROWS = 8
_TOLERANCE = 1e-4
_MINIMUM_EFFECT = 30 * _TOLERANCE


def export_policy(
    network: keras.Model,
    action_space: Space[Any],
    batch_size: int,
    observation_space: Space[Any] | None = None,
) -> ExportedPolicy:
    """The graphs and the table that `Policy` acts with, for batches of `batch_size` observations.

    Leaves the network as it is. Mixed-precision networks are exported in float32. Where LiteRT can't express
    a graph, it is exported as a TensorFlow graph, with a warning that names the layer.

    Args:
        network: A Keras model that keeps the network contract.
        action_space: A Discrete or Box.
        batch_size: Number of observations that a call usually has, at least 1.
        observation_space: May be left out where `network.inputs` says shape and dtype.

    Raises:
        ValueError: if the network's outputs don't fit `action_space`, or `observation_space` is needed.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}")
    spaces.check_action_space(action_space)
    shape, dtype = _observation_shape_dtype(network, observation_space)
    if not network.built:
        call_network(network, np.zeros((1, *shape), dtype))
    noise = network_distribution(network, action_space).noise[0]
    exporter = _Exporter(network, action_space, batch_size, observation_space, shape, dtype, _other_variables(network))
    with _computing_in_float32(network):
        step_graph, value_graph = exporter.export("step"), exporter.export("value")
    return ExportedPolicy(
        step_graph=step_graph,
        value_graph=value_graph,
        weights=flatten_weights(network.get_weights()),
        batch_size=batch_size,
        observation_shape=shape,
        observation_dtype=str(dtype),
        action_space=spaces.to_json(action_space),
        noise=noise,
        noise_shape=exporter.noise_shape,
        noise_hold=_noise_hold(network, noise),
        weight_names=tuple(weight.path for weight in network.weights),
        weight_shapes=tuple(tuple(weight.shape) for weight in network.weights),
    )


def _observation_shape_dtype(
    network: keras.Model, observation_space: Space[Any] | None
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if observation_space is not None:
        spaces.check_observation_space(observation_space)
        return spaces.observation_shape_dtype(observation_space)
    try:
        inputs = network.inputs
    except (AttributeError, ValueError):
        inputs = None
    if not inputs or len(inputs) != 1 or None in inputs[0].shape[1:]:
        raise ValueError(
            "`observation_space` must be given for a network that doesn't say what its one input is. "
            f"Received: network={network.name!r}"
        )
    return tuple(inputs[0].shape[1:]), np.dtype(inputs[0].dtype)


def _other_variables(network: keras.Model) -> tuple[tuple[Any, Array], ...]:
    weights = {id(weight) for weight in network.weights}
    return tuple((variable, variable.numpy()) for variable in network.variables if id(variable) not in weights)


def _noise_hold(network: keras.Model, noise: str) -> int:
    """What the network's ActionDistribution says; only standard normals are held."""
    if noise != "normal":
        return 1
    return next((layer.noise_hold for layer in all_layers(network) if isinstance(layer, ActionDistribution)), 1)


@contextlib.contextmanager
def _computing_in_float32(network: keras.Model) -> Iterator[None]:
    """Lets all layers compute in float32 while they are traced; weights keep their dtype."""
    changed = [layer for layer in (network, *all_layers(network)) if layer.compute_dtype != "float32"]
    before = [layer._dtype_policy for layer in changed]
    try:
        for layer in changed:
            policy = keras.DTypePolicy("float32")
            # Or layers with weights of another dtype wouldn't cast them before use.
            policy._variable_dtype = layer.variable_dtype
            layer._dtype_policy = policy
        yield
    finally:
        for layer, policy in zip(changed, before, strict=True):
            layer._dtype_policy = policy


class _InexpressibleError(Exception):
    """LiteRT can't run a graph; the message says where it fails."""


@dataclass(frozen=True)
class _Exporter:
    """One network, and what its two graphs share."""

    network: keras.Model
    action_space: Space[Any]
    batch_size: int
    observation_space: Space[Any] | None
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    other_variables: tuple[tuple[Any, Array], ...]
    """Variables that aren't weights, such as the states of random generators, and their values."""

    @property
    def distribution(self) -> Any:
        return network_distribution(self.network, self.action_space)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of one environment's noise. At least of rank 1: LiteRT graphs that reshape [b] to [b, 1] don't resize."""
        shape: tuple[int, ...] = self.distribution.noise[1]
        return shape or (1,)

    def export(self, name: str) -> Graph:
        """The graph `step` or `value`."""
        traced = self._trace(name, self.batch_size)
        rows = min(self.batch_size, _PROBE_ROWS)
        # A reference of its own for large batches: TensorFlow would spend seconds on large batches of images.
        reference = traced if rows == self.batch_size else self._trace(name, rows)
        try:
            return _to_litert(traced, _Probe(reference, self._probe_inputs(name), self.network), self.network)
        except _InexpressibleError as error:
            warnings.warn(
                f"LiteRT can't run the {name} graph of network {self.network.name!r}: {error} Its actors use "
                "TensorFlow, which is many times slower and takes more memory.",
                UserWarning,
                stacklevel=4,
            )
            return _to_tensorflow(traced)

    def _trace(self, name: str, rows: int) -> _Traced:
        specs = [tf.TensorSpec((rows, *self.observation_shape), self.observation_dtype, name="observation")]
        if name == "step":
            specs.append(tf.TensorSpec((rows, *self.noise_shape), tf.float32, name="noise"))
        weights = [
            tf.TensorSpec(weight.shape, tf.float32, name=f"weight_{index}")
            for index, weight in enumerate(self.network.weights)
        ]
        function = tf.function(self._step if name == "step" else self._value, autograph=False)
        concrete = function.get_concrete_function(*specs, *weights)
        return _Traced(concrete, tuple(specs), tuple(weights), _used_weights(concrete, len(weights)))

    def _step(self, observation: Any, noise: Any, *weights: Any) -> tuple[Any, Any, Any, Any]:
        parameters = self._call(observation, weights)["parameters"]
        columns = spaces.parameter_size(self.action_space)
        if parameters.shape != (observation.shape[0], columns):
            raise ValueError(
                f"The network's `parameters` must have {columns} columns for {self.action_space}. "
                f"Received: shape={tuple(parameters.shape)}"
            )
        noise = ops.reshape(noise, (-1, *self.distribution.noise[1]))
        action = self.distribution.sample(parameters, noise)
        log_prob = self.distribution.log_prob(parameters, action)
        # The parameters are there for the checks alone: a log-probability near 0 would show no difference.
        return action, log_prob, self.distribution.mode(parameters), parameters

    def _value(self, observation: Any, *weights: Any) -> tuple[Any]:
        value = self._call(observation, weights)["value"]
        if value.shape != (observation.shape[0],):
            raise ValueError(
                "The network's `value` must be one number for each observation. "
                f"Received: {value.shape[0]} for {observation.shape[0]} observations"
            )
        return (value,)

    def _call(self, observation: Any, weights: Sequence[Any]) -> dict[str, Any]:
        """Calls the network with `weights` in the places of its own, which stay untouched."""
        with keras.StatelessScope(list(self.other_variables)) as scope:
            for variable, weight in zip(self.network.weights, weights, strict=True):
                # A float16 or float64 weight is used in the precision that it was published in, float32.
                floating = keras.backend.is_float_dtype(variable.dtype)
                scope.add_update((variable, weight if floating else tf.cast(weight, variable.dtype)))
            outputs: dict[str, Any] = call_network(self.network, observation)
        return outputs

    def _probe_inputs(self, name: str) -> list[tuple[Array, ...]]:
        """Enough random inputs for `_PROBE_ROWS` rows, in batches."""
        generator = np.random.default_rng(0)
        rows = min(self.batch_size, _PROBE_ROWS)
        draw = generator.random if self.distribution.noise[0] == "uniform" else generator.standard_normal
        batches: list[tuple[Array, ...]] = []
        for _ in range(math.ceil(_PROBE_ROWS / rows)):
            observation = self._probe_observation(generator, rows)
            noise = draw((rows, *self.noise_shape), np.float32)
            batches.append((observation, noise) if name == "step" else (observation,))
        return batches

    def _probe_observation(self, generator: np.random.Generator, rows: int) -> Array:
        space, shape = self.observation_space, (rows, *self.observation_shape)
        if np.issubdtype(self.observation_dtype, np.floating):
            observation = generator.standard_normal(shape)
            if isinstance(space, Box):
                observation = np.clip(observation, space.low, space.high)
            return observation.astype(self.observation_dtype)
        low, high = _integer_bounds(space, self.observation_dtype)
        return generator.integers(low, high, shape, endpoint=True).astype(self.observation_dtype)


def _integer_bounds(space: Space[Any] | None, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Lowest and highest integers to probe with: the space's, where it is known and they aren't huge."""
    if isinstance(space, Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, Box):
        low, high = (np.clip(bound.astype(np.float64), -255, 255).astype(np.int64) for bound in (space.low, space.high))
        return low, high
    return 0, 255 if dtype == np.uint8 else 1


@dataclass(frozen=True)
class _Traced:
    """A TensorFlow function of inputs and all weights, traced for a fixed batch size."""

    function: Any
    inputs: tuple[tf.TensorSpec, ...]
    weights: tuple[tf.TensorSpec, ...]
    used: frozenset[int]
    """Indices of the weights that the outputs depend on."""

    @property
    def rows(self) -> int:
        return int(self.inputs[0].shape[0])


def _used_weights(function: Any, count: int) -> frozenset[int]:
    """Which of the inputs `weight_<index>` the outputs depend on."""
    seen: set[str] = set()
    pending = [tensor.op for tensor in function.graph.outputs]
    while pending:
        operation = pending.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
    return frozenset(index for index in range(count) if f"weight_{index}" in seen)


def _to_litert(traced: _Traced, probe: _Probe, network: keras.Model) -> Graph:
    """Converts, checks, and converts again with the weights that failed as inputs, until none fails."""
    fed = {index for index in traced.used if not keras.backend.is_float_dtype(network.weights[index].dtype)}
    while True:
        content = _convert(traced, fed, network)
        constants = _find_constants(content, [tuple(spec.shape) for spec in traced.weights], traced.used - fed)
        graph = Graph(content, "litert", (), constants, tuple(sorted(fed)), resizable=False)
        try:
            failed = probe.failing_weights(graph, traced)
        except (RuntimeError, ValueError) as error:
            raise _InexpressibleError(f"it doesn't start ({_first_line(error)}).") from error
        if not failed:
            return Graph(content, "litert", (), constants, graph.inputs, probe.is_resizable(graph, traced))
        if not failed - fed:
            names = sorted(network.weights[index].path for index in failed)
            raise _InexpressibleError(f"its outputs differ from Keras's, which shows at the weights {names}.")
        failed -= fed
        fed |= {index for index in failed if len(traced.weights[index].shape) <= 1} or failed


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _patterns(shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """For each weight, float32 values whose bits occur nowhere else."""
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    return [
        _pattern_values(end - math.prod(shape), end).reshape(shape) for end, shape in zip(ends, shapes, strict=True)
    ]


def _pattern_values(start: int, end: int) -> Array:
    return (_FIRST_PATTERN + _PATTERN_STEP * np.arange(start, end, dtype=np.int64)).astype(np.uint32).view(np.float32)


def _convert(traced: _Traced, fed: Iterable[int], network: keras.Model) -> bytes:
    """The flatbuffer of a function with patterns as constants, and the weights in `fed` as inputs."""
    positions = {index: position for position, index in enumerate(sorted(fed))}
    patterns = _patterns([tuple(spec.shape) for spec in traced.weights])

    def with_constants(*inputs: Any) -> Any:
        given, weights = inputs[: len(traced.inputs)], inputs[len(traced.inputs) :]
        return traced.function(
            *given,
            *(
                weights[positions[index]] if index in positions else tf.constant(pattern)
                for index, pattern in enumerate(patterns)
            ),
        )

    specs = [*traced.inputs, *(traced.weights[index] for index in positions)]
    function = tf.function(with_constants, autograph=False).get_concrete_function(*specs)
    try:
        with _silent_converter():
            converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
            # The default writes a SavedModel into a temporary folder, which stays behind when killed.
            converter.experimental_lower_to_saved_model = False
            content: bytes = converter.convert()
    except Exception as error:
        raise _InexpressibleError(_describe_failure(error, network)) from error
    return content


@contextlib.contextmanager
def _silent_converter() -> Iterator[None]:
    """Without the converter's remarks on deprecation and on options that it ignores; errors come as exceptions."""
    logger = logging.getLogger("absl")
    disabled, logger.disabled = logger.disabled, True
    try:
        with silent_stderr():
            yield
    finally:
        logger.disabled = disabled


def _describe_failure(error: Exception, network: keras.Model) -> str:
    """Names the layer and the operation that the converter stumbled over."""
    text = str(error)
    operation = re.search(r"'(tf\.\w+)' op", text)
    calls = [call for detail in getattr(error, "errors", []) for call in detail.location.call]
    scopes = [call.name.split("@")[0] for call in calls if call.name]
    layer = next(filter(None, (_layer_of(scope, network) for scope in scopes)), None)
    outside = f"{scopes[0]!r}, outside its layers" if scopes else "the network"
    where = f"layer {layer!r}" if layer else outside
    what = f"its operation {operation[1]} has no counterpart" if operation else _first_line(error).rstrip(".")
    return f"{where}: {what}."


def _layer_of(scope: str, network: keras.Model) -> str | None:
    """The innermost layer in the name of an operation, such as `model_1/attention_1/MatMul`."""
    names = {layer.name for layer in all_layers(network)}
    for part in reversed(scope.split("/")):
        for candidate in (part, re.sub(r"_\d+$", "", part)):
            if candidate in names:
                return candidate
    return None


def _find_constants(content: bytes, shapes: Sequence[tuple[int, ...]], sought: Iterable[int]) -> tuple[Constant, ...]:
    """Where patterns stand in a flatbuffer, each buffer a whole weight, transposed or times a constant."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = np.cumsum([0, *sizes], dtype=np.int64)
    sought = set(sought)
    found, rest = [], []
    for offset, bits in _buffers(content):
        index, remainder = np.divmod(bits.astype(np.int64) - _FIRST_PATTERN, _PATTERN_STEP)
        if remainder.any() or index.min() < 0 or index.max() >= starts[-1]:
            rest.append((offset, bits))
            continue
        weight = int(np.searchsorted(starts, index[0], "right")) - 1
        if weight in sought and sizes[weight] == len(bits):
            permutation = _permutation(index - starts[weight], shapes[weight])
            if permutation is not None:
                found.append(Constant(weight, offset, permutation, 1.0))
    # Those that were found nowhere first: weights of the same shape may look alike once they are multiplied.
    missing = sought - {constant.weight for constant in found}
    candidates = [weight for weight in (*sorted(missing), *sorted(sought - missing)) if len(shapes[weight]) > 1]
    for offset, bits in rest:
        for weight in candidates:
            if sizes[weight] == len(bits):
                values = _pattern_values(starts[weight], starts[weight + 1])
                if match := _scaled(bits.view(np.float32), values, shapes[weight]):
                    found.append(Constant(weight, offset, *match))
                    break
    return tuple(found)


def _buffers(content: bytes) -> Iterator[tuple[int, Array]]:
    """(offset, contents as uint32) of each of a flatbuffer's buffers that can hold floats."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.Model.GetRootAsModel(content, 0)
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    for number in range(model.BuffersLength()):
        data = model.Buffers(number).DataAsNumpy()
        if isinstance(data, np.ndarray) and data.size and data.size % 4 == 0:
            offset = data.__array_interface__["data"][0] - start
            yield offset, np.frombuffer(content, np.uint32, data.size // 4, offset)


def _permutation(index: Array, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The transposition of an array of `shape` that puts element `index[k]` at place k, if there is one."""
    order = np.arange(len(index)).reshape(shape)
    for permutation in itertools.permutations(range(len(shape))):
        if np.array_equal(order.transpose(permutation).reshape(-1), index):
            return permutation
    return None


def _scaled(values: Array, pattern: Array, shape: tuple[int, ...]) -> tuple[tuple[int, ...], float] | None:
    """(transposition, factor) if `values` are a weight's pattern, transposed and multiplied by a constant."""
    nearest = values.max() if values[0] < 0 else values.min()
    factor = float(nearest) / float(pattern[0])
    if not math.isfinite(factor) or factor == 0.0:
        return None
    with np.errstate(all="ignore"):
        unscaled = (values / factor).astype(np.float32).view(np.uint32).astype(np.int64)
    first = int(pattern[:1].view(np.uint32)[0])
    permutation = _permutation((unscaled - first + _PATTERN_STEP // 2) // _PATTERN_STEP, shape)
    if permutation is None:
        return None
    ratios = values.astype(np.float64) / pattern.reshape(shape).transpose(permutation).reshape(-1)
    return permutation, float(np.float32(ratios.mean()))


def _to_tensorflow(traced: _Traced) -> Graph:
    """The traced function as a TensorFlow graph, all used weights inputs."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(traced.function, lower_control_flow=False)
    content: bytes = frozen.graph.as_graph_def().SerializeToString()
    outputs = tuple(tensor.name for tensor in frozen.outputs)
    return Graph(content, "tensorflow", outputs, (), tuple(sorted(traced.used)), resizable=False)


class _Probe:
    """What TensorFlow gives for random inputs and weights, and for each weight changed alone."""

    def __init__(self, reference: _Traced, inputs: Sequence[tuple[Array, ...]], network: keras.Model) -> None:
        self._reference = reference
        self._inputs = inputs
        self._current = [np.asarray(weight.numpy(), np.float32) for weight in network.weights]
        self._floating = [keras.backend.is_float_dtype(weight.dtype) for weight in network.weights]
        self._generator = np.random.default_rng(1)
        self._base, self._expected = self._choose_base()
        self._changed: dict[int, tuple[Array, list[Array], bool]] = {}

    def _choose_base(self) -> tuple[list[Array], list[Array]]:
        """Random weights: at an initialization with zeros in it, a wrong weight could go unseen."""
        for spread in (1.0, 0.1, 0.01):
            base = [self._random(index, spread) for index in range(len(self._current))]
            expected = self._run_reference(base)
            if all(np.isfinite(output).all() for output in expected):
                break
        return base, expected

    def _random(self, index: int, spread: float = 1.0) -> Array:
        """Another value of a weight, of a usual size; what is positive stays so (variances, say)."""
        current = self._current[index]
        if not self._floating[index] or not current.size:
            return current
        noise = self._generator.standard_normal(current.shape).astype(np.float32)
        if current.ndim > 1 and spread == 1.0:
            value = noise * (1.0 / math.sqrt(max(1, math.prod(current.shape[:-1]))))
        else:
            value = current + noise * np.float32(0.3 * spread)
        positive = (current >= 0).all() and (current > 0).any()
        return np.asarray(np.abs(value) if positive else value, np.float32)

    def _run_reference(self, weights: Sequence[Any]) -> list[Array]:
        tensors = [tf.constant(weight) for weight in weights]
        batches = [self._reference.function(*map(tf.constant, batch), *tensors) for batch in self._inputs]
        return [np.concatenate([output.numpy() for output in outputs]) for outputs in zip(*batches, strict=True)]

    def failing_weights(self, graph: Graph, traced: _Traced) -> set[int]:
        """The weights whose change the graph doesn't follow in all outputs, as far as these can tell."""
        runner = _Runner(graph, self._base, traced)
        if not _agree(self._expected, runner.outputs(self._inputs)):
            return self._responsible_weights(graph, traced)
        failed = set()
        for index in traced.used:
            if not self._floating[index]:
                continue
            changed, expected, telling = self._change(index)
            outputs = runner.outputs(self._inputs, {index: changed})
            if not _agree(expected, outputs) or not (telling or index in graph.inputs):
                failed.add(index)
        return failed

    def _change(self, index: int) -> tuple[Array, list[Array], bool]:
        """(another value of a weight, the outputs with it, whether they differ enough to tell a stale weight)."""
        if index not in self._changed:
            for _ in range(3):
                changed = self._random(index)
                expected = self._run_reference([*self._base[:index], changed, *self._base[index + 1 :]])
                telling = not _agree(self._expected, expected, _MINIMUM_EFFECT, floats_only=True)
                if telling:
                    break
            self._changed[index] = changed, expected, telling
        return self._changed[index]

    def _responsible_weights(self, graph: Graph, traced: _Traced) -> set[int]:
        """Which weights make the outputs wrong: goes from the patterns, where a graph is right, to the base."""
        weights = _patterns([weight.shape for weight in self._current])
        for index in set(range(len(weights))) - traced.used | set(graph.inputs):
            weights[index] = self._base[index]
        runner = _Runner(graph, weights, traced)
        failed = set()
        for index in sorted(traced.used - set(graph.inputs), reverse=True):
            pattern, weights[index] = weights[index], self._base[index]
            if not _agree(self._run_reference(weights), runner.outputs(self._inputs, {index: weights[index]})):
                failed.add(index)
                weights[index] = pattern
            else:
                runner.keep(index, weights[index])
        return failed or set(traced.used)

    def is_resizable(self, graph: Graph, traced: _Traced) -> bool:
        """Whether the graph gives the same at a smaller and at a larger batch size."""
        rows = [np.concatenate(arrays) for arrays in zip(*self._inputs, strict=True)]
        runner = _Runner(graph, self._base, traced)
        for size in (1 if traced.rows > 1 else 2, traced.rows + 1):
            picked = np.arange(size) % len(rows[0])
            try:
                with silent_stderr():
                    outputs = runner.resized_outputs(tuple(array[picked] for array in rows))
            except (RuntimeError, ValueError):
                return False
            if not _agree([expected[picked] for expected in self._expected], outputs):
                return False
        return True


class _Runner:
    """A LiteRT graph with weights that are changed one at a time."""

    def __init__(self, graph: Graph, weights: Sequence[Array], traced: _Traced) -> None:
        self._weights = [weight.copy() for weight in weights]
        self._graph = LiteRTGraph(graph, self._weights)
        self._rows = traced.rows
        self._positions = tuple(range(len(traced.function.outputs)))

    def outputs(self, batches: Sequence[tuple[Array, ...]], changed: dict[int, Array] | None = None) -> list[Array]:
        """The outputs for some batches, with weights changed for this call."""
        saved = {index: self._weights[index].copy() for index in changed or {}}
        for index, weight in (changed or {}).items():
            self.keep(index, weight)
        self._graph.discard()
        results = [self._run(batch) for batch in batches]
        for index, weight in saved.items():
            self.keep(index, weight)
        return [np.concatenate(outputs) for outputs in zip(*results, strict=True)]

    def keep(self, index: int, weight: Array) -> None:
        """Changes a weight for good."""
        self._weights[index][...] = weight

    def _run(self, batch: tuple[Array, ...]) -> list[Array]:
        """A batch may have fewer rows than the graph, which then gets them repeatedly."""
        rows = len(batch[0])
        repeated = tuple(np.resize(array, (self._rows, *array.shape[1:])) for array in batch)
        return [output[:rows] for output in self._graph.run(repeated, self._positions)]

    def resized_outputs(self, batch: tuple[Array, ...]) -> list[Array]:
        """The outputs at the batch's own size."""
        return self._graph.run_resized(batch, self._positions)


def _agree(
    expected: Sequence[Array], outputs: Sequence[Array], tolerance: float = _TOLERANCE, *, floats_only: bool = False
) -> bool:
    """Whether outputs are the same but for rounding.

    Rounding may turn a rare draw into the next action: three quarters of the rows must agree in their
    integers, and these rows in their floats.
    """
    if any(a.shape != b.shape for a, b in zip(expected, outputs, strict=True)):
        return False
    same = np.ones(len(expected[0]), bool)
    for a, b in zip(expected, outputs, strict=True):
        if np.issubdtype(a.dtype, np.integer):
            same &= (a == b).reshape(len(a), -1).all(axis=1)
    if floats_only:
        same[:] = True
    elif same.mean() < 0.75:
        return False
    return all(
        _close(a[same], b[same], tolerance)
        for a, b in zip(expected, outputs, strict=True)
        if np.issubdtype(a.dtype, np.floating)
    )


def _close(a: Array, b: Array, tolerance: float) -> bool:
    scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True))
