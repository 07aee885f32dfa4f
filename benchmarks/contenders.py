"""Flashlift and its competitors, each as a function without arguments that runs one attention once."""

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a first call is to be one

import flashlift
import flashlift.jax
import golden
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@dataclass(frozen=True)
class Case:
    """One attention, [batch 1, heads, length, depth]: a sequence with itself, or few queries with many keys."""

    heads: int
    length: int
    depth: int
    dtype: str = "f32"
    kv_heads: int = 0  # 0: as many as heads
    mod: str = "full"
    queries: int = 0  # 0: as many as keys
    backward: bool = False  # the gradients of q, k and v, from the output and its gradient

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def name(self) -> str:
        heads = f"H{self.heads}" if self.groups == self.heads else f"H{self.heads}/{self.groups}"
        lengths = f"S{self.length}" if not self.queries else f"Sq{self.queries} Skv{self.length}"
        return f"{self.dtype} {heads} {lengths} D{self.depth} {self.mod}{' backward' if self.backward else ''}"

    @property
    def problem(self) -> str:
        lengths = f"sq{self.queries or self.length} skv{self.length}"
        sizes = f"attn b1 hq{self.heads} hkv{self.groups} {lengths} d{self.depth} {self.dtype}"
        saved = "out=f32 lse" if self.backward else ""  # as flashlift.torch saves for a backward
        return " ".join(f"{sizes} {saved} {MODS[self.mod].flashlift}".split())

    @property
    def flops(self) -> float:
        """Counts only scores that are kept, so that masked problems do not look faster than they are."""
        kept = float(self.queries) * self.length if self.queries else MODS[self.mod].kept(self.length)
        products = 5 if self.backward else 2
        return 2.0 * products * self.heads * self.depth * kept

    @property
    def key_value_bytes(self) -> int:
        return 2 * self.groups * self.length * self.depth * (2 if self.dtype == "bf16" else 4)


@dataclass(frozen=True)
class Mod:
    flashlift: str
    kept: Callable[[int], float]
    score_mod: Callable | None = None
    mask_mod: Callable | None = None


def _causal_pairs(length: int) -> float:
    return length * (length + 1) / 2


def _causal(b, h, q, kv):
    return kv <= q


MODS = {
    "full": Mod("", lambda n: float(n) * n),
    "causal": Mod("causal", _causal_pairs, mask_mod=_causal),
    "ALiBi": Mod(
        "alibi", lambda n: float(n) * n, score_mod=lambda s, b, h, q, kv: s + torch.exp2(-(h + 1.0)) * (kv - q)
    ),
    "softcap 30": Mod(
        "softcap=30", lambda n: float(n) * n, score_mod=lambda s, b, h, q, kv: 30.0 * torch.tanh(s / 30.0)
    ),
    "window 256": Mod(
        "window=256,0",
        lambda n: _causal_pairs(n) - _causal_pairs(max(n - 257, 0)),
        mask_mod=lambda b, h, q, kv: (kv <= q) & (q - kv <= 256),
    ),
    "4 documents": Mod(
        "documents=4", lambda n: 4 * (n / 4.0) ** 2, mask_mod=lambda b, h, q, kv: q * 4 // N == kv * 4 // N
    ),
}
N = 0  # the length, for the documents' mask_mod: flex_attention's mods take no other arguments


@dataclass(frozen=True)
class Contender:
    name: str
    run: Callable[[], object]
    planned_bytes: int
    """Temporary memory that the library says a call takes; 0 where it does not say."""
    result_bytes: int
    """Allocated in each call for the result; 0 where the caller brings its memory."""
    prepare_seconds: float
    """From nothing to the first result: compiling, building masks, the first call."""
    results: Callable[[], dict[str, torch.Tensor]]
    """What the latest run computed, by the names of the reference, [batch, heads, length, depth]."""


class Inputs:
    """The same numbers for all contenders."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(1)
        kind = ml_dtypes.bfloat16 if case.dtype == "bf16" else np.float32
        keys = (1, case.groups, case.length, case.depth)
        queries = (1, case.heads, case.queries or case.length, case.depth)
        shapes = [queries, keys, keys, queries]
        self.q, self.k, self.v, self.d_out = (
            random.normal(size=shape).astype(np.float32).astype(kind) for shape in shapes
        )

    def reference(self, case: Case) -> dict[str, golden.Reference]:
        """The results with which every contender's are compared."""
        global N
        N = case.length
        mod = MODS[case.mod]
        attention = golden.Attention(*self.torch(), mod.score_mod, mod.mask_mod)
        if case.backward:
            return golden.backward(attention, torch_tensor(self.d_out))
        return {"out": golden.forward(attention)}

    def torch(self) -> list[torch.Tensor]:
        return [torch_tensor(array) for array in (self.q, self.k, self.v)]


def torch_tensor(array: np.ndarray) -> torch.Tensor:
    kind = torch.bfloat16 if array.dtype != np.float32 else torch.float32
    return torch.tensor(array.astype(np.float32)).to(kind)


