"""flashlift.jax.flash_attention: each argument compared with the same computation in jax.numpy, including gradients."""

import functools
import os
import subprocess
import sys

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import attention, flash_attention
from test_jax_gradients import assert_gradients, normal

B, SQ, SKV, HQ, HKV, D = 2, 37, 53, 6, 2, 24
Q_POSITIONS = jnp.arange(SQ)[:, None]
KV_POSITIONS = jnp.arange(SKV)[None, :]
SEGMENTS = jnp.sort(jnp.asarray(np.random.default_rng(1).integers(0, 3, (B, SKV)), jnp.int32), axis=1)


def operands(dtype=jnp.float32):
    return normal(B, SQ, HQ, D, dtype=dtype), normal(B, SKV, HKV, D, dtype=dtype), normal(B, SKV, HKV, 16, dtype=dtype)


def plain(q, k, v, bias=None, sinks=None, *, scale=D**-0.5, cap=None, keep=None, normalize=True):
    """out and lse in float32; keep broadcasts to [batch, heads, q_len, kv_len]."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    s = s if bias is None else s + bias.astype(jnp.float32)
    s = s if cap is None else cap * jnp.tanh(s / cap)
    s = s if keep is None else jnp.where(keep, s, -1e30)
    logits = s
    if sinks is not None:
        sinks = sinks[None, :, None] if sinks.ndim == 2 else sinks
        logits = jnp.concatenate([s, jnp.broadcast_to(sinks, (*s.shape[:3], sinks.shape[-1]))], -1)
    lse = jax.scipy.special.logsumexp(logits, axis=-1)
    # Not jnp.max, whose gradient compares logits with it: XLA may compute these twice, and round them differently.
    largest = jnp.take_along_axis(logits, jnp.argmax(logits, axis=-1, keepdims=True), axis=-1)
    p = jnp.exp(s - (lse[..., None] if normalize else largest))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), lse


def check(mine, theirs, given, tolerance=2e-5):
    assert_gradients(mine, theirs, given, tolerance)
    for got, expected in zip(jax.tree.leaves(mine(*given)), jax.tree.leaves(theirs(*given)), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(expected, np.float32), atol=20 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 1e-2), ("float16", 2e-3)])
def test_nothing_but_tensors(dtype, tolerance):
    check(flash_attention, lambda q, k, v: plain(q, k, v)[0].astype(q.dtype), operands(dtype), tolerance)


@pytest.mark.parametrize("true", [np.True_, np.array(True), jnp.array(True), jnp.array(1)], ids=repr)
def test_flags_are_known_scalars_of_any_kind(true):
    q, k, v = operands()
    assert jnp.array_equal(flash_attention(q, k, v, causal=true), flash_attention(q, k, v, causal=True))


def test_scale_causal_window_and_lse():
    keep = (KV_POSITIONS <= Q_POSITIONS) & (Q_POSITIONS - KV_POSITIONS <= 9)
    check(
        lambda q, k, v: flash_attention(
            q, k, v, causal=True, sliding_window=(9, 4), softmax_scale=0.3, return_lse=True, platform="cpu"
        ),
        lambda q, k, v: plain(q, k, v, scale=0.3, keep=keep),
        operands(),
    )
    both = abs(KV_POSITIONS - Q_POSITIONS) <= 5
    check(
        lambda q, k, v: flash_attention(q, k, v, sliding_window=5),
        lambda q, k, v: plain(q, k, v, keep=both)[0],
        operands(),
    )


@pytest.mark.parametrize("shape", [(B, HQ, SQ, SKV), (1, HQ, 1, SKV), (HQ, SQ, SKV), (SQ, 1)], ids=str)
def test_a_bias_comes_before_the_cap(shape):
    check(
        lambda q, k, v, bias: flash_attention(q, k, v, bias, logits_soft_cap=2.0),
        lambda q, k, v, bias: plain(q, k, v, bias, cap=2.0)[0],
        (*operands(), normal(*shape)),
    )


def test_a_score_mod_comes_behind_the_cap():
    def theirs(q, k, v, bias):
        k, v = (jnp.repeat(one, HQ // HKV, axis=2) for one in (k, v))
        s = 2 * jnp.tanh((jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias) / 2)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s * 3 - (Q_POSITIONS - KV_POSITIONS) * 0.1), v)

    mod = lambda s, b, h, i, j: s * 3 - (i - j) * 0.1
    mine = lambda *given: flash_attention(*given, logits_soft_cap=2.0, score_mod=mod)
    check(mine, theirs, (*operands(), normal(1, HQ, SQ, SKV)))


def test_an_array_on_which_the_result_does_not_depend():
    mask = jnp.arange(SKV)[None] != 2
    check(
        lambda q, k, v, table: flash_attention(
            q, k, v, attention_mask=mask, mask_mod=lambda b, h, i, j: (i >= 0) | (table[j] > 0)
        ),
        lambda q, k, v, table: plain(q, k, v, keep=KV_POSITIONS != 2)[0] + 0 * table.sum(),
        (*operands(), normal(SKV)),
    )


def test_arguments_on_which_the_result_does_not_depend():
    """Their gradients are 0."""
    bias, kept = normal(1, HQ, SQ, SKV), jnp.arange(SKV)[None] != 2
    score = lambda s, b, h, i, j: 0.1 * j
    check(
        lambda q, k, v, bias: flash_attention(q, k, v, bias, attention_mask=kept, score_mod=score),
        lambda q, k, v, bias: plain(0 * q, k, v, 0 * bias + 0.1 * KV_POSITIONS, keep=KV_POSITIONS != 2)[0],
        (*operands(), bias),
    )
    ids = jnp.zeros((B, SQ), jnp.int32), jnp.zeros((B, SKV), jnp.int32)
    nothing = lambda b, h, i, j: i < 0
    for arguments in ({"attention_mask": kept}, {"q_segment_ids": ids[0], "kv_segment_ids": ids[1]}):
        assert not flash_attention(*operands(), **arguments, mask_mod=nothing).any()


@pytest.mark.parametrize("by_name", [True, False])
def test_declared_tensors_that_have_no_effect(by_name):
    """They may be given, in the order in which the programs read them, or left out."""
    q, k, v = operands()
    text = (
        "bias=f32 mask=bool score_mod(u: f32[heads], t: f32[kv_len]) "
        "{ %0 = load t[kv]; %1 = load u[h]; %2 = mul %0, %1; return %0 }"
    )
    tensors = {
        "bias": normal(1, 1, 1, 1), "t": normal(SKV), "u": normal(HQ), "mask": jnp.arange(SKV)[None, None, None] != 2,
    }  # fmt: skip
    read = {name: tensors[name] for name in ("t", "mask")}
    ours = lambda given: attention(q, k, v, text, captures=given if by_name else [*given.values()])
    expected = plain(0 * q, k, v, tensors["t"], keep=KV_POSITIONS != 2)[0]
    np.testing.assert_allclose(ours(tensors), expected, atol=1e-5)
    np.testing.assert_allclose(ours(read), expected, atol=1e-5)


def test_sinks():
    for sinks in (normal(HQ, 2), normal(3)):
        check(
            lambda q, k, v, sinks: flash_attention(q, k, v, softmax_aux=sinks, logits_soft_cap=5.0),
            lambda q, k, v, sinks: plain(q, k, v, sinks=sinks, cap=5.0)[0],
            (*operands(), sinks),
        )


def at_one_place(value, *shape):
    return jnp.zeros(shape).at[(0,) * (len(shape) - 1) + (1,)].set(value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_and_no_numbers_are_what_they_are_unfused(value):
    """NaN appears in the same rows as without fusion, and nowhere else."""
    for bias, sinks in (
        (at_one_place(value, B, HQ, SQ, SKV), jnp.zeros((HQ, 2))),
        (jnp.zeros((1, 1)), at_one_place(value, HQ, 2)),
    ):
        given = (*operands(), bias, sinks)
        mine = lambda q, k, v, bias, sinks: flash_attention(q, k, v, bias, softmax_aux=sinks)

        def theirs(q, k, v, bias, sinks):
            k, v = (jnp.repeat(one, HQ // HKV, axis=2) for one in (k, v))
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
            logits = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, None], (*s.shape[:3], 2))], -1)
            return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits)[..., :SKV], v)

        np.testing.assert_allclose(mine(*given), theirs(*given), atol=1e-5)
        by_all = [jax.grad(lambda *given, of=of: of(*given).sum(), argnums=range(5))(*given) for of in (mine, theirs)]
        for one, other in zip(*by_all, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_masked_keys_may_hold_anything():
    """Unwritten places of a cache: neither their keys nor their values have an effect, or get or give gradients."""
    q, k, v = operands()
    kept = jnp.arange(SKV)[None] < jnp.asarray([SKV - 5, 20])[:, None]
    for value in np.nan, np.inf:
        dirty = [jnp.where(kept[..., None, None], one, value) for one in (k, v)]
        for arguments in (
            {"attention_mask": kept},
            {"q_segment_ids": jnp.zeros((B, SQ), jnp.int32), "kv_segment_ids": jnp.where(kept, 0, -1)},
        ):
            attend = lambda q, k, v, arguments=arguments: flash_attention(q, k, v, **arguments)
            np.testing.assert_array_equal(attend(q, *dirty), attend(q, k, v))
            slopes = [
                jax.grad(lambda *qkv: (attend(*qkv) ** 2).sum(), argnums=range(3))(q, *kv) for kv in (dirty, (k, v))
            ]
            for one, other in zip(*slopes, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)


def test_masks():
    lengths = jnp.arange(SKV)[None] < jnp.asarray([[20], [SKV]])
    table = jnp.asarray(np.random.default_rng(2).random((B, 1, SQ, SKV)) < 0.6).at[..., 0].set(True)
    check(
        lambda q, k, v: flash_attention(q, k, v, attention_mask=lengths),
        lambda q, k, v: plain(q, k, v, keep=lengths[:, None, None])[0],
        operands(),
    )
    check(
        lambda q, k, v: flash_attention(q, k, v, attention_mask=table.astype(jnp.int32)),
        lambda q, k, v: plain(q, k, v, keep=table)[0],
        operands(),
    )


def test_segments():
    q_segments = SEGMENTS[:, :SQ]
    keep = q_segments[:, None, :, None] == SEGMENTS[:, None, None, :]
    check(
        lambda q, k, v: flash_attention(q, k, v, q_segment_ids=q_segments, kv_segment_ids=SEGMENTS, causal=True),
        lambda q, k, v: plain(q, k, v, keep=keep & (KV_POSITIONS <= Q_POSITIONS))[0],
        operands(),
    )
    _, k, v = operands()
    q = normal(B, SKV, HQ, D)
    same = SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None, :]
    check(
        lambda q, k, v: flash_attention(q, k, v, q_segment_ids=SEGMENTS),
        lambda q, k, v: plain(q, k, v, keep=same)[0],
        (q, k, v),
    )


def keep_of(q_ids, kv_ids):
    """True where ids are equal and not negative."""
    same = q_ids[:, None, :, None] == kv_ids[:, None, None, :]
    return same & (q_ids >= 0)[:, None, :, None]


def emptied(out, keep):
    """The plain output with zeros where a query has no key."""
    return jnp.where(jnp.moveaxis(keep.any(-1), 1, 2)[..., None], out, 0)


def test_negative_segments_are_padding():
    q_ids, kv_ids = SEGMENTS[:, :SQ].at[:, -5:].set(-1).at[1, 0].set(-7), SEGMENTS.at[:, -9:].set(-1).at[0, 0].set(-7)
    mask = jnp.asarray(np.random.default_rng(3).random((B, 1, SQ, SKV)) < 0.7)
    for given, keep in ((None, keep_of(q_ids, kv_ids)), (mask, keep_of(q_ids, kv_ids) & mask)):
        check(
            lambda q, k, v, given=given: flash_attention(
                q, k, v, attention_mask=given, q_segment_ids=q_ids, kv_segment_ids=np.asarray(kv_ids, np.int16)
            ),
            lambda q, k, v, keep=keep: emptied(plain(q, k, v, keep=keep)[0], keep),
            operands(),
        )


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64], ids=str)
@pytest.mark.parametrize("call", [flash_attention, jax.jit(flash_attention)], ids=["eager", "jit"])
def test_segments_that_are_hashes(dtype, call):
    """Beyond int32, where some are negative, or equal to others."""
    padding = -1 if dtype == np.int64 else 2
    hashes = np.array([5, 2**31 + 5, padding, 2**32 - 1] if dtype == np.uint32 else [5, 2**32 + 5, padding, 2**62])
    q, k, v = operands()
    order = np.asarray([0, 2, 3, 1])
    q_ids, kv_ids = order[np.arange(SQ) // 10][None], order[np.arange(SKV) // 14]
    kv_ids = np.stack([kv_ids, kv_ids[::-1]])
    keep = q_ids[:, None, :, None] == kv_ids[:, None, None, :]
    keep &= (hashes >= 0)[q_ids][:, None, :, None]
    with jax.enable_x64(dtype != np.uint32):
        ids = [jnp.asarray(hashes[one].astype(dtype)) for one in (q_ids, kv_ids)]
        out = call(q, k, v, q_segment_ids=ids[0], kv_segment_ids=ids[1])
    want = emptied(plain(q, k, v, keep=keep)[0], jnp.broadcast_to(keep, (B, 1, SQ, SKV)))
    np.testing.assert_allclose(out, want, atol=2e-5, rtol=1e-5)


def test_lengths_of_a_padded_batch():
    ends_q, ends_k = jnp.asarray([0, 30, 30 + SQ]), jnp.asarray([0, 41, 41])
    q_ids = jnp.where(jnp.arange(SQ) < jnp.asarray([[30], [SQ]]), 0, -1)
    kv_ids = jnp.where(jnp.arange(SKV) < jnp.asarray([[41], [0]]), 0, -1)
    keep = keep_of(q_ids, kv_ids) & (KV_POSITIONS <= Q_POSITIONS)
    check(
        lambda q, k, v: flash_attention(q, k, v, None, ends_q, ends_k, causal=True),
        lambda q, k, v: emptied(plain(q, k, v, keep=keep)[0], keep),
        operands(),
    )
    own_q, own_k = SEGMENTS[:, :SQ], SEGMENTS
    both = keep_of(q_ids, kv_ids) & keep_of(own_q, own_k)
    got = flash_attention(
        *operands(), cum_seqlens_q=ends_q, cum_seqlens_k=ends_k, q_segment_ids=own_q, kv_segment_ids=own_k
    )
    assert jnp.array_equal(jnp.any(got != 0, axis=(2, 3)), both.any(-1)[:, 0])


def test_causal_from_the_bottom_right_and_windows_of_no_width():
    given = operands()
    keep = KV_POSITIONS <= Q_POSITIONS + SKV - SQ
    got = flash_attention(*given, causal="bottom_right")
    np.testing.assert_allclose(got, plain(*given, keep=keep)[0], atol=1e-5)
    own = flash_attention(*given, sliding_window=np.int64(0))
    np.testing.assert_allclose(own, jnp.repeat(given[2][:, :SQ], HQ // HKV, axis=2), atol=1e-6)
    all_kept = flash_attention(*given, sliding_window=np.asarray([1 << 40, SKV]))
    known = jnp.asarray([3, 2])
    np.testing.assert_array_equal(
        jax.jit(lambda *qkv: flash_attention(*qkv, sliding_window=known))(*given),
        flash_attention(*given, sliding_window=(3, 2)),
    )
    np.testing.assert_allclose(all_kept, plain(*given)[0], atol=1e-5)
    far = Q_POSITIONS + SKV - SQ - KV_POSITIONS
    keep = (far >= 0) & (far <= 6)
    got = flash_attention(*given, causal="bottom_right", sliding_window=(6, 3))
    np.testing.assert_allclose(got, plain(*given, keep=keep)[0], atol=1e-5)


def test_windows_of_one_side():
    given = operands()
    for window, keep in (
        ((7, None), KV_POSITIONS >= Q_POSITIONS - 7),
        ((None, 2), KV_POSITIONS <= Q_POSITIONS + 2),
        ([None, None], KV_POSITIONS >= 0),
    ):
        got = flash_attention(*given, sliding_window=window)
        np.testing.assert_allclose(got, plain(*given, keep=keep)[0], atol=1e-5)
    got = flash_attention(*given, causal="bottom_right", sliding_window=(6, None))
    far = Q_POSITIONS + SKV - SQ - KV_POSITIONS
    np.testing.assert_allclose(got, plain(*given, keep=(far >= 0) & (far <= 6))[0], atol=1e-5)


def test_sinks_of_16_bits():
    for dtype in (jnp.bfloat16, jnp.float16):
        check(
            lambda q, k, v, sinks: flash_attention(q, k, v, None, None, None, sinks),
            lambda q, k, v, sinks: plain(q, k, v, sinks=sinks.astype(jnp.float32))[0],
            (*operands(), normal(HQ, 2, dtype=dtype)),
            tolerance=1e-2,
        )


def test_packed_sequences():
    q, k, v = (x[:1] for x in operands())
    ends_q, ends_k = jnp.asarray([0, 10, 11, SQ]), jnp.asarray([0, 20, 33, SKV])
    of_q = jnp.searchsorted(ends_q, Q_POSITIONS, side="right")
    of_k = jnp.searchsorted(ends_k, KV_POSITIONS, side="right")
    inner = (Q_POSITIONS - ends_q[of_q - 1]) >= (KV_POSITIONS - ends_k[of_k - 1])
    check(
        lambda q, k, v: flash_attention(q, k, v, cum_seqlens_q=ends_q, cum_seqlens_k=ends_k, causal=True),
        lambda q, k, v: plain(q, k, v, keep=(of_q == of_k) & inner)[0],
        (q, k, v),
    )


def test_unnormalized_and_rounded_logits():
    q, k, v = operands()
    out = flash_attention(q, k, v, normalize_output=False)
    np.testing.assert_allclose(out, plain(q, k, v, normalize=False)[0], atol=1e-4)
    precise = flash_attention(q, k, v, precision=jax.lax.Precision.HIGHEST)
    np.testing.assert_array_equal(precise, flash_attention(q, k, v))
    rounded = flash_attention(q, k, v, logits_dtype=jnp.bfloat16)
    np.testing.assert_allclose(rounded, plain(q, k, v)[0], atol=2e-2)
    assert not np.allclose(rounded, plain(q, k, v)[0], atol=1e-5)


def test_dropout():
    """A value of ones shows which keys are dropped; the expected results follow from that."""
    q, k, v = operands()
    seed = jax.random.key(3)

    def of(q, k, v, seed=seed):
        return flash_attention(q, k, v, dropout_prob=0.4, dropout_seed=seed)

    one_hot = jnp.broadcast_to(jnp.eye(SKV)[None, :, None], (B, SKV, HKV, SKV))
    kept = jnp.moveaxis(of(q, k, one_hot), 1, 2) > 0  # [batch, heads, q_len, kv_len]
    assert 0.55 < kept.mean() < 0.65

    def expected(q, k, v):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        k, v = (jnp.repeat(x, HQ // HKV, axis=2) for x in (k, v))
        p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
        return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(kept, p / 0.6, 0), v)

    check(of, expected, (q, k, v))
    assert jnp.array_equal(of(q, k, v), of(q, k, v, jax.random.key_data(seed)))
    assert not jnp.array_equal(of(q, k, v), of(q, k, v, 4))
    traced = []

    @jax.jit
    def compiled(seed):
        traced.append(seed)
        return of(q, k, v, seed)

    compiled(jax.random.key(5)), compiled(jax.random.key(6))
    assert len(traced) == 1  # a seed is an operand


def test_seeds():
    given = operands()

    def of(seed, **arguments):
        return flash_attention(*given, dropout_prob=0.5, dropout_seed=seed, **arguments)

    traced = jax.jit(of)
    for seed in (7, -7):
        for one in (np.int64(seed), np.int16(seed), jnp.int32(seed)):
            assert jnp.array_equal(of(one), of(seed))
            assert jnp.array_equal(traced(one), of(seed))
    assert not jnp.array_equal(of(7), of(-7))
    assert jnp.array_equal(of((1 << 64) - 7), of(-7))
    for first, second in (
        (jax.random.key(1, impl="rbg"), jax.random.key(2, impl="rbg")),
        (jax.random.key_data(jax.random.key(1, impl="rbg")), jax.random.key(2, impl="unsafe_rbg")),
    ):
        assert jnp.array_equal(traced(first), of(first))
        assert not jnp.array_equal(of(first), of(second))


@pytest.mark.parametrize(
    "precision",
    [
        "highest", "fastest", jax.lax.Precision.DEFAULT, ("high", jax.lax.Precision.HIGH), "BF16_BF16_F32",
        jax.lax.DotAlgorithmPreset.TF32_TF32_F32,
    ],
)  # fmt: skip
def test_precisions(precision):
    assert flash_attention(*operands(), precision=precision).dtype == jnp.float32


def test_gradients_may_have_other_bits_if_that_is_asked_for():
    given = operands()
    free = functools.partial(flash_attention, deterministic_gradients=False)
    check(free, lambda q, k, v: plain(q, k, v)[0], given)

    def program(attend):
        return jax.jit(jax.grad(lambda q, k, v: attend(q, k, v).sum())).lower(*given).as_text()

    assert "nondeterministic" in program(free) and "nondeterministic" not in program(flash_attention)


def test_what_flax_passes():
    """The keywords that linen and nnx pass; linen drops those that a function does not declare."""
    given = operands()
    table = jnp.asarray(np.random.default_rng(4).random((B, 1, SQ, SKV)) < 0.6).at[..., 0].set(True)
    words = {"mask": table.astype(jnp.float32), "dropout_rng": jax.random.key(0), "dropout_rate": 0.3}
    words |= {"broadcast_dropout": True, "dtype": jnp.bfloat16, "precision": None, "module": None}
    still = flash_attention(*given, **words, deterministic=True)
    assert still.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(still), plain(*given, keep=table)[0], atol=3e-2)
    dropped = flash_attention(*given, **words, deterministic=False)
    same = flash_attention(
        *(x.astype(jnp.bfloat16) for x in given), attention_mask=table, dropout_prob=0.3, dropout_seed=jax.random.key(0)
    )
    assert jnp.array_equal(dropped, same) and not jnp.array_equal(dropped, still)
    jitted = jax.jit(lambda mask: flash_attention(*given, mask=mask))(table.astype(jnp.float32))
    np.testing.assert_allclose(jitted, plain(*given, keep=table)[0], atol=1e-5)


def test_under_vmap_and_remat():
    q, k, v = operands()

    def loss(q, k, v):
        return flash_attention(q, k, v, causal=True).sum()

    batched = jax.vmap(jax.grad(loss))(*(x[:, None] for x in (q, k, v)))
    np.testing.assert_allclose(batched[:, 0], jax.grad(loss)(q, k, v), atol=1e-5)
    np.testing.assert_array_equal(jax.grad(jax.checkpoint(loss))(q, k, v), jax.grad(loss)(q, k, v))


SHARDED = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from flashlift.jax import MaskInfo, dot_product_attention, flash_attention

rng = np.random.default_rng(0)
q, k, v = (jnp.asarray(rng.standard_normal((4, 40, 4, 16)), jnp.float32) for _ in range(3))
bias, sinks = jnp.asarray(rng.standard_normal((1, 4, 40, 40)), jnp.float32), jnp.ones((4, 1))
segments = jnp.sort(jnp.asarray(rng.integers(-1, 3, (4, 40)), jnp.int32))
specs = *[P("data", None, "model")] * 3, P(None, "model"), P("model"), P("data")
operands = q, k, v, bias, sinks, segments

def attend(q, k, v, bias, sinks, segments):
    out, lse = flash_attention(q, k, v, bias, softmax_aux=sinks, q_segment_ids=segments, causal=True, return_lse=True)
    return out + jnp.moveaxis(lse, 1, 2)[..., None]

def loss(function, *operands):
    return (function(*operands) ** 2).sum()

def gradient_of(function):
    return jax.grad(functools.partial(loss, function), argnums=range(5))

def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
"""

