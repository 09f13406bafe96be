"""Compilation, gradients and control flow in TensorFlow, where a graph assigns to variables in the code's order."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from actor_learner.learner.owned import report
from actor_learner.learner.packing import Packed, arrays_of, of_arrays
from actor_learner.system import compile_cache
from actor_learner.system.types import Nest, Tensor

Variables = Sequence[keras.Variable]

gather = tf.gather
half_square_sum = tf.nn.l2_loss


def device(name: str, count: int = 1) -> Any:
    """Return a context in which new tensors and graphs are on a device, by its resolved name. count: Always 1 here."""
    return tf.device(name)


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the square root of the sum of all squares, in float32."""
    return tf.linalg.global_norm([tf.cast(tensor, tf.float32) for tensor in tensors])


class Compiled:
    """A function of tensors as one graph, traced once for each shape of its arguments.

    function: Assigns to variables of `state` only. with_xla: True: XLA compiles the graph, in the first call. The
    compiled program is kept for later runs. tf32: Whether GPUs compute products of float32 in TF32. complete: Whether
    `state` must hold all variables that the function uses, too.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        state: Variables,
        *,
        with_xla: bool,
        tf32: bool = False,
        complete: bool = False,
    ) -> None:
        self._known = {id(variable._value) for variable in state} if complete else None
        self.with_xla, self._tf32 = with_xla, tf32
        self._function = function
        self._traced: dict[Any, Any] = {}
        self._is_compiled = not with_xla

    def trace(self, *arguments: Nest | Packed) -> Any:
        """Return the graph for arguments of these shapes. TensorFlow's own lookup takes half a millisecond."""
        arrays, shapes = arrays_of(arguments)
        return self._trace(shapes, arrays, arguments)

    def _trace(self, shapes: Any, arrays: Sequence[Any], arguments: Sequence[Nest | Packed]) -> Any:
        if (traced := self._traced.get(shapes)) is None:
            if self.with_xla:
                _number_functions_anew()
            of_tensors = of_arrays(self._function, arguments, tf.bitcast)
            function = tf.function(lambda *tensors: of_tensors(tensors), jit_compile=self.with_xla, autograph=False)
            traced = function.get_concrete_function(*arrays)
            if self._known is not None:
                _report_others(traced, self._known)
            self._traced[shapes] = traced
        return traced

    def __call__(self, *arguments: Nest | Packed) -> Any:
        """Return what the function returns."""
        arrays, shapes = arrays_of(arguments)
        tensors = [tf.constant(array) if isinstance(array, np.ndarray) else array for array in arrays]
        with _in_tf32() if self._tf32 else contextlib.nullcontext():
            if tf.config.functions_run_eagerly():
                result = of_arrays(self._function, arguments, tf.bitcast)(tensors)
            else:
                traced = self._trace(shapes, arrays, arguments)
                result = traced(*tensors) if self._is_compiled else compile_cache.call(traced, *tensors)
                self._is_compiled = True
        return result

    def begin(self, *arguments: Nest | Packed) -> Any:
        """Return these arguments: `finish` computes. On JAX, the device does from now on."""
        return arguments

    def fits(self, begun: Any) -> bool:
        """Return True: the present values are those that `finish` takes."""
        return True

    def finish(self, begun: Any, meanwhile: Callable[[], object] = bool) -> Any:
        """Return what the function returns. meanwhile: Called before the result is read."""
        result = self(*begun)
        meanwhile()
        return result


@contextlib.contextmanager
def eagerly(on: bool) -> Iterator[None]:
    """Let compiled functions run in Python meanwhile, so that a breakpoint in one sees numbers."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(on or before)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _report_others(traced: Any, known: set[int]) -> None:
    """Report the variables that a graph uses beside the known ones."""
    from tensorflow.python.framework.auto_control_deps_utils import get_read_only_resource_input_indices_graph

    graph = traced.graph
    inside = {id(outside): tensor for outside, tensor in graph.captures}
    read_only = {id(graph.inputs[index]) for index in get_read_only_resource_input_indices_graph(graph)}
    for variable in traced.variables:
        if id(variable) not in known:
            assigned = id(inside.get(id(variable.handle))) not in read_only
            report(variable.name, assigned=assigned, trainable=variable.trainable and _is_trainable(variable))


def _is_trainable(variable: Any) -> bool:
    """Return whether the Keras variable that holds this one is trainable: this one doesn't follow a layer's flag."""
    found = (each for each in gc.get_objects() if issubclass(type(each), keras.Variable) and each._value is variable)
    return all(each.trainable for each in found)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that XLA compiles, in a graph that it doesn't compile, too."""
    compiled: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return compiled


@contextlib.contextmanager
def _in_tf32() -> Iterator[None]:
    """Let GPUs compute products of float32 in TF32 meanwhile, as XLA compiles them or as TensorFlow starts them."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _number_functions_anew() -> None:
    """Let the numbers in functions' names go on from the next multiple of 100,000.

    They are part of a program's name in the compile cache, and depend on what was traced before in this process, such
    as a network's conversion.
    """
    while ops.uid() % 100_000:
        pass


def device_count() -> int:
    """Return the number of devices that share an update."""
    return 1


def flatten(leaf: Tensor, rows: int | None = None) -> Tensor:
    """`[T, B, ...]` -> `[T x B, ...]`, or the first `rows` of these."""
    flat = tf.reshape(leaf, (math.prod(leaf.shape[:2]), *leaf.shape[2:]))
    return flat if rows is None else flat[:rows]


def unflatten(leaf: Tensor, steps: int) -> Tensor:
    """`[T x B, ...]` -> `[T, B, ...]`."""
    return tf.reshape(leaf, (steps, leaf.shape[0] // steps, *leaf.shape[1:]))


def to_device(arrays: Nest, split: int | None = None) -> Nest:
    """Copy each array to the current device, in its own dtype. split: The axis that several devices would share.

    Python numbers must come as NumPy's: TensorFlow keeps a tensor of each Python number, half a kilobyte apiece.
    """
    return tf.nest.map_structure(tf.constant, arrays)


def device_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype that an array of this dtype has on the device: its own."""
    own: np.dtype[Any] = np.dtype(dtype)
    return own


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor to the host. `keras.ops.convert_to_numpy` warns each time that NumPy deprecates its way."""
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def from_bytes(data: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Return the numbers `[N, ...]` of a dtype whose bytes are `data`, `[N, size]` uint8."""
    return keras.ops.view(data, dtype.name)


