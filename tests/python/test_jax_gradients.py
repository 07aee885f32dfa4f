"""Gradients of flashlift.jax.attention, compared with those of the same attention in jax.numpy."""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

RNG = np.random.default_rng(5)


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def plain(q, k, v, change=lambda s: s, sinks=None):
    """softmax(change(q kᵀ / sqrt(d))) v of [batch, length, heads, depth], and lse[batch, heads, length], in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = change(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]))
    all_logits = s
    if sinks is not None:
        all_logits = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, None], (*s.shape[:3], sinks.shape[-1]))], -1)
    lse = jax.scipy.special.logsumexp(all_logits, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - lse[..., None]), v), lse


def causal(s):
    return jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)


def assert_gradients(mine, theirs, operands, tolerance=2e-5):
    """Compares the gradients of a loss that weighs each element of each result differently."""

    def loss(function):
        def scalar(*operands):
            results = jax.tree.leaves(function(*operands))
            return sum(jnp.sum(jnp.cos(jnp.arange(x.size).reshape(x.shape)) * x.astype(jnp.float32)) for x in results)

        return jax.jit(jax.grad(scalar, argnums=tuple(range(len(operands)))))

    for got, expected in zip(loss(mine)(*operands), loss(theirs)(*operands), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        scale = max(1, float(jnp.max(jnp.abs(expected.astype(jnp.float32)))))
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(expected, np.float32), atol=tolerance * scale, rtol=tolerance
        )


def grouped(dtype=jnp.float32):
    return normal(2, 40, 6, 16, dtype=dtype), normal(2, 56, 2, 16, dtype=dtype), normal(2, 56, 2, 24, dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 1e-2), ("float16", 2e-3)])
def test_grouped_heads(dtype, tolerance):
    operands = grouped(dtype)
    assert_gradients(
        lambda q, k, v: flashlift.jax.attention(q, k, v),
        lambda q, k, v: plain(q, k, v)[0].astype(q.dtype),
        operands, tolerance,
    )  # fmt: skip


def test_through_lse_too():
    q, k, v = normal(1, 33, 2, 16), normal(1, 33, 2, 16), normal(1, 33, 2, 16)
    assert_gradients(
        lambda q, k, v: flashlift.jax.attention(q, k, v, "causal lse"),
        lambda q, k, v: plain(q, k, v, causal),
        (q, k, v),
    )
    assert_gradients(
        lambda q, k: flashlift.jax.attention(q, k, v, "lse causal")[1], lambda q, k: plain(q, k, v, causal)[1], (q, k)
    )


def test_captured_tensors_and_sinks():
    bias, sinks = normal(6, 40, 56), normal(6, 2)
    program = "score_mod(bias: f32[6,40,56]) { %0 = load bias[h, q, kv]; %1 = add score, %0; return %1 }"
    assert_gradients(
        lambda q, k, v, bias, sinks: flashlift.jax.attention(q, k, v, program, captures=[bias], sinks=sinks),
        lambda q, k, v, bias, sinks: plain(q, k, v, lambda s: s + bias, sinks)[0],
        (*grouped(), bias, sinks),
    )


def test_captured_integers_have_none():
    length = jnp.array([7, 50], jnp.int32)
    mask = "mask_mod(length: i32[2]) { %0 = load length[b]; %1 = lt kv, %0; return %1 }"

    def keep(s):
        return jnp.where(jnp.arange(56) < length[:, None, None, None], s, -jnp.inf)

    assert_gradients(
        lambda q, k, v: flashlift.jax.attention(q, k, v, mask, captures=[length]),
        lambda q, k, v: plain(q, k, v, keep)[0],
        grouped(),
    )


def test_only_what_is_asked_for():
    """Only requested gradients are computed: a bias that is given as data gets no gradient of its own size."""
    q, k, v = normal(1, 40, 2, 16), normal(1, 40, 2, 16), normal(1, 40, 2, 16)
    bias = normal(2, 40, 40)
    program = "score_mod(bias: f32[2,40,40]) { %0 = load bias[h, q, kv]; %1 = add score, %0; return %1 }"

    def loss(q):
        return flashlift.jax.attention(q, k, v, program, captures=[bias]).sum()

    text = jax.jit(jax.grad(loss)).lower(q).as_text()
    assert 'gradients = "0"' in text


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "shbd", "dbhs"])
def test_layouts(layout):
    order = ["bshd".index(letter) for letter in layout]
    back = [layout.index(letter) for letter in "bshd"]

    def mine(*operands):
        return flashlift.jax.attention(*(jnp.transpose(x, order) for x in operands), layout=layout).transpose(back)

    assert_gradients(mine, lambda q, k, v: plain(q, k, v)[0], grouped())


def test_transformations():
    q, k, v = normal(3, 1, 20, 2, 16), normal(3, 1, 20, 2, 16), normal(3, 1, 20, 2, 16)

    def loss(attend):
        return lambda q, k, v: jnp.sum(jnp.sin(attend(q, k, v)))

    mine = loss(lambda q, k, v: flashlift.jax.attention(q, k, v, "causal"))
    expected = jax.vmap(jax.grad(loss(lambda q, k, v: plain(q, k, v, causal)[0])))(q, k, v)
    for way in (mine, jax.jit(mine), jax.checkpoint(mine)):
        np.testing.assert_allclose(jax.vmap(jax.grad(way))(q, k, v), expected, atol=2e-5)

    def step(carry, one):
        return carry + mine(*one), None

    scanned = jax.grad(lambda q: jax.lax.scan(step, 0.0, (q, k, v))[0])(q)
    np.testing.assert_allclose(scanned, expected, atol=2e-5)


def test_an_output_of_its_own_type():
    operands = grouped("bfloat16")
    out = flashlift.jax.attention(*operands, "out=f32")
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, plain(*operands)[0], atol=2e-2)
    assert_gradients(
        lambda q, k, v: flashlift.jax.attention(q, k, v, "out=f32"), lambda q, k, v: plain(q, k, v)[0], operands, 1e-2
    )


def test_same_bits_each_time():
    operands = normal(1, 300, 4, 32), normal(1, 300, 4, 32), normal(1, 300, 4, 32)
    gradient = jax.jit(jax.grad(lambda q, k, v: flashlift.jax.attention(q, k, v, "causal").sum(), argnums=(0, 1, 2)))
    first = gradient(*operands)
    for _ in range(3):
        assert all(jnp.array_equal(a, b) for a, b in zip(first, gradient(*operands), strict=True))