SHARDED_BY_HAND = """
for kind in AxisType.Auto, AxisType.Explicit:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        for checks in {}, {"check_vma": False}:
            sharded = jax.shard_map(attend, in_specs=specs, out_specs=specs[0], **checks)
            placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs)]
            assert_close(jax.jit(sharded)(*placed), attend(*operands))
            gradient = jax.jit(gradient_of(sharded))
            assert "all-gather" not in gradient.lower(*placed).compile().as_text()
            assert_close(gradient(*placed), gradient_of(attend)(*operands))
            if not checks:
                assert_close(sharded(*placed), attend(*operands))
                assert_close(gradient_of(sharded)(*placed), gradient_of(attend)(*operands))
        theirs = jax.shard_map(
            functools.partial(dot_product_attention, is_causal=True), in_specs=specs[:3], out_specs=specs[0]
        )
        assert_close(theirs(*placed[:3]), jax.nn.dot_product_attention(q, k, v, is_causal=True))
print("agree")
"""


SHARDED_BY_TYPE = """
import flashlift

def refused(message, *operands, **arguments):
    try:
        flash_attention(*operands, **arguments)
    except flashlift.UnsupportedError as error:
        assert message in str(error), error
    else:
        assert False, message

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs)]
assert_close(attend(*placed), attend(*operands))
with jax.set_mesh(mesh):
    for given in placed, [*placed[:3], *operands[3:]]:
        assert_close(attend(*given), attend(*operands))
        gradient = jax.jit(gradient_of(attend))
        # The gradient by an operand that no device holds a part of is whole, too.
        assert given is not placed or "all-gather" not in gradient.lower(*given).compile().as_text()
        assert_close(gradient(*given), gradient_of(attend)(*operands))
    types = [str(jax.typeof(one)) for one in gradient_of(attend)(*placed)]
    assert types == [str(jax.typeof(one)) for one in placed[:5]], types
    assert_close(flash_attention(*placed[:3]), flash_attention(q, k, v))
    one_head = [jax.device_put(x[:, :, :1], NamedSharding(mesh, P("data"))) for x in (k, v)]
    assert_close(flash_attention(placed[0], *one_head), flash_attention(q, k[:, :, :1], v[:, :, :1]))
    lengths = jnp.asarray([7, 40, 1, 30], jnp.int32)
    arguments = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    ours = dot_product_attention(*placed[:3], **arguments)
    assert_close(ours, jax.nn.dot_product_attention(q, k, v, **arguments))
    refused("split alike", placed[0], k, v)
    by_length = [jax.device_put(x, NamedSharding(mesh, P(None, "data"))) for x in (q, k, v)]
    refused("length and depth not at all", *by_length)
    dropped = functools.partial(flash_attention, causal=True, dropout_prob=0.5, dropout_seed=1)
    both = lambda *given: (dropped(*given), jax.grad(functools.partial(loss, dropped), argnums=range(3))(*given))
    assert_close(both(*placed[:3]), both(q, k, v))

    # What vmap maps over may be split: nothing is gathered, either.
    one = lambda *qkv: dot_product_attention(*qkv, is_causal=True)
    many = lambda *qkv: (jax.vmap(one)(*qkv), jax.grad(functools.partial(loss, jax.vmap(one)), argnums=range(3))(*qkv))
    for spec in P("data", None, "model"), P("data"), P(("data", "model")):
        split = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v)]
        assert "all-gather" not in jax.jit(many).lower(*split).compile().as_text()
        assert_close(many(*split), many(q, k, v))
        assert jax.typeof(jax.jit(many)(*split)[0]) == jax.typeof(split[0])

    # Functions read arrays of the mesh that are whole, and those that were split have gradients of their own types.
    slopes, table, ids = (jnp.asarray(rng.standard_normal(size), jnp.float32) for size in ((4,), (40, 40), (4, 40)))
    mods = lambda slopes, table, ids: {
        "score_mod": lambda s, b, h, i, j: s + slopes[h] * (i - j) + (2 * table)[i, j],
        "mask_mod": lambda b, h, i, j: (ids[b, j] < 1) | (i - j <= 4 + h),
    }
    whole = lambda tables: [jax.reshard(one, P()) for one in tables]
    read = lambda q, k, v, *tables: flash_attention(q, k, v, logits_soft_cap=5.0, **mods(*whole(tables)))
    both = lambda *given: (read(*given), jax.grad(functools.partial(loss, read), argnums=range(5))(*given))
    expected = both(q, k, v, slopes, table, ids)
    for of in (P("model"), P("data"), P("data")), (P(), P(), P()), (P(None), P(None, "model"), P()):
        tables = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip((slopes, table, ids), of)]
        for function in both, jax.jit(both):
            got = function(*placed[:3], *tables)
            assert_close(got, expected)
            assert [jax.typeof(x) for x in got[1]] == [jax.typeof(x) for x in (*placed[:3], *tables[:2])]
        # Those that are split are refused, where JAX does not itself find how to index them (0.12 does).
        try:
            got = flash_attention(*placed[:3], **mods(*tables))
        except flashlift.UnsupportedError as error:
            assert "expected a whole one: jax.reshard(array, jax.P())" in str(error), error
            assert any(any(jax.typeof(x).sharding.spec) for x in tables)
        else:
            assert_close(got, flash_attention(q, k, v, **mods(slopes, table, ids)))
    info = MaskInfo.from_segments(segments).apply_causal(jnp.asarray([1, 2, 0, 3]))
    of_mesh = MaskInfo.from_segments(placed[5]).apply_causal(jnp.asarray([1, 2, 0, 3]))
    near = functools.partial(flash_attention, mask_mod=lambda b, h, i, j: i - j <= 4 + h)
    assert_close(near(*placed[:3], mask_info=of_mesh), near(q, k, v, mask_info=info))
print("agree")
"""


