"""The named features of a problem, compared with the same computation in numpy."""

import flashlift
import numpy as np
import pytest
import reference

RNG = np.random.default_rng(11)
Q = RNG.normal(size=(2, 4, 24, 16)).astype(np.float32)
K, V = (RNG.normal(size=(2, 2, 40, 16)).astype(np.float32) for _ in range(2))
SHAPE = "attn b2 hq4 hkv2 sq24 skv40 d16"
ROWS, COLUMNS = np.arange(24)[:, None], np.arange(40)


def check(features, captures, mask=None, bias=None, q=Q, k=K, v=V, shape=SHAPE, **more):
    attention = flashlift.compile(f"{shape} {features}")
    out = attention(q, k, v, captures=captures, **more)
    np.testing.assert_allclose(out, reference.attention(q, k, v, mask=mask, bias=bias)[0], atol=2e-6)


def test_segment_ids():
    q_segments = np.repeat(np.int32([0, 1, 2]), 8)[None].repeat(2, axis=0)
    kv_segments = np.repeat(np.int32([0, 1, 2, 3]), 10)[None]  # one for both batches
    captures = {"q_segments": q_segments, "kv_segments": kv_segments}
    check("segment_ids", captures, mask=(q_segments[:, :, None] == kv_segments[:, None])[:, None])


def test_key_lengths():
    lengths = np.int32([7, 33])
    check("key_lengths", {"key_lengths": lengths}, mask=(lengths[:, None] > COLUMNS)[:, None, None])


@pytest.mark.parametrize(
    ("features", "diagonal", "keeps"),
    [
        ("dilated=3", 0, lambda distance: distance % 3 == 0),
        ("dilated=4 causal", 0, lambda distance: (distance % 4 == 0) & (distance <= 0)),
        ("dilated=4 causal=bottom_right", 16, lambda distance: (distance % 4 == 0) & (distance <= 0)),
        ("dilated=2 window=6,5", 0, lambda distance: (distance % 2 == 0) & (distance >= -6) & (distance <= 5)),
        ("dilated=5 prefix=2", 0, lambda distance: (distance % 5 == 0) | (COLUMNS < 2)),
        ("dilated=1", 0, lambda distance: distance == distance),
        ("dilated=1000", 0, lambda distance: distance == 0),
    ],
)
def test_dilated(features, diagonal, keeps):
    check(features, {}, mask=keeps(COLUMNS - (ROWS + diagonal)))


