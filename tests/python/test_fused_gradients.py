"""Gradients in a module are fused with their attention, forward and backward; similar computations that are no
gradients stay unfused.
"""

import functools
import itertools

import flashlift
import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from spellings import CASES

RNG = np.random.default_rng(3)

# Those whose derivative is by queries, keys and values alone, once the other operands are data.
SPELLINGS = (
    "softmax_where softmax_where_inf gqa_tile gqa_repeat_bhsd gqa_group_q_bkgsd mla_192_128 "
    "gpt2_where_causal_then_mask bf16_f32softmax f16_upcast_all sliding_and_sinks_tokens block_diag eagle3 recip_mul "
    "scores_transposed decode_no_q_axis dyn_window_offset softcap_then_mask_mul safe_zero_rows nan_to_num "
    "eps_denominator cached_concat_kv fused_qkv_split_heads x_shared_qkv int64ish_arange_f squared_scores "
    "topk_mask_scores rope_inside "
    "output_gated"
).split()


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def cotangents_of(results):
    """A different weight for each element."""
    return jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape).astype(x.dtype), results
    )


def assert_close(mine, theirs, tolerance):
    for got, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert got.dtype == expected.dtype
        got, expected = (np.asarray(x, np.float64) for x in (got, expected))
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(got), finite)
        scale = max(1, np.max(np.abs(expected), initial=0, where=finite))
        np.testing.assert_allclose(got, expected, atol=tolerance * scale, rtol=tolerance)


def run_both_ways(function, operands, tolerance=2e-5):
    fused = flashlift.jax.fuse(function)
    if fused.analyze(*operands).fused_count == 0:
        return fused.report  # what would run is jax.jit(function) (test_what_stays_unfused_is_left_to_jax)
    mine, theirs = fused(*operands), jax.jit(function)(*operands)
    assert_close(mine, theirs, tolerance)
    return fused.report


def with_gradients(function, floats):
    """The function's results, and its gradients with respect to the first `floats` operands that hold floats."""

    def both(*operands):
        places = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.floating)][:floats]

        def of_some(*some):
            full = list(operands)
            for i, x in zip(places, some, strict=True):
                full[i] = x
            return function(*full)

        results, pullback = jax.vjp(of_some, *(operands[i] for i in places))
        return results, pullback(cotangents_of(results))

    return both


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name):
    function, operands = CASES[name]()
    tolerance = 2e-5 if operands[0].dtype == np.float32 else 2e-2
    report = run_both_ways(with_gradients(function, 3), operands, tolerance)
    assert report.fused_count == 1 and len(report.candidates) == 1, report
    assert report.module.count('"flashlift.attention_backward"') == 1


# By all operands that hold floats: biases, tables, slopes, scales and temperatures as well.
SPELLINGS_BY_ALL = (
    "off_by_one swin_v2_cosine swin_window_mask transformer_xl mla_split_scores learned_head_scale "
    "linen_dpa_bias_dtype relpos_dynslice_table gaussian_bias one_added_to_the_sum zero_logit_padded multi_sinks "
    "sinks_bf16 sinks_computed jaxnn_lse_mask lse_manual_bhq logsumexp_softmax maximum_tiny_denominator "
    "llama_additive_4d"
).split()


@pytest.mark.parametrize("name", SPELLINGS_BY_ALL)
def test_spellings_by_all_operands(name):
    function, operands = CASES[name]()
    tolerance = 2e-5 if operands[0].dtype == np.float32 else 2e-2
    report = run_both_ways(with_gradients(function, len(operands)), operands, tolerance)
    assert report.fused_count == 1 and len(report.candidates) == 1, report
    assert report.module.count('"flashlift.attention_backward"') == 1


def attention(q, k, v, keep=None, low=-jnp.inf):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    if keep is not None:
        s = jnp.where(keep, s, low)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


def operands(S=20, T=24, dtype=jnp.float32):
    return normal(2, S, 3, 16, dtype=dtype), normal(2, T, 3, 16, dtype=dtype), normal(2, T, 3, 8, dtype=dtype)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("with_output", [True, False])
def test_any_of_the_gradients(wanted, with_output):
    """Without the output in the module, the product of its gradient with the values shows which operand the values are.
    The gradient with respect to the values alone contains no such product."""

    def function(q, k, v, d_out):
        out, pullback = jax.vjp(attention, q, k, v)
        gradients = pullback(d_out)
        return (out if with_output else (), [gradients[i] for i in wanted])

    report = run_both_ways(function, (*operands(), normal(2, 20, 3, 8)))
    assert report.fused_count == (with_output or wanted != (2,)), report


@pytest.mark.parametrize("with_output", [True, False])
@pytest.mark.parametrize("wanted", [(0,), (2,), (0, 1, 2)])
def test_gradients_of_a_sum_of_the_output(wanted, with_output):
    """The gradient of the output is a constant, and its products look like sums of the other operand."""
    equal = (normal(8, 8, 8, 8),) * 3  # no dimension is known by its size
    grouped = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)
    heads = normal(2, 16, 6, 8), normal(2, 16, 2, 8), normal(2, 16, 2, 8)
    for attend, given in ((attention, operands()), (attention, equal), (grouped, heads), (grouped, equal)):
        loss = lambda *qkv: attend(*qkv).mean()
        report = run_both_ways((jax.value_and_grad if with_output else jax.grad)(loss, wanted), given)
        assert report.fused_count == (with_output or wanted != (2,)), report


def of_head(q, k, v):
    return jax.nn.softmax(q @ k.T / 4) @ v


def of_groups(q, k, v):
    return jax.vmap(jax.vmap(of_head, (0, None, None)))(q, k, v)


def sum_and_gradients(function):
    return jax.value_and_grad(lambda *x: jnp.sum(1 + function(*x)), (0, 1, 2))


