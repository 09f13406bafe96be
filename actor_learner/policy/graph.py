"""a graph as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
