"""Everything that an actor needs of a network, as bytes, arrays and JSON; saved and read without pickle."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actor_learner.policy.graph import Constant, Graph, LiteRTGraph, LoadedGraph, TensorFlowGraph, parse_graph
from actor_learner.spaces.leaves import check_array
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import (
    DamagedError,
    NewerFormatError,
    one_line,
    read_array,
    read_folder,
    stamped,
    unstamped,
    write_folder_atomically,
)
from actor_learner.system.hub import newest_of
from actor_learner.system.policies import ONLY_POLICY
from actor_learner.system.types import Array
from actor_learner.system.untrusted import check_graph

if TYPE_CHECKING:
    import keras


FORMAT = 1
_SUFFIX = {"litert": "tflite", "tensorflow": "pb"}
_DESCRIPTION, _WEIGHTS = "policy.json", "weights.npy"
_GRAPHS = ("step_graph", "value_graph")


@dataclass(frozen=True)
class ExportedPolicy:
    """A network as an actor needs it; `export_policy` returns one."""

    step_graph: Graph
    """observation leaves [b, ...], with memory start [b, 1] and state leaves [b, ...], noise [b, U + N], mask [b, M] if
    `masked` -> action leaves [b, ...], log-prob [b], state leaves, mode leaves [b, ...], parameters [b, P]"""
    value_graph: Graph
    """observation leaves [b, ...], with memory start and state leaves -> value [b]"""
    weights: Array
    """The weights at export, as `Policy.set_weights` takes them."""
    batch_size: int
    """The usual number of observations; graphs that aren't resizable are for this number."""
    observation_space: dict[str, Any]
    """The space as `kinds.to_json` describes it; so is the next."""
    action_space: dict[str, Any]
    distribution: str
    """That of Box leaves: "gaussian" (clipped to the bounds) or "squashed" (into them, by tanh); or "greedy"."""
    masked: bool
    """True if the step graph takes a mask, float32 `[b, M]`, 1 for allowed choices."""
    input_names: tuple[str, ...]
    """Names of the step graph's inputs, in their order; a graph lacks those that it doesn't use."""
    noise_uniform: int  # number of the noise's first columns, uniform in (0, 1]
    noise_normal: int  # number of the columns that follow, standard-normal
    noise_hold: int  # steps for which an environment keeps its standard-normal draw
    weight_names: tuple[str, ...]
    """The names in the order of `network.get_weights()`; so are the shapes."""
    weight_shapes: tuple[tuple[int, ...], ...]
    state_shapes: tuple[tuple[int, ...], ...] = ()
    """The shape of a row of each leaf of the state, float32; none without memory."""
    epsilon_ladder: float = 0.0
    """With "greedy": how far epsilon falls from the first environment of a pool to the last; 0: it doesn't."""
    has_value: bool = True
    """False if the network returns no value: the value graph then returns 0."""
    trained_with_masks: bool = False
    """True if each observation in training came with a mask, so that acting needs one, too."""
    draws: bool = False
    """True if the network itself draws numbers: the noise has a last column that says which, and the value graph's
    inputs end with the noise."""

    @property
    def noise_columns(self) -> int:
        """The number of columns of the noise."""
        return self.noise_uniform + self.noise_normal + self.draws

    def as_vector(self, weights: Sequence[Any] | Array) -> Array:
        """Return the arrays of `network.get_weights()`, or a vector of them, as one float32 vector.

        Raises ValueError if their number or a shape differs from the network's.
        """
        if isinstance(weights, np.ndarray):
            return check_array("weights", weights, self.weights.shape, dtype=np.float32)
        given = f"{len(weights)} arrays" if isinstance(weights, Sequence) else type(weights).__name__
        if given != (expected := f"{len(self.weight_shapes)} arrays"):
            raise ValueError(f"`weights` must be the {expected} of `network.get_weights()`. Received: {given}")
        for index, (array, shape) in enumerate(zip(weights, self.weight_shapes, strict=True)):
            check_array(f"weights[{index}]", array, shape, hint=f", as {self.weight_names[index]} has")
        return flatten_weights(weights)

    def fits(self, network: keras.Model) -> bool:
        """Return whether the network has weights of the exported one's shapes."""
        return self.weight_shapes == tuple(tuple(weight.shape) for weight in network.weights)

    def with_weights(self, network: keras.Model) -> ExportedPolicy:
        """Return the policy of another network of the same architecture."""
        names = tuple(weight.path for weight in network.weights)
        return replace(self, weights=flatten_weights(network.get_weights()), weight_names=names)

    def spaces(self) -> Spaces:
        return Spaces.from_json(vars(self))

    @property
    def fallback(self) -> bool:
        """True if acting needs TensorFlow, because LiteRT can't express the network."""
        return "tensorflow" in (self.step_graph.format, self.value_graph.format)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write `policy.json`, the two graphs and `weights.npy`, with a manifest, as the folder `directory`.

        A previous folder is replaced as a whole, or stays as it was; see `files.write_folder_atomically`. Raises
        OSError for a disk that is full or can't be written, FileExistsError if the directory holds anything else.
        """
        write_folder_atomically(directory, self.write)

    def write(self, folder: Path) -> None:
        """Write the files of `save` into a folder that `write_folder_atomically` fills."""
        for name, content in self.contents().items():
            (folder / name).write_bytes(content)

    def contents(self) -> dict[str, bytes]:
        """Return the files of `save`, by their names."""
        description, contents = stamped(vars(self), FORMAT), {}
        del description["weights"]
        for name in _GRAPHS:
            graph: Graph = description[name]
            contents[_file_name(name, graph.format)] = graph.content
            description[name] = {key: value for key, value in asdict(graph).items() if key != "content"}
        weights = io.BytesIO()
        np.save(weights, self.weights, allow_pickle=False)
        contents[_WEIGHTS] = weights.getvalue()
        contents[_DESCRIPTION] = (json.dumps(description, indent=1) + "\n").encode()
        return contents

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> ExportedPolicy:
        """Read the folder that `save` wrote; compares each file with the manifest before it parses one.

        Raises ValueError if `directory` holds no exported policy, one of a newer version, or a damaged one.
        """
        folder = Path(directory)
        if not (folder / _DESCRIPTION).is_file():
            expected = "There is no exported policy (policy.json); a run writes it when it ends"
            raise ValueError(f"{expected}{newest_of(folder)}. Received: folder={str(folder)!r}")
        contents = read_folder(folder)
        try:
            return cls.from_contents(contents, folder)
        except NewerFormatError:
            raise
        except Exception as error:  # see system.untrusted
            reason = f"This exported policy can't be read: {one_line(error)}"
            raise DamagedError(f"{reason}. Received: folder={str(folder)!r}") from error

    @classmethod
    def from_contents(cls, contents: Mapping[str, bytes], folder: Path = Path()) -> ExportedPolicy:
        """Return the policy of the files that `contents` returned. Raises an error of any kind for others.

        folder: where the files are, for messages.
        """
        description = unstamped(folder / _DESCRIPTION, json.loads(contents[_DESCRIPTION]), FORMAT)
        Spaces.from_json(description)
        graphs = {name: _read_graph(contents, name, description[name]) for name in _GRAPHS}
        return cls(**{**_with_tuples(description), **graphs, "weights": read_array(contents[_WEIGHTS])})


def _with_tuples(description: dict[str, Any]) -> dict[str, Any]:
    """Convert lists, nested ones too, to the tuples that they were before JSON; spaces keep theirs."""

    def convert(value: Any) -> Any:
        return tuple(convert(item) for item in value) if isinstance(value, list) else value

    return {key: value if key.endswith("_space") else convert(value) for key, value in description.items()}


def _file_name(graph: str, kind: str) -> str:
    return f"{graph.removesuffix('_graph')}.{_SUFFIX[kind]}"


def _read_graph(contents: Mapping[str, bytes], name: str, description: dict[str, Any]) -> Graph:
    graph = _with_tuples(description)
    constants = tuple(Constant(**_with_tuples(constant)) for constant in graph.pop("constants"))
    content = contents[_file_name(name, graph["format"])]
    if graph["format"] == "tensorflow":
        check_graph(parse_graph(content))
    return Graph(content=content, constants=constants, **graph)


def load_graph(graph: Graph, exported: ExportedPolicy, weights: Array) -> LoadedGraph:
    """Return a graph whose weights are views on the flat vector `weights`."""
    ends = np.cumsum([math.prod(shape) for shape in exported.weight_shapes], dtype=np.int64)
    places = zip(ends, exported.weight_shapes, strict=True)
    views = [weights[end - math.prod(shape) : end].reshape(shape) for end, shape in places]
    kind = LiteRTGraph if graph.format == "litert" else TensorFlowGraph
    return kind(graph, views, exported.input_names, exported.batch_size)


class Conversion(NamedTuple):
    """A network's conversion.

    fallbacks: A sentence for each graph that LiteRT can't run, and that therefore runs on TensorFlow.
    """

    exported: ExportedPolicy
    fallbacks: list[str]


def flatten_weights(weights: Sequence[Any]) -> Array:
    """Concatenates the arrays of `network.get_weights()`, each raveled, to one float32 vector."""
    if not weights:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in weights])


def vector_of(exported: Mapping[str, ExportedPolicy], weights: Any) -> Array:
    """Return the weights of all policies as one vector: the only one's, a dict of each one's, or the vector itself.

    Raises ValueError if a policy's are missing, or if their number or a shape differs from its network's.
    """
    if ONLY_POLICY in exported:
        return exported[ONLY_POLICY].as_vector(weights)
    if isinstance(weights, np.ndarray):
        return check_array("weights", weights, (sum(own.weights.size for own in exported.values()),), dtype=np.float32)
    if not isinstance(weights, Mapping) or weights.keys() != exported.keys():
        received = list(weights) if isinstance(weights, Mapping) else type(weights).__name__
        raise ValueError(
            f"`weights` must be a dict with the weights of each policy, {list(exported)}. Received: {received}"
        )
    return np.concatenate([own.as_vector(weights[name]) for name, own in exported.items()])