def values_of(variables: Variables) -> list[Tensor]:
    """Return the values of variables at this place in a graph."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def gradients(
    loss: Callable[[], tuple[Tensor, Any]], variables: Variables, state: Variables
) -> tuple[list[Tensor | None], Any]:
    """Return the gradients of the first thing that `loss` returns, None where there is none, and the second thing."""
    with tf.GradientTape() as tape:
        value, further = loss()
    return tape.gradient(value, variables), further


def while_loop(
    goes_on: Callable[..., Tensor], body: Callable[..., Any], carry: tuple[Tensor, ...], state: Variables
) -> Any:
    """Return the last of `carry = body(*carry)`, repeated while `goes_on(*carry)`."""
    return tf.while_loop(goes_on, body, carry)


def repeat(
    count: Tensor, limit: int, body: Callable[..., Any], carry: tuple[Tensor, ...], state: Variables
) -> tuple[Tensor, ...]:
    """Return the last of `carry = body(index, *carry)`, for each index below `count`, which is `limit` at most."""
    first = (tf.constant(0), *carry)
    _, *last = tf.while_loop(lambda index, *_: index < count, lambda index, *at: (index + 1, *body(index, *at)), first)
    return tuple(last)


def scan(body: Callable[[Nest, Nest], tuple[Nest, Nest]], state: Nest, inputs: Nest) -> tuple[Nest, Nest]:
    """Return the last state and the outputs `[T, ...]` of `state, output = body(state, inputs[t])` for each step t.

    The state keeps its shapes. With a bound on the number of steps, XLA can compile the gradient.
    """
    leaves = tf.nest.flatten(inputs)
    steps = leaves[0].shape[0]
    columns = [tf.TensorArray(leaf.dtype, steps, element_shape=leaf.shape[1:]).unstack(leaf) for leaf in leaves]
    _, first = body(state, tf.nest.map_structure(lambda leaf: leaf[0], inputs))  # for its shape; isn't computed
    arrays = [tf.TensorArray(leaf.dtype, steps, element_shape=leaf.shape) for leaf in tf.nest.flatten(first)]

    def step(t: Tensor, state: Nest, arrays: list[Any]) -> tuple[Tensor, Nest, list[Any]]:
        state, output = body(state, tf.nest.pack_sequence_as(inputs, [column.read(t) for column in columns]))
        return t + 1, state, [array.write(t, leaf) for array, leaf in zip(arrays, tf.nest.flatten(output), strict=True)]

    _, state, arrays = tf.while_loop(
        lambda t, *_: t < steps, step, (tf.constant(0), state, arrays), maximum_iterations=steps
    )
    stacked = [array.stack() for array in arrays]
    for whole, leaf in zip(stacked, tf.nest.flatten(first), strict=True):
        whole.set_shape((steps, *leaf.shape))
    return state, tf.nest.pack_sequence_as(first, stacked)


def cond(predicate: Tensor, assign: Callable[[], None], state: Variables) -> None:
    """Run `assign` where the predicate holds."""

    def branch() -> Tensor:
        assign()
        return tf.constant(0)

    tf.cond(predicate, branch, lambda: tf.constant(0))


def choose(predicate: Tensor, true: Callable[[], Tensor], false: Callable[[], Tensor], state: Variables = ()) -> Tensor:
    """Return what one of two functions returns, and compute only that one."""
    return tf.cond(predicate, true, false)


def traced(function: Callable[..., Any], state: Variables, *arguments: Nest) -> Callable[..., Any]:
    """Trace `function` on tensors like the arguments, and return what takes its place for others like these."""
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), arguments)
    graph = tf.function(function, autograph=False).get_concrete_function(*specs)
    return function if tf.config.functions_run_eagerly() else graph


def map_chunks(
    function: Callable[[Tensor], tuple[Tensor, ...]], index: np.ndarray[Any, Any], state: Variables
) -> tuple[Tensor, ...]:
    """Return `function` of each row of `index [chunks, size]`, one after the other.

    function: Returns two float32 vectors `[size]`.
    """
    vector = tf.TensorSpec(index.shape[1:], tf.float32)
    found: tuple[Tensor, ...] = tf.map_fn(
        function, tf.constant(index), fn_output_signature=(vector, vector), parallel_iterations=1
    )
    return found


def vector_reader(variables: Sequence[keras.Variable]) -> Callable[[], Tensor]:
    """Return a function that joins variables as one float32 vector, each raveled, in their order.

    XLA joins them, for which the first call compiles: a graph takes twice as long, and one by one they take five times
    as long. The function is traced here, on the present device.
    """

    def side_by_side() -> Any:
        vectors = [tf.cast(tf.reshape(variable.value, (-1,)), tf.float32) for variable in variables]
        return tf.concat(vectors, axis=0)

    read = Compiled(side_by_side, (), with_xla=True)
    read.trace()
    return read
