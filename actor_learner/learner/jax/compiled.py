"""Compilation, gradients and control flow in JAX, whose programs are pure functions.

Code that assigns to Keras variables runs in a `keras.StatelessScope`, which makes it a function of their values. Every
variable that the code assigns must be in `state`: one that is left out is read as a constant.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from keras import tree

from actor_learner.learner.jax.convolutions import in_canonical_order, with_enough_channels
from actor_learner.learner.jax.devices import _local_device
from actor_learner.learner.owned import check_unchanged, report
from actor_learner.learner.packing import MAX_BYTES, Packed, arrays_of, of_arrays
from actor_learner.system.types import Nest, Tensor

Variables = Sequence[keras.Variable]
_Constants = dict[int, tuple[keras.Variable, Any]]

AXIS = "devices"
"""The axis of the mesh of devices that share an update."""


@contextlib.contextmanager
def device(name: str, count: int = 1) -> Iterator[None]:
    """Return a context in which new arrays and programs are on a device, by its resolved name.

    count: More than 1: programs are shared by so many of these devices, as `split` arrays are.
    """
    with jax.default_device(_local_device(name)):
        if count == 1:
            yield
            return
        devices = jax.devices(name[1:4].lower())[:count]
        with jax.set_mesh(jax.make_mesh((count,), (AXIS,), (AxisType.Auto,), devices=devices)):
            yield


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function: XLA compiles all of JAX."""
    return function


def device_count() -> int:
    """Return the number of devices that share an update."""
    return max(1, int(jax.sharding.get_abstract_mesh().size))  # 0 without a mesh


def _on_each_device(function: Callable[..., Tensor], arguments: Any, result: PartitionSpec) -> Callable[..., Tensor]:
    """Return a function that each device calls on its part of the arguments, without the others'."""
    if device_count() == 1:
        return function
    on_each: Callable[..., Tensor] = jax.shard_map(function, in_specs=arguments, out_specs=result)
    return on_each


def flatten(leaf: Tensor, rows: int | None = None) -> Tensor:
    """`[T, B, ...]` -> `[T x B, ...]`, or the first `rows` of these; of each device's part."""

    def flat(leaf: Tensor) -> Tensor:
        return jnp.reshape(leaf, (-1, *leaf.shape[2:]))[:rows]

    return _on_each_device(flat, PartitionSpec(None, AXIS), PartitionSpec(AXIS))(leaf)


def unflatten(leaf: Tensor, steps: int) -> Tensor:
    """`[T x B, ...]` -> `[T, B, ...]`; of each device's part."""

    def apart(leaf: Tensor) -> Tensor:
        return jnp.reshape(leaf, (steps, -1, *leaf.shape[1:]))

    return _on_each_device(apart, PartitionSpec(AXIS), PartitionSpec(None, AXIS))(leaf)


