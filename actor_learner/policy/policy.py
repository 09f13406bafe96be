"""Acts with an exported network: observations in, actions and log-probabilities out. No TensorFlow.

An exported network is two LiteRT graphs, `step` and `value`, and a table that says which of their bytes
hold which weight, so that new weights cost a copy and a new interpreter. Where LiteRT can't express a
graph, it is a TensorFlow graph instead, and only then TensorFlow is imported, with no GPU visible.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from actor_learner import spaces
from actor_learner.quiet import silent_stderr
from actor_learner.saving import write_atomically

if TYPE_CHECKING:
    import keras
    from ai_edge_litert.interpreter import Interpreter
    from gymnasium.spaces import Space

Array = np.ndarray[Any, Any]
Noise = Literal["uniform", "normal"]

ACTION, LOG_PROB, MODE = 0, 1, 2
"""Positions of the step graph's outputs, which the parameters follow. The value graph has one, the value."""

_VERSION = 1
_SUFFIX = {"litert": "tflite", "tensorflow": "pb"}


@dataclass(frozen=True)
class Constant:
    """A place in a LiteRT graph's bytes that holds one weight: transposed, then times `factor`, as float32."""

    weight: int
    offset: int
    permutation: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Graph:
    """A graph for a fixed batch size, with weights of its own inside it, as inputs, or both.

    Inputs are `observation`, for the step graph `noise`, and `weight_<index>` for each of `inputs`.
    """

    content: bytes
    """A LiteRT flatbuffer, or a TensorFlow GraphDef."""
    format: Literal["litert", "tensorflow"]
    outputs: tuple[str, ...]
    """Names of the output tensors of a TensorFlow graph; a LiteRT graph's stand in order."""
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]
    """Indices of the weights that are fed."""
    resizable: bool
    """Whether the graph is right at other batch sizes too."""


