"""Operations of training on scores and probabilities: fused modules must compute the same as XLA.

    build/venv/bin/python tests/corpus/random_steps.py [--seed N] [--first N] [--count N] [--print]

Dropout by random bits, of all ranks, joined, repeated and inverted, at rates that are right and wrong; probabilities
masked again, renormalised, cleaned, cut and scaled, or less those of another softmax; barriers, roundings and
checkpoint policies anywhere between the products; several layouts, shared heads, two attentions of common tensors;
probabilities, maxima and entropies with further readers; gradients that are changed on their way. A line for each
module that disagrees makes that module again.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import random_modules
from random_masks import LOWEST, Draw, draw_keep
from random_modules import Drawn

POLICIES = {
    "nothing": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots without batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
}


def uniform(key, shape):
    """Numbers from 0 to 1, with far fewer operations than JAX's own generator."""
    x = jax.lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape) * jnp.uint32(2654435761) + key[0]
    for _ in range(2):
        x = (x ^ (x >> 15)) * jnp.uint32(2246822519) + key[1]
    return (x >> 8).astype(jnp.float32) * 2.0**-24


def draw_bits(draw, key, shape):
    """A function of the arguments: the probabilities that dropout keeps, and their share."""
    rate = draw.one_of((0.1, 0.25, 0.5))
    shape = draw.one_of(
        (shape, (1, 1, *shape[2:]), (*shape[:2], 1, shape[3]), (1, shape[1], 1, 1)), [0.7, 0.15, 0.1, 0.05]
    )
    how = draw.one_of(("below", "above", "not", "argument", "joined"))
    draw.say(f"bits {how} {rate} {shape}".replace(",", " "))
    if how == "argument":
        return draw.argument(draw.rng.random(shape) > rate), 1 - rate
    if how == "above":
        return lambda given: uniform(key(given), shape) >= rate, 1 - rate
    if how == "not":
        return lambda given: ~(uniform(key(given), shape) < rate), 1 - rate
    one = lambda given: uniform(key(given), shape) < 1 - rate
    if how == "joined":
        return lambda given: one(given) & (uniform(key(given) + 1, shape) < 1 - rate), (1 - rate) ** 2
    return one, 1 - rate


def draw_dropout(draw, key, shape):
    bits, share = draw_bits(draw, key, shape)
    factor = draw.one_of(
        (1 / share, 1 / share, 1 / share, 1 / share, 1.0, 2.0, share), [0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    )
    kinds = ("where", "product", "weights", "select_zero", "integers", "otherwise")
    kind = draw.one_of(kinds, [0.35, 0.2, 0.2, 0.1, 0.1, 0.05])
    draw.say(f"dropout {kind} {factor:.3g}")
    return {
        "where": lambda p, given: jnp.where(bits(given), p * factor, 0),
        "product": lambda p, given: bits(given) * p * factor,
        "weights": lambda p, given: p * (bits(given).astype(p.dtype) * factor),
        "select_zero": lambda p, given: jnp.where(~bits(given), 0.0, p) * factor,
        "integers": lambda p, given: p * bits(given).astype(jnp.int8).astype(p.dtype) * factor,
        "otherwise": lambda p, given: jnp.where(bits(given), p * factor, 0.1 * p),
    }[kind]


def draw_mask(draw, B, H, S, T):
    """A function from scores to masked scores, and the condition."""
    kind = draw.one_of(("none", "causal", "strict", "drawn", "drawn"))
    place = lambda given: jnp.arange(S)[:, None] - jnp.arange(T)[None]
    keeps = {
        "none": lambda given: jnp.ones((S, T), bool),
        "causal": lambda given: place(given) >= 0,
        "strict": lambda given: place(given) > 0,
    }
    keep = draw_keep(draw, B, H, S, T) if kind == "drawn" else keeps[kind]
    low = draw.one_of((-np.inf, LOWEST, -1e9, -1e4))
    draw.say(f"mask {kind} {low:g}")
    bias = draw.normal(*draw.one_of(((1, H, S, T), (B, 1, 1, T), (H, 1, 1)))) if draw.chance(0.25) else None
    if bias is not None:
        draw.say("bias")
        if draw.chance(0.3):
            empties = np.where(draw.rng.random((B, 1, S, 1)) < 0.2, -np.inf, 0).astype(np.float32)
            empty, finite = draw.argument(empties), bias
            draw.say("of -inf")
            bias = lambda given: finite(given) + empty(given)

    def mask(s, given):
        if bias is not None:
            s = s + bias(given)
        return s if kind == "none" else jnp.where(keep(given), s, low)

    return mask, keep


HOLDS = {
    "nothing": lambda x: x,
    "barrier": jax.lax.optimization_barrier,
    "whole": lambda x: jax.lax.reduce_precision(x, 8, 23),
    "wider": lambda x: jax.lax.reduce_precision(x, 11, 52),
    "rounded": lambda x: jax.lax.reduce_precision(x, 8, 7),
    "copied": lambda x: jnp.transpose(jnp.transpose(x, (0, 2, 1, 3)), (0, 2, 1, 3)),
    "flattened": lambda x: x.reshape(-1, *x.shape[-2:]).reshape(x.shape),
}


def draw_hold(draw):
    """An operation between the products that changes nothing, or little."""
    name = draw.one_of(list(HOLDS), [0.7, 0.12, 0.05, 0.02, 0.01, 0.05, 0.05])
    if name != "nothing":
        draw.say(name)
    return HOLDS[name]


def draw_softmax(draw):
    kind = draw.one_of(("jax", "jax", "written", "log_sum_exp", "safe"))
    draw.say(kind)
    inside = draw_hold(draw)

    def softmax(s):
        if kind == "jax":
            return jax.nn.softmax(s, -1)
        if kind == "log_sum_exp":
            return jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True))
        m = s.max(-1, keepdims=True)
        if kind == "safe":
            m = jnp.where(jnp.isfinite(m), m, 0.0)
        e = inside(jnp.exp(s - jax.lax.stop_gradient(m)))
        return e / inside(e.sum(-1, keepdims=True))

    return softmax


