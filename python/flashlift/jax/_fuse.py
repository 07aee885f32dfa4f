"""JAX functions with their attention found and fused.

A function is exported to StableHLO for the shapes of its arguments, and the text is fused. The result replaces the
original in the exported function. JAX then calls it, inlines it into other jitted functions, batches and differentiates
it (the batched function and the gradient are fused anew).
"""

import functools
import inspect
import itertools
import math
import re
import threading
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from flashlift import stablehlo
from flashlift._errors import FlashliftError, InvalidArgumentError, UnsupportedError, counted
from flashlift.jax._arguments import check_flag, short
from flashlift.jax._constants import with_large_constants
from flashlift.jax._export import export_checks
from flashlift.jax._fused_module import FusedModule
from flashlift.jax._jet import check_no_jet
from flashlift.jax._register import register
from flashlift.jax._tangent import Tangent
from flashlift.jax._varying import vary_together


def _settings() -> Any:
    """What determines the result of a trace besides its arguments, as far as it has public names."""
    config: Any = jax.config
    return jax.sharding.get_abstract_mesh(), config.jax_enable_x64, config.jax_default_matmul_precision


try:
    # Mesh, named axes and settings: the part of jax.jit's key that is not about arguments. It has no public name.
    from jax._src.config import trace_context as _trace_context
except ImportError:
    _trace_context = _settings

# Reports should show locations in the user's code, not in this file.
source_info_util.register_exclusion(__file__)