def in_a_process_of_four_devices(program):
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "agree\n", done.stderr


def test_sharded_over_batch_and_heads():
    """Within shard_map, in the form that a user writes first, each device runs the kernel on its own batches and
    heads."""
    in_a_process_of_four_devices(SHARDED + SHARDED_BY_HAND)


def test_sharded_by_an_explicit_mesh():
    """Types define how operands are split: nothing is gathered, and users wrap nothing."""
    in_a_process_of_four_devices(SHARDED + SHARDED_BY_TYPE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"platform": "triton"}, 'platform is "triton"; expected "cpu", "cuda"'),
        ({"platform": "cuda"}, "JAX runs on cpu"),
        ({"bias": jnp.zeros((3, SQ, SKV))}, r"bias is \[3, 37, 53\], which does not broadcast to \[2, 6, 37, 53\]"),
        ({"bias": jnp.zeros((SQ, SKV), jnp.int32)}, "bias is int32; expected float32"),
        ({"sliding_window": (3, -1)}, "sliding_window is"),
        ({"logits_soft_cap": 0.0}, "expected a positive number"),
        ({"kv_segment_ids": SEGMENTS}, "only q_segment_ids may stand alone"),
        ({"q_segment_ids": SEGMENTS[:, :SQ]}, "for as many keys as queries"),
        ({"dropout_prob": 0.1}, "expected a dropout_seed"),
        ({"dropout_prob": 0.1, "dropout_seed": jnp.zeros(3)}, r"dropout_seed is float32\[3\]"),
        ({"logits_dtype": jnp.int8}, "logits_dtype is int8"),
        ({"empty_rows": "no"}, "empty_rows"),
        ({"deterministic_gradients": "no"}, "deterministic_gradients is 'no'"),
        ({"softmax_aux": jnp.zeros((3, 2))}, "sinks"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises((flashlift.FlashliftError, jax.errors.JaxRuntimeError), match=message):
        flash_attention(*operands(), **arguments)


def test_packed_sequences_that_a_jitted_call_does_not_have():
    q, k, v = (jnp.ones((1, 8, 2, 8)) for _ in range(3))
    run = jax.jit(lambda ends: flash_attention(q, k, v, cum_seqlens_q=ends, cum_seqlens_k=ends))
    assert run(jnp.asarray([0, 3, 8], jnp.int32)).shape == q.shape
    for ends in ([0, 9], [0, 5, 3], [1, 8]):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="`cu_seqlens_q`: element .* never decrease"):
            jax.block_until_ready(run(jnp.asarray(ends, jnp.int32)))
