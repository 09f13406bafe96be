"""Traces a function by JAX, and converts its StableHLO by litert-converter, without TensorFlow.

litert-converter has no public Python interface for this: it is used as litert-torch, by the same authors, uses it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from actor_learner.networks.step import Spec
from actor_learner.policy.export.traced import Function, InexpressibleError, Traced
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import silent_stderr
from actor_learner.system.types import Array


class JaxFunction(Traced):
    """A function of JAX, on the CPU."""

    def __init__(self, function: Function, inputs: Sequence[Spec], weights: Sequence[Spec]) -> None:
        super().__init__(inputs, weights)
        specs = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in self.arguments]
        with _on_cpu():
            program = jax.make_jaxpr(function)(*specs)
            self._lowered = jax.jit(jaxpr_as_fun(program), keep_unused=True).lower(*specs)
        self.outputs = len(program.jaxpr.outvars)
        self.set_used(_find_used(program))

    @functools.cached_property
    def _compiled(self) -> Any:
        # Compiling takes most of an export's time; the program runs a few times only.
        return self._lowered.compile(compiler_options={"xla_backend_optimization_level": 0})

    def run(self, inputs: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        with _on_cpu():
            return [np.asarray(output) for output in self._compiled(*inputs, *weights)]

    def to_flatbuffer(self, weight_inputs: Sequence[int]) -> tuple[bytes, list[str]]:
        outputs = [f"output:{place}" for place in range(self.outputs)]
        given = {place: self.arguments[place].name for place in self.input_positions(weight_inputs)}
        try:
            with silent_stderr():
                return _to_flatbuffer(self._lowered.as_text(), given, self.constants(), outputs, self.rows), outputs
        except Exception as error:
            raise InexpressibleError(f"litert-converter: {one_line(error)}") from error

    def fallback(self) -> None:
        return None


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """Lets JAX trace for the CPU and compute there. Raises InexpressibleError if JAX may not use it."""
    try:
        cpu, *_ = jax.local_devices(backend="cpu")
    except RuntimeError as error:
        raise InexpressibleError(f"JAX has no CPU to trace for ({one_line(error)})") from error
    with jax.default_device(cpu):
        yield


def _find_used(program: ClosedJaxpr) -> list[int]:
    """Return the positions of the arguments that the outputs depend on."""
    needed = {variable for variable in program.jaxpr.outvars if not isinstance(variable, Literal)}
    for equation in reversed(program.jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {variable for variable in equation.invars if not isinstance(variable, Literal)}
    return [position for position, variable in enumerate(program.jaxpr.invars) if variable in needed]


def _to_flatbuffer(
    text: str, given: dict[int, str], constants: Sequence[Array], outputs: Sequence[str], rows: int
) -> bytes:
    """Convert StableHLO whose arguments at the places `given` are inputs of these names, and the others constants."""
    from litert_converter import converter_api_ext as converter
    from litert_converter.mlir import ir, passmanager

    context = ir.Context()
    converter.prepare_mlir_context(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        main = next(operation for operation in module.body if operation.attributes["sym_name"].value == "main")
        _replace_arguments(main, {place: value for place, value in enumerate(constants) if place not in given})
        names = {"inputs": given.values(), "outputs": outputs}
        texts = {kind: ir.StringAttr.get(",".join(group)) for kind, group in names.items()}
        main.attributes["tf.entry_function"] = ir.DictAttr.get(texts)
        config = converter.ConvertToTFLConfig()
        config.model_origin_framework = "JAX"
        converter.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
        _allow_any_rows(main, rows)
        content: bytes = converter.export_flatbuffer_to_bytes(module.operation)
    return content


def _replace_arguments(main: Any, constants: dict[int, Array]) -> None:
    """Replace arguments of a function by constants."""
    from litert_converter.mlir import ir

    block = main.body.blocks[0]
    start = ir.InsertionPoint.at_block_begin(block)
    for place, value in sorted(constants.items(), reverse=True):
        argument = block.arguments[place]
        if list(argument.uses):
            attributes = {"value": ir.DenseElementsAttr.get(np.ascontiguousarray(value), type=argument.type)}
            filled = ir.Operation.create("stablehlo.constant", [argument.type], attributes=attributes, ip=start)
            argument.replace_all_uses_with(filled.result)
        block.erase_argument(place)
    if "arg_attrs" in main.attributes:  # hints for XLA, one for each argument
        del main.attributes["arg_attrs"]
    taken = [argument.type for argument in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(taken, main.type.results))


def _allow_any_rows(main: Any, rows: int) -> None:
    """Has the operations of a converted function that name the number of rows take any number.

    These are reshapes, and slices of other dimensions. The probe finds out whether the graph then resizes: a dimension
    may be of the same size by chance.
    """
    from litert_converter.mlir import ir

    for operation in [each for each in main.body.blocks[0] if each.name in ("tfl.reshape", "tfl.slice")]:
        source, *rest = operation.operands
        *begin, shape = map(_read_integers, rest)
        if shape[:1] != [rows] or ir.ShapedType(source.type).shape[:1] != [rows]:
            continue
        with ir.InsertionPoint(operation):
            if operation.name == "tfl.reshape":
                operation.operands[1] = _make_constant([-1, *shape[1:]])
            elif begin[0][:1] == [0]:
                _slice_all_rows(operation, begin[0], shape)


def _slice_all_rows(operation: Any, begin: list[int], size: list[int]) -> None:
    """Replace a slice by one that says "all rows" rather than how many these are."""
    from litert_converter.mlir import ir

    ends = [start + length for start, length in zip(begin, size, strict=True)]
    operands = [operation.operands[0], *map(_make_constant, (begin, ends, [1] * len(begin)))]
    masks = {"begin_mask": 1, "end_mask": 1, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
    number = ir.IntegerType.get_signless(32)
    attributes = {name: ir.IntegerAttr.get(number, mask) for name, mask in masks.items()}
    attributes["offset"] = ir.BoolAttr.get(False)
    sliced = ir.Operation.create("tfl.strided_slice", [operation.result.type], operands, attributes)
    operation.result.replace_all_uses_with(sliced.result)
    operation.erase()


def _make_constant(numbers: list[int]) -> Any:
    """Return a new constant tensor, at the insertion point."""
    from litert_converter.mlir import ir

    value = ir.DenseElementsAttr.get(np.array(numbers, np.int32))
    return ir.Operation.create("arith.constant", [value.type], attributes={"value": value}).result


def _read_integers(tensor: Any) -> list[int]:
    """Return the integers of a constant tensor; none for any other tensor."""
    attributes = getattr(tensor.owner, "attributes", {})
    return np.array(attributes["value"]).tolist() if "value" in attributes else []
