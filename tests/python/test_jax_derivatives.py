"""Derivatives that no kernel computes: forward mode, second derivatives, and those of unnormalized outputs."""

import itertools
import json

import flashlift
import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift._library import core
from flashlift._problem import Problem
from flashlift.jax import flash_attention
from flashlift.jax._arguments.seeds import SeedOfPart
from flashlift.jax._call import Call, captured_names
from flashlift.jax._plain import plain as written_out
from flashlift.jax._primitive import _warn_of_plain_maths
from jax.experimental.jet import jet
from reference import dropout_keeps
from test_jax_flash_attention import plain
from test_jax_gradients import assert_gradients, normal

pytestmark = pytest.mark.filterwarnings("ignore:flashlift.jax computes")


def operands():
    return normal(1, 9, 4, 8), normal(1, 7, 2, 8), normal(1, 7, 2, 5), normal(1, 4, 9, 7), normal(4, 2)


def mine(q, k, v, bias, sinks):
    return flash_attention(q, k, v, bias, softmax_aux=sinks, logits_soft_cap=2.0, return_lse=True)


def theirs(q, k, v, bias, sinks):
    return plain(q, k, v, bias, sinks, scale=8**-0.5, cap=2.0)


def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=2e-4)


def test_forward_mode():
    given, tangents = operands(), operands()
    assert_close(jax.jvp(mine, given, tangents), jax.jvp(theirs, given, tangents))
    linear = jax.linearize(lambda q: mine(q, *given[1:]), given[0])[1]
    assert_close(linear(tangents[0]), jax.jvp(lambda q: theirs(q, *given[1:]), given[:1], tangents[:1])[1])
    some = lambda function: jax.jit(jax.jacfwd(lambda sinks: function(*given[:4], sinks)))
    assert_close(some(mine)(given[4]), some(theirs)(given[4]))


def test_second_derivatives():
    given, directions = operands(), operands()

    def loss(function):
        return lambda *given: sum(jnp.sum(jnp.sin(one)) for one in function(*given))

    def along(function):
        slope = jax.grad(loss(function), argnums=range(5))
        return lambda *given: sum(jnp.vdot(d, g) for d, g in zip(directions, slope(*given), strict=True))

    over_reverse = lambda function: jax.jit(jax.grad(along(function), argnums=range(5)))(*given)
    assert_close(over_reverse(mine), over_reverse(theirs))
    forward = lambda function: jax.jvp(jax.grad(loss(function), argnums=range(5)), given, directions)
    assert_close(forward(mine), forward(theirs))
    hessian = lambda function: jax.hessian(lambda sinks: loss(function)(*given[:4], sinks))(given[4])
    assert_close(hessian(mine), hessian(theirs))


def test_unnormalized():
    """The largest score of a row, which is subtracted from all, has a gradient too."""
    for sinks in (None, normal(4, 2)):
        q, k, v, bias, _ = operands()
        extra = () if sinks is None else (sinks,)
        assert_gradients(
            lambda q, k, v, bias, *sinks: flash_attention(
                q, k, v, bias, None, None, *sinks, normalize_output=False, causal=True
            ),
            lambda q, k, v, bias, *sinks: plain(
                q, k, v, bias, *sinks, scale=8**-0.5, normalize=False, keep=jnp.tril(jnp.ones((9, 7), bool))
            )[0],
            (q, k, v, bias, *extra),
        )


def test_sinks_of_all_heads_where_jax_promotes_nothing():
    q, k, v, *_ = operands()
    sinks = normal(2)
    loss = lambda sinks: flash_attention(q, k, v, softmax_aux=sinks, normalize_output=False).sum()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        strict = jax.grad(loss)(sinks)
    np.testing.assert_allclose(strict, jax.grad(loss)(sinks), rtol=1e-5)


@pytest.mark.parametrize("normalized", [True, False])
def test_rows_without_keys(normalized):
    """The mean of all values, or their sum if nothing is divided."""
    q, k, v, *_ = operands()
    keep = (jnp.arange(9) != 4)[None, None, :, None]
    attend = lambda v: flash_attention(q, k, v, attention_mask=keep, normalize_output=normalized, empty_rows="uniform")
    out, along = jax.jvp(attend, (v,), (v,))
    np.testing.assert_allclose(out, attend(v), atol=1e-5)
    np.testing.assert_allclose(along, out, atol=1e-5)  # the output is linear in the values
    of_row = jax.grad(lambda v: attend(v)[:, 4].sum())(v)
    of_head = 1 / 7 if normalized else 1
    np.testing.assert_allclose(of_row, np.full(v.shape, 2 * of_head), rtol=1e-6)  # two query heads read each value