@dataclass(frozen=True)
class Report:
    """What was found in a function for one set of shapes."""

    candidates: tuple[stablehlo.Candidate, ...]
    """Every place that looked like attention, fused or not, in the order of the module."""
    reason: str
    """Why the function runs as it was; empty if something was fused."""
    original: str
    """The module's text before; empty if the function could not be exported."""
    module: str
    """The module's text that runs."""

    @property
    def fused_count(self) -> int:
        return sum(candidate.fused for candidate in self.candidates)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of the fused candidates, each as one line of text."""
        return tuple(candidate.problem for candidate in self.candidates if candidate.fused)

    def __str__(self) -> str:
        lines = [f"{self.fused_count} of {len(self.candidates)} candidates fused"]
        if self.reason:
            lines[0] += f"; the function runs as it was: {self.reason}"
        for candidate in self.candidates:
            lines.append(f"  {'fused' if candidate.fused else 'left alone'}: {candidate.location}: {candidate.reason}")
            if candidate.fused:
                lines.append(f"    {candidate.problem}")
        return "\n".join(lines)


class FusedFunction:
    """A function whose attention is fused separately for each set of shapes; the result of fuse()."""

    def __init__(
        self, function: Callable, static_argnums: Sequence[int], static_argnames: Sequence[str], strict: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._static_argnums, self._static_argnames = _static_arguments(function, static_argnums, static_argnames)
        self._strict = strict
        self._lock = threading.RLock()  # the function may call itself
        self._prepared: dict[Hashable, tuple[Callable, Report]] = {}
        self._latest: Report | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, call, leaves = self._prepare(args, kwargs)
        check_no_jet(leaves)
        return call(*vary_together(leaves))

    def __get__(self, instance: Any, owner: Any = None) -> Callable:
        """As a method of a class, whose object is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> tuple:
        """A copy, such as of a model that holds this function, fuses anew."""
        return FusedFunction, (self._function, self._static_argnums, self._static_argnames, self._strict)

    @property
    def report(self) -> Report:
        """What was found for the shapes of the latest call."""
        if self._latest is None:
            raise FlashliftError("the function has not been called yet, so nothing is known; call it, or use analyze()")
        return self._latest

    def analyze(self, *args: Any, **kwargs: Any) -> Report:
        """Finds and fuses attention for these arguments, or for jax.ShapeDtypeStructs in their place. Runs nothing."""
        return self._prepare(args, kwargs)[0]

    def _prepare(self, args: tuple, kwargs: dict) -> tuple[Report, Callable, list]:
        static_args = {i: args[i] for i in self._static_argnums if i < len(args)}
        static_kwargs = {name: kwargs[name] for name in self._static_argnames if name in kwargs}
        dynamic_args = tuple(value for i, value in enumerate(args) if i not in static_args)
        dynamic_kwargs = {name: value for name, value in kwargs.items() if name not in static_kwargs}
        leaves, tree = jax.tree.flatten((dynamic_args, dynamic_kwargs))
        try:
            shapes = [_shape_of(leaf) for leaf in leaves]
        except TypeError:
            _check_arrays({i: value for i, value in enumerate(args) if i not in static_args})
            _check_arrays(dynamic_kwargs)
            raise
        key = (
            tree,
            _key_of(shapes),
            # With their types, since 1, 1.0 and True are equal.
            tuple((i, type(static_args[i]), static_args[i]) for i in sorted(static_args)),
            tuple((name, type(static_kwargs[name]), static_kwargs[name]) for name in sorted(static_kwargs)),
        )
        try:
            hash(key)
        except TypeError as error:
            raise InvalidArgumentError(
                f"a static argument is of an {error}; expected one that can be hashed"
            ) from error
        with self._lock:
            if key not in self._prepared:
                flat = _on_leaves(self._function, tree, static_args, static_kwargs)
                self._prepared[key] = self._build(flat, shapes, self._strict)
            call, report = self._prepared[key]
            self._latest = report
        return report, call, leaves

    def _build(self, flat: Callable, shapes: list[jax.ShapeDtypeStruct], strict: bool) -> tuple[Callable, Report]:
        """A function of leaves, fused for these shapes, which JAX can differentiate and batch."""
        fused, report = _export_and_fuse(flat, shapes, strict)
        if report.fused_count == 0:
            return fused, report
        batches: dict[Hashable, tuple[Callable, Report, Any, list[bool]]] = {}
        derivatives: dict[tuple[int, ...], Tangent] = {}

        @custom_vmap
        def call(*leaves: Any) -> Any:
            return fused(*leaves)

        # A batch of attentions is one attention with another dimension: it is found and fused as such, not run one by
        # one.
        @call.def_vmap
        def _(_: int, batched: Sequence[bool], *leaves: Any) -> tuple[Any, Any]:
            batched_shapes = [_shape_of(leaf) for leaf in leaves]
            key = (tuple(batched), _key_of(batched_shapes))
            if key not in batches:
                over, tree, are_mapped = _over_batch(flat, batched, batched_shapes)
                batches[key] = (*self._build(over, batched_shapes, strict), tree, are_mapped)
            batched_call, self._latest, tree, are_mapped = batches[key]
            return jax.tree.unflatten(tree, batched_call(*leaves)), jax.tree.unflatten(tree, are_mapped)

        @jax.custom_jvp
        def differentiable(*leaves: Any) -> Any:
            return call(*leaves)

        @functools.partial(differentiable.defjvp, symbolic_zeros=True)
        def _(leaves: tuple, tangents: tuple) -> tuple[Any, Any]:
            wanted = tuple(i for i, one in enumerate(tangents) if not isinstance(one, SymbolicZero))
            if wanted not in derivatives:
                derivatives[wanted] = self._derivative(flat, wanted, jax.sharding.get_abstract_mesh())
            result = differentiable(*leaves)  # itself, so that a second derivative finds this rule, too
            types = [jax.typeof(one).to_tangent_aval() for one in _differentiable(result)]
            moved = iter(derivatives[wanted](leaves, [tangents[i] for i in wanted], types))
            return result, jax.tree.map(
                lambda one: next(moved) if _is_differentiable(one) else _no_tangent(one), result
            )

        return jax.jit(differentiable), report

    def _derivative(self, flat: Callable, wanted: tuple[int, ...], mesh: Any) -> Tangent:
        """With respect to the leaves of these numbers."""
        backwards: dict[Hashable, Callable] = {}

        def of_wanted(leaves: Sequence[Any]) -> Callable[..., list]:
            def function(*given: Any) -> list:
                full = list(leaves)
                for i, one in zip(wanted, given, strict=True):
                    full[i] = one
                return _differentiable(flat(*full))

            return function

        def forward(leaves: Sequence[Any], tangents: Sequence[Any]) -> list:
            return jax.jvp(of_wanted(leaves), [leaves[i] for i in wanted], list(tangents))[1]

        def backward(leaves: Sequence[Any], asked: tuple[int, ...], cotangents: Sequence[Any]) -> list:
            """Fused like any other function: its attention, forward and backward, becomes fused calls."""
            has_gradient = tuple(one is not None for one in cotangents)
            count = len(leaves)

            def gradient(*arguments: Any) -> list:
                own, given = arguments[:count], list(arguments[count:])
                used = lambda *some: list(itertools.compress(of_wanted(own)(*some), has_gradient))
                gradients = jax.vjp(used, *[own[i] for i in wanted])[1](given)
                return [gradients[i] for i in asked]

            arguments = (*leaves, *(one for one in cotangents if one is not None))
            shapes = [_shape_of(one) for one in arguments]
            key = (asked, has_gradient, _key_of(shapes))
            if key not in backwards:
                backwards[key] = self._build(functools.wraps(flat)(gradient), shapes, strict=False)[0]
            return backwards[key](*arguments)

        batches: dict[tuple[bool, ...], tuple[Tangent, list[bool]]] = {}

        def of_batch(batched: tuple[bool, ...], leaves: Sequence[Any]) -> tuple[Tangent, list[bool]]:
            if batched not in batches:
                results = functools.wraps(flat)(lambda *own: _differentiable(flat(*own)))
                over, _, are_mapped = _over_batch(results, batched, [_shape_of(leaf) for leaf in leaves])
                batches[batched] = self._derivative(over, wanted, mesh), are_mapped
            return batches[batched]

        return Tangent(flat.__name__, mesh, wanted, forward, backward, of_batch)


