"""A fused module as an operation of JAX, whose calls XLA splits over devices as it does those of flash_attention."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType

from flashlift._errors import UnsupportedError
from flashlift.jax._lifted import merge
from flashlift.jax._partition import is_split, needs_devices, run_partitioned
from flashlift.jax._register import BACKWARD_TARGET, TARGET
from flashlift.jax._varying import result_aval

# Allowed element types of captured tensors and other operands of a call.
_DTYPES = "float32 bfloat16 float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float64".split()


@dataclass(frozen=True, eq=False)
class FusedModule:
    name: str
    text_for: Callable[[str], tuple[str, Sequence[int]]]  # for a platform, with the arguments that it uses
    results: tuple[jax.core.ShapedArray, ...]

    def __call__(self, *arguments: Any) -> list[Any]:
        return fused_module_p.bind(*arguments, module=self)


fused_module_p = Primitive("flashlift_fused_module")
fused_module_p.multiple_results = True


@functools.partial(jax.jit, static_argnums=0)
def _run(module: FusedModule, *arguments: Any) -> list[Any]:
    return module(*arguments)


@fused_module_p.def_impl
def _run_alone(*arguments: Any, module: FusedModule) -> list[Any]:
    with jax.disable_jit(False):  # with jit disabled, _run would call itself
        return _run(module, *arguments)


@fused_module_p.def_abstract_eval
def _results(*arguments: Any, module: FusedModule) -> list[Any]:
    results = []
    for one in module.results:
        result = result_aval(one.shape, one.dtype, arguments).update(weak_type=one.weak_type)
        is_typed = AxisType.Explicit in one.sharding.mesh.axis_types
        results.append(result.update(sharding=one.sharding) if is_typed else result)
    return results


def _refuse(context: Any, *arguments: Any, module: FusedModule) -> Sequence[Any]:
    platforms = ", ".join(context.platforms or context.module_context.platforms)
    raise UnsupportedError(
        f"{module.name} is compiled for {platforms}, and Flashlift's handlers are for cpu and cuda; expected one of "
        "these, or the function without fuse()"
    )


def _lower(context: Any, *arguments: Any, module: FusedModule, platform: str) -> Sequence[Any]:
    text, kept = module.text_for(platform)
    into = context.module_context.module
    present = {_name(op) for op in into.body.operations}
    with into.context:
        taken = mlir.ir.Module.parse(text)
    name = f"fused_{module.name}"
    main = mlir.merge_mlir_modules(into, name, taken, dst_symtab=context.module_context.symbol_table)
    for op in into.body.operations if is_split(context) else ():
        if _name(op) not in present:
            for call in list(_calls(op)):
                _split(context, call)
    function = context.module_context.symbol_table[main]
    operands = [arguments[i] for i in kept]
    return mlir.ir.Operation.create(
        "func.call",
        results=list(function.type.results),
        operands=operands,
        attributes={"callee": mlir.ir.FlatSymbolRefAttr.get(main)},
    ).results


def _name(op: Any) -> str:
    return mlir.ir.StringAttr(op.attributes["sym_name"]).value


def _calls(op: Any) -> Iterator[Any]:
    """Flashlift's calls in an operation, except those in a manual computation, which already belong to one device."""
    for region in op.regions:
        for block in region.blocks:
            for one in block.operations:
                name = one.operation.name
                target = one.attributes["call_target_name"] if name == "stablehlo.custom_call" else None
                if target is not None and mlir.ir.StringAttr(target).value in (TARGET, BACKWARD_TARGET):
                    yield one
                elif name != "sdy.manual_computation":
                    yield from _calls(one)


def _split(context: Any, call: Any) -> None:
    """Replaces a call by one that XLA can split, by a rule of Flashlift."""
    # JAX writes the second one.
    name = next(one for one in ("backend_config", "mhlo.backend_config") if one in call.attributes)
    config = mlir.ir.DictAttr(call.attributes[name])
    named = [config[i] for i in range(len(config))]
    given = {one.name: mlir.ir.StringAttr(one.attr).value for one in named}
    target = mlir.ir.StringAttr(call.attributes["call_target_name"]).value
    dtypes = _dtypes()
    of_operands, of_results = (
        [jax.core.ShapedArray(tuple(one.type.shape), dtypes[str(one.type.element_type)]) for one in side]
        for side in (call.operands, call.results)
    )
    kind, shapes = merge(target, given, of_operands, of_results)
    merged = [jax.core.ShapedArray(shape, one.dtype) for shape, one in zip(shapes, of_operands, strict=True)]
    inner = context.replace(avals_in=merged, avals_out=None, tokens_out=None)
    run = functools.partial(run_partitioned, kind)
    operations = call.operation.block.operations
    with mlir.ir.InsertionPoint(call), call.location:
        operands = [_reshaped(one, shape) for one, shape in zip(call.operands, shapes, strict=True)]
        count = len(operations)
        end = operations[count - 1]
        results = mlir.flatten_ir_values(mlir.lower_fun(run, multiple_results=True)(inner, *operands))
        if operations[len(operations) - 1] != end:  # JAX before 0.10 inserts them at the end of the block
            for new in [operations[i] for i in range(count, len(operations))]:
                new.move_before(call)
        for old, one in zip(call.results, results, strict=True):
            old.replace_all_uses_with(_reshaped(one, old.type.shape))
    call.operation.erase()


def _reshaped(value: Any, shape: Sequence[int]) -> Any:
    if list(value.type.shape) == list(shape):
        return value
    to = mlir.ir.RankedTensorType.get(list(shape), value.type.element_type)
    return mlir.ir.Operation.create("stablehlo.reshape", results=[to], operands=[value]).results[0]


def _dtypes() -> dict[str, np.dtype]:
    """Dtypes by the names of MLIR's element types. Requires an active MLIR context."""
    dtypes = [jax.numpy.dtype(name) for name in _DTYPES]
    return {str(mlir.dtype_to_ir_type(one)): one for one in dtypes}


# By platform, so that JAX chooses between modules if it compiles for several platforms.
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(fused_module_p, functools.partial(_lower, platform=_platform), platform=_platform)
mlir.register_lowering(fused_module_p, _refuse)

needs_devices(fused_module_p)