def draw_afterwards(draw, keep, shape):
    """A function from probabilities to the factor of the values."""
    kinds = (
        "masked",
        "masked_product",
        "cleaned",
        "row",
        "renormalised",
        "guarded",
        "cut",
        "power",
        "scaled",
        "one_less",
    )
    kind = draw.one_of(kinds, [0.25, 0.2, 0.15, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05])
    draw.say(f"then {kind}")
    other = draw_keep(draw, *shape) if draw.chance(0.2) else keep
    of_sum = lambda p, sum_of_row: p / sum_of_row(p.sum(-1, keepdims=True))
    return {
        "masked": lambda p, given: jnp.where(other(given), p, 0.0),
        "masked_product": lambda p, given: p * other(given),
        "renormalised": lambda p, given: of_sum(p * other(given), lambda z: z),
        "guarded": lambda p, given: of_sum(p * other(given), lambda z: jnp.maximum(z, 1e-9)),
        "cleaned": lambda p, given: jnp.nan_to_num(p),
        "row": lambda p, given: jnp.where(other(given).any(-1, keepdims=True), p, 0.0),
        "cut": lambda p, given: jnp.where(p > 0.05, p, 0.0),
        "power": lambda p, given: p * p,
        "scaled": lambda p, given: p * 3.0,
        "one_less": lambda p, given: 1 - p,
    }[kind]


CHANGES = {
    "half": lambda ct: ct * 0.5,
    "tiny": lambda ct: ct + 1e-3,
    "rolled": lambda ct: jnp.roll(ct, 1, -1),
    "first": lambda ct: ct.at[..., 0, :].set(0),
    "clipped": lambda ct: jnp.clip(ct, -0.01, 0.01),
    "rounded": lambda ct: ct.astype(jnp.bfloat16).astype(ct.dtype),
    "centered": lambda ct: ct - ct.mean(-1, keepdims=True),
    "sign": jnp.sign,
}


def draw_second(draw, B, H, S):
    """A function from the probabilities of two softmaxes to one factor of the values."""
    shape = draw.one_of(((), (H, 1, 1), (B, 1, S, 1), (B, H, S, 1)))
    weight = draw.normal(*shape)
    kind = draw.one_of(("difference", "weighted", "mixed", "scaled", "negative", "sum"))
    draw.say(f"second softmax {kind} {shape}".replace(",", " "))
    return {
        "difference": lambda p, r, given: p - r,
        "weighted": lambda p, r, given: p - weight(given) * r,
        "mixed": lambda p, r, given: weight(given) * p + (1 - weight(given)) * r,
        "scaled": lambda p, r, given: (p - r * weight(given)) / 3,
        "negative": lambda p, r, given: -p + r,
        "sum": lambda p, r, given: r + p,
    }[kind]


