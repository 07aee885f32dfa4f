"""flashlift.compile: arrays of every library as inputs, the attention's results, and errors as exceptions."""

import copy
import pickle

import flashlift
import flashlift.stablehlo
import ml_dtypes
import numpy as np
import pytest
import reference
import torch

RNG = np.random.default_rng(7)
Q = RNG.normal(size=(2, 4, 33, 16)).astype(np.float32)
K, V = (RNG.normal(size=(2, 2, 33, 16)).astype(np.float32) for _ in range(2))
CAUSAL = np.tril(np.ones((33, 33), bool))
PROBLEM = "attn b2 hq4 hkv2 s33 d16 f32 causal"


def test_numpy():
    out = flashlift.compile(PROBLEM)(Q, K, V)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, reference.attention(Q, K, V, mask=CAUSAL)[0], atol=2e-6)


def test_arrays_of_other_libraries_and_other_strides():
    import jax.numpy as jnp

    attention = flashlift.compile(PROBLEM)
    expected = attention(Q, K, V)
    assert np.array_equal(attention(*(torch.tensor(x) for x in (Q, K, V))), expected)
    assert np.array_equal(attention(*(jnp.asarray(x) for x in (Q, K, V))), expected)
    bshd = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (Q, K, V)]
    assert np.array_equal(attention(*bshd), expected)


DEPTH_BY_KEYS, BATCH_LAST = (0, 1, 3, 2), (1, 2, 3, 0)  # the order of dimensions in memory


@pytest.mark.parametrize("order_of_k, order_of_v", [
    (DEPTH_BY_KEYS, (0, 1, 2, 3)), ((0, 1, 2, 3), DEPTH_BY_KEYS), (DEPTH_BY_KEYS, DEPTH_BY_KEYS),
    (BATCH_LAST, BATCH_LAST), (DEPTH_BY_KEYS[::-1], (3, 1, 2, 0)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_few_queries_with_keys_and_values_in_any_order(dtype, order_of_k, order_of_v):
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[np.dtype(dtype).name]
    k, v = (RNG.normal(size=(2, 2, 701, size)).astype(dtype) for size in (24, 13))
    v[:, :, 690:] = np.inf  # values of keys that the mask leaves out

    def stored(x, order):
        return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))

    for queries in (1, 3, 4):
        q = RNG.normal(size=(2, 4, queries, 24)).astype(dtype)
        mask = "mask_mod() { %0 = lt kv, 690; return %0 }"
        attention = flashlift.compile(f"attn b2 hq4 hkv2 sq{queries} skv701 dqk24 dv13 {name} {mask}")
        out = attention(q, stored(k, order_of_k), stored(v, order_of_v)).astype(np.float64)
        expected = reference.attention(q, k[:, :, :690], v[:, :, :690])[0]
        np.testing.assert_allclose(out, expected, atol=2e-6 if dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neighbouring_rows_without_keys_are_the_mean_of_the_values(dtype):
    """Also beside a row that is NaN, and with values in which neither keys nor depth are contiguous."""
    name = {"float32": "f32", "float16": "f16"}[np.dtype(dtype).name]
    keep = RNG.random((40, 33)) < 0.7
    keep[[3, 5, 6, 20, 39]] = False
    bias = np.where(np.arange(40)[:, None] == 4, np.nan, np.zeros(33)).astype(np.float32)
    q = RNG.normal(size=(2, 4, 40, 16)).astype(dtype)
    k = RNG.normal(size=(2, 2, 33, 16)).astype(dtype)
    v = RNG.normal(size=(33, 13, 2, 2)).astype(dtype).transpose(2, 3, 0, 1)
    programs = (
        "score_mod(bias: f32[40, 33]) { %0 = load bias[q, kv]; %1 = add score, %0; return %1 } "
        "mask_mod(keep: bool[40, 33]) { %0 = load keep[q, kv]; return %0 }"
    )
    attention = flashlift.compile(f"attn b2 hq4 hkv2 sq40 skv33 dqk16 dv13 {name} empty_rows=uniform {programs}")
    out = attention(q, k, v, captures={"bias": bias, "keep": keep}).astype(np.float64)
    with np.errstate(invalid="ignore"):  # rows without keys
        expected = reference.attention(q, k, v, mask=keep)[0]
    expected[:, :, ~keep.any(-1)] = np.repeat(v, 2, 1).mean(2, dtype=np.float64, keepdims=True)
    expected[:, :, 4] = np.nan
    np.testing.assert_allclose(out, expected, atol=2e-6 if dtype == np.float32 else 2e-3)


def test_bfloat16():
    attention = flashlift.compile(PROBLEM.replace("f32", "bf16"))
    narrow = [x.astype(ml_dtypes.bfloat16) for x in (Q, K, V)]
    out = attention(*narrow)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float32), reference.attention(*narrow, mask=CAUSAL)[0], atol=2e-2)
    from_torch = attention(*(torch.tensor(x).to(torch.bfloat16) for x in (Q, K, V)))
    assert np.array_equal(from_torch.view(np.uint16), out.view(np.uint16))