@pytest.mark.parametrize("kv_len", [40, 39, 13, 4, 1])
def test_documents_have_the_length_of_the_call(kv_len):
    """Not that of the problem, which has 40 keys."""
    size = -(-kv_len // 4)
    mask = ROWS // size == COLUMNS[:kv_len] // size
    out = flashlift.compile(f"{SHAPE} documents=4")(Q, K[:, :, :kv_len], V[:, :, :kv_len])
    seen = mask.any(axis=1)
    expected, _ = reference.attention(Q[:, :, seen], K[:, :, :kv_len], V[:, :, :kv_len], mask=mask[seen])
    np.testing.assert_allclose(out[:, :, seen], expected, atol=2e-6)
    assert not out[:, :, ~seen].any()


@pytest.mark.parametrize("shape", [(2, 4, 24, 40), (1, 1, 24, 40), (2, 1, 1, 40)])
def test_mask_and_bias_broadcast(shape):
    mask = RNG.random(shape) < 0.7
    mask[..., 0] = True
    bias = RNG.normal(size=shape).astype(np.float32)
    check("mask=bool bias=f32", {"mask": mask, "bias": bias}, mask=mask, bias=bias)


@pytest.mark.parametrize("alignment", ["", "causal", "causal=bottom_right", "dilated=3 window=7 prefix=1"])
def test_cumulative_lengths_are_the_sequences_alone(alignment):
    """Packed sequences give the same results as each sequence alone."""
    cu_q, cu_kv = np.int32([0, 5, 5, 24]), np.int32([0, 12, 13, 40])
    q, k, v = Q[:1], K[:1], V[:1]
    packed = flashlift.compile(f"attn hq4 hkv2 sq24 skv40 d16 cu_seqlens {alignment}")
    out = packed(q, k, v, captures={"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv})
    for i in range(3):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_kv[i], cu_kv[i + 1])
        alone = flashlift.compile(
            f"attn hq4 hkv2 sq{cu_q[i + 1] - cu_q[i]} skv{cu_kv[i + 1] - cu_kv[i]} d16 {alignment}"
        )
        expected = alone(*(np.ascontiguousarray(x) for x in (q[:, :, rows], k[:, :, keys], v[:, :, keys])))
        np.testing.assert_allclose(out[:, :, rows], expected, atol=2e-6)


def test_gradients_of_packed_sequences():
    cu = np.int32([0, 9, 24])
    q, k, v, d_out = RNG.normal(size=(4, 1, 2, 24, 16)).astype(np.float32)
    captures = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu}
    packed = flashlift.compile("attn h2 s24 d16 lse cu_seqlens causal")
    out, lse = packed(q, k, v, captures=captures)
    gradients = packed.backward(q, k, v, out, d_out, captures=captures, lse=lse)
    for begin, end in ((0, 9), (9, 24)):
        alone = flashlift.compile(f"attn h2 s{end - begin} d16 lse causal")
        part = [np.ascontiguousarray(x[:, :, begin:end]) for x in (q, k, v, out, d_out)]
        expected = alone.backward(*part, lse=np.ascontiguousarray(lse[:, :, begin:end]))
        for name in "qkv":
            np.testing.assert_allclose(getattr(gradients, name)[:, :, begin:end], getattr(expected, name), atol=1e-5)


def test_pages_are_the_keys_they_name():
    pages_of = np.int32([[3, 0, 4, 1], [2, 2, 5, 0]])
    k_pages, v_pages = (RNG.normal(size=(6, 2, 10, 16)).astype(np.float32) for _ in range(2))
    k, v = (np.concatenate(list(x[pages_of].swapaxes(0, 1)), axis=2) for x in (k_pages, v_pages))
    attention = flashlift.compile(f"{SHAPE} page_size=10")
    out = attention(Q, k_pages, v_pages, page_table=pages_of)
    np.testing.assert_allclose(out, reference.attention(Q, k, v)[0], atol=2e-6)


def test_row_maxima_and_shared_sinks():
    attention = flashlift.compile(f"{SHAPE} row_max lse sinks=2")
    sinks = np.float32([0.5, -1.0])
    out, lse, row_max = attention(Q, K, V, sinks=sinks)
    scores = Q @ np.repeat(K, 2, axis=1).swapaxes(2, 3) / 4
    np.testing.assert_allclose(row_max, scores.max(axis=3), atol=2e-6)
    same = attention(Q, K, V, sinks=np.tile(sinks, (4, 1)))
    assert np.array_equal(out, same[0])
    total = np.exp(scores).sum(axis=3) + np.exp(sinks).sum()
    np.testing.assert_allclose(lse, np.log(total), atol=4e-6)


def test_dropout_is_a_function_of_its_seed():
    attention = flashlift.compile(f"{SHAPE} dropout=0.5")
    first = attention(Q, K, V, dropout_seed=3)
    assert np.array_equal(first, attention(Q, K, V, dropout_seed=3))
    assert not np.array_equal(first, attention(Q, K, V, dropout_seed=4))
    assert attention(Q, K, V, dropout_seed=2**64 - 1).shape == first.shape
    assert np.array_equal(attention(Q, K, V), attention(Q, K, V, dropout_seed=0))
    for seed in (-1, 2**64, 1.5):
        with pytest.raises(flashlift.InvalidArgumentError, match=f"dropout_seed is {seed}; expected a whole"):
            attention(Q, K, V, dropout_seed=seed)


@pytest.mark.parametrize(
    ("words", "given", "reason"),
    [
        ("", {}, "no dropout"),
        ("dropout=0.5 keep_mask", {"keep_mask": np.ones((1, 1, 1, 1), bool)}, "a keep_mask"),
        ("dropout=0.5 dropout_words", {"dropout_words": np.zeros(2, np.uint32)}, "dropout_words"),
    ],
)
def test_a_seed_without_an_effect_is_an_error(words, given, reason):
    attention = flashlift.compile(f"{SHAPE} {words}")
    with pytest.raises(flashlift.InvalidArgumentError, match=f"dropout_seed is 0, but the problem has {reason}; leave"):
        attention(Q, K, V, dropout_seed=0, **given)
    assert attention(Q, K, V, **given).shape == Q.shape


@pytest.mark.parametrize(
    ("features", "captures", "message"),
    [
        ("mask=bool", {"mask": np.ones((1, 1, 24, 39), bool)}, r"expected bool\[1,1,24,40\]"),
        ("key_lengths", {"key_lengths": np.int32([1, 2, 3])}, r"expected i32\[2\], being \[1\|batch\], got i32\[3\]"),
        (
            "cu_seqlens",
            {"cu_seqlens_q": np.int32([0, 24]), "cu_seqlens_kv": np.int32([0, 20, 40])},
            r"`cu_seqlens_kv`: expected i32\[2\]",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_errors(features, captures, message):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        flashlift.compile(f"{SHAPE} {features}")(Q, K, V, captures=captures)


# What a GPU would take as the nearest that exists is refused on a CPU, where the contents can be read.
@pytest.mark.parametrize(
    ("lengths", "message"),
    [([0, 40], None), ([-1, 3], "element 0 is -1; expected 0 to 40"), ([3, 41], "element 1 is 41; expected 0 to 40")],
)
def test_key_lengths_beyond_the_keys(lengths, message):
    attention = flashlift.compile(f"{SHAPE} key_lengths lse")
    captures = {"key_lengths": np.int32(lengths)}
    if message is None:
        out, lse = attention(Q, K, V, captures=captures)
        assert attention.backward(Q, K, V, out, out, captures=captures, lse=lse).q.shape == Q.shape
        return
    with pytest.raises(flashlift.InvalidArgumentError, match=f"`key_lengths`: {message}, the number of keys"):
        attention(Q, K, V, captures=captures)
    out, lse = np.zeros_like(Q), np.zeros(Q.shape[:3], np.float32)
    with pytest.raises(flashlift.InvalidArgumentError, match=f"`key_lengths`: {message}, the number of keys"):
        attention.backward(Q, K, V, out, out, captures=captures, lse=lse)


@pytest.mark.parametrize(
    ("of_queries", "of_keys", "message"),
    [
        ([0, 9, 24], [0, 0, 40], None),
        ([0, 9, 20], [0, 9, 9], None),
        ([0, 9, 25], [0, 9, 40], "`cu_seqlens_q`: element 2 is 25; .* at most 24, the number of queries"),
        ([0, 9, 24], [0, 9, 41], "`cu_seqlens_kv`: element 2 is 41; .* at most 40, the number of keys"),
        ([1, 9, 24], [0, 9, 40], "`cu_seqlens_q`: element 0 is 1; expected numbers that begin with 0"),
        ([0, 9, 24], [0, 9, 8], "`cu_seqlens_kv`: element 2 is 8, after 9; .* never decrease"),
        ([0, -1, 24], [0, 9, 40], "`cu_seqlens_q`: element 1 is -1, after 0"),
        ([], [], "`cu_seqlens_q` is empty; expected the starts of sequences"),
    ],
    ids=str,
)
def test_sequences_that_are_none(of_queries, of_keys, message):
    packed = flashlift.compile("attn hq4 hkv2 sq24 skv40 d16 cu_seqlens")
    captures = {"cu_seqlens_q": np.int32(of_queries), "cu_seqlens_kv": np.int32(of_keys)}
    if message is None:
        assert packed(Q[:1], K[:1], V[:1], captures=captures).shape == Q[:1].shape
        return
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        packed(Q[:1], K[:1], V[:1], captures=captures)
