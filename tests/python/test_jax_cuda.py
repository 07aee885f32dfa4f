"""The custom call flashlift.attention on CUDA: in jitted functions, in loops, and within command buffers."""

import importlib.util
import os

import pytest

if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
    pytest.skip("needs a JAX built for CUDA", allow_module_level=True)

# Before JAX starts: custom calls too go into command buffers (CUDA graphs), however short these are.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
)

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import reference
from test_jax_gradients import assert_gradients, causal, grouped, plain

if jax.default_backend() != "gpu":
    pytest.skip("needs a CUDA device; this machine has none", allow_module_level=True)

RNG = np.random.default_rng(5)
BATCH, LENGTH, HEADS, KV_HEADS, DEPTH = 2, 300, 4, 2, 64
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
DOCUMENTS = (
    "mask_mod(ids: i32[2,?]) { %0 = load ids[b, q]; %1 = load ids[b, kv]; %2 = eq %0, %1; return %2 }",
    np.sort(RNG.integers(0, 4, (BATCH, LENGTH)), axis=1).astype(np.int32),
)
TOLERANCE = {jnp.float32: 4e-6, jnp.bfloat16: 2e-2, jnp.float16: 3e-3}


def draw(dtype, heads=HEADS):
    return jnp.asarray(RNG.normal(size=(BATCH, LENGTH, heads, DEPTH)), dtype)


def expected(q, k, v, mask=CAUSAL):
    q, k, v = (np.swapaxes(np.asarray(x, np.float64), 1, 2) for x in (q, k, v))
    return np.swapaxes(reference.attention(q, k, v, mask=mask)[0], 1, 2)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
def test_in_a_jitted_function(dtype):
    function = jax.jit(lambda q, k, v: flashlift.jax.attention(q, k, v, "causal") * 2)
    for _ in range(4):  # XLA records its graph in a later call than the first, and replays it with other buffers
        q, k, v = draw(dtype), draw(dtype, KV_HEADS), draw(dtype, KV_HEADS)
        out = np.asarray(function(q, k, v), np.float64)
        np.testing.assert_allclose(out, 2 * expected(q, k, v), atol=2 * TOLERANCE[dtype])


def test_captured_tensors_are_read_anew_in_every_replay():
    """The bounds of their blocks are computed on the device, inside the graph."""
    program, ids = DOCUMENTS
    function = jax.jit(lambda q, k, v, ids: flashlift.jax.attention(q, k, v, program, captures=[ids]) + 1)
    q, k, v = draw(jnp.bfloat16), draw(jnp.bfloat16, KV_HEADS), draw(jnp.bfloat16, KV_HEADS)
    for shift in range(5):
        moved = np.roll(ids, 31 * shift, axis=1)
        mask = (moved[:, :, None] == moved[:, None, :])[:, None]
        out = np.asarray(function(q, k, v, jnp.asarray(moved)), np.float64)
        np.testing.assert_allclose(out, expected(q, k, v, mask) + 1, atol=4e-2)


def test_in_a_loop():
    """One instance of the call, launched many times by one program."""
    q, k, v = draw(jnp.bfloat16), draw(jnp.bfloat16, KV_HEADS), draw(jnp.bfloat16, KV_HEADS)
    once = jax.jit(lambda x: flashlift.jax.attention(x, k, v, "causal lse")[0])
    looped = jax.jit(
        lambda x: jax.lax.fori_loop(0, 5, lambda _, y: flashlift.jax.attention(y, k, v, "causal lse")[0], x)
    )
    step = q
    for _ in range(5):
        step = once(step)
    for _ in range(3):
        assert jnp.array_equal(looped(q), step)


def test_a_fused_function():
    fused = flashlift.jax.fuse(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), strict=True)
    for _ in range(3):
        q, k, v = draw(jnp.bfloat16), draw(jnp.bfloat16, KV_HEADS), draw(jnp.bfloat16, KV_HEADS)
        out = np.asarray(fused(q, k, v), np.float64)
        np.testing.assert_allclose(out, expected(q, k, v), atol=TOLERANCE[jnp.bfloat16])
    assert fused.report.fused_count == 1


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 1e-2), ("float16", 2e-3)])
def test_gradients(dtype, tolerance):
    with jax.default_matmul_precision("highest"):
        assert_gradients(
            lambda q, k, v: flashlift.jax.attention(q, k, v, "causal lse"),
            lambda q, k, v: (plain(q, k, v, causal)[0].astype(q.dtype), plain(q, k, v, causal)[1]),
            grouped(dtype), tolerance,
        )  # fmt: skip


def test_dropout_with_a_seed_on_the_device():
    """The kernels read the seed on the device: a traced seed, another one in each replay."""
    q, k, v = draw(jnp.float32), draw(jnp.float32, KV_HEADS), draw(jnp.float32, KV_HEADS)

    @jax.jit
    def step(q, k, v, seed):
        def loss(v):
            out = flashlift.jax.flash_attention(q, k, v, causal=True, dropout_prob=0.25, dropout_seed=seed + 1)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)), out

        d_v, out = jax.grad(loss, has_aux=True)(v)
        return out, d_v

    scores = np.einsum("bqhd,bkhd->bhqk", np.float64(q), np.repeat(np.float64(k), HEADS // KV_HEADS, 2)) / DEPTH**0.5
    scores = np.where(CAUSAL, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    for seed in range(4):
        kept = reference.dropout_keeps(0.25, seed + 1, BATCH, HEADS, LENGTH, LENGTH)
        dropped = np.where(kept, weights / 0.75, 0)
        expected = np.einsum("bhqk,bkhd->bqhd", dropped, np.repeat(np.float64(v), HEADS // KV_HEADS, 2))
        out, d_v = step(q, k, v, jnp.uint32(seed))
        np.testing.assert_allclose(np.asarray(out), expected, atol=1e-5)
        d_out = np.cos(np.arange(expected.size)).reshape(expected.shape)
        by_head = np.einsum("bhqk,bqhd->bkhd", dropped, d_out)
        want = by_head.reshape(BATCH, LENGTH, KV_HEADS, -1, DEPTH).sum(3)
        np.testing.assert_allclose(np.asarray(d_v), want, atol=1e-4)


def test_the_gradient_of_a_fused_function():
    def loss(q, k, v):
        return jnp.sum(jax.nn.dot_product_attention(q, k, v, is_causal=True) ** 2)

    q, k, v = draw(jnp.float32), draw(jnp.float32, KV_HEADS), draw(jnp.float32, KV_HEADS)
    gradient = flashlift.jax.fuse(jax.grad(loss, argnums=(0, 1, 2)), strict=True)
    with jax.default_matmul_precision("highest"):
        theirs = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
        for _ in range(3):
            ours = gradient(q, k, v)
    assert gradient.report.fused_count == 1
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)
