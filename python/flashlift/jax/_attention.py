"""One attention as a JAX operation."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from flashlift._errors import InvalidArgumentError
from flashlift.jax._register import TARGET, register

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    features: str = "",
    *,
    captures: Sequence[jax.Array] = (),
    sinks: jax.Array | None = None,
    layout: str = "bshd",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(score_mod(scale q kᵀ) where mask_mod) v as one fused kernel; differentiation is not supported yet.

    layout: how q, k, v and the result are laid out: one letter for each dimension, b batch, h heads, s length, d depth.
    features: what the problem has beyond its shapes, in the words of the problem text: "causal window=128 softcap=30",
    "score_mod(...) {...}". captures: the tensors that the programs read, in the order in which they are first
    named; sinks: f32 [q_heads, n], or [n] for all heads. Without "scale=..." the scale is 1/sqrt(head_dim).
    Returns the result, or (result, lse[batch, q_heads, q_len]) if the features ask for "lse".
    """
    register()
    if sorted(layout) != sorted("bhsd"):
        raise InvalidArgumentError(f'layout is "{layout}"; expected the letters b, h, s and d in some order')
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4 or array.dtype.name not in _TYPES:
            raise InvalidArgumentError(
                f"{name} is {array.dtype}{list(array.shape)}; expected 4 dimensions of f32, bf16 or f16"
            )
    q_sizes, k_sizes, v_sizes = (dict(zip(layout, array.shape, strict=True)) for array in (q, k, v))
    problem = (
        f"attn b{q_sizes['b']} hq{q_sizes['h']} hkv{k_sizes['h']} sq{q_sizes['s']} skv{k_sizes['s']} "
        f"dqk{q_sizes['d']} dv{v_sizes['d']} {_TYPES[q.dtype.name]} "
        + ("" if sinks is None else f"sinks={sinks.shape[-1]} ")
        + features
    )
    shape = tuple((q_sizes | {"d": v_sizes["d"]})[letter] for letter in layout)
    with_lse = "lse" in features.split("{", 1)[0].split()
    results = [jax.ShapeDtypeStruct(shape, q.dtype)]
    attributes = {f"{name}_dims": layout for name in ("q", "k", "v", "out")}
    if with_lse:
        results.append(jax.ShapeDtypeStruct(tuple(q_sizes[letter] for letter in "bhs"), jnp.float32))
        attributes["lse_dims"] = "bhs"
    call = jax.ffi.ffi_call(TARGET, results, vmap_method="sequential")
    operands = (q, k, v, *captures, *([] if sinks is None else [sinks]))
    out = call(*operands, problem=problem, **attributes)
    return tuple(out) if with_lse else out[0]