def with_flashlift(case: Case, inputs: Inputs, threads: int) -> Contender:
    out = np.empty_like(inputs.q)
    start = time.perf_counter()
    attention = flashlift.compile(case.problem)
    run = attention.bind(inputs.q, inputs.k, inputs.v, out)
    run()
    prepare = time.perf_counter() - start
    workspace = attention.workspace_bytes(threads)
    return Contender("Flashlift", run, workspace, 0, prepare, lambda: {"out": torch_tensor(out)})


def with_flashlift_backward(case: Case, inputs: Inputs, threads: int) -> Contender:
    start = time.perf_counter()
    attention = flashlift.compile(case.problem)
    out, lse = attention(inputs.q, inputs.k, inputs.v)
    gradients = [np.empty_like(array) for array in (inputs.q, inputs.k, inputs.v)]
    arrays = (inputs.q, inputs.k, inputs.v, out, inputs.d_out.astype(np.float32))
    run = attention.bind_backward(*arrays, lse=lse, d_q=gradients[0], d_k=gradients[1], d_v=gradients[2])
    run()
    prepare = time.perf_counter() - start
    workspace = attention.backward_workspace_bytes(threads)
    return Contender("Flashlift", run, workspace, 0, prepare, lambda: by_name(map(torch_tensor, gradients)))


def by_name(gradients: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(("d_q", "d_k", "d_v"), gradients, strict=True))


def with_torch_backward(case: Case, inputs: Inputs) -> Contender:
    start = time.perf_counter()
    given = [tensor.requires_grad_() for tensor in inputs.torch()]
    out = F.scaled_dot_product_attention(*given, is_causal=case.mod == "causal", enable_gqa=case.groups != case.heads)
    d_out = torch_tensor(inputs.d_out)
    latest = {}

    def run() -> None:
        latest["gradients"] = torch.autograd.grad(out, given, d_out, retain_graph=True)

    run()
    prepare = time.perf_counter() - start
    size = sum(gradient.nbytes for gradient in latest["gradients"])
    return Contender("torch SDPA", run, 0, size, prepare, lambda: by_name(latest["gradients"]))


def with_torch(case: Case, inputs: Inputs) -> Contender:
    q, k, v = inputs.torch()
    options = {"is_causal": case.mod == "causal", "enable_gqa": case.groups != case.heads}
    return torch_contender(
        "torch SDPA", lambda: F.scaled_dot_product_attention(q, k, v, **options), time.perf_counter()
    )


def with_flex(case: Case, inputs: Inputs) -> Contender:
    global N
    N = case.length
    # Past eight different mods in one process dynamo falls back to unfused maths without a word.
    torch._dynamo.reset()
    q, k, v = inputs.torch()
    start = time.perf_counter()
    compiled = torch.compile(flex_attention, dynamic=False)
    mod = MODS[case.mod]
    mask = None
    if mod.mask_mod is not None:
        mask = create_block_mask(mod.mask_mod, None, None, case.length, case.length, device="cpu")
    options = {"score_mod": mod.score_mod, "block_mask": mask, "enable_gqa": case.groups != case.heads}
    return torch_contender("flex_attention", lambda: compiled(q, k, v, **options), start)


def torch_contender(name: str, function: Callable[[], torch.Tensor], start: float) -> Contender:
    latest = {}

    def run() -> None:
        with torch.no_grad():
            latest["out"] = function()

    run()
    prepare = time.perf_counter() - start
    return Contender(name, run, 0, latest["out"].nbytes, prepare, lambda: {"out": latest["out"]})


def jax_attention(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """Attention in plain JAX, as anyone would write it: [batch, heads, length, depth]."""
    group = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(array, group, axis=1) if group > 1 else array for array in (k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        at = jnp.arange(scores.shape[-1])
        scores = jnp.where(at[None, :] <= at[:, None], scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def with_xla(case: Case, inputs: Inputs, threads: int) -> list[Contender]:
    """A module compiled by XLA alone, and the same module with its attention fused."""
    arrays = [jnp.asarray(array) for array in (inputs.q, inputs.k, inputs.v)]
    causal = case.mod == "causal"

    def function(q, k, v):
        return jax_attention(q, k, v, causal)

    fused = flashlift.jax.fuse(function, strict=True)
    problem = fused.analyze(*arrays).problems[0]
    workspace = flashlift.compile(problem).workspace_bytes(threads)
    return [
        _xla_contender("XLA:CPU", jax.jit(function), arrays, 0),
        _xla_contender("XLA:CPU, fused", jax.jit(fused), arrays, workspace),
    ]


def _xla_contender(name: str, function: Callable, arrays: list[jax.Array], workspace: int) -> Contender:
    start = time.perf_counter()
    compiled = function.lower(*arrays).compile()
    latest = {}

    def run() -> None:
        latest["out"] = compiled(*arrays).block_until_ready()

    run()
    planned = compiled.memory_analysis().temp_size_in_bytes + workspace
    prepare = time.perf_counter() - start
    size = latest["out"].nbytes
    return Contender(name, run, planned, size, prepare, lambda: {"out": torch_tensor(np.asarray(latest["out"]))})