def gather(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows of an index `[M]`, all of which exist; of each device's part."""

    def of_part(rows: Tensor, index: Tensor) -> Tensor:
        return rows.at[index].get(mode="promise_in_bounds")

    return _on_each_device(of_part, (PartitionSpec(AXIS), PartitionSpec(AXIS)), PartitionSpec(AXIS))(rows, index)


def half_square_sum(vector: Tensor) -> Tensor:
    return 0.5 * jnp.sum(jnp.square(vector))


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the square root of the sum of all squares, in float32."""
    return jnp.sqrt(2.0 * sum(half_square_sum(tensor.astype(jnp.float32)) for tensor in tensors))


class _Begun(NamedTuple):
    """What a program returns: the new values of its variables, and the result. before: The variables' values then."""

    before: list[Tensor]
    vectors: dict[str, Tensor]
    values: list[Tensor]
    result: Any


class Compiled:
    """A function of tensors as one program, compiled once for each shape of its arguments.

    function: Assigns to variables of `state` only. with_xla: Without effect: XLA compiles all of JAX. tf32: Whether
    GPUs compute products of float32 in TF32. complete: Whether `state` must hold all variables that the function uses,
    too.
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
        self._constants: _Constants = {}
        self._complete = complete
        self.with_xla = with_xla
        self._tf32 = tf32
        self._state = _SideBySide(state)
        self._function = function
        self._lowered: dict[Any, Any] = {}
        self._programs: dict[Any, Any] = {}

    def trace(self, *arguments: Nest | Packed) -> Any:
        """Return the graph for arguments of these shapes."""
        arrays, shapes = arrays_of(arguments)
        return self._trace(shapes, arrays, arguments)

    def _trace(self, shapes: Any, arrays: Sequence[Any], arguments: Sequence[Nest | Packed]) -> Any:
        if (lowered := self._lowered.get(shapes)) is None:
            scopes = _complete_scopes(self._constants) if self._complete else contextlib.nullcontext()
            with scopes, self._precision(), in_canonical_order() if _on_cpu() else with_enough_channels():
                pure = self._state.pure(of_arrays(self._function, arguments, jax.lax.bitcast_convert_type))
                lowered = jax.jit(pure, out_shardings=_placement()).lower(self._state.joined(), arrays)
                self._lowered[shapes] = lowered
        return lowered

    def _precision(self) -> Any:
        return jax.default_matmul_precision("tensorfloat32") if self._tf32 else contextlib.nullcontext()

    def __call__(self, *arguments: Nest | Packed) -> Any:
        """Return what the function returns. It may read NumPy arrays where they are, until it returns."""
        return self.finish(self.begin(*arguments))

    def begin(self, *arguments: Nest | Packed) -> _Begun:
        """Have the device compute the function. Nothing is assigned until `finish`."""
        self._check_constants()
        arrays, shapes = arrays_of(arguments)
        program: Any = self._programs.get(shapes)
        if jax.config.jax_disable_jit:
            program = self._state.pure(of_arrays(self._function, arguments, jax.lax.bitcast_convert_type))
            arrays = [jnp.asarray(array) for array in arrays]
        elif program is None:
            program = self._programs[shapes] = self._trace(shapes, arrays, arguments).compile(_compiler_options())
        before = self._state.values
        with self._precision():  # which a program has already, but not the function in Python
            vectors, values, result = program(self._state.joined(), arrays)
        if not _on_cpu():
            for leaf in jax.tree.leaves(result):
                leaf.copy_to_host_async()  # asked for when the result is ready, a copy takes 0.1 ms longer
        return _Begun(before, vectors, values, result)

    def _check_constants(self) -> None:
        for key, (variable, value) in self._constants.items():
            if variable._value is not value:
                check_unchanged(variable.path, value, variable._value)
                self._constants[key] = variable, variable._value

    def fits(self, begun: _Begun) -> bool:
        """Return whether no variable was assigned to since `begin`."""
        self._check_constants()
        return not any(map(operator.is_not, begun.before, self._state.values))

    def finish(self, begun: _Begun, meanwhile: Callable[[], object] = bool) -> Any:
        """Return what the function returns.

        meanwhile: Called while the device computes; it sees the variables' new values, and may have the device go on.
        """
        self._state.assign(begun.vectors, begun.values)
        try:
            meanwhile()
            jax.block_until_ready(begun.result)
        except BaseException:  # memory may run out only now; then the variables keep their values
            self._state.put_back(begun.before)
            raise
        return begun.result


def eagerly(on: bool) -> Any:
    """Return a context in which compiled functions run in Python, so that a breakpoint in one sees numbers."""
    return jax.disable_jit(on or jax.config.jax_disable_jit)


def _compiler_options() -> dict[str, bool]:
    """Return XLA's options: on a GPU, cuBLAS computes products of matrices unless `XLA_FLAGS` says otherwise.

    XLA's search for the fastest Triton kernels can wait for itself forever where it has fewer threads than there are
    cores (JAX 0.11.2, on an H200 with 16 cores). They are faster for small minibatches only.
    """
    named = "xla_gpu_enable_triton_gemm"
    return {} if _on_cpu() or named in os.environ.get("XLA_FLAGS", "") else {named: False}


def _on_cpu() -> bool:
    return bool((jax.config.jax_default_device or jax.devices()[0]).platform == "cpu")


class _SideBySide:
    """Variables whose small values a program takes side by side, one vector for each dtype: each array takes its time.

    Large values stay alone: in a vector, they would be on the device twice. A variable that was assigned to since is
    known by its value, which is another object.
    """

    def __init__(self, variables: Variables) -> None:
        self._variables = list(variables)
        self._large = [each._value.nbytes > MAX_BYTES for each in self._variables]
        self._vectors: dict[str, Tensor] = {}
        self._alone: list[Tensor] = []
        self._values: list[Tensor] = []
        self._join: Any = None

    @property
    def values(self) -> list[Tensor]:
        return [variable._value for variable in self._variables]  # `value` takes 1.5 microseconds each

    def joined(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the vectors of the variables' present values, and those that are alone."""
        values = self.values
        if len(self._values) != len(values) or any(map(operator.is_not, values, self._values)):
            everywhere = _placement()
            placed = values if everywhere is None else jax.device_put(values, everywhere)
            if self._join is None:
                self._join = jax.jit(_join, out_shardings=everywhere)
            self._vectors, self._alone = self._join(self._those(placed, large=False)), self._those(placed, large=True)
            self._values = values
        return self._vectors, self._alone

    def assign(self, vectors: dict[str, Tensor], values: list[Tensor]) -> None:
        """Assign new values, which are those of these vectors."""
        self.put_back(values)
        self._vectors, self._alone, self._values = vectors, self._those(values, large=True), values

    def put_back(self, values: Sequence[Tensor]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable._direct_assign(value)

    def pure(self, function: Callable[[Sequence[Tensor]], Any]) -> Callable[..., Any]:
        """Return `function(arrays)` as a function of the vectors too: (the new ones, their values, its result)."""
        pure = _pure(function, self._variables)

        def of_joined(joined: tuple[dict[str, Tensor], list[Tensor]], arrays: Sequence[Tensor]) -> Any:
            vectors, alone = joined
            like = self._those([each._value for each in self._variables], large=False)
            small, large = iter(_cut(vectors, like)), iter(alone)
            values, result = pure([next(large if is_large else small) for is_large in self._large], arrays)
            return _join(self._those(values, large=False)), values, result

        return of_joined

    def _those(self, each: Sequence[Any], *, large: bool) -> list[Any]:
        """Return those that belong to large variables, or the others."""
        return [one for one, is_large in zip(each, self._large, strict=True) if is_large == large]


def _join(values: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return all values of each dtype, raveled, one after another."""
    of_dtype: dict[str, list[Tensor]] = defaultdict(list)
    for value in values:
        of_dtype[value.dtype.name].append(jnp.ravel(value))
    return {dtype: jnp.concatenate(parts) for dtype, parts in of_dtype.items()}


def _cut(vectors: dict[str, Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the values, of these shapes and dtypes, that were joined into vectors."""
    first: dict[str, int] = defaultdict(int)
    values = []
    for value in like:
        dtype, start = value.dtype.name, first[value.dtype.name]
        first[dtype] = end = start + value.size
        values.append(jnp.reshape(vectors[dtype][start:end], value.shape))
    return values


def values_of(variables: Variables) -> list[Tensor]:
    """Return the values of variables at this place in a graph."""
    return [variable.value for variable in variables]


def _assign(variables: Variables, values: Sequence[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _pure(function: Callable[..., Any], state: Variables) -> Callable[..., Any]:
    """Return `function(*arguments)` as a function of the values of `state` too: (their new values, its result)."""

    def pure(values: Sequence[Tensor], *arguments: Nest) -> Any:
        with _scope(state, values) as scope:
            result = function(*arguments)
        return [scope.get_current_value(variable) for variable in state], result

    return pure


def _scope(variables: Variables, values: Sequence[Tensor]) -> Any:
    mapping = list(zip(variables, values, strict=True))
    kind = _CompleteScope if _CompleteScope.constants is not None and mapping else keras.StatelessScope
    return kind(mapping, collect_losses=True, initialize_variables=False)


class _CompleteScope(keras.StatelessScope):  # type: ignore[misc]
    """Reports the variables that are used in it and that it has no value of, and keeps the values that are read."""

    constants: _Constants | None = None

    def __init__(self, mapping: Any, **options: Any) -> None:
        super().__init__(mapping, **options)
        self._known = {id(variable) for variable, _ in mapping}

    def get_current_value(self, variable: keras.Variable) -> Any:
        if id(variable) not in self._known:
            report(variable.path, assigned=False, trainable=variable.trainable)
            if self.constants is not None:
                self.constants.setdefault(id(variable), (variable, variable._value))
        return super().get_current_value(variable)

    def add_update(self, update: Any) -> None:
        if id(update[0]) not in self._known:
            report(update[0].path, assigned=True, trainable=False)
        super().add_update(update)


@contextlib.contextmanager
def _complete_scopes(constants: _Constants) -> Iterator[None]:
    """Let scopes be complete meanwhile."""
    before, _CompleteScope.constants = _CompleteScope.constants, constants
    try:
        yield
    finally:
        _CompleteScope.constants = before


def _placement(*axes: str | None) -> Any:
    """Return the placement of arrays on the devices that share an update, None with one device.

    axes: The mesh axis that an array's first axes are split over; every device holds the whole of the others.
    """
    if device_count() == 1:
        return None
    return NamedSharding(jax.sharding.get_mesh(), PartitionSpec(*axes))


def to_device(arrays: Nest, split: int | None = None) -> Nest:
    """Copy each array to the current device. Numbers of 64 bits become those of 32.

    split: The axis that several devices share; None: each of them gets the whole.
    """
    if device_count() == 1:
        return tree.map_structure(jnp.asarray, arrays)
    return jax.device_put(arrays, _placement() if split is None else _placement(*(None,) * split, AXIS))


def device_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype that an array of this dtype has on the device: numbers of 64 bits become those of 32."""
    canonical: np.dtype[Any] = jax.dtypes.canonicalize_dtype(dtype)
    return canonical


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor to the host."""
    return np.asarray(tensor)


def from_bytes(data: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Return the numbers `[N, ...]` of a dtype whose bytes are `data`, `[N, size]` uint8; 32 bits of integers of 64."""
    if dtype.itemsize < 8:
        return data.view(dtype)
    return data.view(np.uint32)[:, ::2].view(f"{dtype.kind}4")


def gradients(
    loss: Callable[[], tuple[Tensor, Any]], variables: Variables, state: Variables
) -> tuple[list[Tensor | None], Any]:
    """Return the gradients of the first thing that `loss` returns, None where there is none, and the second thing."""
    trained = {id(variable) for variable in variables}
    rest = [variable for variable in state if id(variable) not in trained]
    held = values_of(rest)

    def pure(values: Sequence[Tensor]) -> tuple[Tensor, Any]:
        with _scope([*variables, *rest], [*values, *held]) as scope:
            value, further = loss()
        return value, (further, [scope.get_current_value(variable) for variable in rest])

    differentiate, graph = _with_graph(jax.value_and_grad(pure, has_aux=True), values_of(variables))
    (_, (further, assigned)), found = differentiate(values_of(variables))
    _assign(rest, assigned)
    zero = _constant_zeros(graph.jaxpr)[len(graph.jaxpr.outvars) - len(variables) :]
    return [None if none else gradient for gradient, none in zip(found, zero, strict=True)], further


def _with_graph(function: Callable[..., Any], *arguments: Nest) -> tuple[Callable[..., Any], Any]:
    """Return what runs a pure function's graph, for arguments like these, and the graph; without jit, the function."""
    with jax.disable_jit(False):
        graph, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if jax.config.jax_disable_jit:
        return function, graph

    def run(*arguments: Nest) -> Any:
        results = core.jaxpr_as_fun(graph)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run, graph


def _constant_zeros(graph: Any) -> list[bool]:
    """Return for each output of a graph whether it is zeros, as a gradient is where the loss doesn't depend on it."""
    zeros = {
        id(equation.outvars[0])
        for equation in graph.eqns
        if equation.primitive.name == "broadcast_in_dim" and _is_zero(equation.invars[0])
    }
    return [id(output) in zeros or _is_zero(output) for output in graph.outvars]


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, core.Literal) and bool(np.all(atom.val == 0))


def while_loop(
    goes_on: Callable[..., Tensor], body: Callable[..., Any], carry: tuple[Tensor, ...], state: Variables
) -> Any:
    """Return the last of `carry = body(*carry)`, repeated while `goes_on(*carry)`."""
    step = _pure(body, state)
    values, carry = jax.lax.while_loop(
        lambda both: goes_on(*both[1]), lambda both: step(both[0], *both[1]), (values_of(state), carry)
    )
    _assign(state, values)
    return carry


def repeat(
    count: Tensor, limit: int, body: Callable[..., Any], carry: tuple[Tensor, ...], state: Variables
) -> tuple[Tensor, ...]:
    """Return the last of `carry = body(index, *carry)`, for each index below `count`, which is `limit` at most.

    A GPU waits for the host at each step of a loop unless it knows their number. There, the steps that are left out are
    computed and thrown away.
    """
    step = _pure(body, state)
    if _on_cpu():
        first = (jnp.int32(0), (values_of(state), carry))
        _, (values, carry) = jax.lax.while_loop(
            lambda at: at[0] < count, lambda at: (at[0] + 1, step(at[1][0], at[0], *at[1][1])), first
        )
    else:

        def step_if_below(index: Tensor, before: Any) -> Any:
            after = step(before[0], index, *before[1])
            return jax.tree.map(lambda new, old: jnp.where(index < count, new, old), after, before)

        values, carry = jax.lax.fori_loop(0, limit, step_if_below, (values_of(state), carry))
    _assign(state, values)
    return carry


def scan(body: Callable[[Nest, Nest], tuple[Nest, Nest]], state: Nest, inputs: Nest) -> tuple[Nest, Nest]:
    """Return the last state and the outputs `[T, ...]` of `state, output = body(state, inputs[t])` for each step t."""
    found: tuple[Nest, Nest] = jax.lax.scan(body, state, inputs)
    return found


def cond(predicate: Tensor, assign: Callable[[], None], state: Variables) -> None:
    """Run `assign` where the predicate holds."""
    assigned = _pure(assign, state)
    _assign(state, jax.lax.cond(predicate, lambda values: assigned(values)[0], lambda values: values, values_of(state)))


def choose(predicate: Tensor, true: Callable[[], Tensor], false: Callable[[], Tensor], state: Variables = ()) -> Tensor:
    """Return what one of two functions returns, and compute only that one."""
    if not state:
        return jax.lax.cond(predicate, true, false)
    values, result = jax.lax.cond(predicate, _pure(true, state), _pure(false, state), values_of(state))
    _assign(state, values)
    return result


def traced(function: Callable[..., Any], state: Variables, *arguments: Nest) -> Callable[..., Any]:
    """Trace `function` on tensors like the arguments, and return what takes its place for others like these."""
    run, _ = _with_graph(_pure(function, state), values_of(state), *arguments)

    def on_state(*arguments: Nest) -> Any:
        values, result = run(values_of(state), *arguments)
        _assign(state, values)
        return result

    return on_state


def map_chunks(
    function: Callable[[Tensor], tuple[Tensor, ...]], index: np.ndarray[Any, Any], state: Variables
) -> tuple[Tensor, ...]:
    """Return `function` of each row of `index [chunks, size]`, one after the other.

    function: Returns two float32 vectors `[size]`.
    """
    values, found = jax.lax.scan(_pure(function, state), values_of(state), jnp.asarray(index))
    _assign(state, values)
    result: tuple[Tensor, ...] = found
    return result


def vector_reader(variables: Variables) -> Callable[[], Tensor]:
    """Return a function that joins variables as one float32 vector, each raveled, in their order.

    It returns the same one again while no variable was assigned.
    """
    join = jax.jit(lambda values: jnp.concatenate([value.reshape(-1).astype(jnp.float32) for value in values]))
    last: list[Any] = []

    def read() -> Tensor:
        values = values_of(variables)
        if not last or any(a is not b for a, b in zip(values, last[0], strict=True)):
            last[:] = values, join(values)
        return last[1]

    return read
