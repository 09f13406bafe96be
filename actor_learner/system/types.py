"""Names of types that the whole package uses."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensor = Any
"""A tensor of Keras's backend; neither TensorFlow nor JAX is imported for its type."""
Nest = Any
"""Dicts and tuples of arrays or tensors, inside each other."""
Leaves = tuple[Array, ...]
"""The arrays of a nest, in the order of its structure."""