def test_lse_captures_and_sinks():
    program = "score_mod(table: f32[?]) { %0 = load table[kv]; %1 = add score, %0; return %1 }"
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 f32 sinks=1 lse {program}")
    assert attention.captures == ["table"]
    table = RNG.normal(size=33).astype(np.float32)
    sinks = np.full((4, 1), -np.inf, np.float32)  # a sink that takes nothing
    out, lse = attention(Q, K, V, captures={"table": table}, sinks=sinks)
    expected, expected_lse = reference.attention(Q, K, V, bias=table)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    np.testing.assert_allclose(lse, expected_lse, atol=4e-6)
    assert np.array_equal(attention(Q, K, V, captures=[table], sinks=sinks)[0], out)


def test_bind_writes_where_it_is_told():
    out = np.zeros((2, 33, 4, 16), np.float32)
    attention = flashlift.compile(PROBLEM)
    call = attention.bind(Q, K, V, out.swapaxes(1, 2))
    call()
    assert np.array_equal(out.swapaxes(1, 2), attention(Q, K, V))
    tensor = torch.zeros(2, 4, 33, 16)
    attention.bind(Q, K, V, tensor)()
    assert np.array_equal(tensor.numpy(), attention(Q, K, V))


def test_lengths_may_differ_from_the_problem():
    out = flashlift.compile("attn h4 s8 d16 f32")(Q, K.repeat(2, 1), V.repeat(2, 1))
    np.testing.assert_allclose(out, reference.attention(Q, K, V)[0], atol=2e-6)


def test_what_was_compiled_can_be_asked():
    attention = flashlift.compile(PROBLEM)
    assert attention.implementation and "mask_mod" in attention.problem
    assert any(line.startswith(f"{attention.implementation}: accepted: ") for line in attention.considerations)
    assert any(": accepted: " in line for line in attention.backward_considerations)
    assert attention.workspace_bytes(2) > 0
    for threads in (0, -1, 2**32 + 2, 1.5):
        with pytest.raises(flashlift.InvalidArgumentError, match="threads is"):
            attention.workspace_bytes(threads)
    assert flashlift.compile(attention.problem).problem == attention.problem
    again = flashlift.compile(PROBLEM, implementation=attention.implementation)
    assert again.implementation == attention.implementation


@pytest.mark.parametrize(
    ("problem", "options", "kind", "words"),
    [
        ("attn b2", {}, flashlift.InvalidArgumentError, "h<N>"),
        ("attn h1 s1 d4 f32", {"device": "tpu"}, flashlift.InvalidArgumentError, 'expected "cpu"'),
        (
            "attn h1 s1 d4 f32",
            {"implementation": "fastest"},
            flashlift.UnsupportedError,
            "no implementation named fastest",
        ),
    ],
)
def test_errors_of_compile(problem, options, kind, words):
    with pytest.raises(kind, match=words):
        flashlift.compile(problem, **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v": V[:, :1]}, "v: expected"),
        ({"k": K.astype(np.float16)}, "k: expected"),
        ({"q": Q[0]}, "4 dimensions"),
        ({"k": Q.astype(np.complex64)[:, :2]}, "element type complex64"),
        ({"k": "text"}, "k is a str"),
        ({"captures": [Q]}, "0 captured tensors"),
        ({"captures": {"table": Q}}, "table"),
    ],
)
def test_errors_of_a_call(change, words):
    with pytest.raises(flashlift.InvalidArgumentError, match=words):
        flashlift.compile(PROBLEM)(**({"q": Q, "k": K, "v": V} | change))