@pytest.mark.parametrize("read", ["load t[kv]", "search t[kv]"])
def test_an_empty_table_reads_as_one_zero(read):
    features = (
        f"score_mod(t: i32[?]) {{ %0 = {read}; %1 = to_f32 %0; %2 = sub %1, 0.5; %3 = mul score, %2; return %3 }}"
    )
    q, k, v = normal(1, 4, 1, 8), normal(1, 6, 1, 8), normal(1, 6, 1, 8)
    attend = lambda table: lambda q: flashlift.jax.attention(q, k, v, features, captures={"t": jnp.int32(table)})
    expected = attend([0])(q)
    np.testing.assert_array_equal(attend([])(q), expected)
    out, along = jax.jvp(attend([]), (q,), (q,))
    np.testing.assert_allclose(out, expected, atol=1e-6)
    np.testing.assert_allclose(along, jax.jvp(attend([0]), (q,), (q,))[1], atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_small_tables_are_sums_in_float32(dtype):
    """Of elements of 16 bits that thousands of scores read: sums in 16 bits are wrong by a quarter. (What few scores
    read may be a small difference of large terms, each rounded to 16 bits.)"""
    q, k, v = normal(1, 64, 4, 8), normal(1, 64, 4, 8), jnp.abs(normal(1, 64, 4, 8)) / 16

    def loss(table):
        by_diagonal = lambda s, b, h, q, kv: s * (1 + table[(q + kv) % 3])
        return flash_attention(q, k, v, score_mod=by_diagonal, normalize_output=False).sum()

    table = jnp.zeros(3)
    np.testing.assert_allclose(jax.grad(loss)(table.astype(dtype)), jax.grad(loss)(table), rtol=5e-3)


BAD_KEYS = jnp.arange(7) >= 5
BAD_QUERIES = jnp.arange(9) >= 8


def by_mask(q, k, v, table):
    return {"attention_mask": ~BAD_KEYS[None, None, None] & ~BAD_QUERIES[None, None, :, None]}


def by_score(q, k, v, table):
    def score(s, b, h, q, kv):
        return jnp.where(BAD_KEYS[kv] | BAD_QUERIES[q], -jnp.inf, s * table[h, kv] * table[h, kv])

    return {"score_mod": score}


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("masked", [by_mask, by_score])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_nothing_of_what_is_masked_reaches_derivatives(masked, normalized, bad):
    q, k, v = operands()[:3]
    table = normal(4, 7)

    def of(bad):
        keys, queries = BAD_KEYS[:, None, None], BAD_QUERIES[:, None, None]
        of_q, of_k, of_v = (jnp.where(at, bad, one) for at, one in ((queries, q), (keys, k), (keys, v)))
        return of_q, of_k, of_v, jnp.where(BAD_KEYS, bad, table)

    def run(*given):
        out, lse = flash_attention(*given[:3], **masked(*given), normalize_output=normalized, return_lse=True)
        return out, jnp.where(jnp.isfinite(lse), lse, 0)

    slopes = jax.grad(lambda *given: sum(jnp.sum(jnp.sin(one)) for one in run(*given)), argnums=range(4))
    squares = lambda *given: sum(jnp.sum(one**2) for one in slopes(*given))
    for derivative in (
        lambda given: jax.jvp(run, given, given),
        lambda given: slopes(*given),
        lambda given: jax.jvp(slopes, given, given)[1],
        lambda given: jax.grad(squares, argnums=range(4))(*given),
    ):
        assert_close(derivative(of(bad)), derivative(of(0.0)))


@pytest.mark.parametrize("normalized", [True, False])
def test_queries_before_a_bad_key(normalized):
    q, k, v = operands()[:3]

    def of_first(bad):
        function = lambda q: flash_attention(
            q, *(one.at[:, 5:].set(bad) for one in (k, v)), causal=True, normalize_output=normalized
        )[:, :5]
        slope = jax.grad(lambda q: jnp.sum(jnp.sin(function(q))))
        return [jax.jvp(function, (q,), (q,)), slope(q)[:, :5], jax.jvp(slope, (q,), (q,))[1][:, :5]]

    assert_close(of_first(jnp.nan), of_first(0.0))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_infinite_values_that_are_kept(bad):
    q, k, v = operands()[:3]
    v = v.at[0, 3, 0, 0].set(bad)
    given, tangents = (q, k, v), (q, k, jnp.ones_like(v))
    function = lambda *given: flash_attention(*given, causal=True)
    expected = lambda *given: plain(*given, scale=8**-0.5, keep=jnp.tril(jnp.ones((9, 7), bool)))[0]
    np.testing.assert_allclose(jax.jvp(function, given, tangents)[0], function(*given), atol=2e-5)
    np.testing.assert_allclose(function(*given)[:, 3:], expected(*given)[:, 3:], atol=2e-5)
    assert jnp.isfinite(function(*given)[:, :3]).all()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("layers", ["one", "vmap", "linearize"])
def test_infinite_tangents_of_values(bad, layers):
    """They reach the rows that keep their key, in their own column."""
    q, k, v = normal(1, 6, 4, 8), normal(1, 6, 2, 8), normal(1, 6, 2, 5)
    given = jnp.ones_like(v).at[0, 3, 1, 2].set(bad)
    attend = lambda v: flash_attention(q, k, v, causal=True, empty_rows="uniform")
    along = {
        "one": lambda tangent: jax.jvp(attend, (v,), (tangent,))[1],
        "vmap": lambda tangent: jax.vmap(lambda one: jax.jvp(attend, (v,), (one,))[1])(tangent[None])[0],
        "linearize": lambda tangent: jax.linearize(attend, v)[1](tangent),
    }[layers](given)
    expected = jnp.ones((1, 6, 4, 5)).at[0, 3:, 2:, 2].set(bad)
    np.testing.assert_allclose(along, expected, atol=1e-5)


def test_infinite_tangents_of_values_reach_empty_rows_by_their_mean():
    q, k, v = (normal(1, 4, 1, 8) for _ in range(3))
    keep = (jnp.arange(4)[:, None] > jnp.arange(4))[None, None]
    given = jnp.ones_like(v).at[0, 3, 0, 2].set(jnp.nan)
    for rows, first in (("uniform", jnp.nan), ("zero", 0.0)):
        attend = lambda v, rows=rows: flash_attention(q, k, v, attention_mask=keep, empty_rows=rows)
        np.testing.assert_allclose(jax.jvp(attend, (v,), (given,))[1][0, :, 0, 2], [first, 1, 1, 1], atol=1e-5)


def test_one_warning_says_what_is_slow():
    _warn_of_plain_maths.cache_clear()
    given = tuple(normal(1, 5, 1, 8) for _ in range(3))  # what is compiled already has been warned of
    with pytest.warns(UserWarning, match="forward-mode derivatives of attention by plain maths") as warnings:
        jax.jvp(flash_attention, given, given)
        jax.jvp(flash_attention, given, given)
    assert len(warnings) == 1


@pytest.mark.parametrize("normalized", [True, False])
def test_dropout(normalized):
    q, k, v = operands()[:3]
    tangents = operands()[:3]
    keep = jnp.asarray(dropout_keeps(0.3, 5, 1, 4, 9, 7))

    def expected(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, 2, 2)) * 8**-0.5
        p = jax.nn.softmax(scores)
        p = p if normalized else p / p.max(axis=-1, keepdims=True)
        return jnp.einsum("bhqk,bkhd->bqhd", p * keep / 0.7, jnp.repeat(v, 2, 2))

    function = lambda q, k, v: flash_attention(q, k, v, dropout_prob=0.3, dropout_seed=5, normalize_output=normalized)
    of_sum = lambda f: jax.grad(lambda *given: (f(*given) ** 2).sum(), argnums=(0, 1, 2))
    assert_close(jax.jvp(function, (q, k, v), tangents), jax.jvp(expected, (q, k, v), tangents))
    assert_close(of_sum(function)(q, k, v), of_sum(expected)(q, k, v))
    assert_close(*(jax.jvp(of_sum(f), (q, k, v), tangents)[1] for f in (function, expected)))