@pytest.mark.parametrize("of_keys", [0.3, 0.31])
@pytest.mark.parametrize("early", [True, False])
def test_by_hand_with_a_gradient_of_lse(early, of_keys):
    """The score's scale multiplies the gradient of the scores, or the products with it."""

    def function(q, k, v, d_out, d_lse):
        s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.3
        lse = jax.nn.logsumexp(s, -1)
        p = jnp.exp(s - lse[..., None])
        out = jnp.einsum("bhqk,bhkd->bhqd", p, v)
        d_p = jnp.einsum("bhqd,bhkd->bhqk", d_out, v)
        d_s = p * (d_p - (jnp.sum(d_out * out, -1) - d_lse)[..., None]) * (0.3 if early else 1)
        d_q = jnp.einsum("bhqk,bhkd->bhqd", d_s, k) * (1 if early else 0.3)
        d_k = jnp.einsum("bhqk,bhqd->bhkd", d_s, q) * (of_keys / 0.3 if early else of_keys)
        return out, lse, d_q, d_k, jnp.einsum("bhqk,bhqd->bhkd", p, d_out)

    given = [normal(2, 3, length, 8) for length in (7, 9, 9, 7)] + [normal(2, 3, 7)]
    report = run_both_ways(function, given)
    assert report.fused_count == (early or of_keys == 0.3), report


@pytest.mark.parametrize("floats", [0, 4])
@pytest.mark.parametrize("in_maximum", [True, False])
def test_log_sum_exp_with_sinks_by_hand(in_maximum, floats):
    def function(q, k, v, sinks):
        s, sink = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.3, sinks[:, None, None]
        largest = jnp.max(s, -1, keepdims=True)
        largest = jax.lax.stop_gradient(jnp.maximum(largest, sink) if in_maximum else largest)
        e = jnp.exp(s - largest)
        total = jnp.sum(e, -1, keepdims=True) + jnp.exp(sink - largest)
        return jnp.einsum("bhqk,bhkd->bhqd", e / total, v), jnp.log(total) + largest

    given = [normal(2, 3, length, 8) for length in (7, 9, 9)] + [normal(3)]
    report = run_both_ways(with_gradients(function, floats) if floats else function, given)
    assert report.fused_count == 1, report
    # Not what the call's log-sum-exp is: another sink, and none.
    for wrong in (lambda sinks: sinks + 0.01, lambda sinks: sinks - 100):
        near = lambda q, k, v, sinks: (function(q, k, v, sinks)[0], function(q, k, v, wrong(sinks))[1])
        run_both_ways(near, given)


