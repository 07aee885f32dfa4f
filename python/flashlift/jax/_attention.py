"""One attention as a JAX operation, with its gradient."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift._problem import Problem
from flashlift.jax._arguments import (
    as_array,
    captured_tensors,
    check_operands,
    check_sinks,
    described,
    seed_words,
    short,
)
from flashlift.jax._arguments.seeds import SeedOfPart
from flashlift.jax._call import DTYPES, Call, sizes_of
from flashlift.jax._mods import trace_mods
from flashlift.jax._primitive import attend
from flashlift.jax._sharding import placed
from flashlift.jax._varying import vary_together

_TYPES = {name: text for text, name in DTYPES.items()}
_NOT_IN_JAX = ("keep_mask", "page_size", "residual", "row_max")  # words


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    features: str = "",
    *,
    captures: Sequence[jax.Array] | Mapping[str, jax.Array] = (),
    sinks: jax.Array | None = None,
    dropout_seed: SeedOfPart | jax.Array | int | None = None,
    layout: str = "bshd",
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    implementation: str | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(score_mod(scale q kᵀ) where mask_mod) v as one fused kernel, with a second kernel for its gradients.

    layout: the order of dimensions of q, k, v and the result, one letter each: b batch, h heads, s length, d depth.
    features: the features of the problem besides its shapes, in the words of the problem text: "causal window=128
    softcap=30", "score_mod(...) {...}". Without "scale=..." the scale is 1/sqrt(head_dim).
    captures: the tensors that the programs read, by name, or in the order in which the programs first name them, with
        the types and shapes that the features declare.
    sinks: [q_heads, n], or [n] for all heads.
    dropout_seed: for "dropout=..." in the features: a key of jax.random, its uint32 [2], or an integer.
    score_mod(score, b, h, q, kv), mask_mod(b, h, q, kv): functions of scalars in jax.numpy, instead of programs; arrays
    that they read from outside have gradients.
    implementation: the name of one, as in flashlift.compile: if it refuses, its reason is raised.
    Errors while the call is traced: InvalidArgumentError for arguments, features and captured tensors that are wrong or
    do not fit each other, UnsupportedError for what a call in JAX cannot have. JAX raises an implementation's refusal
    when it runs the call.
    Returns the result, or (result, lse[batch, q_heads, q_len]) if the features include "lse".

    Reverse-mode derivatives with respect to q, k, v, floating-point captures and sinks, through both results, take
    O(length) memory. Forward-mode and second derivatives use plain maths with all scores in memory, and give one
    warning.
    """
    if not isinstance(layout, str) or sorted(layout) != sorted("bhsd"):
        raise InvalidArgumentError(f'layout is "{layout}"; expected the letters b, h, s and d in some order')
    q, k, v = (as_array(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    check_operands(("q", "k", "v"), q, k, v, layout)
    if sinks is not None:
        sinks = check_sinks("sinks", as_array("sinks", sinks), q.shape[layout.index("h")])
    if not isinstance(features, str):
        raise InvalidArgumentError(f"features is {short(features)}; expected words of a problem in a text, or none: ''")
    if implementation is not None and not isinstance(implementation, str):
        raise InvalidArgumentError(f"implementation is {short(implementation)}; expected its name, or None")
    symbolic = sizes_of(layout, q, k, v)
    mods = trace_mods(score_mod, mask_mod, symbolic, features)
    sizes = {name: size if isinstance(size, int) else 1 for name, size in symbolic.items()}
    features = " ".join([features, *(mod.text for mod in mods)])
    problem = Problem.parse(f"attn {features}", dtype=_TYPES[q.dtype.name], **sizes)
    beyond = [word for word in _NOT_IN_JAX if word in problem.words]
    if beyond:
        raise UnsupportedError(
            f"the features have {', '.join(beyond)}, for which a call in JAX has no operand and no result; "
            "flashlift.compile has them"
        )
    count = None if sinks is None else sinks.shape[-1]
    if problem.words.get("sinks", count) != count:
        came = "none" if sinks is None else described(sinks)
        raise InvalidArgumentError(
            f"the features have sinks={problem.words['sinks']}, and the argument sinks is {came}; expected as many "
            "there. The word may be left out"
        )
    if sinks is not None:
        problem = problem.with_words(sinks=count)
    traced = {name: array for mod in mods for name, array in mod.captures.items()}
    tables = captured_tensors(problem, captures, traced, symbolic)
    call = Call(problem, layout, tuple(tables), implementation)
    has_seed = "dropout" in problem.words
    if has_seed != (dropout_seed is not None):
        asked = "expected a dropout_seed" if has_seed else "expected no dropout_seed"
        raise InvalidArgumentError(f'the features are "{features}": {asked}; dropout needs both or neither')
    optional = [] if sinks is None else [sinks]
    if dropout_seed is not None:
        optional.append(seed_words(dropout_seed))
    operands = vary_together([q, k, v, *tables.values(), *optional])
    results = attend(call, *placed(layout, operands))
    return (results[0], results[1]) if call.with_lse else results[0]
