"""Attention with random masks, biases, shifts and divisors: fused modules must compute the same as XLA.

    build/venv/bin/python tests/corpus/random_masks.py [--seed N] [--first N] [--count N] [--print]

Masks of several terms, infinite and finite, replaced, added and multiplied; scores within and beyond the finite ones;
tables that the score indexes; maxima that are the scores' own and such that are not; guards of the divisor; with and
without gradients. A line for each module that disagrees makes that module again.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import random_modules
from random_modules import Drawn

LOWEST = float(np.finfo(np.float32).min)
LOWS = (-np.inf, LOWEST, 0.7 * LOWEST, -1e30, -1e20, -1e10, -1e9, -1e8, -1e6, -65504.0, -35000.0, -1e4, -200.0)


class Draw:
    """What has been drawn so far: the arguments, and words about it."""

    def __init__(self, rng):
        self.rng = rng
        self.arguments = []
        self.words = []
        self.overflows = False

    def one_of(self, choices, odds=None):
        return choices[self.rng.choice(len(choices), p=odds)]

    def chance(self, p):
        return self.rng.random() < p

    def argument(self, array):
        """Adds an argument, and returns the function that reads it from the arguments of a call."""
        self.arguments.append(array)
        place = len(self.arguments) - 1
        return lambda given: given[place]

    def normal(self, *shape, size=1.0):
        return self.argument((size * self.rng.standard_normal(shape)).astype(np.float32))

    def say(self, words):
        self.words.append(words)


def draw_keep(draw, B, H, S, T):
    """Which keys are kept: a function of the arguments whose result broadcasts to [B, H, S, T]."""
    i, j = np.arange(S)[:, None], np.arange(T)[None]
    kind = draw.one_of(
        (
            "causal",
            "window",
            "random",
            "padding",
            "padding_of_both",
            "left_padding",
            "lengths",
            "segments",
            "no_row",
            "strictly_causal",
            "heads",
        )
    )
    draw.say(kind)
    if kind == "causal":
        return lambda given: jnp.arange(S)[:, None] + (T - S) >= jnp.arange(T)[None]
    if kind == "strictly_causal":
        return lambda given: jnp.arange(S)[:, None] > jnp.arange(T)[None]
    if kind == "window":
        width = int(draw.rng.integers(1, 5))
        return lambda given: jnp.abs(jnp.arange(S)[:, None] - jnp.arange(T)[None]) < width
    if kind == "random":
        return draw.argument(draw.rng.random((B, 1, S, T)) > draw.one_of((0.2, 0.5, 0.9)))
    if kind == "heads":
        return draw.argument(draw.rng.random((1, H, 1, T)) > 0.4)
    if kind == "padding":
        return draw.argument(np.arange(T) < draw.rng.integers(0, T + 1, (B, 1, 1, 1)))
    if kind == "padding_of_both":
        queries = draw.argument(draw.rng.random((B, 1, S, 1)) > draw.one_of((0.2, 0.8)))
        keys = draw.argument(draw.rng.random((B, 1, 1, T)) > draw.one_of((0.2, 0.8)))
        how = draw.one_of(("and", "product", "minimum", "and_causal"))
        draw.say(how)
        joins = {
            "and": lambda x, y: x & y,
            "product": lambda x, y: x.astype(jnp.float32) * y.astype(jnp.float32) > 0,
            "minimum": lambda x, y: jnp.minimum(x.astype(jnp.int32), y.astype(jnp.int32)) != 0,
            "and_causal": lambda x, y: x & (y & (jnp.arange(S)[:, None] >= jnp.arange(T)[None])),
        }
        return lambda given: joins[how](queries(given), keys(given))
    if kind == "left_padding":
        return draw.argument(np.arange(T) >= draw.rng.integers(0, T + 1, (B, 1, 1, 1)))
    if kind == "lengths":
        lengths = draw.argument(draw.rng.integers(0, T + 1, (B,)).astype(np.int32))
        return lambda given: jnp.arange(T) < lengths(given)[:, None, None, None]
    if kind == "segments":
        ids_of_q = draw.argument(draw.rng.integers(0, 3, (B, S)).astype(np.int32))
        ids_of_k = draw.argument(draw.rng.integers(0, 3, (B, T)).astype(np.int32))
        return lambda given: (ids_of_q(given)[:, :, None] == ids_of_k(given)[:, None])[:, None]
    keep = (i + j) % 3 > 0
    keep[draw.rng.integers(0, S)] = False
    return draw.argument(keep)


def draw_bias(draw, B, H, S, T):
    """A term added to the scores."""
    kind = draw.one_of(("dense", "keys", "alibi", "steep_alibi", "slopes", "very_negative", "row", "constant"))
    draw.say(kind)
    if kind == "dense":
        return draw.normal(H, S, T)
    if kind == "keys":
        return draw.normal(B, 1, 1, T, size=draw.one_of((1.0, 30.0)))
    if kind == "row":
        return draw.normal(B, H, S, 1)
    if kind == "constant":
        value = draw.one_of((-200.0, -50.0, -16.0, 4.0, 30.0))
        draw.say(f"{value:g}")
        draw.overflows = True
        return lambda given: value
    if kind in ("alibi", "steep_alibi", "slopes"):
        size = {"alibi": 0.5, "slopes": 1.0, "steep_alibi": draw.one_of((1e4, 1e6, 1e9))}[kind]
        slopes = (size * (1 + np.arange(H)) / H).astype(np.float32)[:, None, None]
        slope = draw.argument(slopes) if kind == "slopes" else lambda given: jnp.asarray(slopes)
        distance = -np.abs(np.arange(S)[:, None] - np.arange(T)[None] - 1).astype(np.float32)
        return lambda given: slope(given) * distance
    low = draw.one_of(LOWS)
    draw.say(f"{low:g}")
    column = np.where(draw.rng.random((B, 1, draw.one_of((1, S)), T)) < draw.one_of((0.3, 0.8)), low, 0)
    return draw.argument(column.astype(np.float32))


def draw_mask(draw, B, H, S, T):
    """A function from scores to masked scores."""
    keep = draw_keep(draw, B, H, S, T)
    if draw.chance(0.15):
        other = draw_keep(draw, B, H, S, T)
        both = draw.one_of(("and", "or"))
        draw.say(both)
        one = keep
        keep = lambda given: one(given) & other(given) if both == "and" else one(given) | other(given)
    low = draw.one_of(LOWS)
    how = draw.one_of(("where", "where", "where", "where_not", "added", "added_inverse", "minimum"))
    draw.say(f"{how} {low:g}")
    if how == "where":
        return lambda s, given: jnp.where(keep(given), s, low)
    if how == "where_not":
        return lambda s, given: jnp.where(~keep(given), low, s)
    if how == "added":
        return lambda s, given: s + jnp.where(keep(given), 0.0, low)
    if how == "minimum":
        return lambda s, given: jnp.minimum(s, jnp.where(keep(given), -LOWEST, low))
    low = max(low, LOWEST)  # 0 times infinity is NaN
    return lambda s, given: s + (1 - keep(given).astype(jnp.float32)) * low


def draw_change(draw, B, H, S, T):
    """Another change of the scores."""
    kind = draw.one_of(("softcap", "table", "table_alone", "clipped", "scaled", "temperature"))
    draw.say(kind)
    if kind == "softcap":
        cap = draw.one_of((2.0, 50.0))
        return lambda s, given: jnp.tanh(s / cap) * cap
    if kind == "clipped":
        return lambda s, given: jnp.clip(s, -3.0, 3.0)
    if kind == "temperature":
        temperature = draw.argument((np.exp(draw.rng.standard_normal((H, 1, 1)))).astype(np.float32))
        return lambda s, given: s / temperature(given)
    if kind == "scaled":
        factor = draw.one_of((0.3, 2.0, 1.4426950408889634))
        return lambda s, given: s * factor
    table = draw.normal(16)
    # Odd eighths lie between the scores that other orders of summation give, and between those of functions that
    # saturate.
    index = lambda s: jnp.clip((2 * s + 0.37).astype(jnp.int32) + 8, 0, 15)
    if kind == "table":
        return lambda s, given: s + jnp.take(table(given), index(s))
    return lambda s, given: jnp.take(table(given), index(s))


def draw_scores(draw, B, H, S, T, D):
    """The scores before any mask. They are multiples of 1/64 if a table may read them."""
    size = draw.one_of((1.0, 1.0, 1.0, 1.0, 6.0, 150.0, 1e4))
    draw.say(f"size {size:g}")
    steps = 4
    q = draw.argument((size * np.round(draw.rng.standard_normal((B, S, H, D)) * steps) / steps).astype(np.float32))
    k = draw.argument((np.round(draw.rng.standard_normal((B, T, H, D)) * steps) / steps).astype(np.float32))
    v = draw.normal(B, T, H, D)
    scale = draw.one_of((1.0, 0.5, 0.25, 0.3535))
    before = draw.chance(0.3)

    def scores(given):
        if before:
            return jnp.einsum("bqhd,bkhd->bhqk", q(given) * scale, k(given))
        return jnp.einsum("bqhd,bkhd->bhqk", q(given), k(given)) * scale

    return scores, v


MAXIMA = {
    "own": lambda s, raw: s.max(-1, keepdims=True),
    "stopped": lambda s, raw: jax.lax.stop_gradient(s.max(-1, keepdims=True)),
    "none": lambda s, raw: 0.0,
    "unmasked": lambda s, raw: raw.max(-1, keepdims=True),
    "and_zero": lambda s, raw: jnp.maximum(s.max(-1, keepdims=True), 0.0),
    "from_lowest": lambda s, raw: jnp.maximum(s.max(-1, keepdims=True), LOWEST),
    "at_most": lambda s, raw: jnp.minimum(s.max(-1, keepdims=True), 5.0),
    "and_16": lambda s, raw: s.max(-1, keepdims=True) + 16.0,
    "less_16": lambda s, raw: s.max(-1, keepdims=True) - 16.0,
    "and_90": lambda s, raw: s.max(-1, keepdims=True) + 90.0,
    "mean": lambda s, raw: raw.mean(-1, keepdims=True),
    "of_absolutes": lambda s, raw: jnp.abs(raw).max(-1, keepdims=True),
    "finite": lambda s, raw: (lambda m: jnp.where(jnp.isfinite(m), m, 0.0))(s.max(-1, keepdims=True)),
    "rounded": lambda s, raw: s.astype(jnp.bfloat16).max(-1, keepdims=True).astype(jnp.float32),
    "of_all_heads": lambda s, raw: s.max((1, 3), keepdims=True),
    "twice": lambda s, raw: 2 * s.max(-1, keepdims=True),
}
MAY_BE_FAR_BELOW = ("unmasked", "at_most", "mean", "twice")  # the largest score, so that sums overflow
GUARDS = {
    "none": lambda z, eps: z,
    "maximum": lambda z, eps: jnp.maximum(z, eps),
    "added": lambda z, eps: z + eps,
    "of_zero": lambda z, eps: jnp.where(z == 0, 1.0, z),
    "of_small": lambda z, eps: jnp.where(z < eps, 1.0, z),
    "of_positive": lambda z, eps: jnp.where(z > 0, z, eps),
    "clipped": lambda z, eps: jnp.clip(z, eps, 1e30),
    "factor": lambda z, eps: z * (1 + eps),
    "of_logarithm": lambda z, eps: jnp.exp(jnp.log(jnp.maximum(z, eps))),
}


def draw_softmax(draw, B, H, S, T):
    """A function from the masked scores, and the scores before the mask, to probabilities; and the divisor of the
    output after the second product."""
    if draw.chance(0.3):
        draw.say("softmax")
        return lambda s, raw, given: (jax.nn.softmax(s, -1), None)
    if draw.chance(0.15):
        low = draw.one_of((0.0, 0.0, -30.0, *(x for x in LOWS if np.isfinite(x))))
        draw.say(f"sinks {low:g}")
        sinks = draw.argument((low + draw.rng.standard_normal((H, 1, 1))).astype(np.float32))

        def beside_sinks(s, raw, given):
            column = jnp.broadcast_to(sinks(given), (*s.shape[:-1], 1))
            return jax.nn.softmax(jnp.concatenate([s, column], -1), -1)[..., :-1], None

        return beside_sinks
    maximum = draw.one_of(list(MAXIMA), [0.35, *[0.65 / (len(MAXIMA) - 1)] * (len(MAXIMA) - 1)])
    guard = draw.one_of(list(GUARDS), [0.3, *[0.7 / (len(GUARDS) - 1)] * (len(GUARDS) - 1)])
    eps = draw.one_of((1e-30, 1e-20, 1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-3, 1e-2, 0.5, 1.0))
    again = draw.one_of(("", "", "multiplied", "where"))
    keep = draw_keep(draw, B, H, S, T) if again else None
    where = draw.one_of(
        (
            "divided",
            "divided",
            "reciprocal",
            "logarithm",
            "after",
            "zeroed",
            "cleaned",
            "base_two",
            "prior",
            "prior_factor",
        )
    )
    if where == "logarithm" and maximum in MAY_BE_FAR_BELOW:
        where = "divided"  # the logarithm of an infinite sum makes 0 of a row, so that nothing shows the overflow
    draw.say(f"maximum {maximum}, guard {guard} {eps:g}, {again} {where}")
    # If the subtracted number is not the maximum of the summed terms, the exponentials, and with them their sum, can
    # vanish or overflow.
    draw.overflows |= maximum not in ("own", "stopped", "finite", "from_lowest") or bool(again)

    def probabilities(s, raw, given):
        shifted = s - MAXIMA[maximum](s, raw)
        e = jnp.exp2(shifted * 1.4426950408889634) if where == "base_two" else jnp.exp(shifted)
        if where == "prior":
            e = jnp.exp(shifted + jnp.cos(jnp.arange(T)))
        elif where == "prior_factor":
            e = e * jnp.exp(jnp.cos(jnp.arange(T)))
        if again == "multiplied":
            e = e * keep(given)
        elif again == "where":
            e = jnp.where(keep(given), e, 0.0)
        sum_of_row = e.sum(-1, keepdims=True)
        z = GUARDS[guard](sum_of_row, eps)
        if where == "reciprocal":
            return e * (1 / z), None
        if where == "logarithm" and not again:
            return jnp.exp(shifted - jnp.log(z)), None
        if where == "after":
            return e, z
        if where == "zeroed":
            return jnp.where(sum_of_row > 0, e / z, 0.0), None
        if where == "cleaned":
            return jnp.nan_to_num(e / z), None
        return e / z, None

    return probabilities


def draw_module(rng):
    draw = Draw(rng)
    B, H, S, T, D = (int(rng.integers(low, high)) for low, high in ((1, 3), (1, 3), (2, 9), (2, 11), (4, 9)))
    scores, v = draw_scores(draw, B, H, S, T, D)
    changes = []
    if draw.chance(0.2):
        changes.append(draw_change(draw, B, H, S, T))
    steps = []
    for _ in range(draw.one_of((0, 1, 1, 1, 2, 2, 3))):
        if draw.chance(0.6):
            steps.append(draw_mask(draw, B, H, S, T))
        elif draw.chance(0.9):
            bias = draw_bias(draw, B, H, S, T)
            steps.append(lambda s, given, bias=bias: s + bias(given))
        else:
            changes.append(draw_change(draw, B, H, S, T))
    softmax = draw_softmax(draw, B, H, S, T)

    def function(*given):
        raw = scores(given)
        for change in changes:
            raw = change(raw, given)
        s = raw
        for step in steps:
            s = step(s, given)
        p, divisor = softmax(s, raw, given)
        out = jnp.einsum("bhqk,bkhd->bqhd", p, v(given))
        return out if divisor is None else out / divisor.swapaxes(1, 2)

    gradients = draw.chance(0.4)
    if gradients:
        draw.say("with gradients")
        function = random_modules.with_gradients(function, 3)
    return Drawn(
        function=function,
        arguments=draw.arguments,
        words=", ".join(draw.words),
        # The module gives NaN for a row without keys, and for each gradient that depends on it. The fused form gives no
        # NaN.
        may_overflow=draw.overflows or gradients,
        has_gradients=gradients,
    )


if __name__ == "__main__":
    sys.exit(random_modules.main(draw_module, __doc__))