@overload
def fuse(
    function: Callable,
    *,
    static_argnums: int | Sequence[int] = ...,
    static_argnames: str | Sequence[str] = ...,
    strict: bool = ...,
) -> FusedFunction: ...
@overload
def fuse(
    *, static_argnums: int | Sequence[int] = ..., static_argnames: str | Sequence[str] = ..., strict: bool = ...
) -> Callable[[Callable], FusedFunction]: ...
def fuse(
    function: Callable | types.EllipsisType = ...,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    strict: bool = False,
) -> FusedFunction | Callable[[Callable], FusedFunction]:
    """Returns `function`, jitted, with the attention in it replaced by fused kernels.

    Arguments may be any pytrees of arrays; static ones are named as for jax.jit, such as the object of a method. Arrays
    that `function` reads from outside must have values: pass those of a jax.jit or jax.grad around the call as
    arguments. Each new set of shapes is exported and fused once; keep the result, since another fuse(function)
    starts anew. If nothing can be fused, the function runs unchanged, and `report` gives the reason; with strict=True
    this is an UnsupportedError.

    jax.jit, jax.vmap, jax.grad and jax.jvp of the result work. The attention in a gradient is fused, too, forward and
    backward, whether `function` is differentiated here or inside (`fuse(jax.grad(loss))`), once or, as for unfused
    functions, several times. A gradient computes the forward pass again. If you want the value, too,
    `fuse(jax.value_and_grad(loss))` computes it once, `jax.value_and_grad(fuse(loss))` twice. Forward-mode derivatives
    (jax.jvp, jax.jacfwd, jax.hessian) run as plain maths, with all scores in memory, and one warning.

    Without a function, returns a decorator: `@fuse(static_argnames="causal")`.
    """
    if function is ...:
        options: dict[str, Any] = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        return functools.partial(fuse, **options, strict=strict)
    if not callable(function):
        raise InvalidArgumentError(
            f"fuse came with an object of type {type(function).__name__}; expected a function: fuse(model)(arguments)"
        )
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if not all(isinstance(one, int) for one in numbers) or not all(isinstance(one, str) for one in names):
        raise InvalidArgumentError(
            f"static_argnums is {static_argnums!r} and static_argnames {static_argnames!r}; expected integers and names"
        )
    return FusedFunction(function, numbers, names, check_flag("strict", strict))