def draw_change(draw, odds):
    """A change of the gradient where it passes."""
    if not draw.chance(odds):
        return lambda x: x
    name = draw.one_of(list(CHANGES))
    draw.say(f"gradient {name}")

    @jax.custom_vjp
    def changed(x):
        return x

    changed.defvjp(lambda x: (x, None), lambda _, ct: (CHANGES[name](ct),))
    return changed


LAYOUTS = {  # of queries, keys, values, scores, output
    "bhsd": ("bhqd", "bhkd", "bhkd", "bhqk", "bhqd"),
    "bshd": ("bqhd", "bkhd", "bkhd", "bhqk", "bqhd"),
    "mixed": ("qbhd", "bhdk", "hkbd", "bhqk", "hqbd"),
    "one head of keys": ("bhqd", "bkd", "bkd", "bhqk", "bqhd"),
    "one batch of keys": ("bhqd", "hkd", "hkd", "bhqk", "bhqd"),
    "values shared": ("bhqd", "bhkd", "bkd", "bhqk", "bhqd"),
}


def draw_module(rng):
    draw = Draw(rng)
    B, H, S, T, D = (int(rng.integers(low, high)) for low, high in ((1, 3), (1, 4), (2, 6), (2, 9), (3, 7)))
    sizes = {"b": B, "h": H, "q": S, "k": T, "d": D}
    layout = draw.one_of(list(LAYOUTS))
    draw.say(layout)
    of_q, of_k, of_v, of_s, of_o = LAYOUTS[layout]
    q, k, v = (draw.normal(*(sizes[letter] for letter in letters)) for letters in (of_q, of_k, of_v))
    key = draw.argument(rng.integers(0, 2**32, 2, dtype=np.uint32))
    mask, keep = draw_mask(draw, B, H, S, T)
    softmax = draw_softmax(draw)
    holds = [draw_hold(draw) for _ in range(4)]
    steps = []
    for _ in range(draw.one_of((0, 0, 1, 1, 1, 1, 2))):
        steps.append(
            draw_dropout(draw, key, (B, H, S, T)) if draw.chance(0.6) else draw_afterwards(draw, keep, (B, H, S, T))
        )
    combine = draw_second(draw, B, H, S) if draw.chance(0.15) else None
    gradients = draw.chance(0.6)
    changes = [draw_change(draw, 0.04 if gradients else 0) for _ in range(4)]
    readers = draw.one_of(("output", "probabilities", "maximum", "entropy", "two"), [0.88, 0.03, 0.03, 0.03, 0.03])
    draw.say(readers)

    def attend(q, k, v, *given):
        s = changes[0](holds[0](jnp.einsum(f"{of_q},{of_k}->{of_s}", q, changes[1](k)))) * 0.5
        s = holds[1](mask(s, given))
        p = holds[2](changes[2](softmax(s)))
        weights = p
        if combine:
            other = jnp.einsum(f"{of_q},{of_k}->{of_s}", jnp.cos(q), k)
            weights = combine(p, softmax(mask(other, given)), given)
        for step in steps:
            weights = step(weights, given)
        o = changes[3](jnp.einsum(f"{of_s},{of_v}->{of_o}", holds[3](weights), v))
        if readers == "probabilities":
            return o, p
        if readers == "maximum":
            return o, s.max(-1)
        if readers == "entropy":
            return o, -(p * jnp.log(p + 1e-9)).sum(-1)
        if readers == "two":
            return o, jnp.einsum(f"{of_s},{of_v}->{of_o}", softmax(s), jnp.sin(v))
        return o

    function = attend
    if gradients and draw.chance(0.4):
        policy = draw.one_of(list(POLICIES))
        draw.say(f"checkpoint {policy}")
        function = jax.checkpoint(attend, policy=POLICIES[policy])
    whole = lambda *given: function(q(given), k(given), v(given), *given)
    if gradients:
        draw.say("with gradients")
        whole = random_modules.with_gradients(whole, 3)
    return Drawn(
        function=whole,
        arguments=draw.arguments,
        words=", ".join(draw.words),
        # The module gives NaN for a row without keys, and for each gradient that depends on it. The fused form gives no
        # NaN.
        may_overflow=gradients,
        has_gradients=gradients,
    )


if __name__ == "__main__":
    sys.exit(random_modules.main(draw_module, __doc__))