MAPPED = {
    "heads": (jax.vmap(sum_and_gradients(of_head)), [3], []),
    "batches and heads": (jax.vmap(jax.vmap(sum_and_gradients(of_head))), [2, 3], []),
    "batches of heads": (jax.vmap(sum_and_gradients(jax.vmap(of_head))), [2, 3], []),
    "batches of grouped heads": (jax.vmap(sum_and_gradients(of_groups)), [2, 3], [2]),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", MAPPED)
def test_gradients_of_a_sum_in_each_mapped_call(name, dtype):
    """The output's gradient lacks the mapped dimensions, along which it is the same."""
    function, mapped, groups = MAPPED[name]
    q = normal(*mapped, *groups, 7, 16, dtype=dtype)
    k, v = normal(*mapped, 9, 16, dtype=dtype), normal(*mapped, 9, 16, dtype=dtype)
    report = run_both_ways(function, (q, k, v), 2e-5 if dtype == jnp.float32 else 2e-2)
    assert report.fused_count == 1 and len(report.candidates) == 1, report
    assert report.module.count('"flashlift.attention_backward"') == 1


PARTLY_MAPPED = [axes for axes in itertools.product((0, None), repeat=3) if axes not in ((None,) * 3, (None, None, 0))]


@pytest.mark.parametrize("axes", PARTLY_MAPPED, ids=str)
@pytest.mark.parametrize("name", ["head", "heads", "grouped"])
def test_gradients_of_each_mapped_call_that_shares_operands(name, axes):
    """Operands that lack the mapped dimension, but have other batches or heads, are repeated for the call. Each mapped
    call has gradients of its own, also those of operands that all share."""
    function, shapes = {
        "head": (of_head, [(20, 16), (24, 16), (24, 8)]),
        "heads": (attention, [(2, 20, 3, 16), (2, 24, 3, 16), (2, 24, 3, 8)]),
        "grouped": (jax.nn.dot_product_attention, [(2, 20, 6, 8), (2, 24, 2, 8), (2, 24, 2, 8)]),
    }[name]
    given = [normal(*([4] if axis == 0 else []), *shape) for axis, shape in zip(axes, shapes, strict=True)]
    assert run_both_ways(jax.vmap(function, axes), given).fused_count == 1
    loss = lambda *qkv: jnp.sum(1 + jnp.sin(function(*qkv)))  # without 1, its error depends on the order of terms
    of_each = jax.vmap(jax.value_and_grad(loss, (0, 1, 2)), axes)
    summed = jax.value_and_grad(lambda *qkv: jax.vmap(loss, axes)(*qkv).sum(), (0, 1, 2))
    for gradients in (of_each, jax.vmap(jax.grad(loss, 1), axes), summed):
        report = run_both_ways(gradients, given)
        assert report.fused_count == len(report.candidates) == 1, report
        assert report.module.count('"flashlift.attention_backward"') == 1


def grouped(q, k, v):
    """Queries [B, K, G, S, D]."""
    p = jax.nn.softmax(jnp.einsum("bkgsd,bktd->bkgst", q, k) / 4)
    return jnp.einsum("bkgst,bktd->bkgsd", p, v)


MANY_QUERIES = {
    "groups of one head": (grouped, [(2, 3, 1, 20, 16), (2, 3, 24, 16), (2, 3, 24, 8)]),
    "keys that all mapped calls share": (jax.vmap(of_head, (0, None, 0)), [(3, 20, 16), (24, 16), (3, 24, 8)]),
}


@pytest.mark.parametrize("name", MANY_QUERIES)
def test_rows_of_one_head_are_queries_and_no_group_of_heads(name):
    """As heads, each would be a call with one query: gradients then take several times as long."""
    function, shapes = MANY_QUERIES[name]
    for compiled in (function, with_gradients(function, 3)):
        report = run_both_ways(compiled, [normal(*shape) for shape in shapes])
        assert "attention of 20 queries" in str(report), report


def test_one_query_of_grouped_heads():
    report = run_both_ways(grouped, [normal(2, 3, 4, 1, 16), normal(2, 3, 24, 16), normal(2, 3, 24, 8)])
    assert "grouped attention of 1 queries x 12 heads" in str(report), report


@pytest.mark.parametrize("depths", [(1, 1), (16, 1), (1, 8)], ids=str)
@pytest.mark.parametrize("with_output", [True, False])
def test_queries_and_values_of_one_column(depths, with_output):
    """A regression from points to one value each, for example."""
    of_queries, of_values = depths

    def function(q, k, v, d_out):
        out, pullback = jax.vjp(attention, q, k, v)
        return (out if with_output else ()), pullback(d_out)

    shapes = (2, 20, 3, of_queries), (2, 24, 3, of_queries), (2, 24, 3, of_values), (2, 20, 3, of_values)
    assert run_both_ways(function, [normal(*shape) for shape in shapes]).fused_count == 1


def test_shared_operands_that_are_larger_than_the_scores_are_not_repeated():
    q, k, v = normal(8, 2, 2, 3, 64), normal(2, 100, 3, 64), normal(8, 2, 100, 3, 64)
    function = jax.vmap(attention, (0, None, 0))
    report = run_both_ways(function, (q, k, v))
    assert report.fused_count == 0 and "repeated they would be larger than the scores" in str(report)
    assert run_both_ways(function, (normal(8, 2, 64, 3, 64), k, v)).fused_count == 1


def test_rows_without_keys():
    keep = jnp.asarray(RNG.random((2, 1, 20, 24)) > 0.4).at[0, 0, 3].set(False)
    uniform = with_gradients(lambda q, k, v, keep: attention(q, k, v, keep, -1e30), 3)
    report = run_both_ways(uniform, (*operands(), keep))
    assert report.fused_count == 1, report

    # A softmax over nothing is NaN, and so is all of d_v that its row touches; fused, the row gives no gradient.
    function = with_gradients(lambda q, k, v, keep: attention(q, k, v, keep), 3)
    given = (*operands(), keep)
    fused = flashlift.jax.fuse(function)
    (out, (d_q, d_k, d_v)), expected = fused(*given), jax.jit(function)(*given)
    assert fused.report.fused_count == 1, fused.report
    assert_close((out, d_q, d_k), (expected[0], *expected[1][:2]), 2e-5)
    assert jnp.isnan(out[0, 3]).all() and jnp.isnan(expected[1][2][0]).all() and jnp.isfinite(d_v).all()
    assert_close(d_v[1], expected[1][2][1], 2e-5)


def test_checkpointed():
    def loss(q, k, v):
        return jnp.sum(1 + jnp.sin(jax.checkpoint(attention)(q, k, v)))

    report = run_both_ways(jax.value_and_grad(loss, argnums=(0, 1, 2)), operands())
    assert report.fused_count == len(report.candidates), report


def test_two_layers_share_nothing():
    def loss(q, k, v):
        return jnp.sum(attention(attention(q, k, v) @ jnp.ones((8, 16)), k, jnp.cos(v)) ** 2)

    report = run_both_ways(jax.value_and_grad(loss, argnums=(0, 1, 2)), operands())
    assert report.fused_count == len(report.candidates) == 2, report


def test_gradient_of_a_fused_function():
    """jax.grad of a fused function, in memory that does not grow with the square of the length."""
    fused = flashlift.jax.fuse(lambda q, k, v, n: (attention(q, k, v), n + 1))
    q, k, v = operands()

    def loss(function):
        return jax.jit(jax.grad(lambda q, k, v: jnp.sum(jnp.sin(function(q, k, v))), argnums=(0, 1, 2)))

    mine = loss(lambda q, k, v: fused(q, k, v, 3)[0])
    assert_close(mine(q, k, v), loss(attention)(q, k, v), 2e-5)
    text = mine.lower(q, k, v).as_text()
    assert text.count("flashlift.attention_backward") == 1
    vmapped = jax.vmap(jax.grad(lambda q, k: fused(q[None], k[None], v[:1], 3)[0].sum()))
    expected = jax.vmap(jax.grad(lambda q, k: attention(q[None], k[None], v[:1]).sum()))
    assert_close(vmapped(q, k), expected(q, k), 2e-5)


@pytest.mark.parametrize("low", [np.finfo(np.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("rows", ["empty", "causal"])
def test_added_masks(low, rows):
    """A row that an added mask leaves without keys has equal scores, and a gradient. A causal mask has no such rows,
    and its added number is larger than any score, or stays an added number."""
    keep = jnp.asarray(RNG.random((2, 1, 20, 24)) > 0.4).at[0, 0, 3].set(False)

    def function(q, k, v, keep):
        mask = keep if rows == "empty" else jnp.tril(jnp.ones((20, 24), bool))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + jnp.where(mask, 0, low)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    report = run_both_ways(with_gradients(function, 3), (*operands(), keep))
    assert report.fused_count == 1, report
    assert ("mask_mod" in report.problems[0]) == (rows == "causal" and low < -1e8)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "spelling", ["qhd,bkhd->bhqk,bkhd->bqhd", "bqhd,khd->bhqk,khd->bqhd", "bqhd,bkd->bhqk,bkd->bqhd"]
)
def test_shared_tensors(spelling, dtype):
    """Learned queries shared by all batches, keys and values shared by all batches or heads: gradients are summed over
    those that share a tensor."""
    of_scores, scores, out = spelling.split("->")
    of_values = scores.split(",")[1]
    sizes = {"b": 2, "h": 3, "q": 20, "k": 24, "d": 16}
    q, k, v = (normal(*(sizes[one] for one in dims), dtype=dtype) for dims in (*of_scores.split(","), of_values))

    def function(q, k, v):
        s = jnp.einsum(f"{of_scores}->bhqk", q, k).astype(jnp.float32) / 4
        return jnp.einsum(f"bhqk,{of_values}->{out}", jax.nn.softmax(s).astype(dtype), v)

    report = run_both_ways(with_gradients(function, 3), (q, k, v), 2e-5 if dtype == jnp.float32 else 3e-2)
    assert report.fused_count == 1, report
    assert report.module.count('"flashlift.attention_backward"') == 1


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax.checkpoint])
def test_second_derivatives(way):
    q, k, v = operands()
    k, v = k[:, :20], v[:, :20]

    def twice(function):
        def first(q):
            return jax.grad(lambda q: jnp.sum(jnp.sin(way(function)(q, k, v))))(q)

        return jax.grad(lambda q: jnp.sum(jnp.cos(first(q))))

    fused = flashlift.jax.fuse(attention)
    assert_close(twice(fused)(q), twice(attention)(q), 5e-5)
    of_each = jax.vmap(lambda q: twice(lambda q, k, v: fused(q[None], k[:1], v[:1]))(q))
    expected = jax.vmap(lambda q: twice(lambda q, k, v: attention(q[None], k[:1], v[:1]))(q))
    assert_close(of_each(q), expected(q), 5e-5)


def test_fused_on_request():
    q, k, v = operands()
    exported = jax.jit(with_gradients(attention, 3)).lower(q, k, v).as_text()
    assert flashlift.stablehlo.fuse(exported, gradients=True).fused_count == 1
    for fuse_as in ("custom_call", "composite"):
        left = flashlift.stablehlo.fuse(exported, fuse_as=fuse_as)
        assert left.fused_count == 0 and left.module == exported
        assert "used elsewhere" in left.candidates[0].reason
    with pytest.raises(flashlift.InvalidArgumentError, match="custom calls only"):
        flashlift.stablehlo.fuse(exported, fuse_as="composite", gradients=True)


# --- By a bias ---


def biased(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3, 20, 24), jnp.bfloat16), ((3, 20, 24), jnp.float16)]
    + [
        (shape, jnp.float32)
        for shape in [
            (2, 3, 20, 24),
            (3, 20, 24),
            (1, 3, 20, 24),
            (2, 1, 20, 24),
            (20, 24),
            (24,),
            (3, 1, 24),
            (3, 20, 1),
            (1,),
        ]
    ],
)
def test_bias_of_any_shape(shape, dtype):
    """A bias of heads or queries alone has a gradient of 0, except for rounding: a softmax does not depend on it."""
    report = run_both_ways(
        with_gradients(biased, 4), (*operands(), normal(*shape, dtype=dtype)), 2e-5 if dtype == jnp.float32 else 5e-3
    )
    assert report.fused_count == 1, report