@pytest.mark.parametrize("arguments", [{}, {"normalize_output": False}, {"dropout_prob": 0.3, "dropout_seed": 1}])
def test_transposes(arguments):
    """Attention is linear in its values alone."""
    q, k, v, bias, sinks = operands()
    attend = lambda v: flash_attention(q, k, v, bias, softmax_aux=sinks, **arguments)
    out, backward = jax.vjp(attend, v)
    for function in attend, jax.jit(attend):
        assert_close(jax.linear_transpose(function, v)(out), backward(out))
    with pytest.raises(flashlift.UnsupportedError, match="expected jax.vjp"):
        jax.linear_transpose(lambda q: flash_attention(q, k, v), q)(out)


WORDS = [
    "causal window=3,1", "causal=bottom_right dilated=2 prefix=1", "documents=2 alibi", "softcap=3 logits=bf16",
    "empty_rows=uniform window=0 key_lengths", "segment_ids bias=f16 mask=i32", "cu_seqlens causal",
    "dropout=0.3 causal sinks=1", "dropout=0.999 empty_rows=uniform window=0,0 mask=i32",
    "score_mod(t: f32[5,7]) { %0 = load t[h, kv]; %1 = sub q, kv; %2 = abs %1; %3 = to_f32 %2; %4 = expm1 %0; "
    "%5 = select true, %4, %3; %6 = pow 2.0, %5; %7 = sub score, %6; return %7 } "
    "mask_mod(t: f32[5,7]) { %0 = xor q, kv; %1 = shr %0, 1; %2 = mod %1, 2; %3 = lt %2, 1; return %3 }",
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_the_plain_maths_are_the_kernels(words):
    draw = np.random.default_rng(0)
    given = {
        "key_lengths": np.int32([4]),
        "q_segments": draw.integers(0, 2, (1, 9), dtype=np.int32),
        "kv_segments": draw.integers(0, 2, (1, 7), dtype=np.int32),
        "bias": draw.normal(size=(1, 4, 1, 7)).astype(np.float16),
        "mask": draw.integers(0, 2, (1, 1, 9, 7), dtype=np.int32),
        "cu_seqlens_q": np.int32([0, 4, 9]),
        "cu_seqlens_kv": np.int32([0, 1, 7]),
        "t": draw.normal(size=(5, 7)).astype(np.float32),
    }
    q, k, v = operands()[:3]
    sizes = {"q_heads": 4, "kv_heads": 2, "q_len": 9, "kv_len": 7, "head_dim": 8, "value_dim": 5}
    problem = Problem.parse(f"attn lse {words}", dtype="f32", **sizes)
    names = captured_names(problem)
    captures = [jnp.asarray(given[name]) for name in names]
    # A part of a larger call: with the numbers of its first batch and head.
    seed = [jnp.uint32([5, 1 << 31, 2, 3])] if "dropout" in words else []
    sinks = [normal(4, 1)] if "sinks" in words else []
    rest = {"sinks": sinks[0]} if sinks else {}
    rest |= {"dropout_seed": SeedOfPart(seed[0])} if seed else {}
    fused = flashlift.jax.attention(q, k, v, f"lse {words}", captures=captures, **rest)
    for one, other in itertools.zip_longest(
        fused, written_out(Call(problem, "bshd", names), q, k, v, *captures, *sinks, *seed)
    ):
        np.testing.assert_allclose(one, other, atol=2e-5 if "bf16" not in words else 2e-2)


def test_the_plain_maths_have_every_operation():
    operands = dict.fromkeys(("arithmetic", "function", "predicate"), ("%x", "0.3"))  # in the domain of each
    operands |= dict.fromkeys(("integer", "bits", "comparison"), ("q", "kv"))
    rows = [row for row in json.loads(core().flashlift_operations()) if row["kind"] in operands]
    steps = ["%x = sigmoid score", "%sum0 = mul %x, 0.0"]
    for i, row in enumerate(rows):
        given = ", ".join(operands[row["kind"]][: row["operands"]])
        steps += [f"%y{i} = {row['name']} {given}", f"%f{i} = to_f32 %y{i}", f"%sum{i + 1} = add %sum{i}, %f{i}"]
    program = f"score_mod() {{ {'; '.join(steps)}; return %sum{len(rows)} }}"
    q, k, v = normal(1, 5, 1, 8), normal(1, 5, 1, 8), normal(1, 5, 1, 8)
    sizes = {"q_heads": 1, "kv_heads": 1, "q_len": 5, "kv_len": 5, "head_dim": 8, "value_dim": 8}
    problem = Problem.parse(f"attn lse {program}", dtype="f32", **sizes)
    out, lse = flashlift.jax.attention(q, k, v, f"lse {program}")
    assert len(rows) > 30 and jnp.isfinite(lse).all()
    assert_close((out, lse), tuple(written_out(Call(problem, "bshd", []), q, k, v)))


def attention_of_itself(x):
    return jax.nn.dot_product_attention(x, x, x)


@pytest.mark.parametrize("function", [lambda x: flash_attention(x, x, x), flashlift.jax.fuse(attention_of_itself)])
def test_jet(function):
    """Of the original function, fuse() finds the attention that is left in the series."""
    x = normal(1, 9, 2, 8)
    series = ((jnp.ones_like(x), x),)
    with pytest.raises(flashlift.UnsupportedError, match="expected flashlift.jax.fuse around it"):
        jet(function, (x,), series)
    of_original = lambda x: jet(attention_of_itself, (x,), series)
    assert_close(flashlift.jax.fuse(of_original)(x), of_original(x))
