"""All weights of a network in one copy from the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def vector_reader(variables: Sequence[keras.Variable]) -> Callable[[], np.ndarray[Any, Any]]:
    """Return a function that reads variables as one new float32 vector, each raveled, in their order.

    One by one they take 25 microseconds each. The function is traced here, on the present device.
    """

    def side_by_side() -> Any:
        vectors = [tf.cast(tf.reshape(variable.value, (-1,)), tf.float32) for variable in variables]
        return tf.concat(vectors, axis=0)

    read = tf.function(side_by_side, autograph=False).get_concrete_function()
    return lambda: read().numpy()