def test_gradient_by_the_bias_alone():
    q, k, v = operands()

    def function(q, k, v, bias):
        return jax.grad(lambda bias: jnp.sum(jnp.sin(biased(q, k, v, bias))))(bias)

    report = run_both_ways(function, (q, k, v, normal(3, 20, 24)))
    assert report.fused_count == 1, report


@pytest.mark.parametrize(
    "name", ["alibi", "t5", "taken", "two", "gated", "twice", "mlp", "temperature", "capped", "masked"]
)
def test_ways_to_a_bias(name):
    S = 24
    q, k, v = operands(S, S)
    distance = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    change, learned = {
        "alibi": (lambda s, slopes: s + slopes[:, None, None] * distance, [normal(3)]),
        "t5": (lambda s, table: s + table[jnp.clip(distance + 8, 0, 15)].transpose(2, 0, 1), [normal(16, 3)]),
        # NaN for indices outside of the table, which are compared one by one.
        "taken": (lambda s, table: s + jnp.take(table, jnp.abs(distance), axis=0).transpose(2, 0, 1), [normal(32, 3)]),
        "two": (lambda s, row, column: s + row[:, :, None] + column[:, None, :], [normal(3, S), normal(3, S)]),
        "gated": (lambda s, gate, bias: s + gate[:, None, None] * bias, [normal(3), normal(S, S)]),
        "twice": (lambda s, bias: s + bias + bias.swapaxes(1, 2), [normal(3, S, S)]),
        "mlp": (lambda s, x, w: s + (jnp.tanh(x) @ w).transpose(2, 0, 1), [normal(S, S, 5), normal(5, 3)]),
        "temperature": (lambda s, t: s / jnp.exp(t), [normal()]),
        "capped": (lambda s, bias: 5 * jnp.tanh((s + bias) / 5), [normal(3, S, S)]),
        "masked": (lambda s, bias: jnp.where(distance <= 0, s + bias, -jnp.inf), [normal(3, S, S)]),
    }[name]

    def function(q, k, v, *learned):
        s = change(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, *learned)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    report = run_both_ways(with_gradients(function, 3 + len(learned)), (q, k, v, *learned), 5e-5)
    assert report.fused_count == 1, report


