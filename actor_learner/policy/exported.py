"""What an actor needs of a network, as bytes, arrays and JSON; saved and read without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.networks.untrusted import check_graph
from actor_learner.policy.graph import Constant, Graph
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import DamagedError, one_line, read_array, read_folder, write_folder_atomically

Array = np.ndarray[Any, Any]

_VERSION = 2
_SUFFIX = {"litert": "tflite", "tensorflow": "pb"}
_DESCRIPTION, _WEIGHTS = "policy.json", "weights.npy"


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

    def as_vector(self, weights: Sequence[Any] | Array) -> Array:
        """Return the arrays of `network.get_weights()`, or a vector of them, as one float32 vector.

        Raises ValueError if their number or a shape differs from the network's.
        """
        shapes, names = self.weight_shapes, self.weight_names
        if isinstance(weights, np.ndarray):
            if weights.shape != self.weights.shape:
                raise ValueError(f"`weights` must have shape {self.weights.shape}. Received: shape={weights.shape}")
            return weights.astype(np.float32, copy=False)
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
        return flatten_weights(weights)

    def spaces(self) -> Spaces:
        """Return both spaces, built from their descriptions."""
        return Spaces.from_json(vars(self))

    @property
    def fallback(self) -> bool:
        """Whether acting needs TensorFlow, because LiteRT can't express the network."""
        return "tensorflow" in (self.step_graph.format, self.value_graph.format)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `policy.json`, the two graphs and `weights.npy`, with a manifest of them, as the folder `directory`.

        It is replaced as a whole, or stays as it was; see `files.write_folder_atomically`.

        Raises:
            OSError: the disk is full or can't be written.
            FileExistsError: the directory holds something that `save` didn't write.
        """
        write_folder_atomically(directory, self.write)

    def write(self, folder: Path) -> None:
        """`save` into a folder that is being filled, for `write_folder_atomically`."""
        for name in ("step", "value"):
            graph = self._graph(name)
            (folder / _file_name(name, graph.format)).write_bytes(graph.content)
        with (folder / _WEIGHTS).open("wb") as stream:
            np.save(stream, self.weights, allow_pickle=False)
        text = json.dumps(self._description(), indent=1) + "\n"
        (folder / _DESCRIPTION).write_text(text, encoding="utf-8")

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
        """Reads what `save` wrote: each file is compared with the manifest before anything looks inside.

        Raises ValueError if `directory` holds no exported policy, one of another version, or one that was damaged.
        """
        folder = Path(directory)
        if not (folder / _DESCRIPTION).is_file():
            raise ValueError(
                "There is no exported policy (policy.json); a run writes it when it ends. "
                f"Received: folder={str(folder)!r}"
            )
        contents = read_folder(folder)
        try:
            return cls._parse(contents)
        except Exception as error:  # a folder of a stranger may hold anything
            raise DamagedError(
                f"This exported policy can't be read: {one_line(error)}. Received: folder={str(folder)!r}"
            ) from error

    @classmethod
    def _parse(cls, contents: Mapping[str, bytes]) -> ExportedPolicy:
        description = json.loads(contents[_DESCRIPTION])
        if (version := description.pop("version", None)) != _VERSION:
            raise ValueError(f"it was written by another version ({version!r}); export it again")
        Spaces.from_json(description)
        graphs = {f"{name}_graph": _read_graph(contents, name, description) for name in ("step", "value")}
        return cls(**{**_with_tuples(description), **graphs, "weights": read_array(contents[_WEIGHTS])})


_IN_FILES_OF_THEIR_OWN = ("step_graph", "value_graph", "weights")


def _with_tuples(description: dict[str, Any]) -> dict[str, Any]:
    """JSON knows lists only; nested ones here are tuples of tuples (of shapes)."""

    def convert(value: Any) -> Any:
        return tuple(convert(item) for item in value) if isinstance(value, list) else value

    return {key: value if key.endswith("_space") else convert(value) for key, value in description.items()}


def _file_name(name: str, kind: str) -> str:
    return f"{name}.{_SUFFIX[kind]}"


def _read_graph(contents: Mapping[str, bytes], name: str, description: dict[str, Any]) -> Graph:
    graph = _with_tuples(description[f"{name}_graph"])
    constants = tuple(Constant(**_with_tuples(constant)) for constant in graph.pop("constants"))
    content = contents[_file_name(name, graph["format"])]
    if graph["format"] == "tensorflow":
        from actor_learner.policy.tensorflow_graph import parse_graph

        check_graph(parse_graph(content))
    return Graph(content=content, constants=constants, **graph)


def flatten_weights(weights: Sequence[Any]) -> Array:
    """The arrays of `network.get_weights()` as one float32 vector."""
    if not weights:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in weights])