class Exports:
    """An object that exports any given capsule by DLPack."""

    shape = Q.shape

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule


def used_capsule():
    capsule = torch.zeros(Q.shape).__dlpack__()
    torch.utils.dlpack.from_dlpack(capsule)  # takes the tensor out of it
    return capsule


def unaligned():
    memory = np.zeros(Q.nbytes + 1, np.uint8)
    return memory[1:].view(np.float32).reshape(Q.shape)


def negated():
    return torch.view_as_complex(torch.zeros(*Q.shape, 2)).conj().imag


STRUCTURED = np.dtype([("re", np.float32)])


@pytest.mark.parametrize(
    ("q", "words"),
    [
        (Q.astype(">f4"), "byte order"),
        (Q.view(">f4"), "byte order"),
        (Q.astype(STRUCTURED), "element type"),
        (Q.astype(object), "element type object"),
        (Q.astype("U8"), "element type"),
        (Q.astype(np.int64).view("datetime64[s]"), "element type datetime64"),
        (Q.astype(ml_dtypes.float8_e4m3fn), "element type float8_e4m3fn"),
        (Q.astype(np.longdouble), "element type"),
        (Q.astype(bool), "q: expected f32"),
        (np.ma.masked_array(Q, Q > 0), "masked array"),
        (unaligned(), "multiple"),
        (np.lib.stride_tricks.as_strided(Q, strides=(1, 2, 3, 4)), "strides"),
        (Exports(object()), "expected a capsule"),
        (Exports(None), "expected a capsule"),
        (Exports(used_capsule()), "expected a capsule"),
        (torch.zeros(Q.shape, dtype=torch.complex64), "code 5"),
        (torch.zeros(Q.shape, dtype=torch.float8_e4m3fn), "element type|bits"),
        (torch.tensor(Q, requires_grad=True), "q cannot be read: .*detach"),
        (torch.empty(Q.shape, device="meta"), "q cannot be read: .* meta"),
        (torch.tensor(Q).to_sparse(), "q cannot be read: .* layout"),
        (None, "4 dimensions"),
        (3.0, "4 dimensions"),
        (list(Q), "4 dimensions"),
    ],
)
def test_refuses_arrays_that_it_would_misread(q, words):
    with pytest.raises(flashlift.InvalidArgumentError, match=words):
        flashlift.compile(PROBLEM)(q, K, V)


@pytest.mark.parametrize("captures", [3, "slopes", Q], ids=["number", "text", "array"])
def test_captures_that_are_no_collection(captures):
    with pytest.raises(flashlift.InvalidArgumentError, match="captures is a .*; expected arrays by name, or a list"):
        flashlift.compile(PROBLEM)(Q, K, V, captures=captures)


def test_reads_arrays_of_no_elements_and_of_unusual_kinds():
    attention = flashlift.compile(PROBLEM)
    expected = attention(Q, K, V)
    assert attention(Q[:, :, :0], K, V).shape == (2, 4, 0, 16)
    assert attention(Q[:0], K[:0], V[:0]).shape == (0, 4, 33, 16)
    assert np.array_equal(attention(Q[:, :, ::-1][:, :, ::-1], K, V), expected)
    assert np.array_equal(attention(np.broadcast_to(Q[:1], Q.shape), K, V)[0], expected[0])
    shown = Q.view()
    shown.flags.writeable = False
    assert np.array_equal(attention(shown, K, V), expected)
    negative = torch.complex(torch.zeros(Q.shape), torch.tensor(-Q)).conj().imag  # which torch's DLPack forgets
    assert negative.is_neg()
    assert np.array_equal(attention(negative, K, V), expected)