MASKS = [(2, 3, 20, 24), (2, 1, 20, 24), (3, 1, 24), (20, 24), (24,), (2, 1, 1, 24)]


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_float_mask_that_is_read_twice(shape, is_cut):
    """Its gradient is the sum of two sums, in the module."""

    def function(q, k, v, mask):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        s = s * mask + (1 - mask) * (-1e4 if is_cut else -3.0) + (mask * 0.5 if is_cut else 0)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    mask = jnp.asarray(RNG.random(shape) > 0.3, jnp.float32) if is_cut else normal(*shape)
    report = run_both_ways(with_gradients(function, 4), (*operands(), mask), 5e-5)
    assert report.fused_count == len(report.candidates) == 1, report


def masked_by_hand(q, k, v, mask, d_out, *, d_mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    p = jax.nn.softmax(s * mask + (1 - mask) * -3.0)
    out = jnp.einsum("bhqk,bkhd->bqhd", p, v)
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_out, v)
    ds = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
    return out, jnp.einsum("bhqk,bkhd->bqhd", ds * mask / 4, k), d_mask(s, ds, mask)


MASK_GRADIENTS = {
    "right": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * 3).sum((0, 1)),
    "difference": lambda s, ds, mask: (ds * s).sum((0, 1)) - (ds * -3).sum((0, 1)),
    "the_other_first": lambda s, ds, mask: 3 * ds.sum(0).sum(0) + (ds * s).sum((1, 0)),
    "three": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds.sum((0, 1)) + (2 * ds).sum((0, 1))),
}
MASK_NEAR_MISSES = {
    "one_sum": lambda s, ds, mask: (ds * s).sum((0, 1)),
    "one_sum_twice": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * s).sum((0, 1)),
    "other_sign": lambda s, ds, mask: (ds * s).sum((0, 1)) - (ds * 3).sum((0, 1)),
    "subtracted": lambda s, ds, mask: (ds * -3).sum((0, 1)) - (ds * s).sum((0, 1)),
    "transposed": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * 3).sum((0, 1)).T,
    "of_one_batch": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds[:1] * 3).sum((0, 1)),
    "means": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * 3).mean((0, 1)),
    "from_one": lambda s, ds, mask: jax.lax.reduce(ds * s, 1.0, jax.lax.add, (0, 1)) + (ds * 3).sum((0, 1)),
    "reversed": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * 3).sum((0, 1))[::-1],
    "of_all_queries": lambda s, ds, mask: (ds * s).sum((0, 1)) + (ds * 3).sum((0, 1, 2)),
    "beside_the_mask": lambda s, ds, mask: (ds * s).sum((0, 1)) + mask + (ds * 3).sum((0, 1)),
    "with_that_of_a_step": lambda s, ds, mask: ((ds * s).sum((0, 1)) + (ds * 3).sum((0, 1)), ds.sum((0, 1))),
}


@pytest.mark.parametrize("name", [*MASK_GRADIENTS, *MASK_NEAR_MISSES])
def test_sums_that_are_added_to_the_gradient_of_a_mask(name):
    """Queries and keys have the same number, so that a transposed sum fits."""
    q, k, v = operands(20, 20)
    d_mask = {**MASK_GRADIENTS, **MASK_NEAR_MISSES}[name]
    given = (q, k, v, normal(20, 20), normal(2, 20, 3, 8))
    report = run_both_ways(functools.partial(masked_by_hand, d_mask=d_mask), given)
    assert report.fused_count == (name in MASK_GRADIENTS), report
    if report.fused_count:
        assert 'gradients = "0 3"' in report.module, report


def test_a_bias_that_two_attentions_share_and_a_step_of_descent():
    def function(q, k, v, bias):
        def loss(bias):
            return jnp.sum(jnp.sin(biased(biased(q, k, v, bias), k, v, 0.5 * bias)))

        return bias - 0.1 * jax.grad(loss)(bias)

    report = run_both_ways(function, (*(normal(2, 20, 3, 16) for _ in range(3)), normal(3, 20, 20)))
    assert report.fused_count == 2, report


# --- By sinks and through the log-sum-exp ---


def scores_and_lse(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v), jax.nn.logsumexp(s, -1)


