"""What an actor needs of a network, as bytes, arrays and JSON; saved and read without pickle."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from actor_learner.saving import write_atomically

Array = np.ndarray[Any, Any]

_VERSION = 2
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

    Its inputs are those of `ExportedPolicy.input_names` that it has, and `weight_<index>` for each of `inputs`.
    """

    content: bytes
    """A LiteRT flatbuffer, or a TensorFlow GraphDef."""
    format: Literal["litert", "tensorflow"]
    outputs: tuple[str, ...]
    """Names of the output tensors. One name may stand for several: the converter joins what is equal."""
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]
    """Indices of the weights that are fed."""
    resizable: bool
    """Whether the graph is right at other batch sizes too."""


@dataclass(frozen=True)
class ExportedPolicy:
    """A network as an actor needs it; made by `export.export_policy`. Arrays, bytes and JSON only."""

    step_graph: Graph
    """observation leaves [b, ...], noise [b, U + N], mask [b, M] if `masked`
    -> action leaves [b, ...], log-prob [b], mode leaves [b, ...], parameters [b, P]"""
    value_graph: Graph
    """observation leaves [b, ...] -> value [b]"""
    weights: Array
    """The weights at export, as `Policy.set_flat_weights` takes them."""
    batch_size: int
    observation_space: dict[str, Any]
    """As `spaces.to_json` writes it."""
    action_space: dict[str, Any]
    """As `spaces.to_json` writes it."""
    distribution: str
    """Of Box leaves, which says what the environment gets: "gaussian" is clipped to the bounds, "squashed" by tanh."""
    masked: bool
    """Whether the step graph takes a mask, float32 `[b, M]`, 1 for what is allowed."""
    input_names: tuple[str, ...]
    """Of each observation leaf, the noise, and the mask if `masked`; a graph lacks those that it doesn't use."""
    noise_uniform: int
    """First columns of the noise, uniform in (0, 1]."""
    noise_normal: int
    """Columns that follow, standard-normal."""
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

    return {key: value if key.endswith("_space") else convert(value) for key, value in description.items()}


def _read_graph(folder: Path, name: str, description: dict[str, Any]) -> Graph:
    graph = _with_tuples(description[f"{name}_graph"])
    constants = tuple(Constant(**_with_tuples(constant)) for constant in graph.pop("constants"))
    content = (folder / f"{name}.{_SUFFIX[graph['format']]}").read_bytes()
    return Graph(content=content, constants=constants, **graph)


def flatten_weights(weights: Sequence[Any]) -> Array:
    """The arrays of `network.get_weights()` as one float32 vector."""
    if not weights:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in weights])