@pytest.mark.parametrize("text", ["attn h1 s8 d8\0 causal", "\0", "attn h1 s8 d8 causal\0"])
def test_refuses_texts_that_c_would_cut(text):
    with pytest.raises(flashlift.InvalidArgumentError, match="zero character"):
        flashlift.compile(text)
    with pytest.raises(flashlift.InvalidArgumentError, match="zero character"):
        flashlift.compile("attn h1 s8 d8", implementation=text)
    with pytest.raises(flashlift.InvalidArgumentError, match="zero character"):
        flashlift.stablehlo.fuse(text)
    with pytest.raises(flashlift.InvalidArgumentError, match="zero character"):
        flashlift.stablehlo.fuse("module {}", name=text)


@pytest.mark.parametrize("text", [b"attn h1 s8 d8", None, 3, "attn h1 s8 d8 \ud800"])
def test_refuses_what_is_no_text(text):
    with pytest.raises(flashlift.InvalidArgumentError, match="expected a str|not a text"):
        flashlift.compile(text)


@pytest.mark.parametrize(
    "device", ["", "cuda:", "cuda:-1", "cuda:4294967296", "cuda:\u00b2", "CPU", "cpu\n", "cuda:0:0"]
)
def test_refuses_devices_that_do_not_exist(device):
    with pytest.raises(flashlift.InvalidArgumentError, match='expected "cpu"'):
        flashlift.compile("attn h1 s8 d8", device=device)


def test_machine_code_is_not_copied():
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="compile that"):
            copied(flashlift.compile(PROBLEM))


def test_gradients_of_what_is_no_array_are_refused():
    with pytest.raises(flashlift.InvalidArgumentError, match="q is NoneType; expected an array"):
        flashlift.compile(PROBLEM).backward(None, K, V, Q, Q)


def test_refuses_to_write_where_it_must_not():
    import jax.numpy as jnp

    frozen = np.zeros_like(Q)
    frozen.flags.writeable = False
    attention = flashlift.compile(PROBLEM)
    for out in (frozen, jnp.zeros_like(Q)):
        with pytest.raises(flashlift.InvalidArgumentError, match="expected an array that may be written"):
            attention.bind(Q, K, V, out)
        with pytest.raises(flashlift.InvalidArgumentError, match="expected an array that may be written"):
            attention.bind_backward(Q, K, V, Q, Q, d_q=out)
    with pytest.raises(flashlift.InvalidArgumentError, match="expected an array that may be written"):
        attention.bind(Q, K, V, torch.complex(torch.zeros(Q.shape), torch.zeros(Q.shape)).conj().imag)
    for strides in ((*Q.strides[:3], 0), (*Q.strides[:2], 4, 4), (*Q.strides[:2], 60, 4)):
        folded = np.lib.stride_tricks.as_strided(np.zeros_like(Q), Q.shape, strides)
        with pytest.raises(flashlift.InvalidArgumentError, match="overlap"):
            attention.bind(Q, K, V, folded)()


def test_errors_are_what_python_users_expect():
    assert issubclass(flashlift.InvalidArgumentError, ValueError)
    assert issubclass(flashlift.UnsupportedError, NotImplementedError)


def test_dropout_is_a_function_of_the_seed():
    attention = flashlift.compile("attn b1 h2 s64 d16 dropout=0.5 row_max lse")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 64, 16), np.float32) for _ in range(3))
    out, lse, row_max = attention(q, k, v, dropout_seed=1)
    assert np.array_equal(out, attention(q, k, v, dropout_seed=1)[0])
    assert not np.array_equal(out, attention(q, k, v, dropout_seed=2)[0])
    scores = q @ k.transpose(0, 1, 3, 2) / 4
    np.testing.assert_allclose(row_max, scores.max(-1), rtol=1e-5)
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-5)