@pytest.mark.parametrize("name", ["returned", "z_loss", "mean", "by_heads", "stopped", "merged", "gradient_alone"])
def test_uses_of_the_log_sum_exp(name):
    def loss(q, k, v):
        out, lse = scores_and_lse(q, k, v)
        more = {
            "returned": lambda: jnp.sum(jnp.cos(lse)),
            "z_loss": lambda: 1e-2 * jnp.sum(lse**2),
            "mean": lambda: jnp.mean(lse),
            "by_heads": lambda: jnp.sum(lse * jnp.arange(3)[:, None]),
            "stopped": lambda: jnp.sum(jax.lax.stop_gradient(lse) * out[..., 0].swapaxes(1, 2)),
            "merged": lambda: jnp.sum(out * jax.nn.sigmoid(lse).swapaxes(1, 2)[..., None]),
            "gradient_alone": lambda: jnp.sum(lse),
        }
        return jnp.sum(jnp.sin(out)) + more[name](), () if name == "gradient_alone" else (out, lse)

    function = jax.grad(loss, (0, 1, 2), has_aux=True)
    report = run_both_ways(function, operands())
    assert report.fused_count == 1 and report.module.count('"flashlift.attention_backward"') == 1, report


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 3, 1, 1)])
def test_sinks(shape):
    def function(q, k, v, sinks):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        columns = jnp.broadcast_to(sinks.reshape(1, 3, 1, -1), (*s.shape[:3], sinks.size // 3))
        p = jax.nn.softmax(jnp.concatenate([s, columns], -1))[..., : s.shape[-1]]
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    report = run_both_ways(with_gradients(function, 4), (*operands(), normal(*shape)))
    assert report.fused_count == 1 and "0 1 2 3" in report.module, report


# --- What only looks like a gradient ---


def straight_through(change):
    """The function in the forward pass, with the derivative of the identity."""
    return lambda x: x + jax.lax.stop_gradient(change(x) - x)


CHANGES = {
    "below_half": lambda s: jnp.minimum(s, 0.5),
    "below_100": lambda s: jnp.minimum(s, 100.0),
    "above_minus_100": lambda s: jnp.maximum(s, -100.0),
    "below_3000": lambda s: jnp.minimum(s, 3000.0),
    "within_50": lambda s: jnp.clip(s, -50, 50),
    "absolute": jnp.abs,
    "rectified": jax.nn.relu,
    "squared": jnp.square,
    "switched": lambda s: jnp.where(s > 70, 2 * s, s),
}


@pytest.mark.parametrize(
    ("name", "of_bias"),
    [(name, False) for name in CHANGES] + [(name, True) for name in ("below_half", "within_50", "absolute")],
)
def test_straight_through_is_left_alone(name, of_bias):
    """A gradient that is right only for usual scores, small biases or positive ones is wrong."""
    for change, is_right in ((CHANGES[name], True), (straight_through(CHANGES[name]), False)):

        def function(q, k, v, bias):
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
            s = s + change(jnp.broadcast_to(bias, s.shape) + 0 * s) if of_bias else change(s + bias)
            return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

        report = run_both_ways(with_gradients(function, 4), (*operands(), normal(2, 3, 20, 24)))
        assert report.fused_count == is_right, report


def lower_of(bound, slope_at_bound):
    """The lower one of a score and a bound, with its derivative as JAX from 0.11 on writes it."""

    @jax.custom_jvp
    def lower(s):
        return jnp.minimum(s, bound)

    @lower.defjvp
    def _(primals, tangents):
        (s,), (change,) = primals, tangents
        return lower(s), change * jnp.where(bound > s, 1.0, jnp.where(bound == s, slope_at_bound, 0.0))

    return lower


@pytest.mark.parametrize(
    "slope",
    [
        lambda s, top: jnp.where(top == 0, 7.0, 1.0),
        lambda s, top: jnp.where(jnp.maximum(top, -1.0) == 2, 7.0, 1.0),
        lambda s, top: jnp.where(top == -top, 7.0, 1.0),
        lambda s, top: 1 / (s == top).astype(jnp.float32).sum(-1, keepdims=True),
    ],
)
def test_gradients_that_differ_only_in_some_rows_of_equal_scores(slope):
    """Rows whose maximum is one certain number, or is that of several keys."""

    @jax.custom_jvp
    def same(s):
        return s

    @same.defjvp
    def _(primals, tangents):
        (s,), (change,) = primals, tangents
        return s, change * slope(s, s.max(-1, keepdims=True))

    def function(q, k, v):
        s = same(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    q, k, v = operands()
    report = run_both_ways(with_gradients(function, 3), (q, 0 * k, v))
    assert not report.fused_count, report


@pytest.mark.parametrize("bound", [-30.0, -1e4])
@pytest.mark.parametrize("slope_at_bound", [0.5, 7.0])
def test_scores_above_a_bound_that_leaves_no_probability(bound, slope_at_bound):
    """Scores at the bound count only in rows that have no others."""

    @jax.custom_jvp
    def upper(s):
        return jnp.maximum(s, bound)

    @upper.defjvp
    def _(primals, tangents):
        (s,), (change,) = primals, tangents
        return upper(s), change * jnp.where(s > bound, 1.0, jnp.where(s == bound, slope_at_bound, 0.0))

    def function(q, k, v):
        s = upper(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    report = run_both_ways(with_gradients(function, 3), operands())
    assert report.fused_count == (slope_at_bound == 0.5), report


@pytest.mark.parametrize("bound", [0.5, 9.0, np.where(np.arange(24) == 3, -9.0, np.inf).astype(np.float32)], ids=str)
@pytest.mark.parametrize("slope_at_bound", [0.5, 7.0])
def test_scores_below_a_bound(bound, slope_at_bound):
    """A derivative may compare a score with its bound in other ways, and must be right where both are equal."""

    def function(q, k, v):
        s = lower_of(bound, slope_at_bound)(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)

    report = run_both_ways(with_gradients(function, 3), operands())
    assert report.fused_count == (slope_at_bound == 0.5), report


def lse_by_hand(q, k, v, d_out, d_lse, *, ds=lambda p, d_p, c: p * (d_p - jnp.sum(p * d_p, -1, keepdims=True) + c)):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    p = jax.nn.softmax(s)
    out = jnp.einsum("bhqk,bkhd->bqhd", p, v)
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_out, v)
    d_s = ds(p, d_p, d_lse[..., None]) / 4
    return out, jnp.einsum("bhqk,bkhd->bqhd", d_s, k), jnp.einsum("bhqk,bqhd->bkhd", d_s, q)


LSE_NEAR_MISSES = {
    "of_keys": lambda p, d_p, c: p * (d_p - jnp.sum(p * d_p, -1, keepdims=True) + c * jnp.arange(24)),
    "not_weighted": lambda p, d_p, c: p * (d_p - jnp.sum(p * d_p, -1, keepdims=True)) + c,
    "weighted_twice": lambda p, d_p, c: p * (d_p - jnp.sum(p * d_p, -1, keepdims=True) + c * p),
    "without_the_sum": lambda p, d_p, c: p * (d_p + c),
    "scaled": lambda p, d_p, c: 2 * p * (d_p - jnp.sum(p * d_p, -1, keepdims=True) + c),
    "of_the_maximum": lambda p, d_p, c: p * (d_p - jnp.sum(p * d_p, -1, keepdims=True) + c * p.max(-1, keepdims=True)),
}


@pytest.mark.parametrize("name", [None, *LSE_NEAR_MISSES])
def test_near_miss_of_a_log_sum_exp_is_left_alone(name):
    function = functools.partial(lse_by_hand, ds=LSE_NEAR_MISSES[name]) if name else lse_by_hand
    report = run_both_ways(function, (*operands(), normal(2, 20, 3, 8), normal(2, 3, 20)))
    assert report.fused_count == (name is None), report


def sinks_by_hand(q, k, v, sinks, d_out, *, d_sinks=lambda p_sink, p_d_p, p: -(p_sink * p_d_p).sum((0, 2))):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    columns = jnp.broadcast_to(sinks[None, :, None, None], (*s.shape[:3], 1))
    m = jnp.maximum(s.max(-1, keepdims=True), columns)
    e, e_sink = jnp.exp(s - m), jnp.exp(columns - m)
    z = e.sum(-1, keepdims=True) + e_sink
    p = e / z
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_out, v)
    p_d_p = jnp.sum(p * d_p, -1)
    d_s = p * (d_p - p_d_p[..., None])
    d_q = jnp.einsum("bhqk,bkhd->bqhd", d_s / 4, k)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), d_q, d_sinks((e_sink / z)[..., 0], p_d_p, p)


SINKS_NEAR_MISSES = {
    "other_sign": lambda p_sink, p_d_p, p: (p_sink * p_d_p).sum((0, 2)),
    "less_the_square": lambda p_sink, p_d_p, p: -(p_sink * (1 - p_sink) * p_d_p).sum((0, 2)),
    "of_one_batch": lambda p_sink, p_d_p, p: -(p_sink * p_d_p)[0].sum(1),
    "of_some_queries": lambda p_sink, p_d_p, p: -(p_sink * p_d_p)[..., 1:].sum((0, 2)),
    "of_queries": lambda p_sink, p_d_p, p: -(p_sink * p_d_p).sum((0, 1)),
    "of_a_key": lambda p_sink, p_d_p, p: -(p[..., 0] * p_d_p).sum((0, 2)),
    "mean": lambda p_sink, p_d_p, p: -jnp.max(p_sink * p_d_p, (0, 2)),
    "for_each_key": lambda p_sink, p_d_p, p: -of_each_key(p_sink * p_d_p, p).sum((0, 2, 3)),
    "in_part_for_each_key": lambda p_sink, p_d_p, p: (
        -(p_sink * p_d_p / 2).sum((0, 2)) - of_each_key(p_sink * p_d_p / 2, p).sum((0, 2, 3))
    ),
}


def of_each_key(row, p):
    return jnp.broadcast_to(row[..., None], p.shape)


def test_sinks_by_two_sums_are_fused():
    function = functools.partial(
        sinks_by_hand,
        d_sinks=lambda p_sink, p_d_p, p: -(p_sink * p_d_p / 4).sum((0, 2)) - (p_sink * p_d_p * 0.75).sum((0, 2)),
    )
    report = run_both_ways(function, (*operands(), normal(3), normal(2, 20, 3, 8)))
    assert report.fused_count == 1, report


@pytest.mark.parametrize("name", [None, *SINKS_NEAR_MISSES])
def test_near_miss_of_sinks_is_left_alone(name):
    function = functools.partial(sinks_by_hand, d_sinks=SINKS_NEAR_MISSES[name]) if name else sinks_by_hand
    report = run_both_ways(function, (*operands(), normal(3), normal(2, 20, 3, 8)))
    assert report.fused_count == (name is None), report


def biased_by_hand(q, k, v, bias, d_out, flag, *, d_bias=lambda ds, p: ds.sum(0)):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias
    p = jax.nn.softmax(s)
    out = jnp.einsum("bhqk,bkhd->bqhd", p, v)
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_out, v)
    ds = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
    return out, jnp.einsum("bhqk,bkhd->bqhd", ds / 4, k), d_bias(ds, p)