def _export_and_fuse(flat: Callable, shapes: list[jax.ShapeDtypeStruct], strict: bool) -> tuple[Callable, Report]:
    jitted = jax.jit(flat)
    platform = export.default_export_platform()
    try:
        if platform not in ("cpu", "cuda"):
            raise UnsupportedError(f"JAX runs on {platform}, and Flashlift's handler is for the CPU and for CUDA")
        if _is_partly_manual() and not getattr(jax.config, "jax_use_shardy_partitioner", True):
            raise UnsupportedError(
                "it is called within a shard_map over some of the mesh's axes, where GSPMD cannot compile fused "
                "modules; expected Shardy (jax_use_shardy_partitioner), or all axes of the mesh in axis_names"
            )
        of_function = jitted.trace(*shapes)
        if len(of_function.jaxpr.in_avals) > len(shapes):
            raise UnsupportedError(
                "the function reads an array that belongs to a transformation around it, such as jax.jit or jax.grad; "
                "expected such arrays among its arguments"
            )
        constants, with_constants = with_large_constants(flat.__name__, of_function.jaxpr)
        whole_function = jax.jit(with_constants) if constants else jitted
        shapes = [*map(_shape_of, constants), *shapes]
        traced = whole_function.trace(*shapes).jaxpr

        def fuse_for(platform: str) -> tuple[export.Exported, str, stablehlo.FuseResult]:
            checks = export_checks()
            exported = export.export(whole_function, platforms=[platform], disabled_checks=checks)(*shapes)
            text = exported.mlir_module()  # each call of it reads the module's bytecode and prints it anew
            # Calls are fused as for one device. FusedModule then lets XLA split them.
            whole = re.sub(r"mhlo.num_partitions = \d+", "mhlo.num_partitions = 1", text, count=1)
            return exported, text, stablehlo.fuse(whole, name=flat.__name__, gradients=True)

        exported, original, fused = fuse_for(platform)
        if exported.ordered_effects:
            raise UnsupportedError("the function has ordered effects; take what has them out of it")
        # Within shard_map, the devices are known, and no array may have a sharding of the whole mesh.
        is_manual = AxisType.Manual in _axis_types()
        mesh = _mesh_of(traced) if exported.nr_devices > 1 and not is_manual else None
    # A function that cannot be exported can still run: one with ordered effects, with custom calls without JAX's
    # guarantee, or with axes that have a name outside of it, for which JAX raises AssertionError or NameError.
    except (FlashliftError, ValueError, NotImplementedError, AssertionError, NameError) as error:
        has_both = {AxisType.Manual, AxisType.Explicit} <= _axis_types()
        # For axes of one device, it is an AssertionError without a text.
        if has_both and (isinstance(error, NotImplementedError) or not str(error)):
            error = UnsupportedError(
                "JAX exports no function of arrays that explicit axes split within a shard_map over other axes; "
                "expected all axes of the mesh in its axis_names, or others of type Auto"
            )
        elif isinstance(error, NotImplementedError) and "host_callbacks" in str(error):
            error = UnsupportedError(
                "the function calls Python (jax.debug.print, jax.pure_callback, io_callback), and JAX exports no such "
                "function; take these calls out of it, or fuse a part without them"
            )
        if strict:
            raise error
        reason = str(error) or "JAX cannot export the function: it may use the name of an axis outside of it"
        return jitted, Report((), reason, "", "")
    if fused.fused_count == 0:
        reason = "no attention was found" if not fused.candidates else "no candidate could be fused"
        report = Report(fused.candidates, reason, original, original)
        if strict:
            raise UnsupportedError(str(report))
        return jitted, report
    register()
    assert isinstance(fused.module, str), "text gives text"
    out_tree = jax.tree.structure(of_function.out_info)

    settings = _settings()

    def text_for(other: str) -> tuple[str, Sequence[int]]:
        exported_for, fused_for = exported, fused
        if other != platform:
            if _settings() != settings:
                raise UnsupportedError(
                    f"{flat.__name__} was fused for {platform} and is compiled for {other}, within another mesh or "
                    f"other settings of JAX; expected arrays on {platform}, JAX's default platform"
                )
            exported_for, _, fused_for = fuse_for(other)
        assert isinstance(fused_for.module, str), "text gives text"
        return fused_for.module, exported_for.module_kept_var_idx

    module = FusedModule(flat.__name__, functools.cache(text_for), tuple(traced.out_avals))

    def run(*leaves: Any) -> Any:
        leaves = (*constants, *leaves)
        if mesh is not None:  # no equation of the caller names the module's devices
            anywhere = [PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * jnp.ndim(one)) for one in leaves]
            shardings = [NamedSharding(mesh, one) for one in anywhere]
            leaves = tuple(map(jax.lax.with_sharding_constraint, leaves, shardings))
        return jax.tree.unflatten(out_tree, module(*leaves))

    return run, Report(fused.candidates, "", original, fused.module)


def _over_batch(
    flat: Callable, batched: Sequence[bool], shapes: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Callable, Any, list[bool]]:
    """The function of a batch of leaves, which gives a list; the tree of these results; and which of them are mapped.
    The others are those of a single call: jax.vmap's out_axes may be None for these."""
    axes = tuple(0 if is_batched else None for is_batched in batched)
    tree: Any = None
    are_mapped: list[bool] = []

    def noted(number: int, result: Any) -> Any:
        @custom_vmap
        def same(one: Any) -> Any:
            return one

        @same.def_vmap
        def _(_: int, is_mapped: Sequence[bool], one: Any) -> tuple[Any, bool]:
            are_mapped[number] = is_mapped[0]
            return one, is_mapped[0]

        return same(result)

    def noting(*leaves: Any) -> list[Any]:
        nonlocal tree
        results, tree = jax.tree.flatten(flat(*leaves))
        are_mapped[:] = [False] * len(results)
        return [noted(i, one) for i, one in enumerate(results)]

    jax.eval_shape(jax.vmap(noting, in_axes=axes), *shapes)
    in_a_list = lambda *leaves: jax.tree.leaves(flat(*leaves))
    over = jax.vmap(in_a_list, in_axes=axes, out_axes=[0 if is_mapped else None for is_mapped in are_mapped])
    return functools.wraps(flat)(over), tree, are_mapped