def test_dropout_leaves_out_the_keys_that_the_document_says():
    seed = 0x0123456789ABCDEF
    attention = flashlift.compile("attn b2 h3 sq5 skv150 dqk8 dv150 dropout=0.3")
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 5, 8), np.float32), rng.standard_normal((2, 3, 150, 8), np.float32)
    values = np.broadcast_to(np.eye(150, dtype=np.float32), (2, 3, 150, 150))
    probabilities = attention(q, k, values, dropout_seed=seed)
    kept = reference.dropout_keeps(0.3, seed, 2, 3, 5, 150)
    assert np.array_equal(probabilities > 0, kept)

    # The same seed in a tensor, the same keys by a mask, and the last batch and heads as a part of the whole.
    problem = "attn b2 h3 sq5 skv150 dqk8 dv150 dropout=0.3"
    words = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    by_words = flashlift.compile(problem + " dropout_words")
    assert np.array_equal(by_words(q, k, values, dropout_words=words), probabilities)
    by_mask = flashlift.compile(problem + " keep_mask")
    np.testing.assert_allclose(by_mask(q, k, values, keep_mask=kept), probabilities, rtol=1e-6)
    part = flashlift.compile("attn h2 sq5 skv150 dqk8 dv150 dropout=0.3 dropout_words")
    of_part = part(q[1:, 1:], k[1:, 1:], values[1:, 1:], dropout_words=np.append(words, np.array([1, 1], np.uint32)))
    assert np.array_equal(of_part > 0, kept[1:, 1:])
    for call, message in (
        (lambda: by_words(q, k, values), "the problem has dropout_words, but the call lacks them"),
        (lambda: attention(q, k, values, dropout_words=words), "the problem has no dropout_words, but the call gives"),
        (lambda: by_words(q, k, values, dropout_words=words[:1]), "dropout_words"),
        (lambda: by_words(q, k, values, dropout_words=np.repeat(words, 2)[::2]), "dropout_words has stride 2"),
        (lambda: flashlift.compile("attn h1 s8 d8 dropout_words keep_mask"), "but the problem uses a keep_mask"),
    ):
        with pytest.raises(flashlift.InvalidArgumentError, match=message):
            call()


