"""Each ATen operation of a mod: made part of the program, or carried out at once and recorded."""

from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._internals import COMPOSITE, TorchDispatchMode, decompositions, tree_map_only, unsafe_index
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.numbers import NumberOperation
from flashlift.torch._trace.operations import COMPOSITES, translate, without_change
from flashlift.torch._trace.own_gradients import OwnGradients
from flashlift.torch._trace.recording import Recording, check_dense, flat
from flashlift.torch._trace.values import stand_in


class Dispatch(TorchDispatchMode):
    """The mode that a mod runs under."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """With True, PyTorch would wrap the dispatch, which imports TorchDynamo: two seconds in a process's first call.
        Dynamo skips frames under a mode in any case."""
        return False

    def __init__(self, recording: Recording, content_is_known: bool) -> None:
        super().__init__()
        self._recording = recording
        self._content_is_known = content_is_known
        self._open: set[Any] = set()  # operations that are being decomposed
        self._own_gradients = OwnGradients(recording, self)
        self._new: Any = None  # what torch.zeros, torch.zeros_like or the like has made latest
        self.numbers_read = 0  # how often the mod made a tensor a Python number

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        recording, kwargs = self._recording, kwargs or {}
        tensors = [one for one in flat(args, kwargs) if isinstance(one, torch.Tensor)]
        self.numbers_read += func is torch.ops.aten._local_scalar_dense.default
        if func is torch.ops.aten.lift_fresh.default:  # creates the tensor of a literal
            recording.keep(args[0])
        self._own_gradients.note(func, tensors)
        recording.note_unknown(tensors)
        if func._schema.is_mutable:
            self._own_gradients.note_all()
        is_own_scalar = func._schema.is_mutable and recording.is_own(args[0]) and not args[0].dim()
        if is_own_scalar and any(recording.is_traced(one) or recording.is_captured(one) for one in tensors):
            recording.make_traced(args[0])
        if not any(map(recording.is_traced, tensors)):
            return self._run_now(func, args, kwargs, tensors)
        if any(map(recording.is_number, tensors)):
            args, kwargs = recording.with_symbols((args, kwargs))
        # An index into tables of any size gives the same program; for other operations this is unknown.
        if not _is_indexing(func) and any(one.dim() for one in tensors):
            recording.depends_on_sizes = True
        result = self._own_gradients.follow(func, args, kwargs)
        if result is not NotImplemented:
            return result
        result = translate(recording, func, args, kwargs)
        if result is NotImplemented:
            result = self._decompose(func, args, kwargs)
        if result is NotImplemented and torch.Tag.nondeterministic_seeded in func.tags:
            raise _random_numbers(func)
        if result is NotImplemented:
            raise _no_counterpart(func, [one for one in tensors if recording.is_traced(one)])
        reads_open = any(id(one) in recording.open_sizes for one in tensors) and not self._content_is_known
        if reads_open and (not _is_indexing(func) or result.dim()):
            raise open_size_error(f" in {func}")
        if _makes_like(func):
            self._new = result
        if not torch.is_grad_enabled() and not func._schema.is_mutable:
            result = tree_map_only(torch.Tensor, recording.detached, result)
        if _gives_views(func) and recording.is_traced(args[0]):
            is_detached = not torch.is_grad_enabled() or func is torch.ops.aten.detach.default
            for one in result if isinstance(result, (list, tuple)) else [result]:
                if one is not args[0]:
                    recording.note_view(args[0], one, is_detached=is_detached)
        return result

    def note_result(self, tensor: torch.Tensor) -> None:
        """Gives the mod's result the gradient that a function of the mod defines for it."""
        self._own_gradients.note(None, [tensor])

    def _decompose(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The operation, expressed by others in PyTorch's own decomposition; NotImplemented if it has none."""
        if func in self._open:  # PyTorch's decomposition of an elementary operation may use it again
            return NotImplemented
        self._open.add(func)
        try:
            with self:
                own = COMPOSITES.get(func._schema.name)
                result = NotImplemented if own is None else own(*args, **kwargs)
                if result is NotImplemented:
                    result = func.decompose(*args, **kwargs)
                if result is NotImplemented and func in decompositions():
                    return decompositions()[func](*args, **kwargs)
                if (
                    result is NotImplemented
                    and func.namespace != "aten"
                    and func.has_kernel_for_dispatch_key(COMPOSITE)
                ):
                    return func._op_dk(COMPOSITE, *args, **kwargs)  # a user's operation, composed of others
            return result
        finally:
            self._open.discard(func)

    def _run_now(self, func: Any, args: tuple, kwargs: dict, tensors: list[torch.Tensor]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _random_numbers(func)
        recording = self._recording
        depends = list(filter(recording.is_captured, tensors))
        if depends and func._schema.is_mutable and recording.is_own(args[0]):
            return self._change_own(func, args, kwargs)
        if depends and func._schema.is_mutable:
            raise TraceError(
                f"{func} changes a captured tensor, or one that depends on captured tensors{where()}; use an operation "
                "that returns a new tensor"
            )
        # Beside a tensor that the mod makes, a number takes part as torch takes one: it wraps or rounds to its type.
        is_number = bool(depends) and all(map(recording.is_number, tensors))
        operation = func
        if is_number:
            of_numbers = NumberOperation.of(func, kwargs)
            if of_numbers is None:
                raise TraceError(f"{func} needs numbers that do not change from call to call{where()}")
            func, result = of_numbers, stand_in(of_numbers(*args))
        elif depends:
            now, now_kwargs = tree_map_only(torch.Tensor, recording.number_or_tensor, (args, kwargs))
            if any(map(recording.is_number, depends)):
                func = func.overloadpacket  # the called overload has a tensor in place of a number
            result = func(*now, **now_kwargs)
        else:
            if func._schema.is_mutable and args:
                recording.keep_content(args[0])
            result = func(*args, **kwargs)
        recording.depends_on_sizes |= any(one.dim() for one in depends)
        if depends and (
            _sizes_by_content(recording, operation, args, kwargs)
            or any(id(one) in recording.open_sizes for one in depends)
        ):
            parts = result if isinstance(result, (list, tuple)) else [result]
            recording.open_sizes.update(id(one) for one in parts if isinstance(one, torch.Tensor) and one.dim())
        if not depends:
            for one in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(one, torch.Tensor):
                    recording.keep(one)
            self._note_own(func, args, result)
            return result
        if not is_number and isinstance(result, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in result):
            func = func if torch.is_grad_enabled() else _without_gradient(func)
            recording.add_parts_to_prelude(func, args, kwargs, result)
            return result
        if isinstance(result, torch.device):  # asked for by PyTorch's own indexing while it exports a graph
            return result
        if not isinstance(result, torch.Tensor):
            for one in depends:
                check_dense(one)
            raise TraceError(
                f"{func} reads a captured tensor's content while the mod is traced{where()}; use tensor operations "
                "only, or read the number outside of the mod"
            )
        if not recording.is_captured(result):  # an operation may return its argument
            func = func if torch.is_grad_enabled() or is_number else _without_gradient(func)
            recording.add_to_prelude(func, args, kwargs, result, is_number)
            if not is_number:
                self._note_own(operation, args, result)
        return result

    def _note_own(self, func: Any, args: tuple, result: Any) -> None:
        """Notes a tensor whose memory the mod made for it alone, and one that is no longer alone, since it has a
        view."""
        if func is torch.ops.aten.lift_fresh.default or (args and args[0] is self._new):  # torch's own first steps
            self._recording.own.add(id(result))
        elif _gives_views(func):
            self._recording.own.discard(id(args[0]))
        elif isinstance(result, torch.Tensor) and not func._schema.is_mutable:
            self._recording.own.add(id(result))
        is_new = _makes_like(func) or not any(isinstance(one, torch.Tensor) for one in args)
        self._new = result if is_new else None

    def _change_own(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Replaces a table that the mod computes by what an operation in place makes of it."""
        plain = without_change(func)
        if plain is None:
            raise TraceError(f"{func} changes a tensor that depends on captured tensors{where()}; use a new tensor")
        target = args[0]
        result = plain(*args, **kwargs).to(target.dtype)
        if result.shape != target.shape:
            raise RuntimeError(
                f"{func} gives a result of shape {list(result.shape)} in place of {list(target.shape)}{where()}"
            )
        call = plain if torch.is_grad_enabled() else _without_gradient(plain)

        def change(given: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
            return call(given, *rest, **options).to(given.dtype)

        self._recording.add_to_prelude(change, args, kwargs, target, False)
        return target


def _no_counterpart(func: Any, traced: list[torch.Tensor]) -> TraceError:
    if any(one.dim() for one in traced):
        advice = (
            "call it outside of the mod, or on the captured tensor before the mod's arguments index it: "
            "table.sort(-1).values[h, i] in place of table[h].sort().values[i]"
        )
    else:
        advice = "use other operations, or a captured table of its values"
    return TraceError(f"{func} has no counterpart in score programs{where()}; {advice}")


def open_size_error(place: str) -> TraceError:
    return TraceError(
        "a mod in a compiled graph depends on a size that the content of a captured tensor determines"
        f"{place}{where()}; compute the tensor outside of the mod, and capture it"
    )


def _random_numbers(func: Any) -> TraceError:
    return TraceError(
        f"{func} draws random numbers, and a score program is a pure function{where()}; for dropout there is dropout_p="
    )


def _without_gradient(func: Callable) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return func(*args, **kwargs)

    return call


def _gives_views(func: Any) -> bool:
    """Whether the results of an operation share the memory of its first argument. Conversions return the argument
    itself, or a copy."""
    if func.overloadpacket in (torch.ops.aten.to, torch.ops.aten.type_as):
        return False
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return alias is not None and not alias.is_write


def _makes_like(func: Any) -> bool:
    """Whether an operation is torch.zeros_like or similar."""
    return func._schema.name.endswith("_like")


_SIZED_BY_CONTENT = frozenset(  # beside those that torch marks so
    (
        torch.ops.aten.nonzero_numpy.default,
        torch.ops.aten.where.default,
        torch.ops.aten.tensor_split.tensor_indices_or_sections,
        torch.ops.aten.repeat_interleave.self_Tensor,
    )
)


def _sizes_by_content(recording: Recording, func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the sizes of an operation's results depend on the content of captured tensors."""
    if _is_indexing(func):
        masks = (one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8))
        return any(map(recording.is_captured, masks))
    if func.overloadpacket is torch.ops.aten.repeat_interleave and kwargs.get("output_size") is not None:
        return False
    return func in _SIZED_BY_CONTENT or torch.Tag.dynamic_output_shape in func.tags


def _is_indexing(func: Any) -> bool:
    return func.overloadpacket in (torch.ops.aten.index, unsafe_index)