BIAS_NEAR_MISSES = {
    "of_one_batch": lambda ds, p: ds[0],
    "of_some_batches": lambda ds, p: ds[:2].sum(0),
    "weighted_batches": lambda ds, p: (ds * jnp.arange(3)[:, None, None, None]).sum(0),
    "scaled": lambda ds, p: (1.0001 * ds).sum(0),
    "with_probabilities": lambda ds, p: (ds + 1e-4 * p).sum(0),
    "of_probabilities": lambda ds, p: p.sum(0),
    "largest": lambda ds, p: ds.max(0),
    "product": lambda ds, p: ds.prod(0),
    "absolute": lambda ds, p: jnp.abs(ds).sum(0),
    "clipped": lambda ds, p: jnp.clip(ds, -1e5, 1e5).sum(0),
    "masked": lambda ds, p: jnp.where(jnp.arange(20) < 19, ds, 0).sum(0),
    "sorted": lambda ds, p: jnp.sort(ds, 0).sum(0),
    "cumulative": lambda ds, p: jnp.cumsum(ds, 0)[-1],
    "of_each_batch": lambda ds, p: ds,
    "of_keys": lambda ds, p: ds.sum((0, 2)),
    "of_two_batches": lambda ds, p: (ds, ds.sum(0)),
}


@pytest.mark.parametrize("name", BIAS_NEAR_MISSES)
def test_near_miss_of_a_bias_is_left_alone(name):
    q, k, v = (normal(3, 20, 3, 8) for _ in range(3))
    given = (q, k, v, normal(3, 20, 20), normal(3, 20, 3, 8), jnp.array(True))
    report = run_both_ways(functools.partial(biased_by_hand, d_bias=BIAS_NEAR_MISSES[name]), given)
    assert report.fused_count == 0, report
    assert all(candidate.reason for candidate in report.candidates)