def _is_partly_manual() -> bool:
    """Whether this is within a shard_map that leaves out an axis of several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = {kind for kind, size in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if size > 1}
    return AxisType.Manual in kinds and kinds != {AxisType.Manual}


def _axis_types() -> set[AxisType]:
    return set(jax.sharding.get_abstract_mesh().axis_types)


def _mesh_of(jaxpr: Any) -> Mesh | None:
    """The mesh of devices that an equation names, if XLA splits over any of its axes."""
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(equation.params):
            mesh = value.mesh if isinstance(value, NamedSharding) else value
            if isinstance(value, Jaxpr | ClosedJaxpr):
                mesh = _mesh_of(value)
            if isinstance(mesh, Mesh) and AxisType.Auto in mesh.axis_types:
                return mesh
    return None


def _check_arrays(arguments: dict[Any, Any]) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        try:
            _shape_of(leaf)
        except TypeError as error:
            raise TypeError(  # as of jax.jit
                f"argument {jax.tree_util.keystr(path)} is {short(leaf)}; expected an array or a number: name other "
                "arguments in static_argnums or static_argnames"
            ) from error


def _shape_of(value: Any) -> jax.ShapeDtypeStruct:
    return _shape_of_type(value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value))


@functools.lru_cache(maxsize=4096)  # every call of a fused function asks for each of its leaves
def _shape_of_type(aval: Any) -> jax.ShapeDtypeStruct:
    sharding: Any = getattr(aval, "sharding", None)
    is_typed = isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding if is_typed else None
    )


def _is_differentiable(value: Any) -> bool:
    return jnp.issubdtype(jax.typeof(value).dtype, jnp.inexact)  # a result may be a number of Python


def _differentiable(values: Any) -> list[Any]:
    """The leaves that have tangents. Those of integers and keys (float0) are not numbers, and no exported function has
    them as arguments or results."""
    return [one for one in jax.tree.leaves(values) if _is_differentiable(one)]


def _no_tangent(value: Any) -> np.ndarray:
    return np.zeros(value.shape, jax.dtypes.float0)


def _key_of(shapes: Sequence[jax.ShapeDtypeStruct]) -> Hashable:
    """A key of the leaves' shapes and types, and of what else changes what a function traces to, by jax.jit's own key:
    the mesh, named axes and settings."""
    types = tuple((one.shape, one.dtype, one.weak_type, one.sharding) for one in shapes)
    return types, jax.sharding.get_abstract_mesh(), _trace_context()


def _on_leaves(function: Callable, tree: Any, static_args: dict[int, Any], static_kwargs: dict[str, Any]) -> Callable:
    """The function of the leaves of its other arguments, with the static arguments filled in."""

    def flat(*leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(tree, leaves)
        remaining = list(args)
        for i in sorted(static_args):
            remaining.insert(i, static_args[i])
        return function(*remaining, **kwargs, **static_kwargs)

    flat.__name__ = getattr(function, "__name__", "function")
    return flat


def _static_arguments(
    function: Callable, numbers: Sequence[int], names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Completes argument numbers by names and names by numbers, so that an argument is static however it is passed."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some built-in functions have no signature
        return tuple(numbers), tuple(names)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    kinds, count = {p.kind for p in parameters}, len(positional)
    for i in numbers:
        if not -count <= i < (math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else count):
            raise InvalidArgumentError(
                f"static_argnums has {i}; the function takes {counted(count, 'argument')} by position"
            )
    known = {p.name for p in parameters}
    unknown = [] if inspect.Parameter.VAR_KEYWORD in kinds else sorted(set(names) - known)
    if unknown:
        raise InvalidArgumentError(
            f"static_argnames has {', '.join(unknown)}; the function takes {', '.join(sorted(known))}"
        )
    resolved = {i + count if i < 0 else i for i in numbers}
    resolved |= {positional.index(name) for name in names if name in positional}
    all_names = set(names) | {positional[i] for i in resolved if i < len(positional)}
    return tuple(sorted(resolved)), tuple(sorted(all_names))