@pytest.mark.parametrize("q_len", [1, 4, 64])
def test_long_sums_of_alike_values_are_exact(q_len):
    keys = 1 << 17
    token = np.random.default_rng(0).standard_normal((1, 1, 1, 32), np.float32)
    q, k = np.broadcast_to(token, (1, 1, q_len, 32)), np.broadcast_to(token, (1, 1, keys, 32))
    out = flashlift.compile(f"attn h1 sq{q_len} skv{keys} d32")(q, k, k)
    np.testing.assert_allclose(out, q, rtol=5e-6)
    pages = np.broadcast_to(token, (1, 1, 16, 32))
    paged = flashlift.compile(f"attn h1 sq{q_len} skv{keys} d32 page_size=16")
    np.testing.assert_array_equal(paged(q, pages, pages, page_table=np.zeros((1, keys // 16), np.int32)), out)


def test_pages_are_read_through_the_table():
    problem = "attn b2 hq4 hkv2 sq3 skv48 d16"
    lengths = "mask_mod(length: i32[2]) { %0 = load length[b]; %1 = lt kv, %0; return %1 }"
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 3, 16), np.float32)
    k_pages, v_pages = (rng.standard_normal((5, 2, 16, 16), np.float32) for _ in range(2))
    table = np.array([[3, 0, -1], [1, 4, 2]], np.int32)
    length = np.array([20, 48], np.int32)
    paged = flashlift.compile(f"{problem} page_size=16 {lengths}")
    out = paged(q, k_pages, v_pages, captures=[length], page_table=table)
    k, v = (np.concatenate([pages[table[:, i]] for i in range(3)], axis=2) for pages in (k_pages, v_pages))
    expected = flashlift.compile(f"{problem} {lengths}")(q, k, v, captures=[length])
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(flashlift.InvalidArgumentError, match="page table"):
        paged(q, k_pages, v_pages, captures=[length])
    with pytest.raises(flashlift.InvalidArgumentError, match="no page; expected one page or more, or .* width 0"):
        paged(q, k_pages[:0], v_pages[:0], captures=[length], page_table=table)
    assert (paged(q, k_pages[:0], v_pages[:0], captures=[length], page_table=table[:, :0]) == 0).all()


@pytest.mark.parametrize("queries", [1, 64])
def test_only_masks_hide_infinite_values(queries):
    """A probability of 0 does not: 0 times infinity is NaN, as in unfused maths, for any number of queries."""
    q = np.zeros((1, 1, queries, 8), np.float32)
    k, v = np.zeros((2, 1, 1, 8, 8), np.float32)
    q[..., 0], k[0, 0, 3, 0], v[0, 0, 3] = 1, -200, np.inf
    attention = flashlift.compile(f"attn h1 sq{queries} skv8 d8 scale=1 key_lengths")
    assert np.isnan(attention(q, k, v, captures=[np.int32([8])])).all()
    assert (attention(q, k, v, captures=[np.int32([3])]) == 0).all()


POSITIVE = "score_mod() { %0 = gt score, 0.0; %1 = select %0, score, -inf; return %1 }"


@pytest.mark.parametrize(
    ("words", "captures", "table", "wrong"),
    [
        ("", {}, [[0, 1, 2], [4, 4, 0]], None),
        ("", {}, [[0, 1, 2], [4, -1, 5]], r"\[1, 1\] is -1; expected 0 to 4"),
        ("key_lengths", {"key_lengths": np.int32([16, 33])}, [[0, -1, 99], [4, 4, 0]], None),
        ("key_lengths", {"key_lengths": np.int32([17, 33])}, [[0, -1, 99], [4, 4, 0]], r"\[0, 1\] is -1"),
        ("key_lengths", {"key_lengths": np.int32([0, 0])}, [[-1] * 3, [5] * 3], None),
        ("causal=bottom_right window=15,0", {}, [[-1, 1, 2], [99, 4, 0]], None),  # pages that a window has passed
        ("causal=bottom_right window=31,0", {}, [[-1, 1, 2], [99, 4, 0]], r"\[0, 0\] is -1"),
        # Heads alternate: that a page has no key is no matter of one comparison.
        ("mask_mod(m: bool[4,48]) { %0 = load m[h, kv]; return %0 }", "by_head", [[-1, 1, -1], [5, 4, 5]], None),
        ("mask_mod(m: bool[4,48]) { %0 = load m[h, kv]; return %0 }", "by_head", [[0, -1, 2], [1, 4, 5]], r"\[0, 1\]"),
        ("score_mod(m: f32[48]) { %0 = load m[kv]; return %0 }", "by_score", [[0, -1, -1], [1, 5, 5]], None),
        # A score of 0 would be masked, but others are not.
        (f"key_lengths {POSITIVE}", {"key_lengths": np.int32([17, 33])}, [[0, -1, 99], [4, 4, 0]], r"\[0, 1\] is -1"),
        (f"key_lengths {POSITIVE}", {"key_lengths": np.int32([16, 33])}, [[0, -1, 99], [4, 4, 0]], None),
    ],
    ids=str,
)
def test_pages_that_do_not_exist(words, captures, table, wrong):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 3, 16), np.float32)
    k_pages, v_pages = (rng.standard_normal((5, 2, 16, 16), np.float32) for _ in range(2))
    keys = np.arange(48)
    if captures == "by_head":
        captures = {"m": np.broadcast_to((keys >= 16) & (keys < 32), (4, 48)) & (np.arange(4)[:, None] % 2 == 1)}
    elif captures == "by_score":
        captures = {"m": np.where(keys < 16, 0, -np.inf).astype(np.float32)}
    paged = flashlift.compile(f"attn b2 hq4 hkv2 sq3 skv48 d16 page_size=16 {words}")
    call = lambda table: paged(q, k_pages, v_pages, captures=captures, page_table=np.int32(table))
    if wrong is None:
        np.testing.assert_array_equal(call(table), call(np.clip(table, 0, 4)))
        return
    with pytest.raises(flashlift.InvalidArgumentError, match=f"page_table: entry {wrong}.*its keys are not masked"):
        call(table)
    assert paged(q[:, :, :0], k_pages, v_pages, captures=captures, page_table=np.int32(table)).size == 0
