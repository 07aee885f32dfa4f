"""Operations written as others, where PyTorch's own decomposition leads to what a score program cannot say.

Each is plain PyTorch over traced tensors, in the signature of the ATen operation. Reductions inside are unrolled.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Dims = int | Sequence[int] | None


def _matrix_product(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-1) * y.unsqueeze(-3)).sum(-2)


def _matrix_vector(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


def _added(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def compute(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        found = product(x, y)
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
    dims = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return math.prod(x.shape[one] for one in dims)


def _mean_of(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    dims: Any = list(range(x.dim())) if dim is None or dim == [] else dim
    return x.sum(dims, keepdim) / _count(x, dims)


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
    rest = x - _mean_of(x, dim, True)
    over = _count(x, dim) - correction
    return _mean_of(rest * rest, dim, keepdim) * (_count(x, dim) / over), _mean_of(x, dim, keepdim)


def _var(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _var_mean(x, *args, **kwargs)[0]


def _std(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _var(x, *args, **kwargs).sqrt()


def _arg(extreme: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        flat, along = (x.reshape(-1), 0) if dim is None else (x, dim)
        places = torch.arange(flat.shape[along], device=x.device)
        places = places.reshape([-1 if i == along % flat.dim() else 1 for i in range(flat.dim())])
        found = torch.where(flat == extreme(flat, along, True), places, flat.shape[along])  # the first of equal ones
        return found.amin(along, keepdim and dim is not None)

    return compute


def _extreme(extreme: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def compute(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return extreme(x, dim, keepdim), _arg(extreme)(x, dim, keepdim)

    return compute


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        return NotImplemented  # the largest index is unknown
    return (x.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).to(torch.int64)


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    norms = [(one * one).sum(dim).sqrt().clamp(min=eps) for one in (x, y)]
    return (x * y).sum(dim) / (norms[0] * norms[1])


def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    size = x.abs() * 1.0
    if not isinstance(y, Tensor):
        return size.copysign(torch.full((), y))
    return torch.where(torch.signbit(y), -size, size)


def _without_nan(extreme: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, y: torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, extreme(x, y)))


def _take(x: Tensor, index: Tensor) -> Tensor:
    return _index(x.reshape(-1), [index])


def _embedding(weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    return _index(weight, [indices])


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return _index(x, [*[None] * (dim % max(x.dim(), 1)), index.reshape(-1)])


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return _index(x, [index]) if x.dim() == 1 else NotImplemented


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
    "aten::var": _var,
    "aten::std": _std,
    "aten::var_mean": _var_mean,
    "aten::argmax": _arg(torch.amax),
    "aten::argmin": _arg(torch.amin),
    "aten::max": _extreme(torch.amax),
    "aten::min": _extreme(torch.amin),
    "aten::one_hot": _one_hot,
    "aten::cosine_similarity": _cosine_similarity,
    "aten::take": _take,
    "aten::embedding": _embedding,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::hypot": lambda x, y: (x * x + y * y).sqrt(),
    "aten::copysign": _copysign,
    "aten::fmax": _without_nan(torch.maximum),
    "aten::fmin": _without_nan(torch.minimum),
}