@pytest.mark.parametrize(
    "follows",
    [lambda d: 1.0001 * d, lambda d: d.swapaxes(1, 2), lambda d: d[:, ::-1], lambda d: jnp.sort(d), lambda d: d[0]],
)
def test_what_follows_from_the_gradient_of_a_bias_stays(follows):
    q, k, v = (normal(3, 20, 3, 8) for _ in range(3))
    given = (q, k, v, normal(3, 20, 20), normal(3, 20, 3, 8), jnp.array(True))
    report = run_both_ways(functools.partial(biased_by_hand, d_bias=lambda ds, p: follows(ds.sum(0))), given)
    assert report.fused_count == 1 and 'gradients = "0 3"' in report.module, report


def test_bias_by_hand_unchanged_is_fused():
    q, k, v = (normal(3, 20, 3, 8) for _ in range(3))
    report = run_both_ways(biased_by_hand, (q, k, v, normal(3, 20, 20), normal(3, 20, 3, 8), jnp.array(True)))
    assert report.fused_count == 1 and 'gradients = "0 3"' in report.module, report


def by_hand(
    q,
    k,
    v,
    d_out,
    flag,
    *,
    ds=lambda ds, s, p: ds,
    p_of_v=lambda p: p,
    sides=lambda q, k: (k, q),
    of_v=None,
    by_d_v=lambda d: d,
):
    """An attention and its hand-written gradients, with one thing changed."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf))
    out = jnp.einsum("bhqk,bkhd->bqhd", p, v)
    d_v = jnp.einsum("bhqk,bqhd->bkhd", p_of_v(p), by_d_v(d_out))
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_out, v if of_v is None else of_v(v))
    d_s = ds(p * (d_p - jnp.sum(p * d_p, -1, keepdims=True)), s, p) / 4
    for_q, for_k = sides(q, k)
    return out, jnp.einsum("bhqk,bkhd->bqhd", d_s, for_q), jnp.einsum("bhqk,bqhd->bkhd", d_s, for_k), d_v


NEAR_MISSES = {
    "scaled": {"ds": lambda ds, s, p: 1.0001 * ds},
    "clipped": {"ds": lambda ds, s, p: jnp.clip(ds, -1e3, 1e3)},
    "rectified": {"ds": lambda ds, s, p: jnp.maximum(ds, -1e9)},
    "switched_by_data": {"ds": "flag"},
    "every_other_row": {"ds": lambda ds, s, p: jnp.where(jnp.arange(20)[:, None] % 2 == 0, ds, 0)},
    "one_place": {"ds": lambda ds, s, p: ds.at[0, 0, 19, 7].set(0.0)},
    "above_a_score": {"ds": lambda ds, s, p: jnp.where(s < 1e4, ds, 0)},
    "by_small_probabilities": {"ds": lambda ds, s, p: jnp.where(p > 1e-30, ds, 0)},
    "straight_through": {"ds": lambda ds, s, p: ds + 1e-4 * p},
    "squared_probabilities": {"p_of_v": lambda p: p * p},
    "thresholded_probabilities": {"p_of_v": lambda p: jnp.where(p > 1e-6, p, 0)},
    "queries_for_keys": {"sides": lambda q, k: (q, q)},
    "shifted_keys": {"sides": lambda q, k: (jnp.roll(k, 1, 1), q)},
    "doubled_queries": {"sides": lambda q, k: (k, 2 * q)},
    "other_values": {"of_v": lambda v: v[:, ::-1]},
    "two_gradients_of_the_output": {"by_d_v": lambda d_out: 2 * d_out},
}


def with_constant(function):
    """The function with a constant as the gradient of the output."""
    return lambda q, k, v, d_out, flag: function(q, k, v, jnp.full_like(d_out, 0.5), flag)


@pytest.mark.parametrize("way", [lambda f: f, with_constant], ids=["given", "constant"])
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_is_left_alone(name, way):
    change = dict(NEAR_MISSES[name])
    function = functools.partial(by_hand, **{k: v for k, v in change.items() if v != "flag"})
    if "flag" in change.values():
        function = lambda q, k, v, d_out, flag: by_hand(
            q, k, v, d_out, flag, ds=lambda ds, s, p: jnp.where(flag, ds, 0)
        )
    given = (*operands(20, 20), normal(2, 20, 3, 8), jnp.array(True))
    report = run_both_ways(way(function), given)
    assert report.fused_count == 0, report
    assert all(candidate.reason for candidate in report.candidates)


@pytest.mark.parametrize("way", [lambda f: f, with_constant], ids=["given", "constant"])
def test_by_hand_unchanged_is_fused(way):
    report = run_both_ways(way(by_hand), (*operands(20, 20), normal(2, 20, 3, 8), jnp.array(True)))
    assert report.fused_count == 1, report


@pytest.mark.parametrize("name", ["log", "sqrt"])
def test_gradient_by_a_factor_of_what_is_no_number_for_other_tensors(name):
    """The logarithm of a drawn negative number is NaN. Such rows say nothing about the gradient."""

    def loss(q, k, v, a, b):
        s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + getattr(jnp, name)(a)) * b
        return (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v) ** 2).sum()

    rng = np.random.default_rng(4)
    arguments = [jnp.asarray(rng.uniform(0.5, 1.5, shape), jnp.float32) for shape in ((2, 8, 2, 8),) * 3 + ((8,),) * 2]
    function = jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))
    mine = flashlift.jax.fuse(function)
    for got, want in zip(
        jax.tree.leaves(mine(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert [candidate.fused for candidate in mine.report.candidates] == [True], mine.report