@dataclass(frozen=True)
class ExportedPolicy:
    """A network as an actor needs it; made by `export.export_policy`. Arrays, bytes and JSON only."""

    step_graph: Graph
    """observation [b, ...], noise [b, ...] -> action [b, ...], log-prob [b], mode [b, ...], parameters [b, P]"""
    value_graph: Graph
    """observation [b, ...] -> value [b]"""
    weights: Array
    """The weights at export, as `Policy.set_flat_weights` takes them."""
    batch_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_space: dict[str, Any]
    """As `spaces.to_json` writes it."""
    noise: Noise
    noise_shape: tuple[int, ...]
    """Of one environment."""
    noise_hold: int
    """Steps for which an environment keeps its standard-normal draw."""
    weight_names: tuple[str, ...]
    weight_shapes: tuple[tuple[int, ...], ...]
    """In the order of `network.get_weights()`."""

    @property
    def fallback(self) -> bool:
        """Whether acting needs TensorFlow, because LiteRT can't express the network."""
        return "tensorflow" in (self.step_graph.format, self.value_graph.format)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `policy.json`, the two graphs and `weights.npy` into `directory`, made if it isn't there."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("step", "value"):
            write_atomically(folder / self._file_name(name), functools.partial(self._write_graph, name))
        write_atomically(folder / "weights.npy", self._write_weights)
        text = json.dumps(self._description(), indent=1) + "\n"
        write_atomically(folder / "policy.json", lambda file: file.write_text(text))

    def _file_name(self, name: str) -> str:
        return f"{name}.{_SUFFIX[self._graph(name).format]}"

    def _write_graph(self, name: str, file: Path) -> None:
        file.write_bytes(self._graph(name).content)

    def _write_weights(self, file: Path) -> None:
        with file.open("wb") as stream:
            np.save(stream, self.weights, allow_pickle=False)

    def _graph(self, name: str) -> Graph:
        return self.step_graph if name == "step" else self.value_graph

    def _description(self) -> dict[str, Any]:
        description = {key: value for key, value in vars(self).items() if key not in _IN_FILES_OF_THEIR_OWN}
        for name in ("step", "value"):
            graph = vars(self._graph(name))
            description[f"{name}_graph"] = {
                **{key: value for key, value in graph.items() if key != "content"},
                "constants": [asdict(constant) for constant in graph["constants"]],
            }
        return {"version": _VERSION, **description}

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> ExportedPolicy:
        """Reads what `save` wrote. Raises ValueError if `directory` holds no exported policy."""
        folder = Path(directory)
        try:
            description = json.loads((folder / "policy.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"There is no exported policy (policy.json); a run writes it when it ends. Received: {str(folder)!r}"
            ) from None
        if (version := description.pop("version", None)) != _VERSION:
            raise ValueError(
                f"This exported policy was written by another version; export it again. Received: version={version}"
            )
        graphs = {f"{name}_graph": _read_graph(folder, name, description) for name in ("step", "value")}
        weights = np.load(folder / "weights.npy", allow_pickle=False)
        return cls(**{**_with_tuples(description), **graphs, "weights": weights})


_IN_FILES_OF_THEIR_OWN = ("step_graph", "value_graph", "weights")


def _with_tuples(description: dict[str, Any]) -> dict[str, Any]:
    """JSON knows lists only; nested ones here are tuples of tuples (of shapes)."""

    def convert(value: Any) -> Any:
        return tuple(convert(item) for item in value) if isinstance(value, list) else value

    return {key: value if key == "action_space" else convert(value) for key, value in description.items()}


def _read_graph(folder: Path, name: str, description: dict[str, Any]) -> Graph:
    graph = _with_tuples(description[f"{name}_graph"])
    constants = tuple(Constant(**_with_tuples(constant)) for constant in graph.pop("constants"))
    content = (folder / f"{name}.{_SUFFIX[graph['format']]}").read_bytes()
    return Graph(content=content, constants=constants, **graph)


class Policy:
    """Chooses actions with an exported network. A seed gives the same actions in any process.

    Observations are as in a Trajectory: a Discrete one is counted from 0. One observation or a batch of
    any size, told apart by shape; a batch of `batch_size` observations is the fastest.

    Args:
        exported: What `export_policy` made, or `ExportedPolicy.load` read.
        seed: An int or a `np.random.SeedSequence`, for the noise that actions are drawn with.
    """

    def __init__(self, exported: ExportedPolicy, seed: int | np.random.SeedSequence | None = 0) -> None:
        if not isinstance(exported, ExportedPolicy):
            raise ValueError(
                "`exported` must be an ExportedPolicy; see al.load_policy and al.Policy.from_network. "
                f"Received: a {type(exported).__name__}"
            )
        self.exported = exported
        self.batch_size = exported.batch_size
        self._observation_dtype = np.dtype(exported.observation_dtype)
        self._batch_shape = (exported.batch_size, *exported.observation_shape)
        self._noise_shape = (exported.batch_size, *exported.noise_shape)
        self._draws = np.empty(self._noise_shape, np.float32)
        self._noise = np.zeros(self._noise_shape, np.float32)
        self._held: Array | None = None
        self._to_env = _to_env_function(exported.action_space)
        self._weights = np.array(exported.weights, np.float32)
        self._step_graph = _load_graph(exported.step_graph, exported, self._weights)
        self._value_graph = _load_graph(exported.value_graph, exported, self._weights)
        self.reseed(seed)

    @classmethod
    def from_network(
        cls,
        network: keras.Model,
        action_space: Space[Any],
        seed: int | np.random.SeedSequence | None = 0,
        *,
        batch_size: int = 1,
        observation_space: Space[Any] | None = None,
    ) -> Policy:
        """Exports `network` and acts with it; needs TensorFlow. `set_weights` renews the weights.

        `batch_size` is the number of observations that a call usually has. `observation_space` may be left
        out where the network says its input's shape and dtype. Raises ValueError where it is needed.
        """
        from actor_learner.policy.export import export_policy

        return cls(export_policy(network, action_space, batch_size, observation_space), seed)

    @property
    def action_space(self) -> Space[Any]:
        """The action space that `to_env` and `act` give actions of."""
        return spaces.from_json(self.exported.action_space)

    def reseed(self, seed: int | np.random.SeedSequence | None) -> None:
        """Starts the noise anew, from `seed`."""
        # Named, since numpy may change what default_rng stands for.
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self.renew_noise()

    def renew_noise(self, rows: Array | None = None) -> None:
        """Lets the next step draw new noise for `rows` (bool [N]; None: all), where `noise_hold` would keep it."""
        if rows is None:
            self._held = None
        elif self._held is not None:
            self._ages[rows] = self.exported.noise_hold

    def step(self, observation: Any, action_mask: Any = None) -> tuple[Array, Array]:
        """Samples actions: what goes into a Trajectory, and what `to_env` takes.

        Args:
            observation: [N, ...], or one observation [...].
            action_mask: None (masks aren't supported yet).

        Returns:
            action [N, ...] and its log-probability, float32 [N]; without N for a single observation.
        """
        if action_mask is not None:
            raise _no_masks(action_mask)
        if type(observation) is np.ndarray and observation.shape == self._batch_shape:
            if observation.dtype != self._observation_dtype:
                observation = observation.astype(self._observation_dtype)
            action, log_prob = self._step_graph.run((observation, self._draw_batch()), (ACTION, LOG_PROB))
            return action, log_prob
        rows, single = self._rows(observation)
        action, log_prob = self._run(self._step_graph, (rows, self._draw(len(rows))), (ACTION, LOG_PROB))
        return (action[0], log_prob[0]) if single else (action, log_prob)

    def act(self, observation: Any, deterministic: bool = True, action_mask: Any = None) -> Any:
        """Actions that the environment gets, [N, ...], or one for a single observation [...].

        The most probable ones, or, with `deterministic=False`, samples. Raises ValueError for NaN in the
        observation, from which a graph may give any number as action.
        """
        if np.isnan(np.asarray(observation, self._observation_dtype)).any():
            raise ValueError("`observation` must hold numbers. Received: NaN")
        if not deterministic:
            return self.to_env(self.step(observation, action_mask)[0])
        if action_mask is not None:
            raise _no_masks(action_mask)
        rows, single = self._rows(observation)
        noise = np.zeros((len(rows), *self.exported.noise_shape), np.float32)
        (mode,) = self._run(self._step_graph, (rows, noise), (MODE,))
        return self.to_env(mode[0] if single else mode)

    def value(self, observation: Any) -> Array:
        """Values, float32 [N], of observations [N, ...]; a scalar for a single one."""
        rows, single = self._rows(observation)
        (value,) = self._run(self._value_graph, (rows,), (0,))
        result: Array = value[0] if single else value
        return result

    def to_env(self, action: Any) -> Any:
        """What the environment gets for actions as `step` gives them, one or a batch.

        Discrete: counted from the space's `start`. Box: clipped to the bounds. In the space's dtype.
        """
        return self._to_env(action)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Renews the weights: the arrays that `network.get_weights()` gives.

        Raises ValueError if their number or a shape differs from the exported network's.
        """
        shapes, names = self.exported.weight_shapes, self.exported.weight_names
        if len(weights) != len(shapes):
            raise ValueError(
                f"`weights` must be the {len(shapes)} arrays of `network.get_weights()`. "
                f"Received: {len(weights)} arrays"
            )
        for index, (array, shape, name) in enumerate(zip(weights, shapes, names, strict=True)):
            if np.shape(array) != shape:
                raise ValueError(
                    f"`weights[{index}]` ({name}) must have shape {shape}. Received: shape={np.shape(array)}"
                )
        self.set_flat_weights(flatten_weights(weights))

    def set_flat_weights(self, weights: Array) -> None:
        """Renews the weights from one vector: `network.get_weights()`, each raveled, as float32.

        Raises ValueError if its shape differs from the exported network's.
        """
        if weights.shape != self._weights.shape:
            raise ValueError(f"`weights` must have shape {self._weights.shape}. Received: shape={weights.shape}")
        np.copyto(self._weights, weights, casting="same_kind")
        self._step_graph.renew()
        self._value_graph.discard()

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """Observations as [N, ...] in the trajectory's dtype, and whether it was a single one."""
        rows = np.asarray(observation, self._observation_dtype)
        shape = self._batch_shape[1:]
        if rows.shape == shape:
            return rows[None], True
        if rows.shape[1:] != shape or rows.ndim != len(shape) + 1:
            raise ValueError(
                f"`observation` must have shape {shape}, or (N, ...) of these. Received: shape={rows.shape}"
            )
        return rows, False

    def _draw(self, rows: int) -> Array:
        """New noise for any number of environments."""
        if self.exported.noise_hold > 1:
            return self._draw_held(rows)
        shape = (rows, *self.exported.noise_shape)
        if self.exported.noise == "uniform":
            return np.float32(1) - self._generator.random(shape, np.float32)
        return self._generator.standard_normal(shape, np.float32)

    def _draw_batch(self) -> Array:
        """New noise for `batch_size` environments, in memory that the next draw overwrites."""
        if self.exported.noise == "uniform":
            # random() is in [0, 1); sampling needs (0, 1].
            self._generator.random(None, np.float32, self._draws)
            return np.subtract(1.0, self._draws, self._noise)
        if self.exported.noise_hold > 1:
            return self._draw_held(self.batch_size)
        return self._generator.standard_normal(None, np.float32, self._noise)

    def _draw_held(self, rows: int) -> Array:
        """Standard normals, each environment's kept for `noise_hold` steps."""
        hold = self.exported.noise_hold
        if self._held is None or len(self._held) != rows:
            self._held = np.empty((rows, *self.exported.noise_shape), np.float32)
            self._ages = np.full(rows, hold)
        due = self._ages >= hold
        self._held[due] = self._generator.standard_normal((int(due.sum()), *self.exported.noise_shape), np.float32)
        self._ages[due] = 0
        self._ages += 1
        return self._held

    def _run(self, graph: _LoadedGraph, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs a graph at any batch size."""
        rows = len(inputs[0])
        if rows == self.batch_size:
            return graph.run(inputs, outputs)
        if graph.resizable and rows:
            return graph.run_resized(inputs, outputs)
        return _run_in_chunks(graph, inputs, outputs, self.batch_size)


def _no_masks(action_mask: Any) -> ValueError:
    return ValueError(f"`action_mask` must be None: masks aren't supported yet. Received: {np.shape(action_mask)}")


def flatten_weights(weights: Sequence[Any]) -> Array:
    """The arrays of `network.get_weights()` as one float32 vector."""
    if not weights:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in weights])


def load_policy(directory: str | os.PathLike[str], seed: int | np.random.SeedSequence | None = 0) -> Policy:
    """The policy of a run directory, or of the `policy` folder in it. Needs no TensorFlow.

    Raises ValueError if there is none.
    """
    inner = Path(directory) / "policy"
    return Policy(ExportedPolicy.load(inner if (inner / "policy.json").is_file() else directory), seed)


def _to_env_function(action_space: dict[str, Any]) -> Any:
    """`Policy.to_env` for a described space, with what it needs looked up once."""
    dtype = np.dtype(action_space["dtype"])
    if action_space["type"] == "Discrete":
        start = dtype.type(action_space["start"])
        return lambda action: np.add(action, start, dtype=dtype)
    low, high = (
        spaces.bound_from_json(action_space[side], tuple(action_space["shape"]), dtype) for side in ("low", "high")
    )
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda action: np.asarray(action, dtype)
    return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)


class _LoadedGraph(Protocol):
    """A graph with weights, ready to run."""

    resizable: bool

    def run(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on the exported batch size; `outputs` are positions. The arrays returned are the caller's."""

    def run_resized(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on another batch size, where `resizable`."""

    def renew(self) -> None:
        """Takes over the weights that now stand in the policy's flat vector."""

    def discard(self) -> None:
        """Lets the next run take them over: for a graph that runs rarely."""


def _load_graph(graph: Graph, exported: ExportedPolicy, weights: Array) -> _LoadedGraph:
    views = _weight_views(weights, exported.weight_shapes)
    return LiteRTGraph(graph, views) if graph.format == "litert" else TensorFlowGraph(graph, views)


def _weight_views(weights: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Views, one for each weight, on the flat vector."""
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    return [weights[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]


def _run_in_chunks(
    graph: _LoadedGraph, inputs: tuple[Array, ...], outputs: tuple[int, ...], batch_size: int
) -> list[Array]:
    """Runs any number of rows in pieces of the exported batch size, the last one padded with zeros."""
    rows = len(inputs[0])
    chunks = []
    for start in range(0, max(rows, 1), batch_size):
        piece = tuple(_padded(array[start : start + batch_size], batch_size) for array in inputs)
        chunks.append(graph.run(piece, outputs))
    return [np.concatenate(arrays)[:rows] for arrays in zip(*chunks, strict=True)]


def _padded(rows: Array, batch_size: int) -> Array:
    if len(rows) == batch_size:
        return rows
    return np.concatenate([rows, np.zeros((batch_size - len(rows), *rows.shape[1:]), rows.dtype)])


class LiteRTGraph:
    """A LiteRT graph whose weights are written into its bytes; each version gets a new interpreter.

    Args:
        graph: The exported graph.
        weights: Views on memory that the caller changes before it calls `renew` or `discard`.
    """

    def __init__(self, graph: Graph, weights: Sequence[Array]) -> None:
        self.resizable = graph.resizable
        self._content = bytearray(graph.content)
        self._copies = [_copy_pair(self._content, constant, weights) for constant in graph.constants]
        self._fed = {f"weight_{index}": weights[index] for index in graph.inputs}
        self._output_indices: list[int] = []
        self.discard()

    def discard(self) -> None:
        """Lets the next run take over the weights."""
        self._interpreter: Interpreter | None = None
        self._resized: tuple[int, Interpreter | None] = (0, None)

    def renew(self) -> None:
        """Takes over the weights and builds the interpreter."""
        self.discard()
        self._interpreter = self._build()

    def run(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on the exported batch size; `outputs` are positions."""
        return self._invoke(self._interpreter or self._first_interpreter(), inputs, outputs)

    def run_resized(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on another batch size; one interpreter is kept, for the size that came last."""
        rows, interpreter = self._resized
        if interpreter is None or rows != len(inputs[0]):
            interpreter = self._build(inputs)
            self._resized = (len(inputs[0]), interpreter)
        return self._invoke(interpreter, inputs, outputs)

    def _first_interpreter(self) -> Interpreter:
        self._interpreter = self._build()
        return self._interpreter

    def _invoke(self, interpreter: Interpreter, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        input_indices, output_indices = self._input_indices, self._output_indices
        for index, array in zip(input_indices, inputs, strict=False):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(output_indices[output]) for output in outputs]

    def _build(self, resize_to: tuple[Array, ...] = ()) -> Interpreter:
        """An interpreter of the present weights; with `resize_to`, for inputs of these shapes."""
        for target, source, factor in self._copies:
            if factor == 1.0:
                np.copyto(target, source)
            else:
                np.multiply(source, factor, target)
        interpreter = _new_interpreter(bytes(self._content))
        if not self._output_indices:
            self._find_tensors(interpreter)
        for index, array in zip(self._input_indices, resize_to, strict=False):
            interpreter.resize_tensor_input(index, array.shape)
        interpreter.allocate_tensors()
        for index, weight in self._fed_indices:
            interpreter.set_tensor(index, weight)
        return interpreter

    def _find_tensors(self, interpreter: Interpreter) -> None:
        """Looks up tensor numbers, once: they are the same for each version."""
        numbers = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
        self._input_indices = [numbers[name] for name in ("observation", "noise") if name in numbers]
        self._fed_indices = [(numbers[name], weight) for name, weight in self._fed.items()]
        self._output_indices = [detail["index"] for detail in interpreter.get_output_details()]


def _copy_pair(content: bytearray, constant: Constant, weights: Sequence[Array]) -> tuple[Array, Array, np.float32]:
    """(view on the graph's bytes, view on the weight in the same shape, factor)."""
    source = weights[constant.weight].transpose(constant.permutation)
    target = np.frombuffer(content, np.float32, source.size, constant.offset).reshape(source.shape)
    return target, source, np.float32(constant.factor)


_delegate_announced = False


def _new_interpreter(content: bytes) -> Interpreter:
    """A LiteRT interpreter, one thread; the first of a process without LiteRT's line about its delegate."""
    global _delegate_announced
    from ai_edge_litert.interpreter import Interpreter

    if _delegate_announced:
        return Interpreter(model_content=content, num_threads=1)
    _delegate_announced = True
    with silent_stderr():
        interpreter = Interpreter(model_content=content, num_threads=1)
        interpreter.allocate_tensors()
    return interpreter


class TensorFlowGraph:
    """A TensorFlow graph with all weights as inputs: for networks that LiteRT can't express."""

    resizable = False

    def __init__(self, graph: Graph, weights: Sequence[Array]) -> None:
        self._tensorflow = _import_tensorflow()
        self._weights = [weights[index] for index in graph.inputs]
        self._function = self._import(graph)
        self._fed: list[Any] | None = None

    def _import(self, graph: Graph) -> Any:
        tf = self._tensorflow
        definition = tf.compat.v1.GraphDef.FromString(graph.content)
        names = {node.name for node in definition.node}
        fed = [name for name in ("observation", "noise") if name in names]
        self._input_count = len(fed)
        fed += [f"weight_{index}" for index in graph.inputs]
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        return wrapped.prune([f"{name}:0" for name in fed], list(graph.outputs))

    def discard(self) -> None:
        """Lets the next run take over the weights."""
        self._fed = None

    def renew(self) -> None:
        """Lets the next run take over the weights."""
        self._fed = None

    def run(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on the exported batch size; `outputs` are positions."""
        constant = self._tensorflow.constant
        with self._tensorflow.device("cpu"):
            if self._fed is None:
                self._fed = [constant(weight) for weight in self._weights]
            results = self._function(*map(constant, inputs[: self._input_count]), *self._fed)
        return [results[output].numpy() for output in outputs]

    def run_resized(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Never called: the graph has a fixed batch size."""
        raise NotImplementedError


def _import_tensorflow() -> Any:
    """TensorFlow; with one thread and no GPU, unless the process uses it already."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf
