"""Number types in lifted attention: narrow element types, rows without keys, functions of gradients. Fused modules
compute the same as XLA; if a fused call would not, the attention stays unfused, with a reason.
"""

import flashlift.jax
import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest

FUSED, LEFT = {}, {}
B, S, T, H, D = 2, 20, 300, 2, 16
R = np.random.default_rng(7)


def case(table):
    """Registers a function that makes (function, arguments)."""

    def add(make):
        table[make.__name__] = make
        return make

    return add


def tensors(dtype=jnp.float32, S=S, T=T):
    shapes = (B, S, H, D), (B, T, H, D), (B, T, H, D)
    return [jnp.asarray(R.standard_normal(shape), dtype) for shape in shapes]


def scores_of(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4


def attend(s, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


def with_scores(change, *more, dtype=jnp.float32):
    """Attention whose scores are changed."""
    return lambda q, k, v, *rest: attend(change(scores_of(q, k), *rest), v), [*tensors(dtype), *more]


def by_xla(function, arguments):
    """f16 with one operation at a time: on processors with f16 arithmetic, XLA leaves out the rounding between a
    product and a sum."""
    with jax.disable_jit(arguments[0].dtype == np.float16):
        return jax.tree.leaves(jax.jit(function)(*arguments))


def compare(function, arguments):
    """Compares with XLA if anything is fused. Returns the number of fused attentions, and the report."""
    fused = flashlift.jax.fuse(function)
    if fused.analyze(*arguments).fused_count == 0:
        return 0, fused.report  # what would run is jax.jit(function) (test_what_stays_unfused_is_left_to_jax)
    tolerance = 2e-5 if arguments[0].dtype == np.float32 else 2e-2
    mine = jax.tree.leaves(fused(*arguments))
    for got, want in zip(mine, by_xla(function, arguments), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance
        )
    return sum(candidate.fused for candidate in fused.report.candidates), fused.report


@pytest.mark.parametrize("name", FUSED)
def test_fuses(name):
    count, report = compare(*FUSED[name]())
    assert count == 1, report


@pytest.mark.parametrize("name", LEFT)
def test_is_left_alone(name):
    count, report = compare(*LEFT[name]())
    assert count == 0, report
    assert all(candidate.reason for candidate in report.candidates), report


# --- Integers wrap in their own width ---

INTEGER_MASKS = {
    "iota": lambda i, j: jax.lax.iota(j.dtype, T)[None] <= i * 3,
    "add": lambda i, j: i * 7 + j < 100,
    "sub": lambda i, j: i - j < 10,
    "mul": lambda i, j: i * j * j > 40,
    "neg": lambda i, j: -j > i,
    "abs": lambda i, j: abs(j - 100) > i,
    "div": lambda i, j: jax.lax.div(j * 3, jnp.broadcast_to(i - 4, (S, T))) < 20,
    "rem": lambda i, j: jax.lax.rem(j * 5, jnp.broadcast_to(i - 4, (S, T))) < 3,
    "floor_div": lambda i, j: (j * 3) // 7 > i,
    "mod": lambda i, j: (i - j) % 5 < 3,
    "shl": lambda i, j: (j << (i % 12)) > 16,
    "shr": lambda i, j: jax.lax.shift_right_logical(*jnp.broadcast_arrays(j - 60, i % 12)) > 3,
    "not": lambda i, j: ~j > i,
    "xor": lambda i, j: (j ^ (i - 9)) > 30,
    "min": lambda i, j: jnp.minimum(j - 130, i) < 3,
    "clip": lambda i, j: jnp.clip(j + 100, 3, 90) > i * 4,
    "to_f32": lambda i, j: (j * 3 - i).astype(jnp.float32) < 50.5,
    "to_i32": lambda i, j: (j * 3 - i).astype(jnp.int32) < 50,
    "to_other_sign": lambda i, j: (j * 3 - i).astype(jnp.uint8).astype(jnp.int8) < 5,
    "from_i32": lambda i, j: (jnp.arange(T) * 1000003).astype(j.dtype)[None] > i,
    "from_f32": lambda i, j: ((j.astype(jnp.float32) - 150.3) * 2.7).astype(j.dtype) > i,
    "sign": lambda i, j: jnp.sign(j - 77) * i < 5,
}


def fuse_masks(masks, dtype):
    """One attention for each mask; every row of a mask keeps a key."""
    q, k, v = (x[:1, :, :1] for x in tensors())

    def function(q, k, v):
        i, j = jnp.arange(S).astype(dtype)[:, None], jnp.arange(T).astype(dtype)[None]
        kept = [mask(i, j) | (jnp.arange(T) == 0) for mask in masks]
        return [attend(jnp.where(mask, scores_of(q + n, k), -jnp.inf), v) for n, mask in enumerate(kept)]

    count, report = compare(function, (q, k, v))
    assert count == len(masks), report


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_integers_wrap(dtype):
    fuse_masks(list(INTEGER_MASKS.values()), dtype)


def test_arithmetic_shifts():
    fuse_masks([lambda i, j: jax.lax.shift_right_arithmetic(*jnp.broadcast_arrays(j - 60, i % 12)) > 3], "int8")


@case(FUSED)
def arithmetic_shift_of_unsigned():
    """The shift stays outside the call, and so does the mask that it makes."""

    def mask(s):
        j = (jnp.arange(T) * 3).astype(jnp.uint8)
        return jnp.where(jax.lax.shift_right_arithmetic(j, jnp.full_like(j, 2)) < 50, s, -jnp.inf)

    return with_scores(mask)


@case(FUSED)
def index_that_wraps():
    table = jnp.asarray(R.standard_normal(64), jnp.float32)

    def bias(s, table):
        distance = (jnp.arange(S)[:, None] - jnp.arange(T)[None]).astype(jnp.int8)
        return s + table[jnp.clip(distance, 0, 63)]

    return with_scores(bias, table)


@case(FUSED)
def i64_to_i32():
    return with_scores(
        lambda s: jnp.where((jnp.arange(T).astype(jnp.uint32) * 20000003).astype(jnp.int32) > 0, s, -jnp.inf)
    )


# --- 16-bit floats round ---


def alibi(dtype, slope=0.7):
    def change(s):
        i, j = jnp.arange(S, dtype=dtype)[:, None], jnp.arange(T, dtype=dtype)[None]
        return s - jnp.abs(i - j).astype(jnp.float32) * jnp.float32(slope)

    return change


@case(FUSED)
def positions_in_bf16():
    return with_scores(alibi(jnp.bfloat16))


@case(FUSED)
def positions_in_f16():
    return with_scores(lambda s: s + (jnp.arange(T, dtype=jnp.float16) * jnp.float16(16.37)).astype(jnp.float32) / 1e3)


@case(FUSED)
def positions_compared_in_bf16():
    return with_scores(
        lambda s: jnp.where(
            jnp.arange(T, dtype=jnp.bfloat16) <= jnp.arange(280, 280 + S, dtype=jnp.bfloat16)[:, None], s, -jnp.inf
        )
    )


@case(FUSED)
def f16_overflow_masks():
    """65504 + 65504 is infinite in f16."""
    far = lambda: jnp.where(jnp.arange(T) > 50, jnp.float16(-65504), jnp.float16(0))
    return with_scores(lambda s: s + (far() + far()).astype(jnp.float32) * 1e-3)


@case(FUSED)
def slopes_in_bf16():
    slopes = jnp.asarray([0.7, 0.3], jnp.bfloat16)[:, None, None]
    return with_scores(
        lambda s, slopes: (
            s - (slopes * (jnp.arange(T)[None] - jnp.arange(S)[:, None]).astype(jnp.bfloat16)).astype(jnp.float32)
        ),
        slopes,
    )


@case(FUSED)
def bf16_slopes_of_bf16_attention():
    slopes = jnp.asarray([0.5, 0.25], jnp.bfloat16)[:, None, None]
    distance = lambda: (jnp.arange(T)[None] - jnp.arange(S)[:, None]).astype(jnp.bfloat16)
    return with_scores(
        lambda s, slopes: s.astype(jnp.float32) - (slopes * distance()).astype(jnp.float32), slopes, dtype=jnp.bfloat16
    )


def round_trip(x, dtype=jnp.bfloat16):
    return x.astype(dtype).astype(jnp.float32)


@case(FUSED)
def round_trip_of_queries():
    return lambda q, k, v: attend(scores_of(round_trip(q), k), v), tensors()


@case(FUSED)
def round_trip_of_keys():
    return lambda q, k, v: attend(scores_of(q, round_trip(k, jnp.float16)), v), tensors()


@case(FUSED)
def round_trip_of_values():
    return lambda q, k, v: attend(scores_of(q, k), round_trip(v)), tensors()


@case(FUSED)
def round_trip_of_all():
    return lambda q, k, v: attend(scores_of(round_trip(q), round_trip(k)), round_trip(v)), tensors()


@case(FUSED)
def round_trip_of_output():
    return lambda q, k, v: round_trip(attend(scores_of(q, k), v)), tensors()


@case(FUSED)
def round_trip_in_8_bits():
    return lambda q, k, v: attend(scores_of(q, round_trip(k, jnp.float8_e4m3fn)), v), tensors()


@case(LEFT)
def round_trip_of_scores():
    return with_scores(round_trip)


@case(LEFT)
def round_trip_of_probabilities():
    return lambda q, k, v: jnp.einsum("bhqk,bkhd->bqhd", round_trip(jax.nn.softmax(scores_of(q, k), -1)), v), tensors()


@case(LEFT)
def scores_of_bf16_attention_in_f16():
    return with_scores(lambda s: s.astype(jnp.float16).astype(jnp.bfloat16), dtype=jnp.bfloat16)


@case(FUSED)
def probabilities_rounded_as_values_are():
    def attention(q, k, v):
        p = jax.nn.softmax(scores_of(q, k).astype(jnp.float32), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", p.astype(jnp.bfloat16), v)

    return attention, tensors(jnp.bfloat16)


@case(FUSED)
def values_of_an_8_bit_cache():
    """They are rounded to the type of queries and keys, and widened again beside probabilities in f32."""

    def attention(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        values = (v.astype(jnp.float8_e4m3fn).astype(jnp.float32) * 0.75).astype(jnp.bfloat16)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), values.astype(jnp.float32))

    return attention, tensors(jnp.bfloat16)


@case(LEFT)
def values_rounded_to_another_type():
    def attention(q, k, v):
        values = v.astype(jnp.float16).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores_of(q, k).astype(jnp.float32), -1), values)

    q, k, v = tensors(jnp.bfloat16)
    return attention, [q, k, v.astype(jnp.float32)]


@case(FUSED)
def scale_rounded_to_bf16():
    factor = lambda: jnp.sqrt(jnp.bfloat16(7.0)).astype(jnp.float32)
    return lambda q, k, v: attend(jnp.einsum("bqhd,bkhd->bhqk", q / factor(), k), v), tensors()


# --- Rows without keys ---


def keep():
    mask = np.arange(T) % 3 > 0
    rows = np.broadcast_to(mask, (S, T)).copy()
    rows[3] = False
    return jnp.asarray(rows)


def with_log_sum_exp(softmax, masked=True):
    def attention(q, k, v, *rest):
        s = scores_of(q, k)
        p, lse = softmax(jnp.where(rest[0], s, -jnp.inf) if masked else s)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v), lse

    return attention, [*tensors(), keep()]


@case(FUSED)
def log_sum_exp_of_jax():
    return with_log_sum_exp(lambda s: (jax.nn.softmax(s, -1), jax.nn.logsumexp(s, -1)))


@case(FUSED)
def log_sum_exp_written_out():
    def softmax(s):
        m = s.max(-1, keepdims=True)
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        return e / z, (m + jnp.log(z))[..., 0]

    return with_log_sum_exp(softmax)


@case(FUSED)
def blocks_merged_by_log_sum_exp():
    def attention(q, k, v, rows):
        def block(k, v, rows):
            s = jnp.where(rows, scores_of(q, k), -jnp.inf)
            return attend(s, v), jax.nn.logsumexp(s, -1)

        o, lse = block(k, v, rows)
        whole = jnp.logaddexp(lse, 1.0)
        weight = jnp.exp(lse - whole).swapaxes(1, 2)[..., None]
        return jnp.where(weight > 0, o, 0) * weight, whole

    return attention, [*tensors(), keep()]


def from_lowest(zeroes):
    lowest = jnp.float32(np.finfo(np.float32).min)

    def softmax(s):
        m = jax.lax.reduce(s, lowest, jax.lax.max, (3,))[..., None]
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        return e / (jnp.where(z == 0, 1.0, z) if zeroes else z)

    return lambda q, k, v, rows: jnp.einsum(
        "bhqk,bkhd->bqhd", softmax(jnp.where(rows, scores_of(q, k), -jnp.inf)), v
    ), [
        *tensors(),
        keep(),
    ]


@case(FUSED)
def maximum_from_lowest():
    return from_lowest(zeroes=False)


@case(FUSED)
def maximum_from_lowest_and_zeroes():
    return from_lowest(zeroes=True)


@case(FUSED)
def sinks_of_minus_infinity():
    sinks = jnp.asarray([0.5, -np.inf], jnp.float32)

    def attention(q, k, v, rows, sinks):
        s = jnp.where(rows, scores_of(q, k), -jnp.inf)
        sink = jnp.broadcast_to(sinks[None, :, None, None], (B, H, S, 1))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.concatenate([s, sink], -1), -1)[..., :-1], v)

    return attention, [*tensors(), keep(), sinks]


@case(FUSED)
def nan_to_num_of_masked_rows():
    return lambda q, k, v, rows: jnp.einsum(
        "bhqk,bkhd->bqhd", jnp.nan_to_num(jax.nn.softmax(jnp.where(rows, scores_of(q, k), -jnp.inf), -1)), v
    ), [*tensors(), keep()]


@case(LEFT)
def nan_to_num_of_infinite_bias():
    bias = np.zeros((S, T), np.float32)
    bias[2, 5] = np.inf
    return lambda q, k, v, bias: jnp.einsum(
        "bhqk,bkhd->bqhd", jnp.nan_to_num(jax.nn.softmax(scores_of(q, k) + bias, -1)), v
    ), [*tensors(), jnp.asarray(bias)]


# --- Functions of gradients ---


def with_cut_off(function):
    """The gradient of attention, set to 0 where the scores are large."""

    @jax.custom_vjp
    def cut(s):
        return s

    cut.defvjp(lambda s: (s, s), lambda s, ct: (function(s, ct),))

    def loss(q, k, v):
        return (attend(cut(scores_of(q, k)), v) ** 2).sum()

    q, k, v = tensors(T=24)
    return jax.grad(loss, (0, 1, 2)), (q * 12, k * 12, v)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, ct: ct * jax.nn.sigmoid(3 * (60 - s)),
        lambda s, ct: ct * jax.nn.sigmoid(0.1 * (900 - s)),
        lambda s, ct: ct * (1 + jnp.exp(-((s - 500) ** 2))),
        lambda s, ct: ct / (1 + (s / 100) ** 8),
        lambda s, ct: jnp.tanh(ct * 1e-9) * 1e9,
        lambda s, ct: ct / (1 + jnp.exp(s) * 1e-30),
        lambda s, ct: ct / (1 + (ct * 1e-12) ** 2),
    ],
)
def test_gradient_that_is_cut_off_is_left_alone(function):
    count, report = compare(*with_cut_off(function))
    assert count == 0, report


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s,
        lambda s: 30 * jnp.tanh(s / 30),
        lambda s: jax.nn.gelu(s),
        lambda s: s * jax.nn.sigmoid(s),
        lambda s: jnp.sin(s),
        lambda s: jnp.sign(s) * jnp.log1p(jnp.abs(s)),
        lambda s: jnp.sqrt(1 + s * s),
        jax.nn.softplus,
        jax.nn.log_sigmoid,
        jax.nn.mish,
        lambda s: jax.nn.softplus(s + jnp.cos(jnp.arange(24.0))),
        lambda s: jnp.logaddexp(s, 1.5),
        lambda s: jnp.logaddexp(jnp.cos(jnp.arange(24.0)), s),
    ],
)
def test_gradient_of_a_changed_score_is_fused(change):
    loss = lambda q, k, v: (attend(change(scores_of(q, k)), v) ** 2).sum()
    count, report = compare(jax.grad(loss, (0, 1, 2)), tensors(T=24))
    assert count == 1, report


@jax.custom_vjp
def tanh_of_exp(s):
    return jnp.tanh(jnp.exp(s))


def gradient_of_tanh_of_exp(s, ct):
    """0 for scores above 88.7, for which the derivative of the formula multiplies infinity by 0."""
    e = jnp.exp(s)
    return (jnp.where(e == jnp.inf, 0, ct * e * (1 - jnp.tanh(e) ** 2)),)


tanh_of_exp.defvjp(lambda s: (tanh_of_exp(s), s), gradient_of_tanh_of_exp)


def test_a_gradient_that_compares_a_number_that_overflows_with_infinity_is_left_alone():
    loss = lambda q, k, v: (attend(tanh_of_exp(scores_of(q, k)), v) ** 2).sum()
    count, report = compare(jax.grad(loss, (0, 1, 2)), tensors(T=24))
    assert count == 0, report


def difference_of_exponentials(s):
    return jnp.exp(s) - jnp.exp(2 * s)


@jax.custom_vjp
def doubled_where_nan(s):
    return jnp.where(jnp.isnan(difference_of_exponentials(s)), 2 * s, s)


doubled_where_nan.defvjp(lambda s: (doubled_where_nan(s), None), lambda _, ct: (ct,))


def test_a_gradient_is_compared_where_a_number_that_overflows_is_nan():
    loss = lambda q, k, v: (attend(doubled_where_nan(scores_of(q, k)), v) ** 2).sum()
    count, report = compare(jax.grad(loss, (0, 1, 2)), tensors(T=24))
    assert count == 0, report


@pytest.mark.parametrize("change", [jax.lax.erf, lambda s: jax.nn.gelu(s, approximate=False)])
def test_gradient_of_erf(change):
    """JAX 0.12 computes the derivative from the bits of the score, which Flashlift does not read."""
    loss = lambda q, k, v: (attend(change(scores_of(q, k)), v) ** 2).sum()
    count, report = compare(jax.grad(loss, (0, 1, 2)), tensors(T=24))
    reads_bits = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
    assert count == (0 if reads_bits else 1), report


def test_gradient_rounded_to_bf16_is_left_alone():
    count, report = compare(*with_cut_off(lambda s, ct: round_trip(ct)))
    assert count == 0, report


# --- Scores in f32 of 16-bit queries and keys ---


def widened(x):
    return x.astype(jnp.float32)


def turned(x):
    """A rotary embedding, computed in f32."""
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] / 10 ** jnp.linspace(0.0, 1.0, D // 2)
    x, y = jnp.split(widened(x), 2, -1)
    return jnp.concatenate([x * jnp.cos(angles) - y * jnp.sin(angles), y * jnp.cos(angles) + x * jnp.sin(angles)], -1)


@jax.custom_vjp
def quartered(x):
    return x / 4


quartered.defvjp(lambda x: (x / 4, ()), lambda _, ct: (ct / 3,))
rounded = lambda x, dtype: widened(turned(x).astype(dtype))
SCORES_IN_F32 = {
    "scaled queries": lambda q, k, v: (widened(q) / 4, widened(k)),
    "scaled keys": lambda q, k, v: (widened(q), widened(k) * 0.25),
    "both scaled": lambda q, k, v: (widened(q) / 2, widened(k) / 2),
    "rotary": lambda q, k, v: (rounded(q, v.dtype), rounded(k, v.dtype) / 4),
    "keys of several heads": lambda q, k, v: (widened(q) / 4, widened(jnp.repeat(k[:, :, :1], H, 2))),
    "keys widened and then repeated": lambda q, k, v: (widened(q) / 4, jnp.repeat(widened(k[:, :, :1]), H, 2)),
}
OTHER_SCORES_IN_F32 = {
    "not rounded": lambda q, k, v: (turned(q) / 4, turned(k)),
    "rounded to another type": lambda q, k, v: (rounded(q, jnp.float8_e4m3fn) / 4, widened(k)),
    "another factor in the gradient": lambda q, k, v: (quartered(widened(q)), widened(k)),
}


def of_scores_in_f32(change):
    """Probabilities are rounded before their product with values, as Flax does with `attention_softmax_in_fp32`."""

    def attention(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", *change(q, k, v))
        s = jnp.where(jnp.arange(s.shape[-1]) < jnp.asarray([[[[20]]], [[[9]]]]), s, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1).astype(v.dtype), v)

    def both(q, k, v):
        out, pullback = jax.vjp(attention, q, k, v)
        return out, pullback(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape).astype(out.dtype))

    return attention, both


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", SCORES_IN_F32)
def test_scores_in_f32_of_16_bit_queries(name, dtype):
    attention, both = of_scores_in_f32(SCORES_IN_F32[name])
    for function in (attention, both):
        count, report = compare(function, tensors(dtype, T=24))
        assert count == 1 and len(report.candidates) == 1, report


@pytest.mark.parametrize("name", OTHER_SCORES_IN_F32)
def test_other_scores_in_f32_beside_16_bit_values_stay(name):
    attention, both = of_scores_in_f32(OTHER_SCORES_IN_F32[name])
    if name != "another factor in the gradient":
        count, report = compare(attention, tensors(jnp.bfloat16, T=24))
        assert count == 0, report
    count, report = compare(both, tensors(jnp.bfloat16, T=24))
    assert count == 0, report


# --- Scores that are rounded to 16 bits and then step ---

STEPS_OF_SCORES = {
    "floor": lambda s: jnp.floor(3 * s),
    "round": lambda s: jnp.round(3 * s),
    "whole": lambda s: jnp.where(s == jnp.round(s), s, -2),
    "index": lambda s: jnp.arange(16, dtype=s.dtype)[jnp.clip((2 * s).astype(jnp.int32) + 8, 0, 15)],
    "threshold": lambda s: jnp.where(s > 0.3, s, -jnp.inf),
}
SMOOTH_FUNCTIONS_OF_SCORES = {
    "relu": jax.nn.relu,
    "leaky relu": jax.nn.leaky_relu,
    "clipped": lambda s: jnp.clip(s, -1, 1),
    "absolute": jnp.abs,
    "without zeros": lambda s: jnp.where(s == 0, -jnp.inf, s),
    "capped": lambda s: 5 * jnp.tanh(s / 5),
    "softplus, which looks for NaN": jax.nn.softplus,
}


def on_half(change, dtype):
    return lambda q, k, v: attend(change(scores_of(q, k)), v), tensors(dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", STEPS_OF_SCORES)
def test_scores_that_step_are_rounded(name, dtype):
    count, report = compare(*on_half(STEPS_OF_SCORES[name], dtype))
    assert count == 0 and "rounded to 16 bits and then" in str(report), report


@pytest.mark.parametrize("name", SMOOTH_FUNCTIONS_OF_SCORES)
def test_scores_that_do_not_step_need_no_rounding(name):
    count, report = compare(*on_half(SMOOTH_FUNCTIONS_OF_SCORES[name], jnp.bfloat16))
    assert count == 1, report


def test_scores_in_f32_may_step():
    def function(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        return attend(jnp.floor(s).astype(q.dtype), v)

    count, report = compare(function, tensors(jnp.bfloat16))
    assert count == 1, report


# --- Scores of 16 bits beside large numbers ---

LOWS = {"float16": (-65504.0, -1e4, -1e3), "bfloat16": (-3.38e38, -1e9, -1e4, -69)}


def added(keep, low, dtype):
    return jnp.where(keep, 0, low).astype(dtype)


BESIDE_MASKS = {
    "added": lambda s, one, other, low: s + added(one, low, s.dtype),
    "added twice": lambda s, one, other, low: s + added(one, low, s.dtype) + added(other, low, s.dtype),
    "added at once": lambda s, one, other, low: s + (added(one, low, s.dtype) + added(other, low, s.dtype)),
    "added in f32": lambda s, one, other, low: s.astype(jnp.float32) + added(one, low, jnp.float32),
    "before the scale": lambda s, one, other, low: (s + added(one, low, s.dtype)) * jnp.asarray(1.5, s.dtype),
    "beside -inf": lambda s, one, other, low: jnp.where(other, s + added(one, low, s.dtype), -jnp.inf),
    "selected, added": lambda s, one, other, low: jnp.where(one, s, low) + added(other, low, s.dtype),
    "added, selected": lambda s, one, other, low: jnp.where(one, s + added(other, low, s.dtype), low),
    "on all keys": lambda s, one, other, low: s + jnp.asarray(low, s.dtype),
}
SOFTMAXES = {
    "own type": lambda s: jax.nn.softmax(s, -1),
    "f32": lambda s: jax.nn.softmax(s.astype(jnp.float32), -1).astype(s.dtype),
    "f32 after a transpose": lambda s: jax.nn.softmax(s.swapaxes(1, 2).astype(jnp.float32), -1).swapaxes(1, 2),
}


def rows_without_keys():
    one, other = R.random((2, B, 1, S, 12)) > 0.5
    one[:, :, 1], other[:, :, 2], one[:, :, 3], other[:, :, 3] = False, False, False, False
    one[:, :, 4], other[:, :, 4] = False, True
    return jnp.asarray(one), jnp.asarray(other)


@pytest.mark.parametrize("dtype", LOWS)
@pytest.mark.parametrize("mask", BESIDE_MASKS)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_rounds_scores_beside_masks(dtype, mask, softmax):
    """In rows without keys, the output depends on what 16 bits keep of the scores."""

    def function(q, k, v, one, other):
        s = [BESIDE_MASKS[mask](scores_of(q, k), one, other, low) for low in LOWS[dtype]]
        return [jnp.einsum("bhqk,bkhd->bqhd", SOFTMAXES[softmax](some).astype(v.dtype), v) for some in s]

    count, report = compare(function, [*tensors(dtype, T=12), *rows_without_keys()])
    assert count == len(LOWS[dtype]), report


@pytest.mark.parametrize("dtype", LOWS)
def test_rounds_scores_beside_tensors(dtype):
    def function(q, k, v, *masks):
        return [attend(scores_of(q, k) + mask, v) for mask in masks]

    keep, _ = rows_without_keys()
    masks = [added(keep, low, dtype) for low in LOWS[dtype]]
    count, report = compare(function, [*tensors(dtype, T=12), *masks])
    assert count == len(masks) and f"= round_{'f16' if dtype == 'float16' else 'bf16'}" in str(report.module), report


@pytest.mark.parametrize("dtype", LOWS)
def test_gradients_of_scores_rounded_beside_masks(dtype):
    one, other = rows_without_keys()
    one = one.at[..., 0].set(True)  # where all scores are -inf, gradients are NaN

    def loss(q, k, v):
        s = scores_of(q, k) + added(one, -1e4, dtype) + added(other, LOWS[dtype][0], dtype)
        return jnp.sum(jnp.sin(attend(s, v).astype(jnp.float32)))

    count, report = compare(jax.grad(loss, (0, 1, 2)), tensors(dtype, T=12))
    assert count == 1, report


@pytest.mark.parametrize("dtype", LOWS)
def test_does_not_round_scores_that_nothing_large_is_added_to(dtype):
    def function(q, k, v):
        causal = jnp.arange(S)[:, None] >= jnp.arange(12)[None]
        return [attend(jnp.where(causal, scores_of(q, k), LOWS[dtype][0]), v), attend(scores_of(q, k) + 3, v)]

    fused = flashlift.jax.fuse(function)
    fused(*tensors(dtype, T=12))
    assert fused.report.fused_count == 2 and "= round_" not in fused.report.module, fused.report


@case(LEFT)
def exponentials_of_scores_that_no_operation_has():
    def function(q, k, v, keep, bias):
        s = scores_of(q, k) + added(keep, -65504.0, q.dtype)
        e = jnp.exp(s - s.max(-1, keepdims=True) + bias)
        return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)

    bias = jnp.asarray(R.standard_normal((H, S, 12)), jnp.float16)
    return function, [*tensors(jnp.float16, T=12), rows_without_keys()[0], bias]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("widened", ["qkv", "v"])
def test_what_is_widened_to_f32_stays_as_exact(widened, gradients):
    """bf16 weights or a cache in bf16, for which the module computes in f32: nothing is rounded to bf16 on the way."""

    def attention(q, k, v):
        if widened == "qkv":
            q, k = q.astype(jnp.float32), k.astype(jnp.float32)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / 4
        return attend(scores, v.astype(jnp.float32))

    def both(q, k, v):
        return attention(q, k, v), jax.grad(lambda *given: jnp.sin(attention(*given)).sum(), (0, 1, 2))(q, k, v)

    function = both if gradients else attention
    arguments = tensors(jnp.bfloat16)
    fused = flashlift.jax.fuse(function)
    mine = fused(*arguments)
    assert any(candidate.fused for candidate in fused.report.candidates), fused.report
    theirs = function(*arguments)
    if gradients:
        for got, want in zip(mine[1], theirs[1], strict=True):
            np.testing.assert_allclose(np.float32(got), np.float32(want), rtol=2e-2, atol=2e-2)
        mine, theirs = mine[0], theirs[0]
    assert mine.dtype == jnp.float32
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "is_fused"),
    [
        (jax.nn.relu, False),  # its gradient at 0 is 0, that of a score program's max is 1/2
        (jnp.abs, False),  # 1, and that of a score program's abs is 0
        (lambda s: jnp.maximum(s, 0), True),
        (lambda s: jnp.clip(s, 0, 1), True),
        (jax.nn.leaky_relu, True),
        (lambda s: s / (1 + jnp.abs(s)), True),
        (lambda s: jnp.where(s > 0, s, 0), True),
    ],
    ids=["relu", "abs", "maximum", "clip", "leaky relu", "soft sign", "where"],
)
def test_gradients_of_scores_that_are_exactly_0(change, is_fused):
    """Padding with zeros gives such scores, where frameworks choose different derivatives."""
    q, k, v = tensors(T=40)
    q, k = q.at[:, 3].set(0), k.at[:, 30:].set(0)
    function = jax.value_and_grad(
        lambda *given: jnp.sin(attend(change(scores_of(*given[:2])), given[2])).sum(), (0, 1, 2)
    )
    count, report = compare(function, [q, k, v])
    assert (count > 0) == is_fused, report
    assert is_fused or all(candidate.reason for candidate in report.candidates), report


@pytest.mark.parametrize("widened", ["qkv", "v"])
def test_only_the_output_is_rounded_if_the_module_rounds_only_the_output(widened):
    """Probabilities that were rounded to bf16, too, would nearly double the error."""

    def in_f32(q, k, v):
        if widened == "qkv":
            q, k = q.astype(jnp.float32), k.astype(jnp.float32)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / 4
        return attend(scores, v.astype(jnp.float32))

    arguments = tensors(jnp.bfloat16, S=64, T=96)
    fused = flashlift.jax.fuse(lambda *given: in_f32(*given).astype(jnp.bfloat16))
    mine, exact = fused(*arguments), in_f32(*arguments)
    assert fused.report.fused_count == 1, fused.report
    assert mine.dtype == jnp.bfloat16
    errors = [np.abs(np.float32(x) - np.float32(exact)).mean() for x in (mine, exact.astype(jnp.bfloat16))]
    assert errors[0] < 1.1 * errors[1], errors
