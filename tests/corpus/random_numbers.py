"""Attention with narrow numbers and empty rows: fused modules must compute the same as XLA.

    build/venv/bin/python tests/corpus/random_numbers.py [--seed N] [--first N] [--count N] [--print]

Masks and biases from integers of all widths, signed and unsigned, and from floats of 16 bits; conversions that wrap,
saturate and round, of positions, queries, keys, values, scores, probabilities and outputs; rows without keys, with
their log-sum-exp and what is computed from it; maxima from several start values, sinks, guards; gradients that are
scaled, cut off and rounded. A line for each module that disagrees makes that module again.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import random_modules
from random_masks import Draw
from random_modules import Drawn

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
HALVES = ("bfloat16", "float16")
LOWEST = float(np.finfo(np.float32).min)


def both(operation):
    """Broadcasts the operands first, as jax.lax requires."""
    return lambda x, y: operation(*jnp.broadcast_arrays(x, y))


def quotient(x, y):
    """All ones where a number is divided by 0; not of 0 itself, since XLA takes x / x for 1 from jax 0.11 on."""
    return both(jax.lax.div)(x, jnp.where((x == 0) & (y == 0), jnp.ones_like(y), y))


INTEGER_OPERATIONS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "div": quotient,
    "rem": both(jax.lax.rem),
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": both(jax.lax.shift_left),
    "shr": both(jax.lax.shift_right_logical),
    "sar": both(jax.lax.shift_right_arithmetic),
    "neg": lambda x, y: -x,
    "not": lambda x, y: ~x,
    "abs": lambda x, y: jnp.abs(x),
    "sign": lambda x, y: jnp.sign(x) * y,
    "floor_div": lambda x, y: x // jnp.where(y == 0, jnp.ones_like(y), y),
}
COMPARISONS = {
    "lt": lambda x, y: x < y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}


def constant(draw, dtype):
    bounds = np.iinfo(dtype)
    small = int(draw.rng.integers(max(bounds.min, -9), 10))
    return jnp.asarray(draw.one_of((small, small, bounds.min, bounds.max, bounds.max // 3)), dtype)


def draw_integer(draw, dtype, S, T, depth):
    """A function without arguments: a formula of integers that broadcasts to [S, T]."""
    kind = (
        "position"
        if depth == 0
        else draw.one_of(("operation", "operation", "operation", "converted", "float", "position"))
    )
    if kind == "position":
        source = draw.one_of(("iota", "arange", "key", "query", "constant"))
        if source == "constant":
            value = constant(draw, dtype)
            return lambda: value
        shift = int(draw.rng.integers(-3, 4)) if source in ("key", "query") else 0
        size, at = (T, (None, slice(None))) if source in ("iota", "key") else (S, (slice(None), None))
        if source == "iota":
            return lambda: jax.lax.iota(dtype, size)[at]
        return lambda: (jnp.arange(size) * 7 + shift).astype(dtype)[at] if shift else jnp.arange(size).astype(dtype)[at]
    if kind == "operation":
        name = draw.one_of(list(INTEGER_OPERATIONS))
        draw.say(name)
        x, y = draw_integer(draw, dtype, S, T, depth - 1), draw_integer(draw, dtype, S, T, depth - 1)
        return lambda: INTEGER_OPERATIONS[name](x(), y())
    if kind == "converted":
        other = draw.one_of(INTEGERS)
        draw.say(f"{other} to {dtype}")
        x = draw_integer(draw, other, S, T, depth - 1)
        return lambda: x().astype(dtype)
    draw.say(f"f32 to {dtype}")
    x = draw_float(draw, "float32", S, T, depth - 1)
    return lambda: x().astype(dtype)


def draw_float(draw, dtype, S, T, depth):
    """A function without arguments: a formula of floats that broadcasts to [S, T]."""
    kind = "position" if depth == 0 else draw.one_of(("operation", "operation", "converted", "integer", "position"))
    if kind == "position":
        size, at = draw.one_of(((T, (None, slice(None))), (S, (slice(None), None))))
        if draw.chance(0.3):
            value = float(np.round(draw.rng.standard_normal() * 8, 1))
            return lambda: jnp.asarray(value, dtype)
        return lambda: jnp.arange(size, dtype=dtype)[at]
    if kind == "operation":
        name = draw.one_of(("add", "sub", "mul", "max", "abs", "sqrt", "floor"))
        draw.say(f"{dtype} {name}")
        x, y = draw_float(draw, dtype, S, T, depth - 1), draw_float(draw, dtype, S, T, depth - 1)
        operations = {
            "add": lambda: x() + y(),
            "sub": lambda: x() - y(),
            "mul": lambda: x() * y(),
            "max": lambda: jnp.maximum(x(), y()),
            "abs": lambda: jnp.abs(x()),
            "sqrt": lambda: jnp.sqrt(jnp.abs(x())),
            "floor": lambda: jnp.floor(x() / 3),
        }
        return operations[name]
    if kind == "converted":
        other = draw.one_of((*HALVES, "float32"))
        draw.say(f"{other} to {dtype}")
        x = draw_float(draw, other, S, T, depth - 1)
        return lambda: x().astype(dtype)
    other = draw.one_of(INTEGERS)
    draw.say(f"{other} to {dtype}")
    x = draw_integer(draw, other, S, T, depth - 1)
    return lambda: x().astype(dtype)


def draw_condition(draw, S, T):
    """A function without arguments: booleans that broadcast to [S, T]. Floats are compared with numbers between their
    values."""
    if draw.chance(0.7):
        dtype = draw.one_of(INTEGERS)
        draw.say(dtype)
        name = draw.one_of(list(COMPARISONS))
        x, y = (draw_integer(draw, dtype, S, T, int(draw.rng.integers(0, 4))) for _ in range(2))
        return lambda: COMPARISONS[name](x(), y())
    dtype = draw.one_of(HALVES)
    draw.say(dtype)
    x, limit = draw_float(draw, dtype, S, T, int(draw.rng.integers(0, 3))), float(draw.rng.integers(-40, 300))
    return lambda: x() < jnp.asarray(limit, dtype)


def draw_bias(draw, S, T):
    """A term of the scores, of moderate size."""
    dtype = draw.one_of((*HALVES, "float32", *INTEGERS))
    depth = int(draw.rng.integers(0, 4))
    draw.say(f"bias of {dtype}")
    x = (draw_integer if dtype in INTEGERS else draw_float)(draw, dtype, S, T, depth)
    return lambda: jnp.clip(jnp.nan_to_num(x().astype(jnp.float32)), -1e4, 1e4) * 2.0**-6


def round_trip(draw, odds=0.15):
    """An operation that changes nothing, or rounds to 16 bits and back."""
    if not draw.chance(odds):
        return lambda x: x
    dtype = draw.one_of(HALVES)
    draw.say(f"round trip in {dtype}")
    return lambda x: x.astype(dtype).astype(x.dtype)


def draw_softmax(draw):
    """A function from scores to probabilities and the log-sum-exp."""
    kind = draw.one_of(("jax", "jax", "log_sum_exp", "written", "safe", "from_lowest", "zeroed", "base"))
    start = draw.one_of((-np.inf, LOWEST, -1e30, -1e4, 0.0))
    draw.say(f"softmax {kind} {start:g}")
    draw.overflows |= kind == "from_lowest"  # if all scores of a row lie below the start, its exponentials vanish

    def softmax(s):
        if kind == "jax":
            return jax.nn.softmax(s, -1), jax.nn.logsumexp(s, -1)
        if kind == "log_sum_exp":
            lse = jax.nn.logsumexp(s, -1)
            return jnp.exp(s - lse[..., None]), lse
        m = s.max(-1, keepdims=True)
        if kind == "from_lowest":
            m = jax.lax.reduce(s, np.float32(start), jax.lax.max, (s.ndim - 1,))[..., None]
        if kind == "safe":
            m = jnp.where(jnp.isfinite(m), m, 0.0)
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        p = e / z
        if kind == "zeroed":
            p = jnp.where(z > 0, p, 0.0)
        return p, (m + jnp.log(z))[..., 0]

    return softmax


def draw_readers(draw):
    """The results of the module, computed from output and log-sum-exp."""
    kind = draw.one_of(("output", "output", "both", "merged", "merged_safely", "smoothed"))
    draw.say(kind)

    def readers(o, lse):
        row = lse.swapaxes(1, 2)[..., None]
        if kind == "output":
            return o
        if kind == "both":
            return o, lse
        if kind == "smoothed":
            return o * jax.nn.sigmoid(row), jnp.exp(lse)
        whole = jnp.logaddexp(row, 0.5)
        weight = jnp.exp(row - whole)
        return (jnp.where(weight > 0, o, 0.0) if kind == "merged_safely" else o) * weight, whole

    return readers


CUT_OFFS = {
    "none": lambda s, ct: ct,
    "scaled": lambda s, ct: ct * 0.5,
    "sigmoid": lambda s, ct: ct * jax.nn.sigmoid(3 * (60 - s)),
    "low": lambda s, ct: ct * jax.nn.sigmoid(s + 80),
    "bump": lambda s, ct: ct * (1 + jnp.exp(-((s - 300) ** 2))),
    "rational": lambda s, ct: ct / (1 + (s / 80) ** 4),
    "soft_clip": lambda s, ct: jnp.tanh(ct * 1e-4) * 1e4,
    "rounded": lambda s, ct: ct.astype(jnp.bfloat16).astype(jnp.float32),
    "clipped": lambda s, ct: jnp.clip(ct, -1e-2, 1e-2),
}


def draw_cut_off(draw):
    name = draw.one_of(list(CUT_OFFS))
    draw.say(f"gradient {name}")

    @jax.custom_vjp
    def cut(s):
        return s

    cut.defvjp(lambda s: (s, s), lambda s, ct: (CUT_OFFS[name](s, ct),))
    return cut


def draw_module(rng):
    draw = Draw(rng)
    B, H, S, D = (int(rng.integers(low, high)) for low, high in ((1, 3), (1, 3), (2, 7), (4, 9)))
    T = int(draw.one_of((5, 20, 140, 300)))
    half = draw.one_of((None, None, None, *HALVES))
    size = draw.one_of((1.0, 1.0, 1.0, 20.0))
    q, k, v = (draw.normal(B, length, H, D, size=s) for length, s in ((S, size), (T, 1.0), (T, 1.0)))
    trips = [round_trip(draw) for _ in range(3)]
    of_scores, of_probabilities, of_output = round_trip(draw, 0.05), round_trip(draw, 0.05), round_trip(draw, 0.1)
    gradients = draw.chance(0.25)
    cut = draw_cut_off(draw) if gradients else lambda s: s
    steps = []
    for _ in range(draw.one_of((0, 1, 1, 2))):
        bias = draw_bias(draw, S, T)
        steps.append(lambda s, bias=bias: s + bias())
    for _ in range(draw.one_of((0, 1, 1, 1, 2))):
        condition = draw_condition(draw, S, T)
        low = draw.one_of((-np.inf, -np.inf, LOWEST))
        steps.append(lambda s, condition=condition, low=low: jnp.where(condition(), s, low))
    softmax = draw_softmax(draw)
    sink = draw.one_of((None, None, None, -np.inf, 0.5))
    readers = draw_readers(draw)
    if half:
        draw.say(f"of {half}")
    if sink is not None:
        draw.say(f"sink {sink:g}")
    sinks = None if sink is None else draw.argument(np.full(H, sink, np.float32))

    def function(*given):
        queries, keys, values = (
            trip(x(given).astype(half or jnp.float32)) for trip, x in zip(trips, (q, k, v), strict=True)
        )
        s = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32) * 0.5
        s = cut(of_scores(s))
        for step in steps:
            s = step(s)
        if sinks is not None:
            column = jnp.broadcast_to(sinks(given)[None, :, None, None], (B, H, S, 1))
            s = jnp.concatenate([s, column], -1)
        p, lse = softmax(s)
        p = of_probabilities(p[..., :T]).astype(half or jnp.float32)
        o = of_output(jnp.einsum("bhqk,bkhd->bqhd", p, values).astype(jnp.float32))
        return readers(o, lse)

    if gradients:
        function = random_modules.with_gradients(function, 3)
    return Drawn(
        function=function,
        arguments=draw.arguments,
        words=", ".join(draw.words),
        tolerance=3e-2 if half else random_modules.TOLERANCE,
        # The module gives NaN for a row without keys, and for each gradient that depends on it. The fused form gives no
        # NaN.
        may_overflow=draw.overflows or gradients,
        has_gradients=gradients,
    )


if __name__ == "__main__":
    sys.exit(random_modules.main(draw_module, __doc__))
