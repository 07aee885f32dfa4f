"""Operations written as others, where PyTorch's own decomposition leads to what a score program cannot say.

Each is plain PyTorch over traced tensors, in the signature of the ATen operation. Reductions inside are unrolled.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashlift.torch._internals import LIMITS_HAVE_GRADIENTS
from flashlift.torch._trace.operations.reductions import check_count

Dims = int | Sequence[int] | None


def _dims(x: Tensor, dim: Dims) -> list[int]:
    """The dimensions that an operation reduces. A scalar has none, whichever is named: torch takes 0 and -1."""
    if dim is None or dim == [] or x.dim() == 0:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _sum_of_products(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """In float32 for floats of 16 bits, as torch sums them, and in the integers' own type."""
    if x.is_floating_point():
        return (x.float() * y.float()).sum(dim).to(x.dtype)
    return (x * y).sum(dim, dtype=x.dtype)


def _matrix_product(x: Tensor, y: Tensor) -> Tensor:
    return _sum_of_products(x.unsqueeze(-1), y.unsqueeze(-3), -2)


def _matrix_vector(x: Tensor, y: Tensor) -> Tensor:
    return _sum_of_products(x, y, -1)


def _added(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def compute(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        found = product(x, y)
        if not found.is_floating_point():
            beta, alpha = int(beta), int(alpha)
        found = found if alpha == 1 else found * alpha
        return found if beta == 0 else found + (added if beta == 1 else added * beta)

    return compute


def _split_with_sizes(x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(split_sizes[:i]) for i in range(len(split_sizes))]
    return [x.narrow(dim, start, size) for start, size in zip(starts, split_sizes, strict=True)]


def _split(x: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    starts = range(0, x.shape[dim], split_size)
    return [x.narrow(dim, start, min(split_size, x.shape[dim] - start)) for start in starts]


def _chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _count(x: Tensor, dim: Dims) -> int:
    return math.prod(x.shape[one] for one in _dims(x, dim))


def _mean_of(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    return x.sum(_dims(x, dim), keepdim) / _count(x, dim)


def _mean(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    dtype = dtype or x.dtype
    return _mean_of(x.float(), dim, keepdim).to(dtype) if dtype.is_floating_point else NotImplemented


def _mean_of_numbers(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return x.nansum(dim, keepdim, dtype=dtype) / torch.logical_not(torch.isnan(x)).sum(dim, keepdim)


def _var_mean(
    x: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """All overloads: with a correction, or with `unbiased`, which may take the position of the dimensions."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    wide = x.float()
    rest = wide - _mean_of(wide, dim, True)
    over = _count(x, dim) - correction
    variance = _mean_of(rest * rest, dim, keepdim) * (_count(x, dim) / over)
    return variance.to(x.dtype), _mean_of(wide, dim, keepdim).to(x.dtype)


def _var(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _var_mean(x, *args, **kwargs)[0]


def _std_mean(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(x.float(), *args, **kwargs)
    return _root(variance).to(x.dtype), mean.to(x.dtype)


def _std(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _std_mean(x, *args, **kwargs)[0]


def _folded(of_two: Callable[..., Tensor], x: Tensor, dims: Sequence[int]) -> Tensor:
    """The minimum or maximum, where it does not matter which of equal elements have a gradient: amin and amax, which
    share it evenly, cost more."""
    for dim in _dims(x, dims):
        check_count("a minimum or maximum", x.shape[dim])
        x = functools.reduce(of_two, [x.select(dim, i) for i in range(x.shape[dim])]).unsqueeze(dim)
    return x


def _arg(of_two: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        flat, along = (x.reshape(-1), 0) if dim is None or x.dim() == 0 else (x, dim)
        places = torch.arange(flat.shape[along], device=x.device)
        places = places.reshape([-1 if i == along % flat.dim() else 1 for i in range(flat.dim())])
        is_found = (flat == _folded(of_two, flat, [along])) | torch.isnan(flat)  # NaN is an extreme, too
        found = torch.where(is_found, places, flat.shape[along])  # the first of equal ones
        return found.amin(along, keepdim and dim is not None and x.dim() > 0)

    return compute


def _extreme(of_two: Callable[..., Tensor], exceeds: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def compute(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        place = _arg(of_two)(x, dim, keepdim)
        if x.dim() == 0:
            return x, place

        def first(x: Tensor, y: Tensor) -> Tensor:  # the gradient goes to the element whose place is returned
            return torch.where(exceeds(x, y), x, of_two(x, y))

        found = _folded(first if x.is_floating_point() else of_two, x, [dim])
        return found if keepdim else found.squeeze(dim), place

    return compute


def _lerp(x: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    if x.dtype != end.dtype:
        return NotImplemented
    start, rest = x.float(), end.float() - x.float()
    near, far = start + weight * rest, end.float() - rest * (1 - weight)
    if isinstance(weight, Tensor):
        return torch.where(weight.abs() < 0.5, near, far).to(x.dtype)
    return (near if abs(weight) < 0.5 else far).to(x.dtype)


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        return NotImplemented  # the largest index is unknown
    return (x.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).to(torch.int64)


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    norms = [(one * one).sum(dim).sqrt().clamp(min=eps) for one in (x, y)]
    return (x * y).sum(dim) / (norms[0] * norms[1])


def _hypotenuse(x: Tensor, y: Tensor) -> Tensor:
    wide = x.float(), y.float()
    return (wide[0] * wide[0] + wide[1] * wide[1]).sqrt().to(torch.result_type(x, y))


def _cumulated(of_two: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Sums or products of the first elements, in float32 for floats of 16 bits and in int64 for integers, as torch
    computes them."""

    def compute(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or (x.dtype if x.is_floating_point() else torch.int64)
        wide = x.float() if dtype.is_floating_point else x.to(torch.int64)
        if x.dim() == 0:
            return wide.to(dtype)
        check_count("a cumulated sum or product", x.shape[dim])
        elements = [wide.select(dim, i).unsqueeze(dim) for i in range(x.shape[dim])]
        return torch.cat(list(itertools.accumulate(elements, of_two)), dim).to(dtype)

    return compute


def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    size = x.abs() * 1.0
    if not isinstance(y, Tensor):
        return size.copysign(torch.full((), y))
    return torch.where(torch.signbit(y), -size, size)


def _without_nan(of_two: Callable[..., Tensor], exceeds: Callable[..., Tensor]) -> Callable[..., Tensor]:
    if LIMITS_HAVE_GRADIENTS:
        return lambda x, y: torch.where(torch.isnan(y), x, torch.where(torch.isnan(x), y, of_two(x, y)))
    return lambda x, y: torch.where(exceeds(x, y) | torch.isnan(y), x, y)  # equal ones give the gradient to the first


def _root(total: Tensor) -> Tensor:
    """The square root of a sum of squares, whose gradient is 0 where all of them are 0."""
    return torch.where(total == 0, 0.0, total.sqrt())


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims: Any = _dims(x, dim)
    if ord <= 0 or ord in (1, math.inf) or _count(x, dims) == 0:
        return NotImplemented
    wide = x.float()
    if ord == 2:
        found = _root((wide * wide).sum(dims, keepdim))
    else:
        total = (wide.abs() ** ord).sum(dims, keepdim)
        found = torch.where(total == 0, 0.0, total ** (1 / ord))
    return found.to(dtype or x.dtype)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = x.float()
    grown = torch.exp(wide - _folded(torch.maximum, wide, [dim]))  # gradients through it cancel
    found = grown / grown.sum(dim, True)
    return found if half_to_float else found.to(x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = x.float()
    moved = wide - _folded(torch.maximum, wide, [dim])
    found = moved - torch.exp(moved).sum(dim, True).log()
    return found if half_to_float else found.to(x.dtype)


def _logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    dims: Any = _dims(x, dim)
    wide = x.float()
    most = _folded(torch.maximum, wide, dims)
    most = torch.where(most.abs() == math.inf, 0.0, most)
    found = torch.exp(wide - most).sum(dims, True).log() + most
    found = found if keepdim else found.squeeze(dims)
    return found.to(x.dtype) if x.is_floating_point() else found


def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    wide = x.float()
    dims = list(range(-len(normalized_shape), 0))
    factor = torch.rsqrt(_mean_of(wide * wide, dims, True) + (torch.finfo(torch.float32).eps if eps is None else eps))
    found = wide * factor if weight is None else wide * factor * weight
    return found.to(x.dtype), factor


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """By constants, in pairs from the last dimension on; a negative number crops."""
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        x = x.narrow(dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))
        for size, is_first in ((before, True), (after, False)):
            if size > 0:
                end = torch.full((*x.shape[:dim], size, *x.shape[dim + 1 :]), value, dtype=x.dtype, device=x.device)
                x = torch.cat([end, x] if is_first else [x, end], dim)
    return x


def _hardsigmoid(x: Tensor) -> Tensor:
    return torch.nn.functional.relu6(x + 3) / 6


def _hardswish(x: Tensor) -> Tensor:
    return x * torch.nn.functional.relu6(x + 3) / 6


def _times_log(log: Callable[[Tensor], Tensor], lowest: float) -> Callable[..., Tensor]:
    """x times the logarithm, and 0 where x is 0. Only where the logarithm is not finite does x have no gradient."""

    def compute(x: Tensor | float, y: Tensor | float) -> Tensor:
        y = y if isinstance(y, Tensor) else torch.full((), y, dtype=torch.float32)
        is_zero = (x == 0) & ((y <= lowest) | (y == math.inf))
        return torch.where(is_zero, 0.0, x * log(y))

    return compute


def _take(x: Tensor, index: Tensor) -> Tensor:
    return _index(x.reshape(-1), [index])


def _embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, *_: Any, **__: Any) -> Tensor:
    found = _index(weight, [indices])
    if padding_idx < 0:
        return found
    return torch.where((indices == padding_idx).unsqueeze(-1), found.detach(), found)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return _index(x, [*[None] * (dim % max(x.dim(), 1)), index.reshape(-1)])


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if x.dim() == 0 or index.dim() == 0:
        return NotImplemented
    places = [
        torch.arange(size, device=x.device).reshape([-1 if i == place else 1 for i in range(x.dim())])
        for place, size in enumerate(index.shape)
    ]
    places[dim % x.dim()] = index
    return _index(x, places)


def _take_along_dim(x: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    """Not PyTorch's own decomposition, which refuses coordinates of int32."""
    if dim is None:
        return torch.gather(x.reshape(-1), 0, index.reshape(-1))
    others = [[1 if i == dim % x.dim() else size for i, size in enumerate(one.shape)] for one in (x, index)]
    common = torch.broadcast_shapes(*others)
    x, index = (one.expand([-1 if i == dim % x.dim() else n for i, n in enumerate(common)]) for one in (x, index))
    return torch.gather(x, dim, index)


def _roll(x: Tensor, shifts: int | Sequence[int], dims: Dims = ()) -> Tensor:
    if x.numel() == 0 or x.dim() == 0:
        return x.clone()
    shifts = [shifts] if isinstance(shifts, int) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        return _roll(x.reshape(-1), shifts, 0).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        first = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, first, x.shape[dim] - first), x.narrow(dim, 0, first)], dim)
    return x


_index = torch.ops.aten.index.Tensor

COMPOSITES: dict[str, Callable] = {
    "aten::mm": _matrix_product,
    "aten::bmm": _matrix_product,
    "aten::mv": _matrix_vector,
    "aten::addmm": _added(_matrix_product),
    "aten::baddbmm": _added(_matrix_product),
    "aten::addmv": _added(_matrix_vector),
    "aten::split": _split,
    "aten::split_with_sizes": _split_with_sizes,
    "aten::chunk": _chunk,
    "aten::mean": _mean,
    "aten::nanmean": _mean_of_numbers,
    "aten::var": _var,
    "aten::std": _std,
    "aten::var_mean": _var_mean,
    "aten::std_mean": _std_mean,
    "aten::argmax": _arg(torch.maximum),
    "aten::argmin": _arg(torch.minimum),
    "aten::max": _extreme(torch.maximum, torch.ge),
    "aten::min": _extreme(torch.minimum, torch.le),
    "aten::one_hot": _one_hot,
    "aten::cosine_similarity": _cosine_similarity,
    "aten::take": _take,
    "aten::embedding": _embedding,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::take_along_dim": _take_along_dim,
    "aten::roll": _roll,
    "aten::cumsum": _cumulated(operator.add),
    "aten::cumprod": _cumulated(operator.mul),
    "aten::lerp": _lerp,
    "aten::hypot": _hypotenuse,
    "aten::copysign": _copysign,
    "aten::fmax": _without_nan(torch.maximum, torch.ge),
    "aten::fmin": _without_nan(torch.minimum, torch.le),
    "aten::linalg_vector_norm": _vector_norm,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _log_softmax,
    "aten::logsumexp": _logsumexp,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::constant_pad_nd": _pad,
    "aten::trace": lambda x: x.diagonal().sum(),
    "aten::hardsigmoid": _hardsigmoid,
    "aten::hardswish": _hardswish,
    "aten::xlogy": _times_log(torch.log, 0.0),
    "aten::special_xlog1py": _times_log(torch.log1p, -1.0),
}
