"""References for judging the kernels of a benchmark: attention in float64, and unfused in the inputs' own type."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from flashlift.testing import Judgement, judge

_CHUNK_SCORES = 1 << 24  # of the score plane at a time
_MOST_JUDGED = 1 << 22  # elements of a tensor: the judgement runs on the CPU


@dataclass(frozen=True)
class Reference:
    """One tensor of a result."""

    want: torch.Tensor
    eager: torch.Tensor
    magnitudes: torch.Tensor | None = None
    samples: float = 0

    def judge(self, name: str, got: torch.Tensor) -> Judgement:
        """Of a large tensor, some of its rows, spread over all heads and positions."""
        want = _some_rows(self.want)
        return judge(
            _some_rows(got.detach()),
            want,
            _some_rows(self.eager.float()),
            name=name,
            magnitudes=None if self.magnitudes is None else _some_rows(self.magnitudes),
            samples=self.samples * want.numel() / max(1, self.want.numel()),
            is_gradient=self.magnitudes is not None,
        )


def _some_rows(tensor: torch.Tensor) -> torch.Tensor:
    step = 1 + 2 * (tensor.numel() // _MOST_JUDGED)  # odd, so that it meets every row of a kernel's tiles
    return (tensor.flatten(0, -2) if tensor.dim() > 2 else tensor)[::step].cpu()


@dataclass(frozen=True)
class Attention:
    """Inputs [batch, heads, length, depth] and the mods, whose indices are arrays that broadcast over a part of the
    plane."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    scale: float | None = None
    # A tensor whose gradient is judged as well, `captured`, and the score_mod that reads it: mod_of(captured).
    captured: torch.Tensor | None = None
    mod_of: Callable | None = None

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.q.shape[3]) if self.scale is None else self.scale

    def parts(self) -> Iterator[tuple[int, int, int, slice]]:
        """(batch, head, key-value head, queries), each so small that its scores fit into memory."""
        group = self.q.shape[1] // self.k.shape[1]
        step = max(1, _CHUNK_SCORES // max(1, self.k.shape[2]))
        for b in range(self.q.shape[0]):
            for h in range(self.q.shape[1]):
                for begin in range(0, self.q.shape[2], step):
                    yield b, h, h // group, slice(begin, begin + step)

    def scores(
        self, products: torch.Tensor, b: int, h: int, rows: slice, captured: torch.Tensor | None = None
    ) -> torch.Tensor:
        """After score_mod, -inf where mask_mod masks."""
        device = products.device
        queries = torch.arange(self.q.shape[2], device=device)[rows, None]
        keys = torch.arange(self.k.shape[2], device=device)[None, :]
        at = torch.tensor(b, device=device), torch.tensor(h, device=device), queries, keys
        score_mod = self.score_mod if captured is None else self.mod_of(captured)
        scores = products if score_mod is None else score_mod(products, *at)
        return scores if self.mask_mod is None else scores.masked_fill(~self.mask_mod(*at), -math.inf)


@torch.no_grad()
def forward(attention: Attention) -> Reference:
    """The output."""
    q, v = attention.q, attention.v
    shape = (*q.shape[:3], v.shape[3])
    want = torch.empty(shape, dtype=torch.float64, device=q.device)
    eager = torch.empty(shape, dtype=q.dtype, device=q.device)
    for b, h, g, rows in attention.parts():
        one = Part(attention, b, h, g, rows, torch.float64)
        want[b, h, rows] = one.probabilities @ v[b, g].double()
        one = Part(attention, b, h, g, rows, torch.float32)
        eager[b, h, rows] = (one.rounded(one.probabilities) @ v[b, g].float()).to(q.dtype)
    return Reference(want, eager)


def backward(attention: Attention, d_out: torch.Tensor) -> dict[str, Reference]:
    """The gradients of q, k, v and the captured tensor."""
    inputs = {"d_q": attention.q, "d_k": attention.k, "d_v": attention.v}
    if attention.captured is not None:
        inputs["d_captured"] = attention.captured
    sums = [
        {name: torch.zeros(one.shape, dtype=dtype, device=one.device) for name, one in inputs.items()}
        for dtype in (torch.float64, torch.float32, torch.float32)
    ]
    want, eager, magnitudes = sums
    for part in attention.parts():
        Part(attention, *part, torch.float64).add_gradients(d_out, want)
        Part(attention, *part, torch.float32).add_gradients(d_out, eager, magnitudes)
    rows = math.prod(attention.q.shape[:3])  # all that a query's row passes on has the error of its softmax in common

    def samples(name: str, one: torch.Tensor) -> int:
        return min(rows, one.numel() if name == "d_captured" else math.prod(one.shape[:3]))

    return {
        name: Reference(want[name], eager[name].to(one.dtype), magnitudes[name].double(), samples(name, one))
        for name, one in inputs.items()
    }


class Part:
    """Some queries of a head: in float64, or in float32 with the tensors that a framework stores rounded to the inputs'
    type."""

    def __init__(self, attention: Attention, b: int, h: int, g: int, rows: slice, dtype: torch.dtype) -> None:
        self.stored = attention.q.dtype if dtype == torch.float32 else dtype
        self.at = b, h, g, rows
        self.scale = attention.factor
        self.q = attention.q[b, h, rows].to(dtype)
        self.k, self.v = attention.k[b, g].to(dtype), attention.v[b, g].to(dtype)
        products = self.rounded(self.q @ self.k.T) * self.scale
        self.slope = None  # of the scores by the products
        self.captured = None
        has_mod = attention.score_mod is not None or attention.captured is not None
        if has_mod and torch.is_grad_enabled():
            products.requires_grad_()
            if attention.captured is not None:
                self.captured = attention.captured.detach().to(dtype).requires_grad_()
            scores = attention.scores(products, b, h, rows, self.captured)
            self.kept = torch.where(scores == -math.inf, 0.0, scores)
            self.slope = torch.autograd.grad(self.kept.sum(), products, retain_graph=True)[0]
            scores = scores.detach()
        else:
            scores = attention.scores(products, b, h, rows)
        self.probabilities = torch.softmax(scores, -1).nan_to_num(0.0)

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.stored in (torch.float64, torch.float32) else tensor.to(self.stored).float()

    @torch.no_grad()
    def add_gradients(self, d_out: torch.Tensor, sums: dict, magnitudes: dict | None = None) -> None:
        b, h, g, rows = self.at
        p = self.probabilities
        d_out = d_out[b, h, rows].to(p.dtype)
        d_p = self.rounded(d_out @ self.v.T)
        d_scores = p * (d_p - (p * d_p).sum(-1, keepdim=True))
        slope = 1.0 if self.slope is None else self.slope
        d_products = self.rounded(d_scores * slope * self.scale)
        sums["d_q"][b, h, rows] += d_products @ self.k
        sums["d_k"][b, g] += d_products.T @ self.q
        sums["d_v"][b, g] += self.rounded(p).T @ d_out
        if self.captured is not None:
            sums["d_captured"] += self.captured_gradient(self.rounded(d_scores))
        if magnitudes is not None:
            terms = d_out.abs() @ self.v.abs().T
            terms = p * (terms + (p * terms).sum(-1, keepdim=True))
            if self.captured is not None:
                magnitudes["d_captured"] += self.captured_gradient(terms).abs()
            terms = (terms * slope * self.scale).abs()
            magnitudes["d_q"][b, h, rows] += terms @ self.k.abs()
            magnitudes["d_k"][b, g] += terms.T @ self.q.abs()
            magnitudes["d_v"][b, g] += p.T @ d_out.abs()

    def captured_gradient(self, d_scores: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.kept, self.captured, d_scores, retain_graph=True)[0]


def complaints(results: dict[str, dict[str, torch.Tensor]], references: dict[str, Reference]) -> list[str]:
    """The errors in the results of a case: for each kernel, its tensors by the names of the references."""
    wrong = []
    for kernel, tensors in results.items():
        for name, reference in references.items():
            judgement = reference.judge(name, tensors[name])
            if not judgement.ok:
                wrong.append(f"WRONG: {kernel}: {judgement.reason}")
    return wrong


class Verdict:
    """The verdict of a whole run: prints the errors, and turns them into the exit code."""

    def __init__(self) -> None:
        self.wrong = 0

    def add(self, found: list[str]) -> None:
        self.wrong += len(found)
        for line in found:
            print(f"  {line}", file=sys.stderr, flush=True)

    def exit_code(self) -> int:
        if self.wrong:
            print(f"{self.wrong} results are wrong: figures of these kernels are worth nothing", file=sys.stderr)
        return int(self.wrong > 0)
