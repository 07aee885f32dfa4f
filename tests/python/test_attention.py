"""flashlift.compile: arrays of every library in, attention out, errors as exceptions."""

import flashlift
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
    assert attention.workspace_bytes(2) > 0
    assert flashlift.compile(attention.problem).problem == attention.problem
    again = flashlift.compile(PROBLEM, implementation=attention.implementation)
    assert again.implementation == attention.implementation


@pytest.mark.parametrize(
    ("problem", "options", "kind", "words"),
    [
        ("attn b2", {}, flashlift.InvalidArgumentError, "h<N>"),
        ("attn h1 s1 d4 f32", {"device": "tpu"}, flashlift.InvalidArgumentError, 'expected "cpu"'),
        ("attn h1 s1 d4 f32", {"implementation": "fastest"}, flashlift.UnsupportedError, "asked for by name"),
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


def test_refuses_to_write_where_it_must_not():
    out = np.zeros_like(Q)
    out.flags.writeable = False
    with pytest.raises(flashlift.InvalidArgumentError, match="must not be written"):
        flashlift.compile(PROBLEM).bind(Q, K, V, out)


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
